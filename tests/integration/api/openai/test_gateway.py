"""Chats that pass through to models: OpenAI's own client, a service, and models behind a scripted server."""

import json

import httpx
import openai
import pytest

from ragbandit import Client
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.additions import needs

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
#: what no arm but a model may lose
PARAMETERS = {"temperature": 0.3, "top_p": 0.9, "seed": 7, "stop": ["END"], "max_completion_tokens": 50}


def call(number, **arguments):
    function = {"name": "weather", "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def model(sent):
    """What the models reply: calls of tools until their results are there, and JSON where it is asked for."""
    last = sent["messages"][-1]
    if "broken" in str(last.get("content")):
        return Reply(status=400, text="Invalid schema for function 'weather'", code="invalid_function_parameters")
    if sent.get("tools") and (last["role"] == "user" or last["content"] == "again"):
        calls = [call(f"{sent['model']}_{len(sent['messages'])}_{number}", city=city) for number, city in TWO]
        return Reply(message={"tool_calls": calls, "reasoning_content": "I ask."}, finish="tool_calls")
    return Reply(text="It is sunny in Paris", changes={"usage": {"prompt_tokens_details": {"cached_tokens": 2}}})


TWO = list(enumerate(["Paris", "Oslo"]))


@pytest.fixture(scope="module")
def gateway(serve_module):
    """A service with two models and an arm that reads only questions, its client, and the models' server."""
    with ScriptedServer(model) as server:
        generator = {"name": "openai", "context_tokens": 4000, "openai": {"base_url": server.url}}
        large = generator | {"model": "large", "supports": ["tools", "json", "images", "logprobs"]}
        service = serve_module(
            inline=True,
            generator=generator | {"model": "small"},
            generators={"large": large},
            arms={
                "small": {"class": "model"},
                "large": {"class": "model", "generator": "large"},
                "recall": {"class": "no_retrieval"},
            },
        )
        url = f"{service.url}/v1"
        with (
            openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=30) as client,
            Client(service.url) as own,
        ):
            yield client, own, server
        service.close()


def user(*parts):
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": list(parts) or "The weather?"}]


def completed(client, *, model="auto", messages=None, **more):
    return client.chat.completions.create(model=model, messages=messages or user(), **more)


def explained(client, decision_id):
    """Why its arm was drawn, in sentences."""
    return httpx.get(f"{client.base_url}decisions/{decision_id}/explanation", timeout=30).json()["reasons"]


def last_sent(server):
    return server.requests[-1].body


def test_a_chat_goes_through_as_it_came(gateway):
    """Messages and parameters reach the model unchanged, and what it replies comes back with its usage."""
    client, own, server = gateway
    reply = completed(client, model="arm/large", messages=user(IMAGE, {"type": "text", "text": "Where?"}), **PARAMETERS)
    sent = last_sent(server)
    assert sent["messages"] == user(IMAGE, {"type": "text", "text": "Where?"})
    assert {name: sent.get(name) for name in PARAMETERS} == PARAMETERS
    assert reply.choices[0].message.content == "It is sunny in Paris"
    assert reply.usage.prompt_tokens_details.cached_tokens == 2
    kept = own.decision(reply.ragbandit["decision_id"])
    assert kept["question"] == "[image]\nWhere?"
    assert "ignored" not in kept["request"]


@needs("anthropic")
def test_a_model_shows_its_context_window(gateway):
    """A model has its context window under the names that clients read; `auto` has none if an arm takes any length."""
    client, _, _ = gateway
    models = {one.id: one.to_dict() for one in client.models.list()}
    windows = dict.fromkeys(("context_length", "context_window", "max_model_len"), 4000)
    assert models["arm/large"].items() >= windows.items()
    assert client.models.retrieve("arm/large").to_dict() == models["arm/large"]
    shown = httpx.get(f"{client.base_url}models", headers={"anthropic-version": "2023-06-01"}, timeout=30).json()[
        "data"
    ]
    assert {one["id"]: one.get("max_input_tokens") for one in shown}.items() >= {
        "arm/large": 4000,
        "auto": None,
    }.items()
    assert models["auto"].keys() & windows.keys() == models["arm/recall"].keys() & windows.keys() == set()


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_tools(gateway, stream):
    """Calls come back whole and streamed; arms without tools are not offered, and the row names them."""
    client, own, server = gateway
    if stream:
        with client.chat.completions.stream(model="auto", messages=user(), tools=[TOOL]) as events:
            reply = events.get_final_completion()
    else:
        reply = completed(client, tools=[TOOL], parallel_tool_calls=True)
    assert last_sent(server)["tools"] == [TOOL]
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert [json.loads(one.function.arguments)["city"] for one in choice.message.tool_calls] == ["Paris", "Oslo"]
    assert choice.message.reasoning_content == "I ask."
    assert not choice.message.content
    kept = own.decision(reply.id)
    assert set(kept["pmf"]) == {"small", "large"}
    assert kept["facts"]["lacking"] == {"recall": ["tools"]}
    assert kept["request"]["optional_needs"] == ["tools"]
    assert "what it cannot do: recall (tools)" in " ".join(explained(client, reply.id))


