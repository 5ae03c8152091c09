"""Responses: JSON bodies of replies, the reply to every error, and how FastAPI is told of them."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from ragbandit.client.replies.decisions import ErrorDetail, ErrorReply
from ragbandit.router.api.schemas.replies import plain
from ragbandit.shared.errors import Overloaded, RagBanditError

#: status of a request whose caller closed the connection before the reply, as nginx counts it
CLIENT_CLOSED: Final = 499

# Made once: `json.dumps` would make one for every reply.
_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class JsonReply(JSONResponse):
    """A reply as JSON: values of our types as objects, numbers that are not finite as null."""

    def render(self, content: Any) -> bytes:
        """The body."""
        try:
            return _JSON.encode(content).encode()
        except (TypeError, ValueError):  # a value of ours, or a number that is not finite
            return _JSON.encode(plain(content)).encode()


#: of JSON-RPC's codes for errors of the server's own one that MCP leaves free
_SERVER_ERROR: Final = -32050
#: key of an ASGI scope: how the errors of this request are written, where that is another way than ours
SHAPE: Final = "ragbandit.errors"
Shape = Callable[[Scope, int, ErrorDetail, Mapping[str, str] | None], Response]


def refusal(error: RagBanditError, *, scope: Scope) -> Response:
    """The reply to a request that ended with an error of ours; what may be sent again says when."""
    after_s = error.retry_after_s if isinstance(error, Overloaded) else 1.0 if error.status == 503 else None
    headers = None if after_s is None else {"Retry-After": str(math.ceil(after_s))}
    if error.status == 409:
        headers = {"x-should-retry": "false"}  # some clients try a conflict again by themselves, and it stays one
    if error.status == 401:
        headers = {"WWW-Authenticate": 'Bearer realm="ragbandit"'}
    return error_reply(scope, error.status, error_json(error), headers=headers)


def error_reply(scope: Scope, status: int, body: ErrorReply, *, headers: Mapping[str, str] | None = None) -> Response:
    """The reply of an error, as who sent this request reads it."""
    shape: Shape | None = scope.get(SHAPE)
    return JsonReply(body, status, headers) if shape is None else shape(scope, status, body["error"], headers)


def mcp_error(_scope: Scope, status: int, error: ErrorDetail, headers: Mapping[str, str] | None) -> Response:
    """The reply of an error on the path of MCP: as JSON-RPC has them, with a code of the server's own."""
    message = f"{error['message']} ({error['remedy']})" if error["remedy"] else error["message"]
    shape = {"code": _SERVER_ERROR, "message": message, "data": error}
    return JsonReply({"jsonrpc": "2.0", "id": None, "error": shape}, status, headers)


def gone() -> Response:
    """The reply to a caller that has closed its connection: counted, and read by nobody."""
    return Response(status_code=CLIENT_CLOSED)


def error_json(error: RagBanditError) -> ErrorReply:
    """An error of ours."""
    return error_body(error.code, error.message, field=error.field, remedy=error.remedy)


def error_body(code: str, message: str, *, field: str | None = None, remedy: str | None = None) -> ErrorReply:
    """The shape of every error: stable code, message, field, remedy."""
    return {"error": {"code": code, "message": message, "field": field, "remedy": remedy}}


def described(text: str, model: Any) -> dict[str, Any]:
    """A reply for the OpenAPI document, as FastAPI takes it: when it comes, and its type."""
    return {"description": text, "model": model}


def errors(model: type, codes: Iterable[int]) -> dict[int | str, dict[str, Any]]:
    """The error replies of a path for the OpenAPI document: of 400 and of these statuses.

    That of 400 brings the model into the document, the others name it: FastAPI builds a validator for each model of
    each path, which would be most of the time that an app takes to be made.
    """
    named = {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}}
    return {400: {"model": model}, **dict.fromkeys(codes, named)}


#: the error replies of any path
ERRORS: Final = errors(ErrorReply, (401, 403, 404, 409, 413, 422, 429, 503))
