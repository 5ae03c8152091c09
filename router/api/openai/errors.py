"""Errors of the OpenAI interface in its shape: {"error": {"message", "type", "param", "code"}}."""

import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Scope
from typing_extensions import TypedDict

from ragbandit.client.replies.decisions import ErrorDetail
from ragbandit.router.api.openai.replies import message_of
from ragbandit.router.api.schemas.responses import JsonReply, error_json, errors
from ragbandit.router.serving.abilities import ContextExceeded
from ragbandit.router.serving.health.circuit_breaker import OUT_OF_SECONDS
from ragbandit.shared.errors import ArmFailed, Conflict, InvalidInput, NotFound, NotReady, RagBanditError
from ragbandit.shared.model_servers.failures import Failure, FailureKind, failure_of
from ragbandit.shared.model_servers.refusals import too_long_message
from ragbandit.shared.types import CANCELLED, Decision, Outcome

#: paths of OpenAI's interface, also those that follow a wrong base URL. Errors on these paths have OpenAI's shape
_PATHS: Final = re.compile(
    r"(/v\d|/api|/openai|/(deployments|engines)/[^/]+)*/(models|chat|completions|responses|embeddings)(/.*)?", re.DOTALL
)
#: RagBandit's name of a field -> its name in a chat completion; None if chat completions have no such parameter
PARAMS: Final[Mapping[str, str | None]] = {
    "question": "messages",
    "arms": "model",
    "decision_id": "Idempotency-Key",
    "tenant": None,
}
_CODES: Final = {
    "UNAUTHORIZED": "invalid_api_key",
    "TOO_MANY_REQUESTS": "rate_limit_exceeded",
    "RATE_LIMITED": "rate_limit_exceeded",
}
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ModelNotFound(NotFound, code="MODEL_NOT_FOUND"):
    """There is no model of this name."""


class Unsupported(InvalidInput, code="UNSUPPORTED_PARAMETER"):
    """A parameter asks for something that the service does not support."""


class AnswerTimeout(NotReady, code="ANSWER_TIMEOUT", status=504):
    """The answer did not come in time."""


class Cancelled(Conflict, code="CANCELLED"):
    """The answer was cancelled."""


class ServerFault(RagBanditError):
    """A model's server failed, or refused the request. Status and code depend on the failure.

    may_repeat: whether the client may send the request again after Retry-After
    """

    def __init__(self, message: str, *, failure: Failure, remedy: str | None) -> None:
        super().__init__(message, field=failure.param, remedy=remedy)
        self.status, code = _FAULTS.get(failure.kind, (502, "UPSTREAM_ERROR"))
        if failure.kind == "refused" or failure.has_no_quota:
            self.status, code = failure.status or 400, failure.code or code
        if failure.inability == "context":
            self.status, code, self.field = 400, ContextExceeded.code, failure.param or "messages"
        if failure.is_overload:
            self.status, code = 503, "UPSTREAM_OVERLOADED"
        self.code, self.may_repeat = code, failure.kind == "limited" or failure.is_overload
        self.retry_after_s = failure.retry_after_s or (1.0 if self.may_repeat else None)


#: kind of a failure of a model's server -> (status, code) of the reply; all other kinds are a 502
_FAULTS: Final[Mapping[FailureKind, tuple[int, str]]] = {
    "limited": (429, "RATE_LIMITED"),
    "timeout": (504, "UPSTREAM_TIMEOUT"),
    "refused": (400, "INVALID_INPUT"),
}


def fault_of(decision: Decision, outcome: Outcome) -> RagBanditError | None:
    """The error of an outcome without an answer; its class depends on the cause. None if there is an answer."""
    arm, failure = f"the arm {decision.arm!r}", failure_of(outcome.made_by)
    remedy = f"GET /v1/decisions/{decision.id} shows what it did"
    is_late = outcome.status == "exhausted" and outcome.stop_reason == OUT_OF_SECONDS
    if is_late and not (outcome.answer or message_of(outcome)):
        message = f"{arm} wrote nothing within its time limit"
        return ServerFault(message, failure=Failure(kind="timeout"), remedy=remedy)
    if outcome.status != "failed":
        return None
    if outcome.stop_reason == CANCELLED:
        return Cancelled("the answer was cancelled", remedy="ask the question again")
    if failure is not None and failure.kind == "refused":
        message = f"the model of {arm} refuses the request: {outcome.error}"
        if failure.inability == "context":
            tokens = failure.tokens or decision.query.sent.tokens
            message = f"{too_long_message(tokens=tokens, most=failure.most_tokens)}: {message}"
        return ServerFault(message, failure=failure, remedy=None)
    message = f"{arm} failed: {outcome.error or outcome.stop_reason}"
    if outcome.stop_reason == "question_too_long":
        return ContextExceeded(f"{too_long_message(tokens=None, most=None)}: {message}", field="messages")
    if outcome.stop_reason == "request_refused":
        return InvalidInput(message)
    if failure is None:
        return ArmFailed(message, remedy=remedy)
    return ServerFault(message, failure=failure, remedy=remedy)


def speaks_openai(scope: Scope) -> bool:
    """Whether the caller of a request expects OpenAI's shapes."""
    return _PATHS.fullmatch(scope["path"]) is not None


def error_in_reply(error: RagBanditError) -> dict[str, Any]:
    """A RagBanditError as {"message", "type", "param", "code"}, for a reply that has begun."""
    body: dict[str, Any] = as_openai_error(error.status, error_json(error)["error"])[1]["error"]
    return body


def as_openai_error(
    status: int, error: ErrorDetail, *, params: Mapping[str, str | None] = PARAMS
) -> tuple[int, dict[str, Any]]:
    """Convert an error to OpenAI's shape. Returns (status, body). params: our name of a field -> its name there."""
    status = 400 if status == 422 else status
    param = None if error["field"] is None else params.get(error["field"], error["field"])
    if param is not None:
        param = re.sub(r"\.(\d+)", r"[\1]", param)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = _CODES.get(error["code"], error["code"].lower())
    message = f"{error['message']} ({error['remedy']})" if error["remedy"] else error["message"]
    return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}


def openai_error(
    _scope: Scope,
    status: int,
    error: ErrorDetail,
    headers: Mapping[str, str] | None,
    *,
    params: Mapping[str, str | None] = PARAMS,
) -> Response:
    """The reply to an error on a path of OpenAI. It asks clients not to repeat a request that failed with 500. params:
    as in `as_openai_error`.
    """
    status, body = as_openai_error(status, error, params=params)
    retry = {"x-should-retry": "false"} if status == 500 else {}
    return JsonReply(body, status, {**retry, **(headers or {})})


class OpenAIErrorReply(TypedDict):
    """The shape of every error on OpenAI's paths."""

    error: dict[str, str | None]
    """`message` (what is wrong, and what to do), `type`, `param` and `code`, as in OpenAI's errors."""


# The class is only used to make the OpenAPI document, so pydantic need not build a validator at import.
OpenAIErrorReply.__pydantic_config__ = {"defer_build": True}  # type: ignore[attr-defined] # pydantic's own name
ERRORS: Final = errors(OpenAIErrorReply, (401, 403, 404, 409, 413, 422, 429, 500, 503))
