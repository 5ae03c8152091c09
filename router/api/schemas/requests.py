"""Requests: the JSON bodies that callers send, and the error for a body of another shape.

Only shapes are checked here; serving/validation.py checks the values, and has the words for what is wrong with them.
The limits that it enforces stand beside the fields as JSON Schema (`json_schema_extra`): a request that fits the
document is not refused as invalid. What differs from service to service is added in `openapi`.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetPydanticSchema
from pydantic_core import core_schema

from ragbandit.router.errors import InvalidInput
from ragbandit.router.serving.conversations.checks import MAX_SESSION, MAX_STICKY_TURNS
from ragbandit.router.serving.field_checks import ID_PATTERN
from ragbandit.router.serving.link_checks import LINK_KIND, LINK_VALUE, MAX_LINKS
from ragbandit.router.serving.validation import MAX_ANSWERS, MAX_CAP, MAX_RATER, MAX_WORDS, checked_id
from ragbandit.router.types import MAX_ERROR, MAX_TEXT, Cost, OutcomeStatus

__all__ = [
    "ANY_TEXT",
    "COMPLETION_PREFIX",
    "ID",
    "KEY_HEADER",
    "NAME",
    "SESSION",
    "STORABLE",
    "TEXT",
    "Body",
    "BrowserFeedbackBody",
    "BudgetBody",
    "DecisionIdText",
    "FeedbackBatchBody",
    "FeedbackBody",
    "FeedbackTokenBody",
    "MessageBody",
    "OutcomeBody",
    "RouteBatchBody",
    "RouteBody",
    "complaint",
    "example",
    "identity",
    "plain_decision_id",
]

#: a character that is no space (str.isspace) and can be stored
_VISIBLE: Final = r"[^\u0000\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_NO_NUL: Final = r"[^\u0000]*"

# Limits as JSON Schema says them; a keyword holds for values of its own type alone.
ID: Final[dict[str, Any]] = {"pattern": f"^{ID_PATTERN.pattern}$"}
NAME: Final[dict[str, Any]] = {"pattern": "^[A-Za-z0-9_.-]{1,64}$"}
#: a text that is not blank
TEXT: Final[dict[str, Any]] = {"minLength": 1, "maxLength": MAX_TEXT, "pattern": f"^{_NO_NUL}{_VISIBLE}{_NO_NUL}$"}
#: a text that may be empty, but not blank
ANY_TEXT: Final[dict[str, Any]] = {"maxLength": MAX_TEXT, "pattern": f"^({_NO_NUL}{_VISIBLE}{_NO_NUL})?$"}
#: any text that can be stored
STORABLE: Final[dict[str, Any]] = {"pattern": f"^{_NO_NUL}$"}
SESSION: Final[dict[str, Any]] = TEXT | {"maxLength": MAX_SESSION}
_RATER: Final[dict[str, Any]] = TEXT | {"maxLength": MAX_RATER}
_COUNT: Final[dict[str, Any]] = {"minimum": 1, "maximum": int(MAX_CAP)}
#: above 0; OpenAPI 3.0 and 3.1 write an open bound in two ways
_AMOUNT: Final[dict[str, Any]] = {"minimum": 1e-9, "maximum": int(MAX_CAP)}
_FROM_0: Final[dict[str, Any]] = {"minimum": 0, "maximum": int(MAX_CAP)}
_RATING: Final[dict[str, Any]] = {"minimum": 0, "maximum": 5}
_SCALE: Final[dict[str, Any]] = {"enum": ["0-1", "1-5"]}

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
    Annotated[str, Field(json_schema_extra=STORABLE | {"maxLength": MAX_TEXT})]
    | int
    | float
    | bool
    | Annotated[list[Annotated[str, Field(json_schema_extra=TEXT)]], Field(json_schema_extra={"maxItems": MAX_WORDS})]
    | None,
    _wanted("text, a finite number, true, false, a list of texts or null"),
]

_LinkValue = Annotated[str, Field(json_schema_extra={"pattern": f"^{LINK_VALUE.pattern}$"})]


class Body(BaseModel):
    """A body that has no other fields than its own."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def example(**body: Any) -> ConfigDict:
    """The configuration of a body with an example, which /docs sends unless it is edited."""
    return _schema(example=body)


def _schema(**keywords: Any) -> ConfigDict:
    """The configuration of a body whose JSON Schema has these keywords too."""
    return ConfigDict(json_schema_extra=keywords)


def _one_of(*names: str) -> list[dict[str, Any]]:
    """Exactly one of these fields is sent."""
    return [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]


#: what an outcome may have cost
_COSTS: Final[dict[str, Any]] = {
    "properties": {
        field.name: {"type": "integer" if isinstance(field.default, int) else "number", **_FROM_0}
        for field in fields(Cost)
    },
    "additionalProperties": False,
}
#: a rating lies within its scale
_WITHIN_SCALE: Final[list[dict[str, Any]]] = [
    {"properties": {"scale": {"enum": ["0-1"]}, "rating": {"maximum": 1}}},
    {"required": ["scale"], "properties": {"scale": {"enum": ["1-5"]}, "rating": {"minimum": 1}}},
]


