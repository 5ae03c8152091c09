"""The anthropic package as it comes from the index, in front of models that speak chat completions and Messages."""

import anthropic
import pytest

TOOL = {"name": "weather", "description": "Now", "input_schema": {"type": "object", "properties": {}}}
QUESTION = {"role": "user", "content": "What is the weather?"}
#: a model that speaks chat completions, and one that speaks Messages
ARMS = ("arm/small", "arm/claude")


@pytest.fixture
def client(gateway):
    with anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key, timeout=60, max_retries=0) as made:
        yield made


def asked(client, **more):
    return client.messages.create(**({"model": "auto", "max_tokens": 99, "messages": [QUESTION]} | more))


@pytest.mark.parametrize("arm", ARMS)
def test_whole(client, gateway, arm):
    """A whole message has the answer, usage, ids, and the decision's facts."""
    reply = asked(client, model=arm, system="Be brief.", stop_sequences=["END"], metadata={"user_id": "u_session_s1"})
    assert isinstance(reply, anthropic.types.Message)
    assert reply.content[-1].text == gateway.answer
    assert (reply.stop_reason, reply.model) == ("end_turn", arm.replace("arm", "ragbandit"))
    assert reply.usage.output_tokens > 0
    assert reply._request_id
    kept = gateway.decision(reply.id)
    assert (kept["outcome"]["answer"], kept["session_id"]) == (gateway.answer, "s1")
    assert gateway.call("/v1/feedback", {"decision_id": reply.id, "rating": True})


@pytest.mark.parametrize("arm", ARMS)
def test_stream(client, gateway, arm):
    """The client joins the events of a stream to the answer."""
    with client.messages.stream(model=arm, max_tokens=99, messages=[QUESTION]) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == gateway.answer
    assert (final.stop_reason, final.content[-1].text) == ("end_turn", gateway.answer)
    assert final.usage.output_tokens > 0


@pytest.mark.parametrize("arm", ARMS)
def test_a_loop_of_tools(client, gateway, arm):
    """A call, its result with an image, the answer: two messages of one decision; thoughts go back with the call."""
    first = asked(client, model=arm, tools=[TOOL], tool_choice={"type": "any"})
    call = first.content[-1]
    assert (first.stop_reason, call.name, call.input) == ("tool_use", "weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sun"}]}
    turns = [QUESTION, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    with client.messages.stream(model=arm, max_tokens=99, messages=turns, tools=[TOOL]) as stream:
        second = stream.get_final_message()
    assert second.content[-1].text == gateway.answer
    assert gateway.decision(second.id)["request"]["tool_turn"]["first"] == first.id.removeprefix("msg_")


def test_thinking(client, gateway):
    """Thoughts and their signature come back whole and streamed, and go back as they came."""
    more = {"model": "arm/claude", "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
    first = asked(client, **more)
    assert (first.content[0].type, first.content[0].signature) == ("thinking", "EqQBCg==")
    with client.messages.stream(messages=[QUESTION], **more) as stream:
        streamed = stream.get_final_message().content
    assert (streamed[0], streamed[1].text) == (first.content[0], gateway.answer)
    turns = [QUESTION, {"role": "assistant", "content": first.content}, QUESTION]
    for arm in ARMS:
        assert asked(client, **more | {"model": arm, "messages": turns}).content[-1].text == gateway.answer


def test_models_and_counts(client):
    """The list of models, one model, and an estimate of tokens."""
    assert "auto" in [model.id for model in client.models.list()]
    assert client.models.retrieve("arm/claude").type == "model"
    counted = client.messages.count_tokens(model="auto", messages=[QUESTION], tools=[TOOL])
    assert counted.input_tokens > 10


def test_errors(client, gateway):
    """Errors are the client's own classes."""
    with pytest.raises(anthropic.NotFoundError, match="no model"):
        asked(client, model="claude_none")
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        asked(client, messages=[])
    with pytest.raises(anthropic.AuthenticationError):
        asked(client.with_options(api_key="rb_wrong"))
    bearer = client.with_options(api_key=None, auth_token=gateway.key)
    assert asked(bearer).content
