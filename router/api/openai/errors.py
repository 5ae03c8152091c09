"""Errors as OpenAI's clients read them: {"error": {"message", "type", "param", "code"}}, on every path that is theirs.

The endpoints here, and every layer before them, raise and reply as the rest of the service does. The middleware
`ErrorMiddleware` around them says it in OpenAI's words, so that no layer has to know both.
"""

import json
import re
from typing import Any, ClassVar, Final

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

from ragbandit.router.api.schemas.responses import JsonReply
from ragbandit.router.telemetry.carriers import SCOPE_ID, request_id_of
from ragbandit.shared.errors import InvalidInput, NotFound

#: paths of OpenAI's interface, of which we serve some: all of them answer in its shape
_PATHS: Final = ("/v1/models", "/v1/chat", "/v1/completions", "/v1/responses", "/v1/embeddings")
#: our names of fields -> those of a chat completion
_PARAMS: Final = {"question": "messages", "arms": "model", "decision_id": "Idempotency-Key", "tenant": None}
_CODES: Final = {
    "UNAUTHORIZED": "invalid_api_key",
    "TOO_MANY_REQUESTS": "rate_limit_exceeded",
    "RATE_LIMITED": "rate_limit_exceeded",
}
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ModelNotFound(NotFound):
    """There is no model of this name."""

    code: ClassVar[str] = "MODEL_NOT_FOUND"


class Unsupported(InvalidInput):
    """A parameter asks for what the service does not do."""

    code: ClassVar[str] = "UNSUPPORTED_PARAMETER"


def is_openai_path(path: str) -> bool:
    """Whether errors on this path are in OpenAI's shape."""
    return any(path == one or path.startswith(f"{one}/") for one in _PATHS)


def as_openai_error(status: int, error: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The status and the body of an error of ours ({"code", "message", "field", "remedy"}) as OpenAI has them."""
    status = 400 if status == 422 else status
    field, remedy, message = error["field"], error["remedy"], error["message"]
    param = _PARAMS.get(field, field)
    if param is not None:
        param = re.sub(r"\.(\d+)", r"[\1]", param)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = _CODES.get(error["code"], error["code"].lower())
    whole = f"{message} ({remedy})" if remedy else message
    return status, {"error": {"message": whole, "type": kind, "param": param, "code": code}}


def unforeseen_reply(scope: Scope, reply: JsonReply) -> JsonReply:
    """The reply to a fault of ours, which is made outside of the middleware, as it is to look on this path.

    The fault may have come after the decision: clients are told not to ask again by themselves.
    """
    error = _error_in(bytes(reply.body)) if is_openai_path(scope["path"]) else None
    if error is None:
        return reply
    status, body = as_openai_error(reply.status_code, error)
    headers = {"x-should-retry": "false", "x-request-id": _request_id(scope)}
    return JsonReply(body, status_code=status, headers=headers)


def shaping_errors(scope: Scope, send: Send) -> Send:
    """`send` with the errors of this request in OpenAI's shape, and x-request-id on every reply."""
    request_id = _request_id(scope)
    held: Message | None = None
    parts: list[bytes] = []

    async def shaped(message: Message) -> None:
        nonlocal held
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = request_id
            if message["status"] >= 400 and headers.get("content-type", "").startswith("application/json"):
                held = message
                return
        elif held is not None:
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                await _send_error(held, b"".join(parts), send=send)
                held = None
            return
        await send(message)

    return shaped


async def _send_error(start: Message, body: bytes, *, send: Send) -> None:
    error = _error_in(body)
    headers = MutableHeaders(scope=start)
    if error is not None:
        start["status"], shown = as_openai_error(start["status"], error)
        body = json.dumps(shown, ensure_ascii=False).encode()
        headers["content-length"] = str(len(body))
    if start["status"] == 409 and "x-should-retry" not in headers:
        headers["x-should-retry"] = "false"  # clients try a conflict again by themselves, and it stays one
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _error_in(body: bytes) -> dict[str, Any] | None:
    """The error of ours that a body holds; None for another body."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, TypeError, KeyError):
        return None
    return error if isinstance(error, dict) and set(error) == {"code", "message", "field", "remedy"} else None


def _request_id(scope: Scope) -> str:
    """The id of the request."""
    return str(scope.get(SCOPE_ID) or request_id_of(scope["headers"]))
