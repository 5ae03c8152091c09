"""The generator "openai": its requests, its reading of replies, and its checks at the start."""

import asyncio
import json
from dataclasses import replace

import pytest

from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.abilities import without_chat
from ragbandit.router.serving.setup.estimates import expected_dollars
from ragbandit.shared.dialects import registry
from ragbandit.shared.dialects.dialect import Dialect
from ragbandit.shared.dialects.registry import token_limits, with_token_limit
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.types import NO_CONVERSATION, Conversation, DecisionId, Query
from ragbandit.strategies.base import Generator, Need, Prompt, Request, Sampling
from ragbandit.strategies.generators.chat_generator import chat_body, not_passed
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator, with_options
from ragbandit.strategies.generators.parts import Token
from ragbandit.testing.openai_server import Reply, ScriptedServer
from ragbandit.workers.setup.generators import make_generator
from tests.support.examples import made_decision
from tests.support.servers.openai_calls import ask, sent, wait_until
from tests.support.servers.openai_settings import settings
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply

PREFIXED = Prompt(instructions="", body="Where is it?", prefix="It lies in")
LOGPROBS: frozenset[Need] = frozenset({"logprobs"})
#: a minute's patience for a loaded machine is no part of what is measured
pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("stream", [True, False])
def test_text_and_usage(stream):
    """Streamed or whole, the text and the server's count of tokens come back."""
    with ScriptedServer(["Paris, on the Seine."]) as server:
        done, _ = ask(server, stream=stream)
    assert (done.text, done.finish) == ("Paris, on the Seine.", "stop")
    assert (done.prompt_tokens, done.completion_tokens) == (8, 4)
    assert done.details == {}
    assert done.dollars == 0.0


