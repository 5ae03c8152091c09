"""Errors as OpenAI's clients read them: {"error": {"message", "type", "param", "code"}}, on every path that is theirs.

The endpoints here, and what runs before them, raise as the rest of the service does: `edge` has the reply written here.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from starlette.responses import Response
from starlette.types import Scope

from ragbandit.client.replies.decisions import ErrorDetail
from ragbandit.router.api.dependencies import route_path
from ragbandit.router.api.schemas.responses import JsonReply, error_json
from ragbandit.shared.errors import ArmFailed, Conflict, InvalidInput, NotFound, NotReady, RagBanditError
from ragbandit.shared.types import CANCELLED, Decision, Outcome

RESPONSES: Final = "/v1/responses"
#: paths of OpenAI's interface, of which we serve some: all of them answer in its shape
_PATHS: Final = ("/v1/models", "/v1/chat", "/v1/completions", RESPONSES, "/v1/embeddings")
_BELOW: Final = tuple(f"{path}/" for path in _PATHS)
#: our names of fields -> those of a chat completion
_PARAMS: Final[Mapping[str, str | None]] = {
    "question": "messages",
    "arms": "model",
    "decision_id": "Idempotency-Key",
    "tenant": None,
}
#: the same, those of a response
_RESPONSE_PARAMS: Final = {
    **_PARAMS,
    "question": "input",
    "messages": "input",
    "response_format": "text.format",
    "logprobs": "include",
}
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


class AnswerTimeout(NotReady):
    """The answer is not there in time."""

    code: ClassVar[str] = "ANSWER_TIMEOUT"
    status: ClassVar[int] = 504


class Cancelled(Conflict):
    """The answer was cancelled."""

    code: ClassVar[str] = "CANCELLED"


def fault_of(decision: Decision, outcome: Outcome) -> RagBanditError | None:
    """What is wrong with an outcome that is no answer; None: it is one."""
    if outcome.status != "failed":
        return None
    if outcome.stop_reason == CANCELLED:
        return Cancelled("the answer was cancelled", remedy="ask the question again")
    if outcome.stop_reason == "request_refused":
        return InvalidInput(f"the model of the arm {decision.arm!r} refuses the request: {outcome.error}")
    message = f"the arm {decision.arm!r} failed: {outcome.error or outcome.stop_reason}"
    return ArmFailed(message, remedy=f"GET /v1/decisions/{decision.id} has what it did")


def is_openai_path(path: str) -> bool:
    """Whether errors on this path are in OpenAI's shape."""
    return path in _PATHS or path.startswith(_BELOW)


def error_in_reply(error: RagBanditError) -> dict[str, Any]:
    """An error of ours as a reply that has begun shows it: {"message", "type", "param", "code"}."""
    body: dict[str, Any] = as_openai_error(error.status, error_json(error)["error"])[1]["error"]
    return body


def as_openai_error(status: int, error: ErrorDetail, *, path: str = "") -> tuple[int, dict[str, Any]]:
    """The status and the body of an error of ours ({"code", "message", "field", "remedy"}) as OpenAI has them.

    path: of the request; the parameters of a response have names of their own.
    """
    status = 400 if status == 422 else status
    field, remedy, message = error["field"], error["remedy"], error["message"]
    params = _RESPONSE_PARAMS if path.startswith(RESPONSES) else _PARAMS
    param = None if field is None else params.get(field, field)
    if param is not None:
        param = re.sub(r"\.(\d+)", r"[\1]", param)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = _CODES.get(error["code"], error["code"].lower())
    whole = f"{message} ({remedy})" if remedy else message
    return status, {"error": {"message": whole, "type": kind, "param": param, "code": code}}


def openai_error(scope: Scope, status: int, error: ErrorDetail, headers: Mapping[str, str] | None) -> Response:
    """The reply of an error on a path of OpenAI's.

    A fault of ours may have come after the decision: clients are told not to ask again by themselves.
    """
    status, body = as_openai_error(status, error, path=route_path(scope))
    more = {"x-should-retry": "false"} if status == 500 else {}
    return JsonReply(body, status, {**more, **(headers or {})})
