"""A model server that fails as the question asks it to: sockets that break, statuses, broken bodies and streams."""

import json
import socketserver
import struct
import threading
import time

from tests.support.additions import is_served

JSON, STREAM, HTML = "application/json", "text/event-stream", "text/html"
#: longest silence, seconds: longer than any limit of the tests
SILENCE_S = 6.0

#: (endpoint, whether the reply is streamed) of every way to get an answer
DOORS = [("chat", False), ("chat", True), ("responses", False), ("responses", True), ("answer", False)]
DOORS = [one for one in DOORS if one[0] != "responses" or is_served("/v1/responses")]


def chunk(delta, **more):
    body = {"id": "up", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return (
        b"data: %b\n\n"
        % json.dumps({**body, "choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}]}).encode()
    )


ROLE = chunk({"role": "assistant", "content": ""})
END = chunk({}, finish_reason="stop") + b"data: [DONE]\n\n"
GOOD = ROLE + chunk({"content": "Par"}) + chunk({"content": "is"}) + END
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
#: reply to a question with tools
CALLS = ROLE + chunk({"tool_calls": [{"index": 0, **CALL}]}) + END
WHOLE = {
    "id": "up",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": "stop"}],
}


def error(message, **more):
    return json.dumps({"error": {"message": message, **more}}).encode()


#: fault -> status, type and body of the reply, further headers
REPLIES = {
    "500": (500, JSON, error("the model crashed"), ""),
    "502": (502, HTML, b"<html><head><title>x</title></head><body><h1>502 Bad Gateway</h1></bo", ""),
    "503": (503, "text/plain", b"no healthy upstream", ""),
    "504": (504, JSON, b'{"error": "upstream timed out"}', ""),
    "408": (408, JSON, b'{"message": "too slow"}', ""),
    "429": (429, JSON, error("slow down", type="rate_limit"), ""),
    "429-after": (429, JSON, b'[{"error": {"message": "slow down"}}]', "Retry-After: 7\r\n"),
    "401": (401, JSON, error("wrong key"), ""),
    "403": (403, JSON, b'{"detail": "not this key"}', ""),
    "404": (404, JSON, error("no such model"), ""),
    "400": (400, JSON, error("bad schema", code="invalid_schema"), ""),
    "422": (422, JSON, b'{"detail": [{"loc": ["body"], "msg": "bad field"}]}', ""),
    "too-long": (
        400,
        JSON,
        error("The input token count (9000) exceeds the maximum number of tokens allowed (4)."),
        "",
    ),
    "no-tools": (400, JSON, error("this model does not support tools", type="invalid_request_error"), ""),
    "model-gone": (400, JSON, error("The model is gone", code="model_decommissioned"), ""),
    "wrong": (400, JSON, error("Invalid 'temperature': expected a value <= 2, but got 9", param="temperature"), ""),
    "413": (413, "text/plain", b"the body is too large", ""),
    "invalid-json": (200, STREAM, b'data: {"choices": [{"ind\n\n', ""),
    "empty-body": (200, JSON, b"", ""),
    "empty-stream": (200, STREAM, b"data: [DONE]\n\n", ""),
    "role-only": (200, STREAM, ROLE + b"data: [DONE]\n\n", ""),
    "html": (200, HTML, b"<html><body>Please log in</body></html>", ""),
    "error-event": (200, STREAM, b'data: {"error": {"message": "overloaded", "code": 503}}\n\n', ""),
    "role-then-error": (200, STREAM, ROLE + b'data: {"error": {"message": "overloaded"}}\n\n', ""),
}


class FaultyModels:
    """The first request with a question of the form "fault:NAME ..." fails so, all of them with "always:NAME ...".

    With "kill:NAME ..." the second one gets no reply, so that its worker can be killed meanwhile.
    `asked` has (question, model) of every request, in order.
    """

    def __init__(self):
        self.asked = []
        self.models_seen = threading.Lock()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                outer._handle(self.rfile, self.wfile, self.connection)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler, bind_and_activate=True)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def requests_of(self, question):
        return [model for text, model in self.asked if text == question]

    def _handle(self, received, sent, connection):
        size = 0
        while (line := received.readline()).strip():
            if line.lower().startswith(b"content-length:"):
                size = int(line.split(b":")[1])
        if not size:
            return
        body = json.loads(received.read(size))
        question = str(body["messages"][-1]["content"])
        with self.models_seen:
            before = len(self.requests_of(question))
            self.asked.append((question, body["model"]))
        kind, _, rest = question.partition(":")
        fault = rest.split()[0] if kind == "always" or (kind in ("fault", "kill") and not before) else "none"
        fault = "silence" if kind == "kill" and before == 1 else fault
        calls = bool(body.get("tools")) and body["messages"][-1]["role"] == "user"
        self._reply(fault, sent, connection, streams=bool(body.get("stream")), calls=calls)

    def _reply(self, fault, sent, connection, *, streams, calls):
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {STREAM}\r\nConnection: close\r\n\r\n".encode()
        beginnings = {
            "reset": b"",
            "reset-in-headers": head[:20],
            "reset-after-headers": head,
            "reset-after-role": head + ROLE,
            "cut": head + ROLE + chunk({"content": "Par"}),
            "silence": b"",
            "silence-after-role": head + ROLE,
        }
        if fault in beginnings:
            sent.write(beginnings[fault])
            sent.flush()
            if fault == "cut":
                time.sleep(0.5)  # the piece is on its way to the reader
            if fault.startswith("silence"):
                time.sleep(SILENCE_S)
            if fault.startswith("reset"):  # a reset, and no ordinary end
                time.sleep(0.05)
                connection.setsockopt(*LINGER)
            connection.close()
            return
        good = (200, STREAM, CALLS if calls else GOOD, "") if streams else (200, JSON, json.dumps(WHOLE).encode(), "")
        status, kind, body, more = REPLIES.get(fault, good)
        length = len(body) + (50 if fault == "truncated" else 0)
        sent.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}"
            "Connection: close\r\n\r\n".encode()
            + body
        )


