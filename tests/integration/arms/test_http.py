"""The arm behind a URL, against a real server on loopback that misbehaves as told."""

import asyncio
import gzip
import json
import time
import zlib
from unittest.mock import Mock

import pytest

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.model_servers import json_server
from ragbandit.shared.reading.thread import LARGE, READING
from ragbandit.shared.types import Budget, CallFailed, DecisionId, Message, Query
from ragbandit.strategies.arms import http as remote
from ragbandit.strategies.arms.http import Http
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from tests.support.servers.scripted_http import Scripted, ScriptedHttp

GOOD = {"answer": "Bram Stoker", "steps": 2, "stop_reason": "sure", "cost": {"llm_calls": 3, "dollars": 0.02}}


class Pipeline(ScriptedHttp):
    """A server that gives these replies in turn: (status, headers, body), bytes as they are, or seconds to wait."""

    def __init__(self, *replies):
        super().__init__(*(self.reply(*each) for each in replies))
        self.url += "/answer"

    @staticmethod
    def reply(status, headers, body):
        seconds, body = (body, GOOD) if isinstance(body, float) else (0.0, body)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Scripted(status=status, headers=headers, body=data, delay_s=seconds)

    @property
    def asked(self):
        return [body for _, _, body in self.seen]

    @property
    def headers(self):
        return [headers for _, headers, _ in self.seen]


def ok(body):
    return 200, {}, body


def run(url, *, budget=None, messages=(), **params):
    return asyncio.run(
        run_strategy(
            Http(name="mine", url=url, **params),
            query=Query(
                id=DecisionId("d1"), text="Who wrote Dracula?", context={"lang": "en"}, tenant="acme", messages=messages
            ),
            budget=budget or Budget(),
            retriever=MemoryRetriever([]),
            generator=ScriptedGenerator([]),
        )
    )


def failures(outcome):
    return [event for event in outcome.trace if isinstance(event, CallFailed)]


@pytest.mark.parametrize("words", [1, 20_000])
def test_a_large_reply_is_read_by_the_reading_thread(monkeypatch, words):
    """A reply above 32 kB is parsed off the event loop, a smaller one on it."""
    sizes, read = [], READING.read

    async def counted(size, *given):
        sizes.append(size)
        return await read(size, *given)

    monkeypatch.setattr(json_server, "READING", Mock(read=counted))
    with Pipeline(ok({**GOOD, "extra": ["word"] * words})) as pipeline:
        outcome = run(pipeline.url)
    assert outcome.answer == GOOD["answer"]
    assert [size >= LARGE for size in sizes] == [True] * (words > 1)


def test_answer_with_its_cost():
    """The reply's answer, steps, stop reason and cost become the outcome's; the total is measured here."""
    with Pipeline(ok(GOOD)) as pipeline:
        outcome = run(pipeline.url, budget=Budget(rounds=4, seconds=30.0))
    assert (outcome.status, outcome.answer, outcome.stop_reason, outcome.steps) == (
        "answered",
        "Bram Stoker",
        "sure",
        2,
    )
    assert (outcome.cost.llm_calls, outcome.cost.dollars) == (3, 0.02)
    assert outcome.cost.seconds_total > 0.0
    (asked,) = pipeline.asked
    assert (asked["question"], asked["decision_id"]) == ("Who wrote Dracula?", "d1")
    assert (asked["context"], asked["tenant"]) == ({"lang": "en"}, "acme")
    assert asked["budget"]["rounds"] == 4
    assert 0.0 < asked["budget"]["seconds"] <= 30.0
    assert pipeline.headers[0]["Idempotency-Key"] == "d1"


