"""Bodies and replies of the calls: ids of their own, what is sent, and the shape of what comes back."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict
from urllib.parse import quote

from ragbandit.client.exchange import Call, encoded
from ragbandit.client.replies.feedback import ClientFeedbackReply
from ragbandit.shared.errors import InvalidInput, RagBanditError
from ragbandit.shared.types import OutcomeStatus


class Options(TypedDict, total=False):
    """What is sent with a question, as POST /v1/route has it; None is left out."""

    cost_weight: float | str | None
    aim: Mapping[str, float] | None
    context: Mapping[str, Any] | None
    arms: Sequence[str] | None
    budget: Mapping[str, float] | None
    tenant: str | None
    links: Mapping[str, str] | None
    session_id: str | None
    messages: Sequence[Mapping[str, str]] | None
    sticky_turns: int | None


class AskOptions(Options, total=False):
    """`Options`, and the caller's own id."""

    decision_id: str | None


class ReportFields(TypedDict, total=False):
    """What an outcome says of an arm that has run; None is left out."""

    status: OutcomeStatus
    answer: str | None
    steps: float | None
    cost: Mapping[str, float] | None
    stop_reason: str | None


class OutcomeFields(ReportFields, total=False):
    """What an outcome says, as POST /v1/outcomes has it; None is left out."""

    error: str | None


class Judgement(TypedDict, total=False):
    """One of label, rating, reward, event and retract with what belongs to it, as POST /v1/feedback has them."""

    label: str | Sequence[str] | None
    rating: bool | float | None
    scale: str | None
    reward: float | None
    event: str | None
    retract: str | None
    source: str | None
    rater: str | None
    feedback_id: str | None


def new_id() -> str:
    """A UUIDv7, as the service makes them."""
    import uuid_utils  # not needed for `import`

    return str(uuid_utils.uuid7())


def post(path: str, body: Mapping[str, object], *, limit_s: float | None = None) -> Call:
    """POST of this body, without what is None."""
    return Call(method="POST", path=path, body=encoded(_given(body)), limit_s=limit_s)


def answer_call(
    question: str, *, decision_id: str | None, wait_s: float | None, more: Mapping[str, object], timeout_s: float
) -> Call:
    """POST /v1/answer."""
    if wait_s is not None and (not isinstance(wait_s, int | float) or isinstance(wait_s, bool)):
        raise InvalidInput(f'"wait_s" must be a number, not {wait_s!r:.80}', field="wait_s", remedy="pass seconds")
    body = {"question": question, "decision_id": new_id() if decision_id is None else decision_id, **more}
    return Call(
        method="POST",
        path="/v1/answer",
        params=None if wait_s is None else {"wait_s": wait_s},
        body=encoded(_given(body)),
        limit_s=timeout_s + (wait_s or 0.0),
    )


def item_list(items: Sequence[Mapping[str, object]], *, path: str, key: str) -> list[dict[str, object]]:
    """The items of a batch, each with an id of its own. path: of one item. key: the name of its id."""
    try:
        return [{key: new_id(), **_given(item)} for item in items]
    except (TypeError, ValueError, AttributeError) as error:
        remedy = f"pass a list of dicts, each as the body of {path}"
        raise InvalidInput('"items" must be a list of mappings', field="items", remedy=remedy) from error


def replies_of(reply: Mapping[str, Any], *, path: str, count: int) -> list[Any]:
    """The entries of a batch's reply, one for each item."""
    entries = reply.get("items")
    if not isinstance(entries, list) or len(entries) != count:
        raise RagBanditError(f"{path} did not reply with one entry per item")
    return entries


def json_object(reply: object, *, path: str) -> dict[str, Any]:
    """The reply, which is a JSON object."""
    if not isinstance(reply, dict):
        remedy = "check that the URL is that of the service"
        raise RagBanditError(f"{path} did not reply with a JSON object", remedy=remedy)
    return reply


def not_sent(feedback_id: object) -> ClientFeedbackReply:
    """The receipt of feedback for a decision that was made without the service."""
    return ClientFeedbackReply(
        feedback_id=str(feedback_id), duplicate=False, late=False, waiting_for=None, degraded=True
    )


def quoted(decision_id: object) -> str:
    """The id as a part of a path."""
    if not isinstance(decision_id, str):
        message = f'"decision_id" must be text, not {type(decision_id).__name__}'
        raise InvalidInput(message, field="decision_id", remedy="pass the decision id that route or answer gave")
    return quote(decision_id, safe="")


def _given(body: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in body.items() if value is not None}
