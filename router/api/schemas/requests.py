"""Requests: the JSON bodies that callers send, and the error for a body of another shape.

Only shapes are checked here; serving/validation.py checks the values. An error names every type that is accepted.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetPydanticSchema
from pydantic_core import core_schema

from ragbandit.router.errors import InvalidInput
from ragbandit.router.serving.validation import checked_id
from ragbandit.router.types import MAX_ERROR, OutcomeStatus

__all__ = [
    "COMPLETION_PREFIX",
    "KEY_HEADER",
    "BudgetBody",
    "DecisionIdText",
    "FeedbackBatchBody",
    "FeedbackBody",
    "MessageBody",
    "OutcomeBody",
    "RouteBatchBody",
    "RouteBody",
    "complaint",
    "identity",
    "plain_decision_id",
]

#: the header that may stand for decision_id or feedback_id
KEY_HEADER: Final = "Idempotency-Key"
#: pydantic's error type of ours; the message is what is accepted
_WANTED: Final = "wanted"
#: pydantic's error type -> what is accepted
_KINDS: Final = {
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "float_parsing": "a number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "{ge:g} at least",
    "less_than": "below {lt:g}",
    "less_than_equal": "{le:g} at most",
    "string_too_short": "of {min_length} characters at least",
    "string_too_long": "of {max_length} characters at most",
    "string_pattern_mismatch": "a text that {pattern} matches",
}


def _wanted(what: str) -> GetPydanticSchema:
    """One error for a value of several types, instead of one for each of them."""

    def said(source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.custom_error_schema(handler(source), custom_error_type=_WANTED, custom_error_message=what)

    return GetPydanticSchema(said)


#: what clients of OpenAI's interface have before a decision's id
COMPLETION_PREFIX: Final = "chatcmpl-"


def plain_decision_id(sent: str) -> str:
    """The decision's id: as it is, or without the prefix of a chat completion's id."""
    return sent.removeprefix(COMPLETION_PREFIX)


DecisionIdText = Annotated[str, AfterValidator(plain_decision_id)]
Text = Annotated[str | None, _wanted("text or null")]
OwnId = Annotated[str | None, _wanted("text or null"), AfterValidator(lambda sent: sent and plain_decision_id(sent))]
Count = Annotated[int | None, _wanted("a whole number or null")]
Amount = Annotated[int | float | None, _wanted("a finite number or null")]
Fact = Annotated[
    str | int | float | bool | list[str] | None,
    _wanted("text, a finite number, true, false, a list of texts or null"),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _example(**body: Any) -> ConfigDict:
    """The configuration of a body with an example, which /docs sends unless it is edited."""
    return ConfigDict(json_schema_extra={"example": body})


class BudgetBody(_Body):
    """Caps on one answer, all above 0; left out or null: the service's own, which is also the most."""

    # Hashable: pydantic makes a deep copy of any other default, for every request that leaves it out.
    model_config = ConfigDict(frozen=True)

    rounds: Count = Field(default=None, description="retrieve-and-generate rounds")
    passages: Count = Field(default=None, description="distinct passages shown to the model")
    tokens: Count = Field(default=None, description="prompt plus completion tokens over all calls")
    seconds: Amount = Field(default=None, description="wall-clock seconds from the start of the arm")
    dollars: Amount = Field(default=None, description="price of the generator's tokens, where it has a price")


class MessageBody(_Body):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"] = Field(description="who said it")
    content: str = Field(description="what was said; a blank message does not count")


