"""OpenAI's interface: errors have its shape, its client raises them, and it retries only if this is safe."""

import gzip
import json
import time
import zlib
from concurrent.futures import Future

import openai
import pytest
from backports import zstd

from ragbandit.router.api.endpoints import streaming
from ragbandit.router.api.openai import chat_exchange, endpoints
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.shared.additions import additions
from tests.integration.api.openai.conftest import outcome_of
from tests.support.additions import marked, needs
from tests.support.servers.http_service import QUESTION

ASKED = [{"role": "user", "content": QUESTION}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}


def error_of(reply) -> dict:
    """The error of a reply, which has OpenAI's shape and a request id."""
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert reply.headers["x-request-id"]
    return body["error"]


def said(*parts) -> list[dict]:
    return [{"role": "user", "content": list(parts)}]


#: further fields of the request, the parameter that is refused
REFUSED = [
    ({"n": 2}, "n"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "f"}}, "function_call"),
    ({"logprobs": True}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "system", "content": "Be brief."}]}, "messages"),
    ({"messages": [*ASKED, {"role": "robot", "content": "?"}]}, "messages[1].role"),
    ({"messages": [*ASKED, "?"]}, "messages[1]"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": said({"type": "text", "text": "?"}, IMAGE)}, "messages"),
    ({"messages": said({"type": "video"})}, "messages[0].content[0].type"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": "?"}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 100_001}]}, "messages"),
    ({"model": None}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"metadata": "a"}, "metadata"),
    ({"user": "\x00"}, "user"),
]


@pytest.mark.parametrize(("sent", "param"), REFUSED, ids=lambda each: str(each)[:60])
def test_what_is_refused(unmoved, sent, param):
    """What cannot be answered as asked is a 400 with the parameter's name, and nothing is decided."""
    reply = unmoved.post("/v1/chat/completions", json={"model": "auto", "messages": ASKED} | sent)
    error = error_of(reply)
    assert (reply.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)


@needs("responses")
@pytest.mark.parametrize("path", marked(["/v1/chat/completions", "/v1/responses"]))
@pytest.mark.parametrize(
    ("sent", "param"),
    [({"tools": wrong}, "tools") for wrong in ("x", 5, [1])] + [({"include": wrong}, "include") for wrong in (5, [1])],
    ids=str,
)
def test_wrong_lists_of_a_response(unmoved, path, sent, param):
    """A response with lists of another type is a 400 with the parameter's name at both doors."""
    reply = unmoved.post(path, json={"model": "auto", "input": QUESTION} | sent)
    error = error_of(reply)
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["param"].startswith(param)


@needs("responses")
def test_paths_and_methods(unmoved):
    """What is not served is in OpenAI's shape; unknown query parameters are passed over; a limit is named."""
    assert error_of(unmoved.get("/v1/chat/completions"))["code"] == "method_not_allowed"
    assert error_of(unmoved.post("/v1/embeddings", json={"model": "m", "input": "a"}))["code"] == "not_found"
    assert error_of(unmoved.get("/v1/models/nobody"))["code"] == "model_not_found"
    listed = unmoved.get("/v1/models?limit=5&api-version=2024-10-21")
    assert (listed.status_code, unmoved.get("/v1/models/").json()) == (200, listed.json())
    refused = unmoved.post("/v1/chat/completions?api-version=1", json={"model": "auto", "messages": []})
    assert error_of(refused)["param"] == "messages"
    large = unmoved.post("/v1/responses", content=b"x" * 4_200_000, headers={"content-type": "application/json"})
    assert (large.status_code, "server.max_chat_bytes" in error_of(large)["message"]) == (413, True)


