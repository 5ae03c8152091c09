"""Both clients without their service: the default arm, marked, and nothing that could be learned."""

import logging
import time
from types import SimpleNamespace

import pytest

from ragbandit.client import arms as client_arms, is_degraded
from ragbandit.shared import errors
from tests.support.servers.http_service import QUESTION
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply

NOWHERE = "http://127.0.0.1:9"


def test_the_default_arm(make_client, caplog):
    """Route names the default arm, marked; outcome and feedback of it say that nothing was sent; one warning."""
    with make_client(NOWHERE, default_arm="fast") as client:
        replies = [client.route(QUESTION) for _ in range(3)]
        key = replies[0]["decision_id"]
        assert {(each["arm"], each["degraded"], each["propensity"]) for each in replies} == {("fast", True, 1.0)}
        assert is_degraded(key)
        assert client.outcome(key, answer="x", steps=1)["degraded"] is True
        assert client.feedback(key, rating=True)["degraded"] is True
        (receipt,) = client.feedback_batch([{"decision_id": key, "rating": True, "feedback_id": "f1"}])
        assert (receipt["feedback_id"], receipt["degraded"]) == ("f1", True)
        assert (client.degraded, client.not_sent) == (3, 3)
        with pytest.raises(errors.NotReady, match="no service answered"):  # asked, since the default arm may not answer
            client.route(QUESTION, arms=["deep"])
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Scripted(status=502, body=b"<html>"),
        Scripted(delay_s=30),
        json_reply({"error": {"code": "STORE_UNAVAILABLE", "message": "gone"}}, status=503),
        json_reply({"error": {"code": "TOO_MANY_REQUESTS", "message": "busy"}}, status=429, retry_after=9),
    ],
)
def test_a_service_that_cannot_serve(make_client, reply):
    """A gateway's page, silence, a lost database and overload give the default arm, within the short limit."""
    with ScriptedHttp(reply) as server, make_client(server.url, default_arm="fast", route_timeout_s=0.5) as client:
        began = time.monotonic()
        assert client.route(QUESTION)["degraded"] is True
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(("code", "status"), [("UNAUTHORIZED", 401), ("INVALID_INPUT", 422), ("CONFLICT", 409)])
def test_a_service_that_refuses(make_client, code, status):
    """A wrong key or a wrong request raises, also with a default arm."""
    reply = json_reply({"error": {"code": code, "message": "no"}}, status=status)
    with (
        ScriptedHttp(reply) as server,
        make_client(server.url, default_arm="fast") as client,
        pytest.raises(errors.RagBanditError) as caught,
    ):
        client.route(QUESTION)
    assert caught.value.code == code


def test_it_comes_back(make_client):
    """A client that had to do without asks the service again at the next question."""
    found = json_reply({"decision_id": "d", "arm": "deep"})
    with ScriptedHttp(Scripted(status=502), found) as server, make_client(server.url, default_arm="fast") as client:
        assert client.route(QUESTION)["arm"] == "fast"
        assert client.route(QUESTION)["arm"] == "deep"
        assert client.degraded == 1


def test_a_silent_service_is_asked_again_when_it_replies(make_client, monkeypatch):
    """After three questions without a reply one question per 5 time-outs is sent, until one gets a reply."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(client_arms, "time", clock)
    replies = [Scripted(delay_s=30)] * 4 + [Scripted(status=503), json_reply({"decision_id": "d", "arm": "deep"})]
    with (
        ScriptedHttp(*replies) as server,
        make_client(server.url, default_arm="fast", route_timeout_s=0.3) as client,
    ):
        for clock.now, sent in ((0.0, 3), (1.6, 4), (3.0, 4)):
            assert [client.route(QUESTION)["arm"] for _ in range(10)] == ["fast"] * 10
            assert len(server.seen) == sent
        clock.now = 3.2
        assert [client.route(QUESTION)["arm"] for _ in range(2)] == ["fast", "deep"]  # after a reply all are sent
