import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from ragbandit.client.replies.decisions import ErrorReply
from ragbandit.router.api.request_state import request_state
from ragbandit.router.replies.decisions import limits_json
from ragbandit.router.replies.values import json_of
from ragbandit.router.telemetry.tracing import trace_id_of
from ragbandit.shared.errors import LimitReached, RagBanditError
from ragbandit.shared.types import Decision, SpendLimit


class JsonReply(JSONResponse):
    """A reply as JSON: dataclasses as objects, numbers that are not finite as null."""

    def render(self, content: Any) -> bytes:
        return json_of(content)


def decision_headers(decision: Decision) -> dict[str, str]:
    trace, failed = trace_id_of(decision.query.sent.traceparent), decision.query.continues.failed
    return {
        "x-ragbandit-decision-id": decision.id,
        "x-ragbandit-strategy": decision.arm,
        "x-ragbandit-policy-version": decision.version,
        "x-ragbandit-propensity": repr(decision.propensity),
        "x-ragbandit-explored": str(decision.explored).lower(),
        **({} if decision.cost_weight is None else {"x-ragbandit-cost-weight": repr(decision.cost_weight)}),
        **({} if trace is None else {"x-ragbandit-trace-id": trace}),
        **({} if failed is None else {"x-ragbandit-failover": failed.first}),
        **limit_headers(decision.query.turn_limits),
    }


def limit_headers(limits: Iterable[SpendLimit]) -> dict[str, str]:
    """Headers with the limits of a session and a task, and with what was left of them before this turn."""
    headers = dict[str, str]()
    for limit in limits_json(limits):
        prefix = f"x-ragbandit-{limit['of']}-{limit['unit']}"
        headers |= {f"{prefix}-limit": f"{limit['limit']:g}", f"{prefix}-remaining": f"{limit['remaining']:g}"}
    return headers


def refusal_reply(error: RagBanditError, *, scope: Scope) -> Response:
    """The reply to a request that ended with an error; with Retry-After if a later attempt may succeed."""
    after_s = 1.0 if error.status == 503 and error.retry_after_s is None else error.retry_after_s
    headers = None if after_s is None else {"Retry-After": str(math.ceil(after_s))}
    if error.status == 409 or isinstance(error, LimitReached):
        headers = {"x-should-retry": "false"}  # else some clients repeat the request, though it fails again
    if isinstance(error, LimitReached):
        headers = {**(headers or {}), **limit_headers(error.limits)}
    if error.status == 401:
        headers = {"WWW-Authenticate": 'Bearer realm="ragbandit"'}
    return error_reply(scope, error.status, error_json(error), headers=headers)


def error_reply(scope: Scope, status: int, body: ErrorReply, *, headers: Mapping[str, str] | None = None) -> Response:
    shape = request_state(scope).error
    return JsonReply(body, status, headers) if shape is None else shape(scope, status, body["error"], headers)


def error_json(error: RagBanditError) -> ErrorReply:
    reply = error_body(error.code, error.message, field=error.field, remedy=error.remedy)
    if isinstance(error, LimitReached):
        reply["limits"] = limits_json(error.limits)
    return reply


def error_item(error: BaseException) -> ErrorReply:
    """The error of one item of a batch as JSON. Raises an error that is not a RagBanditError."""
    if not isinstance(error, RagBanditError):
        raise error
    return error_json(error)


def error_body(code: str, message: str, *, field: str | None = None, remedy: str | None = None) -> ErrorReply:
    return {"error": {"code": code, "message": message, "field": field, "remedy": remedy}}


def reply_description(text: str, model: Any) -> dict[str, Any]:
    return {"description": text, "model": model}


def object_description(text: str, **content: Any) -> dict[str, Any]:
    """The description of a reply in the form of another vendor. content: further content types."""
    return {"description": text, "content": {"application/json": {"schema": {"type": "object"}}, **content}}


def errors(model: type, codes: Iterable[int]) -> dict[int | str, dict[str, Any]]:
    """The error replies of a path for the OpenAPI document: status 400 and these codes. Only the entry of 400 has the
    model, and the others refer to it, because FastAPI takes long to build a validator for each entry with a model.
    """
    reference = {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}}
    return {400: {"model": model}, **dict.fromkeys(codes, reference)}


ERRORS: Final = errors(ErrorReply, (401, 403, 404, 409, 413, 422, 429, 503))