@pytest.mark.parametrize(
    ("path", "words"),
    marked(
        [
            ("/v1/rerank", "own base URL"),
            ("/v2/rerank", "own base URL"),
            ("/v1/audio/speech", "input_audio"),
            ("/audio/transcriptions", "input_audio"),
            ("/openai/deployments/d/images/edits?api-version=1", "image_url"),
            ("/v1/moderations", "own base URL"),
            ("/v1/files/file-1/content", "`file` part"),
            ("/v1/vector_stores", "`file` part"),
            ("/v1/batches", "send each request by POST /v1/chat/completions"),
            ("/v1/responses/compact", "POST /v1/responses"),
            *([("/v1/responses/input_tokens", "count_tokens")] if "anthropic" in additions() else []),
            ("/v1/responses/some/input_items", "GET /v1/decisions/{id}"),
            ("/v1/chat/completions/chatcmpl-1", "GET /v1/decisions/{id}"),
            ("/v1/threads/t/runs", "POST /v1/responses"),
            ("/v1/fine_tuning/jobs", "own base URL"),
            ("/api/generate", "OpenAI's interface"),
            ("/v1beta/models/gemini-pro:generateContent", "OpenAI's interface"),
        ]
    ),
)
def test_what_is_not_served_names_what_is(unmoved, path, words):
    """An endpoint of OpenAI that is not served is a 404 in its shape, which names what is served instead."""
    reply = unmoved.post(path, json={"model": "auto", "input": "x"})
    error = error_of(reply)
    assert (reply.status_code, error["type"], error["code"]) == (404, "invalid_request_error", "not_found")
    assert "not served here" in error["message"]
    assert words in error["message"]


@pytest.mark.parametrize(
    "path",
    marked(
        [
            *("/chat/completions", "/models", "/v1/v1/chat/completions", "/v1/v1/embeddings", "/responses/"),
            *("/openai/deployments/auto/chat/completions?api-version=2024-10-21", "/api/v1/responses", "/api/chat"),
        ]
    ),
)
def test_a_wrong_base_url(unmoved, path):
    """The 404 of a path that follows a wrong base URL names the right one."""
    for method in ("GET", "POST"):
        reply = unmoved.request(method, path, json={})
        assert (reply.status_code, error_of(reply)["code"]) == (404, "not_found")
        assert f" {unmoved.base_url}/v1; " in reply.text
    assert "base URL" not in unmoved.get("/v1/policies/chat/completions").text


@needs("responses")
@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress, zlib.compress])
def test_packed_requests(service, answers, pack):
    """A packed body is read on every path (also with more slashes), up to its limit; a broken one is refused."""
    answers()
    coding = {gzip.compress: "gzip", zstd.compress: "zstd", zlib.compress: "deflate"}[pack]

    def sent(path, body, coding=coding):
        head = {"content-type": "application/json", "content-encoding": coding}
        return service.http.post(path, content=pack(body), headers=head)

    for path, body in (
        ("/v1/chat/completions/", {"model": "auto", "messages": ASKED}),
        ("/v1//responses", {"model": "auto", "input": QUESTION}),
        ("/v1/route", {"question": QUESTION}),
    ):
        assert sent(path, json.dumps(body).encode()).status_code == 200
    large = sent("/v1/chat/completions", b" " * 5_000_000)
    assert (large.status_code, "server.max_chat_bytes" in error_of(large)["message"]) == (413, True)
    assert sent("/v1/responses", b"{").status_code == 400
    assert sent("/v1/route", b"{}", coding="identity, br").status_code == 415
    wrong = sent("/v1/chat/completions", b"{}", coding="gzip, gzip")
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "Content-Encoding")


def raised(service, **more) -> tuple[openai.APIStatusError, int]:
    """The error that OpenAI's client raises with its own retries, and how often it has asked."""
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="any", timeout=30)
    with client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{"model": "auto", "messages": ASKED} | more)
    asked = 0
    for line in service.http.get("/metrics").text.splitlines():
        if line.startswith('ragbandit_requests_total{path="/v1/chat/completions"'):
            asked += int(float(line.rpartition(" ")[2]))
    return caught.value, asked