def test_chat_request():
    """A chat is a system and a user message, greedy, with at most four of the stop strings."""
    with ScriptedServer(["Paris"]) as server:
        ask(server, seed=3, request={"stop": ("a!", "b!", "", "c!", "d!", "e!")})
        body = sent(server)
    assert body == {
        "model": "gpt",
        "messages": [
            {"role": "system", "content": "Answer shortly."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        "max_tokens": 24,
        "temperature": 0.0,
        "seed": 3,
        "stop": ["a!", "b!", "c!", "d!"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_sampling_fields_and_headers():
    """Sampling goes into the request with its own seed; a field set to null is left out, and headers are sent."""
    with ScriptedServer(["Paris"]) as server:
        ask(
            server,
            seed=3,
            max_tokens_field="max_completion_tokens",
            fields={"temperature": None, "reasoning_effort": "low"},
            headers={"X-Team": "blue"},
            request={"sampling": Sampling(temperature=0.7, seed=11, top_p=0.9, top_k=40)},
        )
        body, headers = sent(server), server.requests[0].headers
    assert "temperature" not in body
    assert "max_tokens" not in body
    assert (body["max_completion_tokens"], body["seed"], body["top_p"], body["top_k"]) == (24, 11, 0.9, 40)
    assert body["reasoning_effort"] == "low"
    assert headers["x-team"] == "blue"


def test_the_key_comes_from_the_environment(monkeypatch):
    """The key is read from the named variable and sent as a bearer token."""
    monkeypatch.setenv("BLUE_KEY", "secret-blue")
    with ScriptedServer(["Paris"]) as server:
        ask(server, api_key_env="BLUE_KEY")
        assert server.requests[0].headers["authorization"] == "Bearer secret-blue"


def test_prefix_in_the_user_turn():
    """Where a server cannot go on from a text, the prefix ends the user's turn, and a repetition is taken off."""
    with ScriptedServer(["It lies in the north of France.", "the north"]) as server:
        done, _ = ask(server, PREFIXED, logprobs=True, request={"want": LOGPROBS})
        messages = sent(server)["messages"]
    assert [message["role"] for message in messages] == ["user"]
    assert messages[0]["content"].endswith("\nIt lies in")
    assert done.text == " the north of France."
    assert "".join(token.text for token in done.details["logprobs"]) == done.text


@pytest.mark.parametrize("stream", [True, False])
def test_logprobs(stream):
    """Log-probabilities come back per token."""
    with ScriptedServer(["In Paris"]) as server:
        done, _ = ask(server, stream=stream, logprobs=True, request={"want": LOGPROBS})
    expected = [Token(text=text, logprob=-0.5) for text in ("In", " Paris")]
    assert list(done.details["logprobs"]) == expected


def test_disobedient_server():
    """Stop strings and the length are heeded here where the server does not, and the stream is left early."""
    endless = Reply(text="one two STOP " + "three " * 3000, obedient=False, part_s=0.001)
    with ScriptedServer({"": endless}) as server:
        done, _ = ask(server, request={"stop": ("STOP",)})
        cut, _ = ask(server, max_tokens=10)
        wait_until(lambda: server.abandoned == 2)
    assert (done.text, done.finish) == ("one two ", "stop")
    assert cut.finish == "length"
    assert len(cut.text.split()) < 100


@pytest.mark.parametrize("stream", [True, False])
def test_cached_tokens_cost_what_cached_tokens_cost(stream):
    """The server's counts of cached and reasoning tokens are in the completion and in its dollars."""
    details = {
        "prompt_tokens_details": {"cached_tokens": 6},
        "cache_creation_input_tokens": 1,
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    prices = {"gpt": (10.0, 20.0, 1.0, 12.5, 30.0)}
    with ScriptedServer([Reply(text="Paris it is", changes={"usage": details})]) as server:
        done, _ = ask(server, token_prices=prices, stream=stream)
    assert (done.cached_tokens, done.cache_write_tokens, done.reasoning_tokens) == (6, 1, 2)
    assert done.dollars == pytest.approx((1 * 10.0 + 6 * 1.0 + 1 * 12.5 + 1 * 20.0 + 2 * 30.0) / 1e6)


CHAT = {"id": "1", "object": "chat.completion", "created": 1, "model": "gpt"}
COUNTS = {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("usage", "more", "headers", "dollars"),
    [
        ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.02}}, {}, {}, 0.021),
        ({"cost_in_usd_ticks": 37756000}, {}, {}, 0.0037756),
        ({}, {"x_nanogpt_pricing": {"amount": "0.0123", "currency": "USD"}}, {}, 0.0123),
        ({}, {}, {"X-LiteLLM-Response-Cost": "0.0123"}, 0.0123),
        ({}, {}, {"x-litellm-response-cost": "None"}, 12 * 1e-6),
        ({"cost": 0.5}, {}, {"x-litellm-response-cost": "0.0123"}, 12 * 1e-6),
    ],
    ids=["own key", "ticks", "reply", "header", "no number", "implausible"],
)
def test_a_price_that_the_server_tells_is_charged(stream, usage, more, headers, dollars):
    """Usage, reply and headers contain it, whole and streamed; it wins over the list up to 100 times the list."""
    price = 1.0 if dollars == 12 * 1e-6 else 1000.0
    part = {"message": {"role": "assistant", "content": "Paris"}, "index": 0, "finish_reason": "stop"}
    value = {**CHAT, **more, "choices": [part], "usage": COUNTS | usage}
    scripted = json_reply(value)
    if stream:
        parts = [
            {**CHAT, "object": "chat.completion.chunk", "choices": [{**part, "delta": part["message"]}]},
            {**CHAT, **more, "choices": [], "usage": COUNTS | usage},
        ]
        body = "".join(f"data: {json.dumps(each)}\n\n" for each in parts) + "data: [DONE]\n\n"
        scripted = Scripted(body=body.encode(), headers={"content-type": "text/event-stream"})
    with ScriptedHttp(replace(scripted, headers=scripted.headers | headers)) as server:
        done, _ = ask(server, stream=stream, token_prices={"gpt": (price, price)})
    assert done.dollars == pytest.approx(dollars)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("named", "price", "dollars"),
    [
        ({"service_tier": "default"}, {"tier": "default"}, 12),
        ({"service_tier": "Flex"}, {"tier": "flex", "row": {"tier": "flex"}}, 6),
        ({"usage": COUNTS | {"service_tier": "flex"}}, {"tier": "flex", "row": {"tier": "flex"}}, 6),
        ({"model": "other"}, {"model": "other"}, 24),
        ({"model": "gpt-2026-11-30"}, {}, 12),
    ],
)
def test_the_tier_and_the_model_that_the_reply_names_choose_the_price(stream, named, price, dollars):
    """Whole and streamed; the completion says by which list and row it is priced."""
    prices = {"input": 1e6, "output": 1e6, "rows": [{"tier": "flex", "input": 5e5, "output": 5e5}]}

    async def once():
        try:
            return await generator.complete(Request(prompt=Prompt(instructions="", body="Where?"), max_tokens=8))
        finally:
            await generator.close()

    with ScriptedServer([Reply(text="Paris", changes={"usage": COUNTS} | named)]) as server:
        options = {"base_url": server.url, "stream": stream, "token_prices": {"other": [2e6, 2e6]}}
        given = {"name": "openai", "model": "gpt", "openai": options, "token_prices": prices}
        generator = make_generator(GeneratorSettings.model_validate(given))
        done = asyncio.run(asyncio.wait_for(once(), 20))
    assert (done.dollars, done.price) == (pytest.approx(dollars), price)


@pytest.mark.parametrize(("prices", "dollars"), [("told", 0.5), ("listed", 12 * 0.01)])
def test_a_list_may_win_over_what_the_server_tells(prices, dollars):
    """With `prices: listed` the tokens are priced by the list, though the server reports a price."""

    async def once():
        try:
            return await generator.complete(Request(prompt=Prompt(instructions="", body="Where?"), max_tokens=8))
        finally:
            await generator.close()

    with ScriptedServer([Reply(text="Paris", changes={"usage": COUNTS | {"cost": 0.5}})] * 2) as server:
        chosen = settings(base_url=server.url, token_prices={"gpt": [1e4, 1e4]})
        generator = make_generator(chosen.model_copy(update={"prices": prices}))
        done = asyncio.run(asyncio.wait_for(once(), 20))
    assert done.dollars == pytest.approx(dollars)


def test_prices_reach_the_generator():
    """A price of the file is charged, and the model's name and context go along."""

    async def once():
        try:
            return await generator.complete(Request(prompt=Prompt(instructions="", body="Where?"), max_tokens=8))
        finally:
            await generator.close()

    with ScriptedServer(["Paris it is"]) as server:
        generator = make_generator(settings(base_url=server.url, token_prices={"gpt": [1e6, 2e6]}))
        done = asyncio.run(asyncio.wait_for(once(), 20))
    assert isinstance(generator, OpenAiGenerator)
    assert (generator.name, generator.context_tokens) == ("gpt", None)
    assert done.dollars == pytest.approx(1 * 1.0 + 3 * 2.0)


def test_counts_are_bounds():
    """A byte counts as a token, which bounds every byte-level tokenizer, and the template adds."""
    with ScriptedServer([]) as server:
        generator = OpenAiGenerator("gpt", options=OpenAiOptions(base_url=server.url, template_tokens=10))
    assert generator.count_tokens(Prompt(instructions="", body="日本 \U0001f600")) == 10 + 6 + 1 + 4
    assert generator.count_tokens(Prompt(instructions="", body="\ud800")) == 11
    assert isinstance(generator, Generator)


@pytest.mark.parametrize(
    ("options", "environment", "field", "said"),
    [
        ({"base_url": "http://user:hunter2@host/v1"}, {}, "base_url", None),
        ({"base_url": None}, {}, "api_key_env", None),
        ({"headers": {"authorization": "Bearer x"}}, {}, "headers", None),
        ({"concurrency": 0}, {}, "concurrency", None),
        ({"retries": -1}, {}, "retries", None),
        ({}, {"OPENAI_API_KEY": "hunter2\n"}, "api_key_env", "OPENAI_API_KEY contains"),
        (
            {"headers": {"X-Team": "blue", "x-api-key": "hunter2\nkey"}},
            {},
            "headers",
            "the value of x-api-key contains",
        ),
        ({"base_url": None}, {"OPENAI_BASE_URL": "http://me:hunter2@host:99999/v1"}, "OPENAI_BASE_URL", "is not a url"),
    ],
)
def test_wrong_options(options, environment, field, said, monkeypatch):
    """Options, keys and addresses that cannot work are refused at the start, by name, and no secret is shown."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said) as caught:
        OpenAiGenerator("gpt", options=OpenAiOptions(**{"base_url": "http://host/v1"} | options))
    assert caught.value.field == (field if field.isupper() else f"generator.openai.{field}")
    assert caught.value.remedy
    assert "hunter2" not in str(caught.value)


def test_the_fields_of_a_chat():
    """All go on, or those of a list with the limits; the options name only a limit that has no name of its own."""
    chat = {"messages": [], "top_k": 3, "seed": None, "max_completion_tokens": 5}
    named = OpenAiOptions(base_url="http://host/v1", max_tokens_field="max_completion_tokens", stream=False)

    def fields(chat, options=named, **more):
        body = chat_body(Conversation(fields=chat), options=options, **more)
        return with_options(body, streams=False, model="gpt", options=options)

    sent = {"model": "gpt", "stream": False}
    assert fields(chat) == sent | chat
    assert fields({"messages": [], "max_tokens": 7}) == sent | {"messages": [], "max_tokens": 7}
    own = fields({"messages": [], "max_tokens": 7}, is_limit_named=False)
    assert own == sent | {"messages": [], "max_completion_tokens": 7}
    listed = replace(named, passed=["seed"])
    assert fields(chat, listed) == sent | {name: chat[name] for name in chat if name != "top_k"}
    assert not_passed(Conversation(fields=chat), options=listed) == ["top_k"]


def test_the_effort_of_an_arm_passes():
    """An arm's own effort is sent whatever fields are listed; a caller's only if its field is, and it goes first."""
    asks = {"messages": [], "reasoning_effort": "high"}
    every = OpenAiOptions(base_url="http://host/v1")
    listed = replace(every, passed=["seed"])

    def effort(fields, options):
        return chat_body(Conversation(fields=fields), options=options, effort="low").get("reasoning_effort")

    assert (effort(asks, every), effort(asks, listed), effort({"messages": []}, listed)) == ("high", "low", "low")
    assert chat_body(Conversation(fields=asks), options=listed) == {"messages": []}


def test_the_limit_of_any_dialect_is_seen(monkeypatch):
    """A limit of tokens inside an object bounds an answer's estimate, always passes, and is where an arm's goes."""
    place = "config.limits.most"
    own = Dialect(
        as_chat=lambda fields: ({"max_tokens": fields["config"]["limits"]["most"]} | fields["config"], set()),
        unread=lambda _: [],
        token_limits=(place, "most"),
    )
    monkeypatch.setattr(registry, "DIALECTS", {**registry.DIALECTS, "own": own})
    sent = Conversation(fields={"config": {"seed": 3, "limits": {"most": 40, "least": 2}}, "most": True}, dialect="own")
    assert token_limits(sent) == {place: 40}
    options = OpenAiOptions(base_url="http://host/v1", passed=["most"])
    assert chat_body(sent, options=options) == {"max_tokens": 40, "limits": {"most": 40}}
    assert with_token_limit(sent.having({"config": None}), 9).fields == {"config": {"limits": {"most": 9}}}

    server = GeneratorSettings(name="openai", model="m", token_prices={"input": 0.0, "output": 1000.0})
    given = Settings(arms={"m": {"class": "model"}}, generator=server)
    estimate = expected_dollars(given.worker_arms, generators=given.named_generators).estimate

    def dollars(conversation):
        query = Query(id=DecisionId("d1"), text="Where?", conversation=conversation)
        return estimate(made_decision(arm="m", query=query, run_by="worker"))

    assert dollars(sent) == pytest.approx(40 * 0.001)
    assert dollars(NO_CONVERSATION) == pytest.approx(1000 * 0.001)


def test_the_conversation_of_any_dialect_passes(monkeypatch):
    """A list of fields that pass leaves out no parameter with the conversation, whatever a dialect calls it."""
    own = Dialect(
        as_chat=lambda fields: ({"messages": fields["contents"], **fields.get("config", {})}, set()),
        unread=lambda _: [],
        conversation=frozenset({"contents"}),
    )
    monkeypatch.setattr(registry, "DIALECTS", {**registry.DIALECTS, "own": own})
    contents = [{"role": "user", "content": "Who wrote Dracula?"}]
    sent = Conversation(fields={"contents": contents, "config": {"seed": 3}, "messages": []}, dialect="own")
    options = OpenAiOptions(base_url="http://host/v1", passed=["seed"])
    assert chat_body(sent, options=options) == {"messages": contents}
    assert not_passed(sent, options=options) == ["config", "messages"]
    asked = Query(id=DecisionId("d1"), text="Who wrote Dracula?", conversation=sent)
    assert without_chat(asked).sent.ignored == ("config", "messages")