def test_a_loop_of_tools_is_one_decision(gateway):
    """The results go to the arm that asked, at no draw; costs and feedback are those of the first decision."""
    client, own, server = gateway
    question = user({"type": "text", "text": "Does it rain?"})  # the model's ids repeat: no other test asks the same
    first = completed(client, messages=question, tools=[TOOL])
    asked = first.choices[0].message
    results = [{"role": "tool", "tool_call_id": one.id, "content": "sun"} for one in asked.tool_calls]
    before = own.decision(first.id)
    second = completed(client, messages=[*question, asked, *results], tools=[TOOL])
    assert last_sent(server)["messages"][-1]["role"] == "tool"
    assert second.choices[0].message.content == "It is sunny in Paris"
    assert second.model == first.model
    turn, kept = own.decision(second.id), own.decision(first.id)
    first_id = first.id.removeprefix("chatcmpl-")
    assert turn["forced"] is True
    assert turn["request"]["tool_turn"] == {"first": first_id, "previous": first_id, "turn": 2}
    assert kept["outcome"]["answer"] == "It is sunny in Paris"
    for name in ("llm_calls", "prompt_tokens", "seconds_total"):
        assert kept["outcome"]["cost"][name] == pytest.approx(
            before["outcome"]["cost"][name] + turn["outcome"]["cost"][name]
        )
    rules = [event.get("rule") for event in kept["outcome"]["trace"]]
    assert rules.count("tool_turn") == 1
    reasons = " ".join(explained(client, second.id))
    assert f"Turn 2 of a loop of tools belongs to decision {first_id}" in reasons
    own.feedback(second.id, rating=True)
    assert len(own.decision(first.id)["feedback"]) == 1
    assert own.decision(second.id)["feedback"] == own.decision(first.id)["feedback"]


def test_log_probabilities(gateway):
    """Log-probabilities come whole and streamed, from the model that sends them."""
    client, _, _ = gateway
    whole = completed(client, logprobs=True)
    assert whole.model == "ragbandit/large"
    assert [one.token for one in whole.choices[0].logprobs.content] == ["It", " is", " sunny", " in", " Paris"]
    chunks = list(completed(client, logprobs=True, stream=True))
    told = [
        one.token for chunk in chunks for choice in chunk.choices if choice.logprobs for one in choice.logprobs.content
    ]
    assert told == ["It", " is", " sunny", " in", " Paris"]
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "It is sunny in Paris"


def test_what_no_arm_can_do(gateway):
    """A need that no arm meets is a 400 that names it and what the arms can do; a model's refusal is a 400, too."""
    client, _, _ = gateway
    audio = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    for more in ({"messages": user(audio)}, {"model": "arm/recall", "tools": [TOOL], "tool_choice": "required"}):
        with pytest.raises(openai.BadRequestError) as caught:
            completed(client, **more)
        assert "audio" in str(caught.value) or "tools" in str(caught.value)
        assert "recall: text" in str(caught.value)
    for text in ("word " * 4000, "\u4e2d\u6587" * 2500):  # 20,000 letters and spaces, or 5,000 Chinese characters
        with pytest.raises(openai.BadRequestError, match=r"prompt is too long: 50\d\d tokens > 4000 maximum") as caught:
            completed(client, model="arm/small", messages=[{"role": "user", "content": text}])
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.BadRequestError, match="Invalid schema for function"):
        completed(client, model="arm/small", messages=[{"role": "user", "content": "broken"}])