def test_credentials_of_the_address_are_sent_and_not_kept():
    """The server is asked at the whole address; neither the params in the outcome nor an echo of it hold a secret."""
    with Pipeline(
        ok(GOOD), (404, {}, b"no /answer?code=hunt%20er3&lang=en, hunt er3, hunter2, bWU6aHVudGVyMg==")
    ) as pipeline:
        url = pipeline.url.replace("://", "://me:hunter2@") + "?code=hunt%20er3&lang=en"
        outcomes = [run(url), run(url)]
    assert pipeline.headers[0]["Authorization"] == "Basic bWU6aHVudGVyMg=="
    assert [outcome.status for outcome in outcomes] == ["answered", "failed"]
    assert outcomes[0].made_by["params"]["url"] == f"{pipeline.url}?code=[hidden]&lang=en"
    assert "no /answer" in outcomes[1].error
    kept = repr(outcomes)
    assert [secret for secret in ("hunter2", "er3", "bWU6") if secret in kept] == []


@pytest.mark.parametrize(
    "reply", [(503, {"Retry-After": "3600"}, b"come later"), (404, {}, {"detail": "come later"})], ids=["pause", "404"]
)
def test_what_will_not_get_better_is_not_tried_again(reply):
    """A Retry-After of more than 30 s, and a refusal, fail at once, and say what was replied."""
    with Pipeline(reply, ok(GOOD)) as pipeline:
        outcome = run(pipeline.url, budget=Budget(seconds=7200))
    assert (outcome.status, len(pipeline.asked)) == ("failed", 1)
    assert f"it replied {reply[0]}" in outcome.error
    assert "come later" in outcome.error


def test_the_conversation_is_sent_along():
    """A remote pipeline gets earlier messages in the form of a chat; a single question has no such field."""
    said = Message(role="user", text="I like vampires."), Message(role="assistant", text="So do I.")
    with Pipeline(ok(GOOD), ok(GOOD)) as pipeline:
        run(pipeline.url, messages=said)
        run(pipeline.url)
    talk, alone = pipeline.asked
    assert talk["messages"] == [
        {"role": "user", "content": "I like vampires."},
        {"role": "assistant", "content": "So do I."},
    ]
    assert "messages" not in alone


@pytest.mark.parametrize(
    ("cap", "reply"),
    [
        ("rounds", {"steps": 3}),
        ("passages", {"cost": {"passages": 3}}),
        ("tokens", {"cost": {"prompt_tokens": 2, "completion_tokens": 1}}),
        ("dollars", {"cost": {"dollars": 2.5}}),
    ],
)
def test_a_reply_that_overran_a_cap_is_exhausted(cap, reply):
    """What a pipeline says it spent is held against the budget after the fact; the answer is kept, and the cost."""
    with Pipeline(*[ok({"answer": "x", **reply})] * 2) as pipeline:
        over, within = (run(pipeline.url, budget=Budget(**{cap: most})) for most in (2, 3))
    assert (over.status, over.stop_reason, over.answer) == ("exhausted", f"budget_{cap}", "x")
    assert (within.status, within.stop_reason, within.answer) == ("answered", "answered", "x")
    assert (over.cost.passages, over.cost.prompt_tokens, over.cost.dollars, over.steps) == (
        within.cost.passages,
        within.cost.prompt_tokens,
        within.cost.dollars,
        within.steps,
    )


@pytest.mark.parametrize("status", [200, 404, 500])
def test_a_reply_that_is_too_large_is_not_read_to_its_end(status):
    """A body beyond `max_bytes` is a failure at once that names the param, whatever was replied."""
    endless = b'{"answer": "' + b"x" * 50_000_000
    with Pipeline((status, {"content-length": "900000000"}, endless)) as pipeline:
        began = time.monotonic()
        outcome = run(pipeline.url, max_bytes=1000)
        assert time.monotonic() - began < 5.0
    assert (outcome.status, len(pipeline.asked)) == ("failed", 1)
    assert outcome.error.startswith("arms.mine.max_bytes: ")
    assert f"{pipeline.url} replied more than 1000 bytes" in outcome.error