class RouteBody(_Body):
    """A question to route."""

    model_config = _example(
        question="Who wrote Dracula?",
        decision_id="ticket-4711",
        context={"product": "library", "premium": True},
        budget={"rounds": 2, "seconds": 20},
        tenant="acme",
    )

    question: str = Field(
        description="the question; its text, and what the setting `context` declares, move the choice"
    )
    decision_id: OwnId = Field(default=None, description="your own id: makes the request idempotent")
    context: dict[str, Fact] = Field(default_factory=dict, description="facts of yours, kept with the decision")
    arms: list[str] | None = Field(default=None, description="the arms that may be drawn; left out: all")
    budget: BudgetBody = Field(default=BudgetBody(), description="caps on the answer; the service's own hold as well")
    tenant: str = Field(default="default", description="whose question it is; kept with the decision")
    links: Annotated[dict[str, str] | None, _wanted("an object of texts or null")] = Field(
        default=None,
        description="ids that other systems have for this question, by kind (trace, span, run, ...): feedback that is "
        "given there finds the decision by them",
    )
    session_id: Text = Field(default=None, description="the conversation that it belongs to: an id of yours")
    messages: list[MessageBody] = Field(
        default_factory=list,
        description="what was said before the question, the oldest first: the question is rewritten to stand alone, "
        "where the service has a model for it, and the arm sees the last of them",
    )
    sticky_turns: Count = Field(
        default=None,
        description="turns that the session stays on the arm of one draw, that turn among them; 0: this turn is drawn; "
        "left out: the setting `conversation.sticky_turns`. At most `conversation.max_sticky_turns`; with a key of the "
        "scope forced=false at most `conversation.sticky_turns`",
    )


class RouteBatchBody(_Body):
    """Many questions; each is decided or refused for itself."""

    model_config = _example(
        items=[{"question": "Who wrote Dracula?", "decision_id": "ticket-4711"}, {"question": "And who filmed it?"}]
    )

    items: list[dict[str, Any]] = Field(description="each as the body of /v1/route, with an id of its own")


class FeedbackBody(_Body):
    """One judgement: exactly one of label, rating, reward and event; or what takes one back."""

    model_config = _example(decision_id="ticket-4711", feedback_id="ticket-4711-stars", rating=4, scale="1-5")

    decision_id: DecisionIdText = Field(description="the decision that is judged, or its chat completion")
    feedback_id: Text = Field(default=None, description="your own id: makes the feedback idempotent")
    label: Annotated[str | list[str] | None, _wanted("text, a list of texts or null")] = Field(
        None, description="gold answers, any is right"
    )
    rating: Annotated[bool | int | float | None, _wanted("true, false, a finite number or null")] = Field(
        default=None, description="a user's judgement of the answer: true, false, or a number on `scale`"
    )
    scale: str = Field(default="0-1", description='of a number in rating: "0-1" or "1-5"')
    reward: Amount = Field(default=None, description="the reward itself, cost included")
    event: Text = Field(default=None, description="what the user did: a name of the setting feedback_events")
    source: Text = Field(
        default=None, description="who judged: human (the default), judge or code; left out for an event"
    )
    rater: Text = Field(
        default=None,
        description="which one of the source judged, an id of up to 64 characters: a later judgement of the same one "
        "replaces the earlier, until the decision is closed",
    )
    retract: Text = Field(
        default=None,
        description="in place of a judgement: take back what the same source and rater said before, of this kind: "
        "label, rating or reward",
    )


class FeedbackTokenBody(_Body):
    """What a browser is to judge."""

    model_config = _example(decision_id="ticket-4711", rater="user-17")

    decision_id: str = Field(description="the decision that may be judged")
    kinds: list[str] | None = Field(default=None, description="rating, event; left out: both")
    rater: Text = Field(
        default=None,
        description="in whose name, an id of up to 64 characters: one vote of each kind; left out: whoever has a token",
    )
    expires_s: Amount = Field(
        default=None, description="seconds that it lasts, up to server.browser_feedback_s; left out: three hours"
    )


class BrowserFeedbackBody(_Body):
    """One judgement with a token: a rating, an event, or what takes one back."""

    model_config = _example(token="v1.eyJh...", rating=4, scale="1-5")  # noqa: S106 - no secret: it ends with three dots

    token: str = Field(description="of /v1/feedback/token: it names the decision and who judges")
    rating: Annotated[bool | int | float | None, _wanted("true, false, a finite number or null")] = Field(
        default=None, description="a judgement of the answer: true, false, or a number on `scale`"
    )
    scale: str = Field(default="0-1", description='of a number in rating: "0-1" or "1-5"')
    event: Text = Field(default=None, description="what the user did: a name of the setting feedback_events")
    retract: Text = Field(default=None, description="in place of a judgement: rating, to take the rating back")


class FeedbackBatchBody(_Body):
    """Up to a thousand judgements; each is accepted or refused for itself."""

    model_config = _example(
        items=[{"decision_id": "ticket-4711", "rating": True}, {"decision_id": "ticket-4712", "label": ["Bram Stoker"]}]
    )

    items: list[dict[str, Any]] = Field(description="each as the body of /v1/feedback, with an id of its own")


