"""The LLM as selector, with the real openai client against a server whose replies and failures are scripted."""

import asyncio
import json
import threading
import time

import pytest

from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.policies.kinds.llm import MAX_REPLY, Llm, parse_choice
from ragbandit.shared.types import ArmName, Query
from ragbandit.testing.openai_server import Reply, ScriptedServer
from ragbandit.testing.policies import ARMS, POLICY_CHECKS

NO, ONE, MANY = ARMS
#: the arms as the model sees them: by name
LISTED = (MANY, NO, ONE)


def llm_of(server, **params):
    return Llm(**{"model": "m", "base_url": server.url, "timeout_s": 20.0, "epsilon": 0.0, **params})


def word_of(policy, text="who?", arms=ARMS):
    return pmf_of_one(policy, Query(text=text), features=None, arms=arms)


def words_of(policy, texts, arms=ARMS):
    return policy.pmf([Query(text=text) for text in texts], features=None, arms=[arms] * len(texts))


def failed(output):
    return output.facts["llm"]["failed"]


# The choice.


@pytest.mark.parametrize("number", [1, 2, 3])
def test_model_picks_by_number(number):
    """Number n is the n-th arm by name; it has all probability but epsilon's."""
    with ScriptedServer([json.dumps({"choice": number})]) as server:
        output = word_of(llm_of(server, epsilon=0.3))
    assert output.pmf == pytest.approx([0.1 + (0.7 if arm == LISTED[number - 1] else 0.0) for arm in ARMS])
    assert output.facts["llm"]["choice"] == LISTED[number - 1]
    assert failed(output) is None


def test_order_of_the_offer_does_not_change_the_question():
    """The model is asked the same words, and picks the same arm, in whatever order the arms were offered."""
    with ScriptedServer({"": '{"choice": 2}'}) as server:
        outputs = [word_of(llm_of(server), arms=arms) for arms in (ARMS, ARMS[::-1])]
    assert outputs[0].pmf == outputs[1].pmf[::-1]
    assert server.requests[0].body == server.requests[1].body


def test_request_holds_question_methods_and_settings(monkeypatch):
    """Model, temperature, seed and JSON mode are sent, the key as a bearer, and every method with its number."""
    monkeypatch.setenv("MY_KEY", "sk-test")
    with ScriptedServer(['{"choice": 1}']) as server:
        policy = llm_of(server, api_key_env="MY_KEY", temperature=0.5, seed=7, descriptions={MANY: "digs"})
        word_of(policy, "Who wrote it?")
    (received,) = server.requests
    assert received.headers["authorization"] == "Bearer sk-test"
    body = received.body
    assert (body["model"], body["temperature"], body["seed"]) == ("m", 0.5, 7)
    assert body["response_format"] == {"type": "json_object"}
    asked = body["messages"][-1]["content"]
    assert "1. multi_step: digs\n2. no_retrieval\n3. single_step\n" in asked
    assert "\nWho wrote it?\n" in asked


def test_reply_and_tokens_are_logged():
    """The facts hold the model's text, printable and cut, and what it used."""
    text = '{"choice": 1, "why": "a\\u0000\x07 ' + "b" * 500 + '"}'
    with ScriptedServer([text]) as server:
        facts = word_of(llm_of(server)).facts["llm"]
    assert facts["failed"] == "not_json"  # a bare control character is no JSON
    assert len(facts["reply"]) == MAX_REPLY
    assert facts["reply"].isprintable()
    assert facts["prompt_tokens"] > 20
    assert facts["completion_tokens"] == len(text.split())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"choice": 1}', 0),
        (' {"choice": 3, "reason": "two facts"}\n', 2),
        ('{"choice": 0}', "out_of_range"),
        ('{"choice": 4}', "out_of_range"),
        ('{"choice": -1}', "out_of_range"),
        ('{"choice": "2"}', "not_json"),
        ('{"choice": 2.0}', "not_json"),
        ('{"choice": true}', "not_json"),
        ('{"choice": null}', "not_json"),
        ('{"choice": [2]}', "not_json"),
        ('{"answer": 2}', "not_json"),
        ('[{"choice": 2}]', "not_json"),
        ("2", "not_json"),
        ("", "not_json"),
        ('Sure! {"choice": 2}', "not_json"),
        ('```json\n{"choice": 2}\n```', "not_json"),
        ("[" * 100_000, "not_json"),
        ('{"choice": ' + "9" * 5000 + "}", "not_json"),
    ],
)
def test_choice_is_parsed_strictly(text, found):
    """Only an object with a whole number in range is a choice; the failure says which it is."""
    assert parse_choice(text, count=3) == found


# What goes wrong.

TWICE = 2