@needs("responses")
def test_responses(gateway):
    """The same through Open Responses: calls, their results in a response that goes on, images, events."""
    client, own, server = gateway
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
    first = client.responses.create(model="auto", input="The weather?", instructions="Be brief.", tools=[tool])
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(one.arguments)["city"] for one in calls] == ["Paris", "Oslo"]
    results = [{"type": "function_call_output", "call_id": one.call_id, "output": "sun"} for one in calls]
    second = client.responses.create(
        model="auto", previous_response_id=first.id, input=results, instructions="Be brief.", tools=[tool]
    )
    assert second.output_text == "It is sunny in Paris"
    assert [each["role"] for each in last_sent(server)["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert own.decision(second.id)["request"]["tool_turn"]["first"] == first.id
    third = client.responses.create(model="arm/small", previous_response_id=second.id, input="And now?")
    assert third.output_text == "It is sunny in Paris"
    assert [each["role"] for each in last_sent(server)["messages"]][-3:] == ["tool", "assistant", "user"]
    seen = {"role": "user", "content": [{"type": "input_image", "image_url": IMAGE["image_url"]["url"]}]}
    assert client.responses.create(model="auto", input=[seen]).model == "ragbandit/large"
    assert last_sent(server)["messages"][-1]["content"] == [IMAGE]
    with client.responses.stream(model="auto", input="The weather?", tools=[tool]) as events:
        kinds = [event.type for event in events]
        final = events.get_final_response()
    assert kinds.count("response.function_call_arguments.done") == 2
    assert [json.loads(one.arguments)["city"] for one in final.output if one.type == "function_call"] == [
        "Paris",
        "Oslo",
    ]


@needs("responses")
def test_an_agent_through_responses(gateway):
    """Tools of namespaces, items of other tools, references and images of earlier responses are what the model gets."""
    client, own, server = gateway
    space = {"type": "namespace", "name": "sky", "tools": [{"type": "function", "name": "weather", "parameters": {}}]}
    seen = {"role": "user", "content": [{"type": "input_image", "image_url": IMAGE["image_url"]["url"]}]}
    body = {"tools": [space, {"type": "web_search"}], "extra_body": {"top_k": 3}, "model": "arm/large"}
    first = client.responses.create(**body, input=[{"type": "mcp_list_tools", "tools": []}, seen])
    assert [tool["function"]["name"] for tool in last_sent(server)["tools"]] == ["sky__weather"]
    kept = own.decision(first.id)["request"]
    assert (kept["ignored"], kept["namespaces"]) == (["input.mcp_list_tools", "tools.web_search"], ["sky"])
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": one.call_id, "output": "sun"} for one in calls]
    references = [{"type": "item_reference", "id": one.id} for one in calls]
    client.responses.create(**body, input=[seen, {"id": "rs_x"}, *references, *results])
    *asked, called, _, _ = last_sent(server)["messages"]
    assert asked[0]["content"] == [IMAGE]
    assert [one["id"] for one in called["tool_calls"]] == [one.call_id for one in calls]
    on = client.responses.create(model="arm/large", previous_response_id=first.id, input=results)
    assert last_sent(server)["messages"][0]["content"] == [IMAGE]
    answered = {"id": on.output[-1].id}
    client.responses.create(model="arm/large", input=[{"role": "user", "content": "?"}, answered, seen])
    assert last_sent(server)["messages"][1] == {"role": "assistant", "content": "It is sunny in Paris"}


def test_chats_that_only_a_model_answers(gateway):
    """A chat without a question, with a begun answer or a part of another type is for a model, whole and long."""
    client, own, server = gateway
    video = {"type": "video_url", "video_url": {"url": "https://x.example/a.mp4"}}
    begun = [{"role": "user", "content": "Go on"}, {"role": "assistant", "content": "Well,"}]
    for messages in ([{"role": "system", "content": "A title?"}], begun, [{"role": "user", "content": [video]}]):
        reply = completed(client, messages=messages)
        assert last_sent(server)["messages"] == messages
        assert set(own.decision(reply.id)["facts"]["lacking"]) == {"recall"}
    with pytest.raises(openai.BadRequestError, match="it needs chat"):
        completed(client, model="arm/recall", messages=begun)


def test_bad_chats_are_refused(gateway):
    """NaN, endless nesting and wrong types are refused with 400; other values reach the model; nothing fails."""
    client, _, _ = gateway
    deep = "[" * 190 + "]" * 190
    deeper = "[" * 5000 + "]" * 5000
    bodies = {
        "half of a character": '{"model": "auto", "messages": [{"role": "user", "content": "?"}], "stop": ["\\ud800"]}',
        "not a number": '{"model": "auto", "messages": [{"role": "user", "content": "?"}], "temperature": NaN}',
        "deep": '{"model": "auto", "messages": [{"role": "user", "content": "?"}], "logit_bias": {"a": ' + deep + "}}",
        "deeper": '{"model": "auto", "messages": [{"role": "user", "content": "?"}], "logit_bias": ' + deeper + "}",
        "tools": '{"model": "auto", "messages": [{"role": "user", "content": "?"}], "tools": "weather"}',
        "call": '{"model": "auto", "messages": [{"role": "user", "content": "?"},'
        ' {"role": "assistant", "tool_calls": 5},'
        ' {"role": "tool", "tool_call_id": {"a": 1}, "content": [{"type": "text", "text": 7}]}]}',
    }
    url = str(client.base_url)
    for name, body in bodies.items():
        reply = httpx.post(
            f"{url}chat/completions", content=body, headers={"content-type": "application/json"}, timeout=30
        )
        good = name in ("half of a character", "deep", "call")
        assert reply.status_code == (200 if good else 400), (name, reply.status_code, reply.text[:300])
        assert good or reply.json()["error"]["message"], name


def test_a_large_image(gateway):
    """Three megabytes go through, and leave the queue with the answer."""
    client, _, server = gateway
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 3_000_000}"}}
    reply = completed(client, messages=user(image, {"type": "text", "text": "Where?"}))
    assert reply.model == "ragbandit/large"
    assert last_sent(server)["messages"][1]["content"][0] == image