FAILED = {"status": "failed", "answer": None}
NO_QUOTA = {"made_by": {"failure": {"kind": "denied", "status": 429, "code": "insufficient_quota"}}}


@pytest.mark.parametrize(
    ("outcome", "status", "code"),
    [
        (FAILED | {"error": "the model is gone", "stop_reason": "failed"}, 500, "arm_failed"),
        (FAILED | {"error": None, "stop_reason": "cancelled"}, 409, "cancelled"),
        (FAILED | {"error": "your quota is used up", "stop_reason": "error"} | NO_QUOTA, 429, "insufficient_quota"),
    ],
)
def test_failures_after_the_decision(service, answers, outcome, status, code):
    """A failure after the decision is asked once, though the client asks again by default, and names the decision."""
    answers(**outcome)
    error, asked = raised(service)
    assert (error.status_code, error.code, asked) == (status, code, 1)
    assert error.response.headers["x-should-retry"] == "false"
    assert service.router.decision(error.response.headers["x-ragbandit-decision-id"]).outcome is not None
    assert service.router.status().counters.decided == 1


def test_no_answer_in_time(service, monkeypatch):
    """Without an answer in time the reply is a 504 that says where it will be; the same key gets it later."""
    asked = chat_exchange.request_answer
    monkeypatch.setattr(
        chat_exchange, "request_answer", lambda *given, **more: asked(*given, **more | {"limit_s": 0.1})
    )
    error, times = raised(service, extra_headers={"Idempotency-Key": "mine-1"})
    assert (error.status_code, error.code, times) == (504, "answer_timeout", 1)
    assert "/v1/decisions/mine-1" in error.message
    service.router.store.add_outcome(outcome_of("mine-1"))
    body = {"model": "auto", "messages": ASKED}
    again = service.http.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": "mine-1"})
    assert again.json()["choices"][0]["message"]["content"] == "Bram Stoker"


def test_no_worker_can_be_asked(service, monkeypatch):
    """A queue that does not take a question in time is a 503, whatever the door, and not a fault of ours."""
    monkeypatch.setattr(streaming, "SERVE_S", 0.05)
    monkeypatch.setattr(service.router.process.answers, "submit", lambda decision: Future())
    for path, body in (("chat/completions", {"model": "auto", "messages": ASKED}), ("answer", {"question": "Who?"})):
        reply = service.http.post(f"/v1/{path}", json=body)
        assert (reply.status_code, "no worker could be asked" in reply.text) == (503, True)


def test_a_fault_of_ours(service, monkeypatch):
    """An unexpected error is a 500 in OpenAI's shape that is not asked again."""

    def broken(*args, **kwargs):
        raise RuntimeError("a fault")

    monkeypatch.setattr(endpoints.requests, "chat_question", broken)
    error, _ = raised(service)
    assert (error.status_code, error.code, error.type) == (500, "internal", "server_error")
    assert error.response.headers["x-should-retry"] == "false"


def test_keys(serve):
    """Without a valid key OpenAI's client raises its AuthenticationError, with one of another role PermissionDenied."""
    service = serve()
    keys = KeyStore(service.router.database)
    key, reader = (keys.create(name="test", role=role, now=time.time(), actor="cli:test") for role in ("app", "reader"))
    service.app.state.gate.ring.known = None
    for sent, error, code in (
        ("wrong", openai.AuthenticationError, "invalid_api_key"),
        (reader.text, openai.PermissionDeniedError, "forbidden"),
    ):
        with openai.OpenAI(base_url=f"{service.url}/v1", api_key=sent) as client, pytest.raises(error) as caught:
            client.chat.completions.create(model="auto", messages=ASKED)
        assert caught.value.code == code
        assert set(caught.value.body) == {"message", "type", "param", "code"}
        assert caught.value.request_id
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=key.text) as client:
        assert client.models.list().data[0].id == "auto"