@pytest.mark.parametrize(
    ("encoding", "body", "error"),
    [
        ("gzip", gzip.compress(b'{"answer": "Paris"}'), None),
        ("deflate", zlib.compress(b'{"answer": "Paris"}'), None),
        ("gzip", gzip.compress(b" " * 5_000_000), "more than 1000000 bytes"),
        ("gzip", gzip.compress(b'{"answer": "Paris"}')[:-9], "or is cut"),
        ("gzip", b"no gzip", "encoding 'gzip' cannot be read"),
        ("br", b"brotli", "encoding 'br' cannot be read"),
    ],
    ids=["gzip", "deflate", "too large", "cut", "not gzip", "brotli"],  # gzip writes the time into the bytes
)
def test_a_compressed_reply_is_read_within_the_size(encoding, body, error):
    """A pipeline that compresses its reply although no encoding was asked for is read up to `max_bytes`."""
    with Pipeline((200, {"content-encoding": encoding}, body)) as pipeline:
        outcome = run(pipeline.url)
    assert (outcome.answer == "Paris") == (error is None)
    assert (error or "") in (outcome.error or "")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status):
    """Neither the question nor the headers go to the address of a redirect, which the failure names."""
    with Pipeline((status, {"location": "/other?key=SECRET"}, {})) as pipeline:
        outcome = run(pipeline.url)
    assert (outcome.status, outcome.made_by["failure"]["kind"], len(pipeline.asked)) == ("failed", "denied", 1)
    assert "/other;" in outcome.error
    assert "SECRET" not in outcome.error


@pytest.mark.parametrize("status", [429, 500, 503])
def test_tries_again(status):
    """A server that is busy or broken is asked again, after the pause that it asks for; the failure is in the trace."""
    with Pipeline((status, {"Retry-After": "0.05"}, {}), ok(GOOD)) as pipeline:
        outcome = run(pipeline.url)
    assert outcome.status == "answered"
    assert len(pipeline.asked) == 2
    (failure,) = failures(outcome)
    assert str(status) in failure.error


def test_gives_up(monkeypatch):
    """After its tries the arm fails, with every one of them in the trace and a reason that names the URL."""
    monkeypatch.setattr(remote, "_PAUSE_S", 0.01)
    with Pipeline(*[(503, {}, {"detail": "the index\nis gone" + " now" * 100})] * 3) as pipeline:
        outcome = run(pipeline.url, retries=2)
    assert (outcome.status, len(pipeline.asked), len(failures(outcome))) == ("failed", 3, 3)
    assert outcome.error.count(pipeline.url) == 1
    assert "it replied 503: " in outcome.error
    assert "the index" in outcome.error
    assert len(outcome.error) < 400
    assert outcome.error.endswith("(see the pipeline's own log)")


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"not json", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"answer": "x", "cost": {"llm_calls": 1' + b"0" * 400 + b"}}", "cost.llm_calls"),
        (["answer"], "answer"),
        ({"steps": 1}, "answer"),
        ({"answer": "x", "steps": -1}, "steps"),
        ({"answer": "x", "steps": 1.5}, "steps"),
        ({"answer": "x", "steps": 10_000}, "steps"),
        ({"answer": "x", "steps": True}, "steps"),
        ({"answer": "x", "stop_reason": 3}, "stop_reason"),
        ({"answer": "x", "cost": []}, "cost"),
        ({"answer": "x", "cost": {"tokens": 3}}, "cost.tokens"),
        ({"answer": "x", "cost": {"llm_calls": 0.5}}, "cost.llm_calls"),
        (b'{"answer": "x", "cost": {"dollars": NaN}}', "cost.dollars"),
        ({"answer": "x", "cost": {"dollars": -1}}, "cost.dollars"),
        ({"answer": "x", "cost": {"seconds_total": 1}}, "cost.seconds_total"),
    ],
)
def test_bad_replies_name_the_field(body, name):
    """A reply that cannot be used is a failure that names the field, and costs nothing but time."""
    with Pipeline(ok(body)) as pipeline:
        outcome = run(pipeline.url)
    assert outcome.status == "failed"
    assert name in outcome.error
    assert (outcome.cost.llm_calls, outcome.cost.dollars) == (0, 0.0)