LINGER = (1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER


def generator(url, model, *, first_piece_s=2.0):
    openai = {"base_url": url, "first_piece_s": first_piece_s, "retries": 1}
    prices = {"input": 1.0, "output": 1.0}
    return {"name": "openai", "model": model, "context_tokens": 4000, "token_prices": prices, "openai": openai}


def two_models(url, **more):
    """The settings of two arms with a model each."""
    return {
        "generator": generator(url, "one", **more),
        "generators": {"two": generator(url, "two", **more)},
        "arms": {"one": {"class": "model"}, "two": {"class": "model", "generator": "two"}},
        "health": {"failures": 0},
    }


def events_of(reply):
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def asked(client, question, *, door="chat", stream=False, **more):
    """(status, text or None, id of the decision, error or None, the HTTP reply)"""
    if door == "answer":
        reply = client.post("/v1/answer?wait_s=30", json={"question": question, "arms": ["one", "two"], **more})
        body = reply.json()
        return reply.status_code, body["answer"], body["decision_id"], body["error"], reply
    chat = door == "chat"
    body = {"messages": [{"role": "user", "content": question}]} if chat else {"input": question}
    reply = client.post(
        "/v1/chat/completions" if chat else "/v1/responses", json={"model": "auto", "stream": stream, **body, **more}
    )
    events = events_of(reply) if stream and reply.status_code == 200 else [reply.json()]
    if "error" in events[-1] and events[-1]["error"]:
        return reply.status_code, None, None, events[-1]["error"]["message"], reply
    if chat:
        choices = [one["choices"][0] for one in events]
        parts = [one.get("delta", one.get("message")) for one in choices]
        return reply.status_code, "".join(part.get("content") or "" for part in parts), events[-1]["id"], None, reply
    response = events[-1]["response"] if stream else events[-1]
    if response["error"]:
        return reply.status_code, None, response["id"], response["error"]["message"], reply
    text = "".join(part["text"] for item in response["output"] for part in item["content"])
    return reply.status_code, text, response["id"], None, reply