class BudgetBody(Body):
    """Caps on one answer, all above 0; left out or null: the service's own, which is also the most."""

    # Hashable: pydantic makes a deep copy of any other default, for every request that leaves it out.
    model_config = ConfigDict(frozen=True)

    rounds: Count = Field(default=None, description="retrieve-and-generate rounds", json_schema_extra=_COUNT)
    passages: Count = Field(default=None, description="distinct passages shown to the model", json_schema_extra=_COUNT)
    tokens: Count = Field(
        default=None, description="prompt plus completion tokens over all calls", json_schema_extra=_COUNT
    )
    seconds: Amount = Field(
        default=None, description="wall-clock seconds from the start of the arm", json_schema_extra=_AMOUNT
    )
    dollars: Amount = Field(
        default=None, description="price of the generator's tokens, where it has a price", json_schema_extra=_AMOUNT
    )


class MessageBody(Body):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"] = Field(description="who said it")
    content: str = Field(description="what was said; a blank message does not count", json_schema_extra=ANY_TEXT)


class RouteBody(Body):
    """A question to route."""

    model_config = example(
        question="Who wrote Dracula?",
        decision_id="ticket-4711",
        context={"product": "library", "premium": True},
        budget={"rounds": 2, "seconds": 20},
        tenant="acme",
    )

    question: str = Field(
        description="the question; its text, and what the setting `context` declares, move the choice",
        json_schema_extra=TEXT,
    )
    decision_id: OwnId = Field(
        default=None, description="your own id: makes the request idempotent", json_schema_extra=ID
    )
    context: dict[str, Fact] = Field(
        default_factory=dict,
        description="facts of yours, kept with the decision",
        json_schema_extra={"propertyNames": TEXT},
    )
    arms: list[Annotated[str, Field(json_schema_extra=NAME)]] | None = Field(
        default=None,
        description="the arms that may be drawn; left out: all",
        json_schema_extra={"minItems": 1, "uniqueItems": True},
    )
    budget: BudgetBody = Field(default=BudgetBody(), description="caps on the answer; the service's own hold as well")
    tenant: str = Field(
        default="default", description="whose question it is; kept with the decision", json_schema_extra=ID
    )
    links: Annotated[dict[str, _LinkValue] | None, _wanted("an object of texts or null")] = Field(
        default=None,
        description="ids that other systems have for this question, by kind (trace, span, run, ...): feedback that is "
        "given there finds the decision by them",
        json_schema_extra={"maxProperties": MAX_LINKS, "propertyNames": {"pattern": f"^{LINK_KIND.pattern}$"}},
    )
    session_id: Text = Field(
        default=None, description="the conversation that it belongs to: an id of yours", json_schema_extra=SESSION
    )
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
        json_schema_extra={"minimum": 0, "maximum": MAX_STICKY_TURNS},
    )


class RouteBatchBody(Body):
    """Many questions; each is decided or refused for itself."""

    model_config = example(
        items=[{"question": "Who wrote Dracula?", "decision_id": "ticket-4711"}, {"question": "And who filmed it?"}]
    )

    items: list[dict[str, Any]] = Field(
        description="each as the body of /v1/route, with an id of its own", json_schema_extra={"minItems": 1}
    )


class FeedbackBody(Body):
    """One judgement: exactly one of label, rating, reward and event; or what takes one back."""

    model_config = _schema(
        example={"decision_id": "ticket-4711", "feedback_id": "ticket-4711-stars", "rating": 4, "scale": "1-5"},
        oneOf=_one_of("label", "rating", "reward", "retract", "event"),
        allOf=[{"anyOf": [{"properties": {name: {"type": "null"}}} for name in ("event", "source")]}],
        anyOf=_WITHIN_SCALE,
    )

    decision_id: DecisionIdText = Field(
        description="the decision that is judged, or its chat completion", json_schema_extra=ID
    )
    feedback_id: Text = Field(
        default=None, description="your own id: makes the feedback idempotent", json_schema_extra=ID
    )
    label: Annotated[
        str | list[Annotated[str, Field(json_schema_extra=TEXT)]] | None, _wanted("text, a list of texts or null")
    ] = Field(
        None,
        description="gold answers, any is right",
        json_schema_extra=TEXT | {"minItems": 1, "maxItems": MAX_ANSWERS},
    )
    rating: Annotated[bool | int | float | None, _wanted("true, false, a finite number or null")] = Field(
        default=None,
        description="a user's judgement of the answer: true, false, or a number on `scale`",
        json_schema_extra=_RATING,
    )
    scale: str = Field(default="0-1", description='of a number in rating: "0-1" or "1-5"', json_schema_extra=_SCALE)
    reward: Amount = Field(default=None, description="the reward itself, cost included")
    event: Text = Field(
        default=None, description="what the user did: a name of the setting feedback_events", json_schema_extra=NAME
    )
    source: Text = Field(
        default=None,
        description="who judged: human (the default), judge or code; left out for an event",
        json_schema_extra={"enum": ["human", "judge", "code", None]},
    )
    rater: Text = Field(
        default=None,
        description="which one of the source judged, an id of up to 64 characters: a later judgement of the same one "
        "replaces the earlier, until the decision is closed",
        json_schema_extra=_RATER,
    )
    retract: Text = Field(
        default=None,
        description="in place of a judgement: take back what the same source and rater said before, of this kind: "
        "label, rating or reward",
        json_schema_extra={"enum": ["label", "rating", "reward", None]},
    )


