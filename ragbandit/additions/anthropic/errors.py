"""Errors of Anthropic's interface in its shape: {"type": "error", "error": {"type", "message", "code"}, "request_id"}.

`code` is not Anthropic's: it is the code that the same error has in a chat completion.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from ragbandit.additions.anthropic.messages.replies import STATUSES
from ragbandit.client.replies.decisions import ErrorDetail
from ragbandit.router.api.openai.errors import as_openai_error
from ragbandit.router.api.request_state import request_state
from ragbandit.router.api.schemas.responses import JsonReply, object_description

#: paths of Anthropic's interface, with any base URL. Paths with the group `shared` also belong to other interfaces
_PATHS: Final = re.compile(
    r"(/v\d|/api|/anthropic)*/(messages|complete|(?P<shared>models|files|skills|organizations))(/.*)?", re.DOTALL
)
_TYPES: Final = {status: kind for kind, status in STATUSES.items()} | {503: "overloaded_error"}
#: code of an error in OpenAI's form -> type of Anthropic, whatever the status is
_KINDS: Final = {
    **dict.fromkeys(("upstream_overloaded", "overloaded"), "overloaded_error"),
    **dict.fromkeys(("upstream_timeout", "answer_timeout"), "timeout_error"),
}
VERSION: Final = "anthropic-version"
_STATUSES: Final = (400, 401, 403, 404, 409, 413, 422, 429, 500, 503, 504, 529)
ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    key: object_description("Error in Anthropic's shape.") for key in _STATUSES
}


def speaks_anthropic(scope: Scope) -> bool:
    """Whether the caller of a request expects Anthropic's shapes."""
    match = _PATHS.fullmatch(scope["path"])
    return match is not None and (match["shared"] is None or VERSION in Headers(scope=scope))


def request_id_header(scope: Scope) -> list[tuple[bytes, bytes]]:
    return [(b"request-id", request_state(scope).request_id.encode("latin-1"))]


def anthropic_error(scope: Scope, status: int, error: ErrorDetail, headers: Mapping[str, str] | None) -> Response:
    """The reply to an error on a path of Anthropic. It asks clients not to repeat a request that failed with 500."""
    status, body = as_openai_error(status, error)
    retry = {"x-should-retry": "false"} if status == 500 else {}
    status = 529 if body["error"]["code"] == "upstream_overloaded" else status  # Anthropic's status for an overload
    event = error_event(body["error"], status=status)
    return JsonReply({**event, "request_id": request_state(scope).request_id}, status, {**retry, **(headers or {})})


def error_event(error: Mapping[str, Any], *, status: int = 0) -> dict[str, Any]:
    """An error in OpenAI's form as an error of Anthropic. status: HTTP status; 0 if the reply has begun."""
    kind = _KINDS.get(error["code"] or "") or _TYPES.get(status)
    kind = kind or ("api_error" if error["type"] == "server_error" else error["type"])
    param, message = error["param"], error["message"]
    is_named = param is None or param in message or error["code"] == "context_length_exceeded"
    message = message if is_named else f"{param}: {message}"
    code = {} if error["code"] is None else {"code": error["code"]}
    return {"type": "error", "error": {"type": kind, "message": message, **code}}
