"""Failures of servers: their kind by status and error, and the words of their bodies."""

import email.utils
import time
from types import SimpleNamespace

import aiohttp
import httpx
import pytest

from ragbandit.shared.dialects.chat.replies import raise_error
from ragbandit.shared.model_servers.error_replies import failure_of_error, failure_of_status, server_message
from ragbandit.shared.model_servers.event_reader import BrokenReply, ReplyTooLarge
from ragbandit.shared.model_servers.failures import Failure, failure_of
from ragbandit.shared.reading.thread import ReadingStuck


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "too long", "code": 400}}, "too long"),
        ({"error": "crashed"}, "crashed"),
        ({"message": "no such model"}, "no such model"),
        ({"object": "error", "message": None, "detail": "gone"}, "gone"),
        ({"detail": [{"loc": ["body", "n"], "msg": "must be 1"}]}, "must be 1"),
        ([{"error": {"message": "unknown name"}}], "unknown name"),
        ({"error": {"code": "invalid_key"}}, "invalid_key"),
        ({"errors": [None, {"title": "Bad"}]}, "Bad"),
        ({"error": "Bad Request", "statusCode": 400, "message": "too long"}, "too long"),
        ({"error": "invalid_request", "error_description": "no such scope"}, "no such scope"),
        ({"error": True, "message": "quota reached"}, "quota reached"),
        ({"ErrorCode": "MODEL", "Message": "too long"}, "too long"),
        ({"fault": {"faultstring": "too long", "detail": {"errorcode": "x"}}}, "too long"),
        ({"error": {"message": None, "metadata": {"raw": "too long"}, "code": 400}}, "too long"),
        ({"error": {"message": {"text": "too long"}}}, "too long"),
        ({"text": "too long", "error_code": 50002}, "too long"),
        ("  plain\n text ", "plain text"),
        ("<html><head><title>x</title></head><body><h1>502</h1> Bad <b>Gatew", "502 Bad Gatew"),
        ("<HEAD><style>p{}</style></HEAD ><script>if (a<b) {}</script>502<script>x", "502 x"),
        *(
            (body, "")
            for body in (None, "", {}, [], {"error": None}, {"error": {}}, 7, "OK", {"code": 0, "msg": "Success"})
        ),
    ],
)
def test_the_words_of_a_body(body, message):
    """The message is read from an object, a list, text or a page, wherever servers put it."""
    assert server_message(body) == message


def test_a_body_without_end():
    """A body that is nested without end, or has a list of a million errors, is read in no time and bounded."""
    deep: dict = {}
    for _ in range(500):
        deep = {"error": [deep]}
    assert server_message(deep) == ""
    assert len(server_message({"error": "x" * 10**6})) == 1000


KINDS = {
    "denied": (300, 302, 307, 401, 402, 403, 404),
    "refused": (400, 409, 413, 422),
    "timeout": (408, 504),
    "limited": (429,),
    "failed": (424, 498, 499, 500, 502, 503, 599),
}


@pytest.mark.parametrize(("kind", "status"), [(kind, status) for kind, known in KINDS.items() for status in known])
def test_the_kind_of_a_status(kind, status):
    """Each status has one kind; a request that is wrong is the caller's, a key that is wrong is the arm's."""
    failure = failure_of_status(status)
    assert (failure.kind, failure.status) == (kind, status)
    assert failure_of({"failure": failure.facts}) == failure


def test_retry_after():
    """Seconds and dates are read, a long wait is capped, and any other text is no wait."""
    date = email.utils.formatdate(time.time() + 100, usegmt=True)
    waits = {"7": 7.0, "1e9": 3600.0, "soon": None, "-3": None, "nan": None, "0": None}
    for text, seconds in waits.items():
        assert failure_of_status(429, headers={"retry-after": text}).retry_after_s == seconds
    assert failure_of_status(503, headers={"retry-after": date}).retry_after_s == pytest.approx(100, abs=5)


def test_a_text_that_takes_too_long_is_unreadable():
    """A reply whose text was stuck in a reading thread is not asked again, as after a timeout of the network."""
    error = ReplyTooLarge("slow")
    error.__cause__ = ReadingStuck()
    assert failure_of_error(error).kind == "unreadable"


def test_the_kind_of_an_error():
    """Refused and broken connections, silence and invalid replies are distinguished, also as the cause of an error."""
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = httpx.ConnectTimeout("slow")
    refused = aiohttp.ClientConnectorError(SimpleNamespace(host="h", port=1, ssl=True), OSError("refused"))
    kinds = {
        "unreachable": [httpx.ConnectError("refused"), wrapped, refused, aiohttp.ConnectionTimeoutError()],
        "broken": [
            *(httpx.ReadError("reset"), httpx.RemoteProtocolError("cut")),
            *(aiohttp.ServerDisconnectedError(), aiohttp.ClientPayloadError("cut"), aiohttp.InvalidURL("x")),
        ],
        "timeout": [httpx.ReadTimeout("silent"), TimeoutError(), aiohttp.SocketTimeoutError()],
        "unreadable": [ValueError("no JSON"), KeyError("choices")],
    }
    for kind, errors in kinds.items():
        assert {failure_of_error(error) for error in errors} == {Failure(kind=kind)}
    assert failure_of_error(BrokenReply("busy", status_code=503)) == Failure(kind="failed", status=503)


@pytest.mark.parametrize(
    ("status", "error", "kind", "code", "param"),
    [
        (400, {"code": "too_long", "param": "messages[0].content"}, "refused", "too_long", "messages[0].content"),
        (400, {"type": "invalid", "param": ["a"]}, "refused", "invalid", None),
        (422, {"param": "a key: sk-1"}, "refused", None, None),
        (429, {"code": "insufficient_quota"}, "denied", "insufficient_quota", None),
        (429, {"type": "exceeded_current_quota_error"}, "denied", "exceeded_current_quota_error", None),
        (429, {"code": "rate_limit_exceeded"}, "limited", "rate_limit_exceeded", None),
    ],
)
def test_what_an_error_names(status, error, kind, code, param):
    """The code and the parameter are kept; a used-up quota is the arm's fault, and no wait helps."""
    failure = failure_of_status(status, headers={"retry-after": "7"}, body={"error": error})
    assert (failure.kind, failure.code, failure.param) == (kind, code, param)
    assert (failure.has_no_quota, failure.retry_after_s) == ((True, None) if kind == "denied" else (False, 7.0))
    assert failure_of({"failure": failure.facts}) == failure


@pytest.mark.parametrize(
    ("error", "kind", "is_overload", "inability"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, "failed", True, None),
        ({"code": 503, "message": "The model is overloaded."}, "failed", True, None),
        ({"code": 500, "message": "it crashed"}, "failed", False, None),
        ({"code": "rate_limit_exceeded", "message": "slow down"}, "limited", False, None),
        ({"code": "context_length_exceeded", "message": "too long"}, "refused", False, "context"),
        ({"type": "invalid_request_error", "message": "tools are not supported"}, "refused", False, "parameter"),
        ({"message": "something"}, "unreadable", False, None),
    ],
)
def test_an_error_in_a_reply_with_status_200_is_read_by_its_code_or_type(error, kind, is_overload, inability):
    """Errors inside a stream have the kinds of the statuses that their numbers or names stand for."""
    with pytest.raises(BrokenReply) as caught:
        raise_error({"error": error})
    failure = failure_of_error(caught.value)
    assert (failure.kind, failure.is_overload, failure.inability) == (kind, is_overload, inability)