class FeedbackTokenBody(Body):
    """What a browser is to judge."""

    model_config = example(decision_id="ticket-4711", rater="user-17")

    decision_id: str = Field(description="the decision that may be judged", json_schema_extra=ID)
    kinds: list[Annotated[str, Field(json_schema_extra={"enum": ["rating", "event"]})]] | None = Field(
        default=None, description="rating, event; left out: both", json_schema_extra={"minItems": 1}
    )
    rater: Text = Field(
        default=None,
        description="in whose name, an id of up to 64 characters: one vote of each kind; left out: whoever has a token",
        json_schema_extra=_RATER,
    )
    expires_s: Amount = Field(
        default=None,
        description="seconds that it lasts, up to server.browser_feedback_s; left out: three hours",
        json_schema_extra={"minimum": 1e-9},
    )


class BrowserFeedbackBody(Body):
    """One judgement with a token: a rating, an event, or what takes one back."""

    model_config = _schema(
        example={"token": "v1.eyJh...", "rating": 4, "scale": "1-5"},
        oneOf=_one_of("rating", "event", "retract"),
        anyOf=_WITHIN_SCALE,
    )

    token: str = Field(description="of /v1/feedback/token: it names the decision and who judges")
    rating: Annotated[bool | int | float | None, _wanted("true, false, a finite number or null")] = Field(
        default=None,
        description="a judgement of the answer: true, false, or a number on `scale`",
        json_schema_extra=_RATING,
    )
    scale: str = Field(default="0-1", description='of a number in rating: "0-1" or "1-5"', json_schema_extra=_SCALE)
    event: Text = Field(
        default=None, description="what the user did: a name of the setting feedback_events", json_schema_extra=NAME
    )
    retract: Text = Field(
        default=None,
        description="in place of a judgement: rating, to take the rating back",
        json_schema_extra={"enum": ["rating", None]},
    )


class FeedbackBatchBody(Body):
    """Up to a thousand judgements; each is accepted or refused for itself."""

    model_config = example(
        items=[{"decision_id": "ticket-4711", "rating": True}, {"decision_id": "ticket-4712", "label": ["Bram Stoker"]}]
    )

    items: list[dict[str, Any]] = Field(
        description="each as the body of /v1/feedback, with an id of its own", json_schema_extra={"minItems": 1}
    )


class OutcomeBody(Body):
    """Outcome of a decision that your own stack ran."""

    model_config = _schema(
        example={
            "decision_id": "ticket-4711",
            "answer": "Bram Stoker",
            "steps": 1,
            "cost": {"retriever_calls": 1, "llm_calls": 1, "prompt_tokens": 310, "completion_tokens": 12}
            | {"dollars": 0.0004},
        },
        # What a cost is charged by is a setting; with steps every cost is taken.
        anyOf=[{"required": ["steps"]}, {"properties": {"cost": {"maxProperties": 0}}}],
    )

    decision_id: DecisionIdText = Field(description="the decision that /v1/route returned", json_schema_extra=ID)
    status: OutcomeStatus = Field(default="answered", description="how the pipeline ended")
    answer: Text = Field(
        default=None, description="the answer; a label is compared with it", json_schema_extra=ANY_TEXT
    )
    steps: Annotated[int | float, _wanted("a finite number")] = Field(
        default=0.0,
        description="rounds of search and generation; by default the reward charges them alone, and a cost is refused "
        "without them",
        json_schema_extra=_FROM_0,
    )
    cost: dict[str, Annotated[int | float, _wanted("a finite number")]] = Field(
        default_factory=dict,
        description="what else it used, by the names of Cost, for example dollars",
        json_schema_extra=_COSTS,
    )
    stop_reason: str = Field(
        default="", description="why it stopped, in a word of yours", json_schema_extra=ANY_TEXT | {"maxLength": 64}
    )
    error: Text = Field(
        default=None,
        description=f"what failed; of a longer text the first {MAX_ERROR:,} characters are kept",
        json_schema_extra={"pattern": ANY_TEXT["pattern"]},
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