def test_seconds_are_a_limit():
    """A slow pipeline ends the arm when its seconds are over, also in the pause between tries."""
    with Pipeline(ok(30.0), ok(GOOD)) as pipeline:
        began = time.monotonic()
        outcome = run(pipeline.url, budget=Budget(seconds=0.2))
        assert time.monotonic() - began < 15.0
    assert (outcome.status, outcome.stop_reason) == ("exhausted", "budget_seconds")
    with Pipeline((503, {"Retry-After": "20"}, {}), ok(GOOD)) as pipeline:
        began = time.monotonic()
        outcome = run(pipeline.url, budget=Budget(seconds=0.5))
        assert time.monotonic() - began < 15.0
    assert (outcome.status, outcome.stop_reason) == ("exhausted", "budget_seconds")


@pytest.mark.parametrize(
    ("params", "where"),
    [
        ({}, "url"),
        ({"url": "http://x", "max_bytes": 0}, "max_bytes"),
        ({"url": "http://x", "headers_env": {"A": "NOT_THERE"}}, "headers_env.A"),
        ({"url": "http://x", "headers_env": {"authorization": "SECRET_H"}}, "headers_env.authorization"),
        ({"url": "http://x", "headers_env": {"B": "my-secret-value"}}, "headers_env.B"),
        ({"url": "http://x", "retries": -1}, "retries"),
    ],
)
def test_wrong_settings_are_refused(params, where, monkeypatch):
    """No URL (tests/unit/strategies/outbound), no variable or one that no header can carry, a number out of range:
    refused at the start, by name, and no secret is shown.
    """
    monkeypatch.setenv("SECRET_H", "Bearer topsecret\n")
    with pytest.raises(ConfigError) as caught:
        Http(name="mine", **params)
    assert caught.value.field == f"arms.mine.{where}"
    assert caught.value.remedy
    assert ("SECRET_H contains a line break" in str(caught.value)) == ("authorization" in where)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("status", [200, 401, 500])
def test_secrets_that_a_refusal_repeats_are_in_no_error(status, monkeypatch):
    """Read from the variable and sent, and shown nowhere that a body says it back: a bearer's token alone, too."""
    monkeypatch.setenv("MY_TOKEN", "Bearer s3cretvalue")
    with Pipeline((status, {}, b"Bearer s3cretvalue is wrong, or s3cretvalue is")) as pipeline:
        outcome = run(pipeline.url, retries=0, headers_env={"Authorization": "MY_TOKEN"})
    assert pipeline.headers[0]["Authorization"] == "Bearer s3cretvalue"
    assert f"it replied {status}: [key] is wrong, or [key] is" in outcome.error
    assert "s3cret" not in repr(outcome)


@pytest.mark.parametrize(
    "body",
    [
        {"answer": "a", "steps": "Bearer topsecretkey123"},
        {"answer": "a", "cost": {"Bearer topsecretkey123": 1}},
        {"answer": "a", "cost": {"x" * 190 + "topsecretkey123": 1}},
        {"answer": "a", "stop_reason": ["topsecretkey123"]},
        {"answer": {"headers": {"x" * 50: "topsecretkey123"}}},
        ["topsecretkey123"],
        {"answer": "a", "steps": "session=c00kievalue"},
        b"no JSON: c00kievalue",
        {"answer": "a", "steps": "zzq\"wwv's\\kkj"},
        b'no JSON: {"x-quoted": "zzq\\"wwv\'s\\\\kkj"}',
    ],
)
def test_secrets_that_a_wrong_reply_repeats_are_in_no_error(body, monkeypatch):
    """An error hides secrets in a field of the wrong type, an unknown name, a part of a cookie and an escaped value."""
    monkeypatch.setenv("MY_TOKEN", "Bearer topsecretkey123")
    monkeypatch.setenv("MY_COOKIE", "session=c00kievalue; other=x")
    monkeypatch.setenv("MY_QUOTED", "zzq\"wwv's\\kkj")
    headers = {"Authorization": "MY_TOKEN", "Cookie": "MY_COOKIE", "X-Quoted": "MY_QUOTED"}
    with Pipeline(ok(body)) as pipeline:
        outcome = run(pipeline.url, headers_env=headers)
    assert outcome.status == "failed"
    assert "[key]" in outcome.error or "x" * 50 in outcome.error
    assert not any(piece in repr(outcome) for piece in ("topsec", "c00kie", "zzq", "wwv", "kkj"))
    assert len(outcome.error) < 500
