"""OpenAI-compatible test server with scripted replies and failures.

    with ScriptedServer(['{"choice": 2}', Reply(status=429, retry_after=0.5), "Paris"]) as server:
        client = openai.OpenAI(base_url=server.url, api_key="any")
        ...
    assert server.requests[0].body["model"] == "gpt"

It serves POST /v1/chat/completions and /v1/completions, streamed or not, and GET /v1/models, on a free port of
127.0.0.1. A token is a word with the white space before it; its log-probability is -0.5. The server obeys max_tokens
and stop strings.
"""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
_MODELS = "/v1/models"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The reply to one request."""

    #: text of the answer, or message of the error
    text: str = ""
    #: HTTP status; if it is not 200, the body is an error object
    status: int = 200
    #: Retry-After header: seconds, or the text of the header
    retry_after: float | str | None = None
    #: code in the error object, for example "insufficient_quota"
    code: str | None = None
    #: pause before the first byte, seconds
    seconds: float = 0.0
    #: body to send instead of the completion, for example broken JSON
    body: bytes | None = None
    #: replaces the correct Content-Type
    content_type: str | None = None
    #: close the connection after half of the body, or after half of a stream's parts
    cut: bool = False
    #: end a stream normally after half of its parts
    short: bool = False
    #: pause between single bytes, seconds: the reply takes long, but no single read times out
    drip_s: float | None = None
    #: pause before every part of a stream, seconds
    part_s: float = 0.0
    #: new values of fields of a completion or of a stream's parts; a mapping is merged into the existing mapping:
    #: {"model": "another", "choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}}
    changes: Mapping[str, Any] = field(default_factory=dict)
    #: further fields of the message, such as {"tool_calls": [...]}
    message: Mapping[str, Any] = field(default_factory=dict)
    #: finish reason. None for the computed one: "length" if max_tokens cut the text, else "stop"
    finish: str | None = None
    #: whether max_tokens, stop strings and requests for log-probabilities are obeyed
    obedient: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedRequest:
    """A request to the test server."""

    path: str
    #: headers, with names in lower case
    headers: Mapping[str, str]
    body: Mapping[str, Any]


class ScriptedServer:
    """A server that answers chats and prompts from a script. Use it in a `with` block, or close it.

    `requests` lists the received requests. `abandoned` counts streams that clients closed before the end.

    replies: one of these; a text means Reply(text=...):
        a sequence: one reply per request in the order of arrival; status 500 after the last one
        a mapping, text -> reply: the reply of the first text that messages or prompt contain; "" fits every request
        a function of the request's body; it is called on the thread of the connection
    models: objects in the reply to GET /v1/models
    """

    def __init__(
        self,
        replies: Sequence[Reply | str] | Mapping[str, Reply | str] | Callable[[Mapping[str, Any]], Reply | str],
        *,
        models: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.requests: list[ReceivedRequest] = []
        self.abandoned = 0
        self._replies, self._models = replies, models
        self._lock = threading.Lock()
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), type("_Handler", (_Handler,), {"script": self}))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="scripted-server", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The `base_url` for a client."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        """Stop the server and abort unfinished replies."""
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def receive(self, request: ReceivedRequest) -> Reply:
        """Store a request and choose its reply."""
        with self._lock:
            self.requests.append(request)
            number = sum(received.path != _MODELS for received in self.requests)
        reply = self._pick(request, number=number)
        return Reply(text=reply) if isinstance(reply, str) else reply

    def abandon(self) -> None:
        """Count a stream that a client closed."""
        with self._lock:
            self.abandoned += 1

    def _pick(self, request: ReceivedRequest, *, number: int) -> Reply | str:
        if request.path == _MODELS:
            return Reply(body=json.dumps({"object": "list", "data": self._models}).encode())
        if request.path not in (_CHAT, _COMPLETIONS):
            return Reply(status=404, text=f"this server only has {_CHAT}, {_COMPLETIONS} and {_MODELS}")
        if _is_completion(request.body) != (request.path == _COMPLETIONS):
            field = "prompt" if request.path == _COMPLETIONS else "messages"
            return Reply(status=400, text=f"{request.path} needs {field}")
        if callable(self._replies):
            return self._replies(request.body)
        if isinstance(self._replies, Mapping):
            content = _prompt_text(request.body)
            missing = Reply(status=500, text='the script has no reply for this; add one under ""')
            return next((reply for piece, reply in self._replies.items() if piece in content), missing)
        if number > len(self._replies):
            return Reply(status=500, text=f"the script has only {len(self._replies)} replies")
        return self._replies[number - 1]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback, since clients may hang up."""