@pytest.mark.parametrize(
    ("replies", "name"),
    [
        (["no idea"], "not_json"),
        (['{"choice": 9}'], "out_of_range"),
        ([Reply(status=400)], "http_400"),
        ([Reply(status=401)], "http_401"),
        ([Reply(status=500)] * TWICE, "http_500"),
        ([Reply(status=429, retry_after=0.0)] * TWICE, "http_429"),
        ([Reply(status=429, retry_after=3600)], "http_429"),  # longer than anybody waits: no second attempt
        ([Reply(text='{"choice": 1}', cut=True)] * TWICE, "connection"),
        ([Reply(body=b'{"choices": [')], "malformed"),
        ([Reply(body=b'{"choices": []}')], "malformed"),
        ([Reply(body=b"[]")], "malformed"),
        ([Reply(body=b"<html>")], "malformed"),
    ],
)
def test_failures_play_the_fallback(replies, name):
    """Whatever the server does wrong has a name in the facts, and the fallback arm answers."""
    with ScriptedServer(replies) as server:
        policy = llm_of(server, fallback=MANY, epsilon=0.3)
        output = word_of(policy)
    assert failed(output) == name
    assert output.facts["llm"]["choice"] is None
    assert output.pmf == pytest.approx((0.1, 0.1, 0.8))
    assert len(server.requests) == len(replies)


@pytest.mark.parametrize(
    "first", [Reply(status=429, retry_after=0.5), Reply(status=503), Reply(text='{"choice": 1}', cut=True)]
)
def test_what_passes_is_tried_again(first):
    """A server that is busy or hangs up is asked once more, not earlier than it allows; its second answer counts."""
    began = time.monotonic()
    with ScriptedServer([first, '{"choice": 3}']) as server:
        output = word_of(llm_of(server))
    assert time.monotonic() - began >= (first.retry_after or 0.0)
    assert failed(output) is None
    assert output.facts["llm"]["choice"] == LISTED[2]


def test_deadline_ends_every_wait():
    """A server that is silent, or sends single bytes, is a timeout; the other questions of the batch are answered."""
    silent, dripping = Reply(text='{"choice": 1}', seconds=60.0), Reply(text='{"choice": 1}', drip_s=0.05)
    with ScriptedServer({"silent": silent, "dripping": dripping, "": '{"choice": 2}'}) as server:
        policy = llm_of(server, timeout_s=3.0)
        word_of(policy)  # the client is loaded: what follows is the server's time alone
        outputs = words_of(policy, ["silent", "quick", "dripping"])
    assert [failed(output) for output in outputs] == ["timeout", None, "timeout"]
    assert outputs[0].pmf == (0.0, 1.0, 0.0)  # single_step, the default fallback


# Many at once.


def test_no_more_than_allowed_are_asked_at_once():
    """With max_concurrency 2 the server has two requests at a time, and never three."""
    lock, inside, most = threading.Lock(), 0, 0

    def reply(body):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.02)
        with lock:
            inside -= 1
        return '{"choice": 1}'

    with ScriptedServer(reply) as server:
        words_of(llm_of(server, max_concurrency=2), [str(n) for n in range(12)])
    assert most == 2


def test_answers_belong_to_their_questions():
    """Every question gets its own answer, whatever the order of the replies and the other offered arms."""

    def reply(body):
        asked = body["messages"][-1]["content"]
        number = next(n for n in (1, 2, 3) if f"question {n}" in asked)
        return Reply(text=json.dumps({"choice": number}), seconds=0.1 * (3 - number))

    offers = [ARMS, (ArmName("only"),), ARMS[::-1], ARMS]
    with ScriptedServer(reply) as server:
        queries = [Query(text=f"question {n}") for n in (1, 0, 2, 3)]
        outputs = llm_of(server).pmf(queries, features=None, arms=offers)
    picked = [offered[output.pmf.index(1.0)] for output, offered in zip(outputs, offers, strict=True)]
    assert picked == [LISTED[0], "only", LISTED[1], LISTED[2]]


def test_it_may_be_asked_from_a_thread_with_a_loop():
    """A caller inside an event loop, as in a notebook, is answered too."""

    async def ask():
        return word_of(policy)

    with ScriptedServer(['{"choice": 1}']) as server:
        policy = llm_of(server)
        assert failed(asyncio.run(ask())) is None


# The contract, with a server that answers, and wrong params.


@pytest.fixture(scope="module")
def steady_server():
    with ScriptedServer({"": '{"choice": 1}'}) as server:
        yield server


@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
def test_contract_holds_with_a_server_that_answers(check, steady_server):
    """With a model behind it the policy keeps the whole contract."""
    check(lambda: llm_of(steady_server, epsilon=0.1))
