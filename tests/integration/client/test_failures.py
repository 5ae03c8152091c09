"""Failures of both clients: keys, timeouts, retries, invalid replies, and a closed client."""

import logging
import math
import socket
import time

import pytest

from ragbandit.shared import errors
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply

KEY = "rb_0123456789_abcdefghijklmnopqrstuvwxyz"
DECISION = {"decision_id": "d", "arm": "fast"}


def told(code, *, status, **headers):
    error = {"code": code, "message": "no", "field": None, "remedy": None}
    return json_reply({"error": error}, status=status, **headers)


def test_the_key_is_sent_and_never_shown(make_client, caplog, monkeypatch):
    """A key goes out as a bearer, from the argument or the environment, and is in no repr, log or error."""
    caplog.set_level(logging.DEBUG, logger="ragbandit")
    monkeypatch.setenv("RAGBANDIT_API_KEY", KEY)
    with ScriptedHttp(told("UNAUTHORIZED", status=401)) as server:
        for given in ({}, {"api_key": KEY}):
            with make_client(server.url, **given) as client, pytest.raises(errors.Unauthorized) as caught:
                client.route("Who?")
            shown = repr(client) + str(caught.value) + repr(caught.value) + repr(vars(caught.value)) + caplog.text
            assert KEY not in shown
            assert "RAGBANDIT_API_KEY" in (caught.value.remedy or "")
        assert [headers["Authorization"] for _, headers, _ in server.seen] == [f"Bearer {KEY}"] * 2


@pytest.mark.parametrize("url", ["", "localhost:8100", "ftp://host", "http://", "http://h/?a=1", 5, "http://[::1"])
def test_what_is_no_url_is_refused(make_client, url):
    """It is InvalidInput at once, not an error of the transport at the first call."""
    with pytest.raises(errors.InvalidInput) as caught:
        make_client(url)
    assert caught.value.field == "url"


@pytest.mark.parametrize(
    ("first", "asked_twice"),
    [
        (Scripted(hang_up=True), True),
        (told("OVERLOADED", status=503, retry_after=1), True),
        (told("TOO_MANY_REQUESTS", status=429, retry_after=1), True),
        (told("OVERLOADED", status=503), False),
        (told("TOO_MANY_REQUESTS", status=429, retry_after=60), False),
        (told("INTERNAL", status=500, retry_after=1), False),
        (told("CONFLICT", status=409, retry_after=1), False),
        (told("INVALID_INPUT", status=422), False),
    ],
)
def test_what_is_sent_again(make_client, first, asked_twice):
    """A broken connection, and a 429 or 503 that says when within the cap, are tried again with the same body."""
    with ScriptedHttp(first, json_reply(DECISION)) as server, make_client(server.url) as client:
        if asked_twice:
            assert client.route("Who?")["arm"] == "fast"
        else:
            with pytest.raises(errors.RagBanditError):
                client.route("Who?")
        bodies = [body for _, _, body in server.seen]
    assert len(bodies) == 1 + asked_twice
    assert bodies[0] == bodies[-1]
    assert bodies[0]["decision_id"]


def test_calls_that_write_carry_an_id(make_client):
    """Route, answer and feedback have an id of the client's where the caller gives none, in batches too."""
    replies = [json_reply(DECISION)] * 3 + [json_reply({"items": [DECISION]})] * 2
    with ScriptedHttp(*replies) as server, make_client(server.url) as client:
        client.route("Who?")
        client.answer("Who?")
        client.feedback("d", rating=True)
        client.route_batch([{"question": "Who?"}])
        client.feedback_batch([{"decision_id": "d", "rating": True}])
        route, answer, feedback, many, judged = [body for _, _, body in server.seen]
    assert route["decision_id"] != answer["decision_id"]
    assert feedback["feedback_id"]
    assert many["items"][0]["decision_id"]
    assert judged["items"][0]["feedback_id"]


def test_retries_end(make_client):
    """A service that always hangs up is asked once and `retries` times, and is then NotReady."""
    with ScriptedHttp(Scripted(hang_up=True)) as server, make_client(server.url, retries=3) as client:
        with pytest.raises(errors.NotReady):
            client.status()
        assert len(server.seen) == 4


@pytest.mark.parametrize("slow", [Scripted(delay_s=30), Scripted(body=b"1" * 60, drip_s=0.5)])
def test_a_slow_service_ends_the_call(make_client, slow):
    """The total limit ends a call that waits for its reply, and one whose reply comes in drops."""
    with ScriptedHttp(slow) as server, make_client(server.url, timeout_s=1) as client:
        began = time.monotonic()
        with pytest.raises(errors.NotReady, match="in time"):
            client.status()
        assert time.monotonic() - began < 10
        assert len(server.seen) == 1


@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b'"text"', b'{"items": 1}'])
def test_bad_json(make_client, body):
    """A reply without JSON, or of another shape, is an error of ours that names the call."""
    with ScriptedHttp(Scripted(body=body)) as server, make_client(server.url) as client:
        many = [{"question": "Who?"}]
        with pytest.raises(errors.RagBanditError, match="/v1/route"):
            client.route_batch(many)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, errors.Unauthorized),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (413, errors.InvalidInput),
        (502, errors.NotReady),
        (302, errors.RagBanditError),
    ],
)
def test_a_proxy_that_refuses(make_client, status, kind):
    """A refusal without JSON of ours has the class of its status; a redirection is not followed."""
    page = Scripted(status=status, body=b"<html>nginx</html>", headers={"location": "http://127.0.0.1:9/elsewhere"})
    with ScriptedHttp(page) as server, make_client(server.url) as client:
        with pytest.raises(kind, match=str(status)):
            client.status()
        assert len(server.seen) == 1


def test_nothing_listens(make_client):
    """An address where nothing listens is NotReady that names the URL, and `ready` is False."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with make_client(url) as client:
        assert client.ready() is False
        with pytest.raises(errors.NotReady, match=url) as caught:
            client.status()
    assert "RAGBANDIT_URL" in caught.value.remedy


_SECONDS = ("timeout_s", "connect_timeout_s", "route_timeout_s")
_NO_LIMITS = (math.inf, -math.inf, math.nan, -1, True, "60", 1e9, 10**400, [60])


@pytest.mark.parametrize("field", [*_SECONDS, "connections", "retries"])
def test_limits_of_a_client_are_finite_numbers(make_client, field):
    """Infinity, NaN, negative numbers, booleans and text are refused by field; counts must be whole numbers."""
    fractions = () if field in _SECONDS else (1.5, 2.0)
    zero = () if field == "retries" else (0, 0.0)
    for value in (*_NO_LIMITS, *fractions, *zero, None):
        with pytest.raises(errors.InvalidInput, match=field) as caught:
            make_client("http://127.0.0.1:9", **{field: value})
        assert caught.value.field == field
        assert "0 to 1,000,000" in caught.value.remedy
    with make_client("http://127.0.0.1:9", **{field: 1}):
        pass


def test_a_wait_without_end_is_refused(make_client):
    """The time that an answer is waited for is a finite number too."""
    with make_client("http://127.0.0.1:9") as client:
        for value in _NO_LIMITS:
            with pytest.raises(errors.InvalidInput) as caught:
                client.answer("Who wrote Emma?", wait_s=value)
            assert caught.value.field == "wait_s"