class _Handler(BaseHTTPRequestHandler):
    """Handles one request per connection (HTTP/1.0), so that a closed server leaves no connection open."""

    script: ScriptedServer

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length", "0")))
        headers = {name.lower(): value for name, value in self.headers.items()}
        sent = json.loads(raw or b"{}")
        reply = self.script.receive(ReceivedRequest(path=self.path, headers=headers, body=sent))
        self.script.closing.wait(reply.seconds)
        if sent.get("stream") and reply.status == 200 and reply.body is None:
            self._begin(reply, kind="text/event-stream")
            self._send_parts(list(_stream_parts(reply, sent=sent)), reply=reply)
        else:
            kind = "text/event-stream" if sent.get("stream") and reply.status == 200 else "application/json"
            body = _reply_body(reply, sent=sent)
            self._begin(reply, kind=kind, length=len(body))
            self._send(body, reply=reply)

    do_GET = do_POST  # noqa: N815 - name in the base class

    def _begin(self, reply: Reply, *, kind: str, length: int | None = None) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type or kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        if reply.retry_after is not None:
            pause = reply.retry_after
            self.send_header("Retry-After", pause if isinstance(pause, str) else f"{pause:g}")
        self.end_headers()

    def _send_parts(self, parts: list[bytes], *, reply: Reply) -> None:
        try:
            for part in parts[: len(parts) // 2] if reply.cut or reply.short else parts:
                if self.script.closing.wait(reply.part_s):
                    return
                self._send(part, reply=Reply(drip_s=reply.drip_s))
            if reply.cut:  # the connection ends in the middle of an event
                self.wfile.write(b'data: {"id": "chat')
                self.connection.shutdown(socket.SHUT_RDWR)
        except (BrokenPipeError, ConnectionResetError):
            self.script.abandon()
            raise

    def _send(self, body: bytes, *, reply: Reply) -> None:
        if reply.cut:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        elif reply.drip_s is not None:
            for position in range(len(body)):
                self.wfile.write(body[position : position + 1])
                self.wfile.flush()
                if self.script.closing.wait(reply.drip_s):
                    return
        else:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - name in the base class
        """Log nothing."""


def _is_completion(sent: Mapping[str, Any]) -> bool:
    """Whether a request is for /v1/completions, by its prompt."""
    return "prompt" in sent


def _prompt_text(sent: Mapping[str, Any]) -> str:
    if _is_completion(sent):
        return str(sent["prompt"])
    return "\n".join(str(message.get("content")) for message in sent.get("messages", []))


def _tokens(reply: Reply, *, sent: Mapping[str, Any]) -> tuple[list[str], str]:
    """Split the text of a reply. Returns (tokens with the white space before them, finish reason)."""
    text = reply.text
    if not reply.obedient:
        return re.findall(r"\s*\S+|\s+$", text), "stop"
    limit = sent.get("max_tokens") or sent.get("max_completion_tokens")
    stops = sent.get("stop") or []
    ends = [text.find(stop) for stop in ([stops] if isinstance(stops, str) else stops)]
    text = text[: min((end for end in ends if end >= 0), default=len(text))]
    tokens = re.findall(r"\s*\S+|\s+$", text)
    return (tokens[:limit], "length") if limit and len(tokens) > limit else (tokens, "stop")


def _reply_body(reply: Reply, *, sent: Mapping[str, Any]) -> bytes:
    if reply.body is not None:
        return reply.body
    if reply.status != 200:
        return json.dumps({"error": {"message": reply.text, "type": "scripted", "code": reply.code}}).encode()
    tokens, finish = _tokens(reply, sent=sent)
    message = {"role": "assistant", "content": "".join(tokens) or (None if reply.message else ""), **reply.message}
    answer: dict[str, Any] = {"text": "".join(tokens)} if _is_completion(sent) else {"message": message}
    logprobs = _logprobs(tokens, reply=reply, sent=sent)
    choice = {"index": 0, "finish_reason": reply.finish or finish, **answer, **logprobs}
    whole = _common_fields(sent, kind="chat.completion") | {"choices": [choice], "usage": _usage(tokens, sent=sent)}
    return json.dumps(_apply_changes(whole, reply=reply)).encode()


def _stream_parts(reply: Reply, *, sent: Mapping[str, Any]) -> Iterator[bytes]:
    """The events of a stream: one per token, the finish reason, the usage if it was requested, and [DONE]."""
    head = _common_fields(sent, kind="chat.completion.chunk")
    tokens, finish = _tokens(reply, sent=sent)
    is_text = _is_completion(sent)
    choices: list[dict[str, Any]] = [
        {
            **({"text": token} if is_text else {"delta": {"content": token}}),
            **_logprobs([token], reply=reply, sent=sent),
        }
        for token in tokens
    ]
    choices += [{"delta": delta} for delta in _deltas(reply.message)]
    choices = [{"index": 0, "finish_reason": None, **choice} for choice in choices]
    choices.append(
        {"index": 0, "finish_reason": reply.finish or finish, **({"text": ""} if is_text else {"delta": {}})}
    )
    parts: list[dict[str, Any]] = [head | {"choices": [choice]} for choice in choices]
    if (sent.get("stream_options") or {}).get("include_usage"):
        parts.append(head | {"choices": [], "usage": _usage(tokens, sent=sent)})
    for part in parts:
        yield b"data: " + json.dumps(_apply_changes(part, reply=reply)).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _apply_changes(part: dict[str, Any], *, reply: Reply) -> dict[str, Any]:
    for name, value in reply.changes.items():
        if not isinstance(value, Mapping):
            part |= {name: value}
        elif name in part:
            part |= {name: {**part[name], **value}}
    return part


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Split a message into deltas. A tool call becomes three: its name, and each half of its arguments."""
    for name, value in message.items():
        if name != "tool_calls":
            yield {name: value}
            continue
        for index, call in enumerate(value):
            arguments = call["function"]["arguments"]
            empty = {**call["function"], "arguments": ""}
            yield {name: [{"index": index, **call, "function": empty}]}
            for half in (arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]):
                yield {name: [{"index": index, "function": {"arguments": half}}]}


def _common_fields(sent: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    name, kind = ("cmpl-scripted", "text_completion") if _is_completion(sent) else ("chatcmpl-scripted", kind)
    return {"id": name, "object": kind, "created": 0, "model": sent.get("model", "scripted")}


def _usage(tokens: list[str], *, sent: Mapping[str, Any]) -> dict[str, int]:
    prompt, completion = len(_prompt_text(sent).split()), len(tokens)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _logprobs(tokens: list[str], *, reply: Reply, sent: Mapping[str, Any]) -> dict[str, Any]:
    if not (reply.obedient and sent.get("logprobs")):
        return {}
    if _is_completion(sent):
        numbers = [-0.5] * len(tokens)
        tops = [{token: -0.5} for token in tokens]
        return {"logprobs": {"tokens": tokens, "token_logprobs": numbers, "top_logprobs": tops}}
    return {"logprobs": {"content": [{"token": token, "logprob": -0.5, "top_logprobs": []} for token in tokens]}}