class OutcomeBody(_Body):
    """Outcome of a decision that your own stack ran."""

    model_config = _example(
        decision_id="ticket-4711",
        answer="Bram Stoker",
        steps=1,
        cost={"retriever_calls": 1, "llm_calls": 1, "prompt_tokens": 310, "completion_tokens": 12, "dollars": 0.0004},
    )

    decision_id: DecisionIdText = Field(description="the decision that /v1/route returned")
    status: OutcomeStatus = Field(default="answered", description="how the pipeline ended")
    answer: Text = Field(default=None, description="the answer; a label is compared with it")
    steps: Annotated[int | float, _wanted("a finite number")] = Field(
        default=0.0,
        description="rounds of search and generation; by default the reward charges them alone, and a cost is refused "
        "without them",
    )
    cost: dict[str, Annotated[int | float, _wanted("a finite number")]] = Field(
        default_factory=dict, description="what else it used, by the names of Cost, for example dollars"
    )
    stop_reason: str = Field(default="", description="why it stopped, in a word of yours")
    error: Text = Field(
        default=None, description=f"what failed; of a longer text the first {MAX_ERROR:,} characters are kept"
    )


#: required fields -> their type in JSON
_REQUIRED: Final = {
    name: "list" if field.annotation == list[dict[str, Any]] else "string"
    for body in (
        RouteBody,
        RouteBatchBody,
        FeedbackBody,
        FeedbackTokenBody,
        BrowserFeedbackBody,
        FeedbackBatchBody,
        OutcomeBody,
    )
    for name, field in body.model_fields.items()
    if field.is_required()
}


def complaint(fault: Mapping[str, Any], *, skip: int = 0, content_type: str | None = None) -> InvalidInput:
    """An error of pydantic as InvalidInput.

    skip: parts at the start of its location that are no fields ("body", "query"). content_type: the request's header.
    """
    kind, sent = fault["type"], fault.get("input")
    field = ".".join(map(str, fault["loc"][skip:])) or "body"
    if kind == "extra_forbidden":
        remedy = "remove it; /docs lists the fields"
        if field == "wait_s":
            remedy = "send it to /v1/answer as a query parameter: /v1/answer?wait_s=10"
        return InvalidInput(f'"{field}" is not a field of this request', field=field, remedy=remedy)
    if isinstance(sent, bytes):  # read as JSON it would be something else
        came = "without a content type" if content_type is None else f"as {content_type:.80}"
        remedy = "send the header content-type: application/json"
        return InvalidInput(f"the body came {came}, not as JSON", field="content-type", remedy=remedy)
    if kind == "missing":
        kind = _REQUIRED.get(field, "string")
        return InvalidInput(f'"{field}" is required ({kind})', field=field, remedy=f"add it to the request as a {kind}")
    wanted = fault["msg"] if kind == _WANTED else _KINDS.get(kind)
    if kind == "literal_error":
        wanted = "{expected}"
    if wanted is None:
        return InvalidInput(fault["msg"], field=field, remedy="/docs describes what is accepted")
    if kind != _WANTED:
        wanted = wanted.format(**fault.get("ctx", {}))
    return InvalidInput(f'"{field}" must be {wanted}, not {_shown(sent)}', field=field, remedy=f"send {wanted}")


def _shown(sent: object) -> str:
    """The value that was sent, in a few words: a whole list may be deep."""
    if isinstance(sent, dict | list):
        return "this object" if isinstance(sent, dict) else "this list"
    # No reply can hold half a surrogate pair, which JSON may bring.
    return f"{json.dumps(sent, ensure_ascii=False):.80}".encode("utf-8", "backslashreplace").decode()


def identity(given: str | None, *, key: str | None, field: str) -> str | None:
    """The id of the body, or else of the header Idempotency-Key. field: the body's name of it.

    Raises InvalidInput if they are two ids, or if the header's is none.
    """
    if key is None or key == given:
        return given
    if given is None:
        return checked_id(key, field=KEY_HEADER)
    raise InvalidInput(
        f"{key!r:.80} is not the body's {field}, {given!r:.80}",
        field=KEY_HEADER,
        remedy=f"send the id once, as {field} or in the header, or the same in both",
    )
