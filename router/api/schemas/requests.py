"""Requests: the JSON bodies that callers send. The text below a field is its description in /openapi.json.

Only shapes are checked here; serving/checks/ checks the values, and has the words for what is wrong with them.
The limits that it enforces stand at the fields as JSON Schema: a request that fits the document is not refused as
invalid. What differs from service to service is added in `openapi`.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetPydanticSchema, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from ragbandit.router.serving.checks.questions import (
    AIMS,
    ID_PATTERN,
    MAX_SESSION,
    MAX_STICKY_TURNS,
    MAX_WORDS,
    checked_id,
)
from ragbandit.router.serving.checks.reports import MAX_ANSWERS, MAX_RATER
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import MAX_AMOUNT, MAX_TEXT, MAX_WEIGHT, Cost, OutcomeStatus

#: required fields that are lists; the others are strings
_LISTS: Final = frozenset({"items", "messages"})
#: how pydantic's messages of wrong values begin, before what is accepted
_SHOULD: Final = "Input should be "
#: pydantic's error type -> what is accepted, where its own words are not ours
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
}
_Body = TypeVar("_Body", bound=BaseModel)


def wanted(what: str) -> GetPydanticSchema:
    """One error for a value of several types, instead of one for each of them."""

    def schema(source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.custom_error_schema(
            handler(source), custom_error_type="wanted", custom_error_message=f"{_SHOULD}{what}"
        )

    return GetPydanticSchema(schema)


def complaint(fault: Mapping[str, Any], *, skip: int = 0, content_type: str | None = None) -> InvalidInput:
    """Convert an error of pydantic to InvalidInput. skip: parts at the start of its location that are not fields
    ("body", "query"). content_type: the request's header.
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
        kind = "list" if field in _LISTS else "string"
        return InvalidInput(f'"{field}" is required ({kind})', field=field, remedy=f"add it to the request as a {kind}")
    wanted = _KINDS.get(kind) or fault["msg"].removeprefix(_SHOULD)
    if wanted == fault["msg"]:
        return InvalidInput(f'"{field}": {wanted}', field=field, remedy="/docs describes what is accepted")
    return InvalidInput(f'"{field}" must be {wanted}, not {_shown(sent)}', field=field, remedy=f"send {wanted}")


def body_of(kind: type[_Body], sent: Mapping[str, Any]) -> _Body:
    """An item of a batch, read as a body of its own. Raises InvalidInput."""
    try:
        return kind.model_validate(sent)
    except ValidationError as error:
        raise complaint(error.errors()[0]) from None


def _shown(sent: object) -> str:
    """The value that was sent, in a few words: a whole list may be deep."""
    if isinstance(sent, dict | list):
        return "this object" if isinstance(sent, dict) else "this list"
    return f"{json.dumps(sent, ensure_ascii=False):.80}"


def limits(*schemas: dict[str, Any], **keywords: Any) -> FieldInfo:
    """Limits of a field, as JSON Schema says them; a keyword holds for values of its own type alone."""
    extra: dict[str, Any] = {name: value for schema in (*schemas, keywords) for name, value in schema.items()}
    return FieldInfo(json_schema_extra=extra)


#: a character that can be stored and is not white space (str.isspace)
_VISIBLE: Final = r"[^\u0000\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_NO_NUL: Final = r"[^\u0000]*"

ID: Final[dict[str, Any]] = {"pattern": f"^{ID_PATTERN.pattern}$"}
NAME: Final[dict[str, Any]] = {"pattern": "^[A-Za-z0-9_.-]{1,64}$"}
#: a text that is not blank
TEXT: Final[dict[str, Any]] = {"minLength": 1, "maxLength": MAX_TEXT, "pattern": f"^{_NO_NUL}{_VISIBLE}{_NO_NUL}$"}
#: a text that may be empty, but not blank
ANY_TEXT: Final[dict[str, Any]] = {"maxLength": MAX_TEXT, "pattern": f"^({_NO_NUL}{_VISIBLE}{_NO_NUL})?$"}
#: any text that can be stored
STORABLE: Final[dict[str, Any]] = {"pattern": f"^{_NO_NUL}$"}
SESSION: Final[dict[str, Any]] = TEXT | {"maxLength": MAX_SESSION}

#: the header that may stand for decision_id or feedback_id
KEY_HEADER: Final = "Idempotency-Key"
#: what clients of OpenAI's interface have before a decision's id
COMPLETION_PREFIX: Final = "chatcmpl-"


def plain_decision_id(sent: str) -> str:
    """The decision's id: as it is, or without the prefix of a chat completion's id."""
    return sent.removeprefix(COMPLETION_PREFIX)


DecisionIdText = Annotated[str, AfterValidator(plain_decision_id)]
Text = Annotated[str | None, wanted("text or null")]
OwnId = Annotated[
    str | None, wanted("text or null"), AfterValidator(lambda sent: sent and plain_decision_id(sent)), limits(ID)
]
Rater = Annotated[Text, limits(TEXT, maxLength=MAX_RATER)]
Event = Annotated[Text, limits(NAME)]
Count = Annotated[int | None, wanted("a whole number or null")]
Amount = Annotated[int | float | None, wanted("a finite number or null")]
CountCap = Annotated[Count, limits(minimum=1, maximum=int(MAX_AMOUNT))]
#: above 0; OpenAPI 3.0 and 3.1 write an open bound in two ways
AmountCap = Annotated[Amount, limits(minimum=1e-9, maximum=int(MAX_AMOUNT))]
Rating = Annotated[
    bool | int | float | None, wanted("true, false, a finite number or null"), limits(minimum=0, maximum=5)
]
Scale = Annotated[str, limits(enum=["0-1", "1-5"])]
NotBlank = Annotated[str, limits(TEXT)]
Fact = Annotated[
    Annotated[str, limits(STORABLE, maxLength=MAX_TEXT)]
    | int
    | float
    | bool
    | Annotated[list[NotBlank], limits(maxItems=MAX_WORDS)]
    | None,
    wanted("text, a finite number, true, false, a list of texts or null"),
]
Price = Annotated[
    int | float | str | None,
    wanted("a finite number, the name of a price, or null"),
    limits(minimum=0, maximum=int(MAX_WEIGHT)),
]
Aim = Annotated[
    Annotated[dict[str, Annotated[int | float, wanted("a finite number")]], Field(min_length=1, max_length=1)] | None,
    wanted("an object of one number (quality, steps or dollars), or null"),
    limits(
        properties={name: {"type": "number", "minimum": 1e-9, "maximum": int(most)} for name, most in AIMS.items()},
        additionalProperties=False,
    ),
]
Items = Annotated[list[dict[str, Any]], limits(minItems=1)]
_FROM_0: Final[dict[str, Any]] = {"minimum": 0, "maximum": int(MAX_AMOUNT)}
#: what an outcome may have cost
_COSTS: Final[dict[str, Any]] = {
    field.name: {"type": "integer" if isinstance(field.default, int) else "number", **_FROM_0} for field in fields(Cost)
}
#: a rating lies within its scale
_WITHIN_SCALE: Final[list[dict[str, Any]]] = [
    {"properties": {"scale": {"enum": ["0-1"]}, "rating": {"maximum": 1}}},
    {"required": ["scale"], "properties": {"scale": {"enum": ["1-5"]}, "rating": {"minimum": 1}}},
]


#: a weight of cost is wanted, or an aim
ONE_WISH: Final[dict[str, Any]] = {
    "anyOf": [{"properties": {name: {"type": "null"}}} for name in ("cost_weight", "aim")]
}


class RequestBody(BaseModel):
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


class BudgetBody(RequestBody):
    """Caps on one answer, all above 0; left out or null: the service's own, which is also the most."""

    # Hashable: pydantic makes a deep copy of any other default, for every request that leaves it out.
    model_config = ConfigDict(frozen=True)

    rounds: CountCap = None
    """Retrieve-and-generate rounds."""
    passages: CountCap = None
    """Distinct passages shown to the model."""
    tokens: CountCap = None
    """Prompt plus completion tokens over all calls."""
    seconds: AmountCap = None
    """Wall-clock seconds from the start of the arm."""
    dollars: AmountCap = None
    """Price of the generator's tokens, where it has a price."""


class MessageBody(RequestBody):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    """Who wrote it."""
    content: Annotated[str, limits(ANY_TEXT)]
    """Its text; a blank message does not count."""


class RouteBody(RequestBody):
    """A question to route."""

    model_config = _schema(
        example={
            "question": "Who wrote Dracula?",
            "decision_id": "ticket-4711",
            "context": {"product": "library", "premium": True},
            "budget": {"rounds": 2, "seconds": 20},
            "tenant": "acme",
        },
        **ONE_WISH,
    )

    question: NotBlank
    """The question; its text, and what the setting `context` declares, move the choice."""
    decision_id: OwnId = None
    """Your own id: makes the request idempotent."""
    context: Annotated[dict[str, Fact], limits(propertyNames=TEXT)] = Field(default_factory=dict)
    """Facts of yours, kept with the decision."""
    arms: Annotated[list[Annotated[str, limits(NAME)]] | None, limits(minItems=1, uniqueItems=True)] = None
    """The arms that may be drawn; left out: all."""
    budget: BudgetBody = BudgetBody()
    """Caps on the answer; the service's own hold as well."""
    tenant: Annotated[str, limits(ID)] = "default"
    """Whose question it is; kept with the decision."""
    session_id: Annotated[Text, limits(SESSION)] = None
    """The conversation that it belongs to: an id of yours."""
    messages: list[MessageBody] = Field(default_factory=list)
    """The conversation before the question, the oldest first: the question is rewritten to stand alone, where the
    service has a model for it, and the arm sees the last of them."""
    sticky_turns: Annotated[Count, limits(minimum=0, maximum=MAX_STICKY_TURNS)] = None
    """Turns that the session stays on the arm of one draw, that turn among them; 0: this turn is drawn; left out: the
    setting `conversation.sticky_turns`. At most `conversation.max_sticky_turns`; with a key of the scope forced=false
    at most `conversation.sticky_turns`."""
    cost_weight: Price = None
    """What one unit of cost is worth to you in right answers, in place of `reward.weight`: a number from 0 on, or a
    name of the setting `cost_weights`; left out: the default of your key, of the tenant, or of the service."""
    aim: Aim = None
    """In place of `cost_weight`: {"quality": 0.9}, the cheapest arms that reach this share of the best arm's expected
    quality, or a mean of questions with this aim: {"steps": 1.8}, {"dollars": 0.004} or {"seconds": 2}."""
    failover: bool | None = None
    """`/v1/answer`: if false, no other arm answers when the drawn one fails; else as the setting `server.failover` has
    it."""


class RouteBatchBody(RequestBody):
    """Many questions; each is decided or refused for itself."""

    model_config = example(
        items=[{"question": "Who wrote Dracula?", "decision_id": "ticket-4711"}, {"question": "And who filmed it?"}]
    )

    items: Items
    """Each as the body of /v1/route, with an id of its own."""


class FeedbackBody(RequestBody):
    """One judgement: exactly one of label, rating, reward and event; or what takes one back."""

    model_config = _schema(
        example={"decision_id": "ticket-4711", "feedback_id": "ticket-4711-stars", "rating": 4, "scale": "1-5"},
        oneOf=_one_of("label", "rating", "reward", "retract", "event"),
        allOf=[{"anyOf": [{"properties": {name: {"type": "null"}}} for name in ("event", "source")]}],
        anyOf=_WITHIN_SCALE,
    )

    decision_id: Annotated[DecisionIdText, limits(ID)]
    """The decision that is judged, or its chat completion."""
    feedback_id: Annotated[Text, limits(ID)] = None
    """Your own id: makes the feedback idempotent."""
    label: Annotated[
        str | list[NotBlank] | None,
        wanted("text, a list of texts or null"),
        limits(TEXT, minItems=1, maxItems=MAX_ANSWERS),
    ] = None
    """Gold answers; any of them is right."""
    rating: Rating = None
    """A user's judgement of the answer: true, false, or a number on `scale`."""
    scale: Scale = "0-1"
    """Scale of a number in `rating`: "0-1" or "1-5"."""
    reward: Amount = None
    """The reward itself, cost included."""
    event: Event = None
    """What the user did: a name of the setting `feedback_events`."""
    source: Annotated[Text, limits(enum=["human", "label", "judge", "code", None])] = None
    """Who judged: human (the default), judge or code; left out for an event."""
    rater: Rater = None
    """Which person or model of that source judged, an id of up to 64 characters: a later judgement of the same one
    replaces the earlier, until the decision is closed."""
    retract: Annotated[Text, limits(enum=["label", "rating", "reward", None])] = None
    """In place of a judgement: take back the earlier one of this kind (label, rating or reward) by the same source and
    rater."""


class FeedbackBatchBody(RequestBody):
    """Up to a thousand judgements; each is accepted or refused for itself."""

    model_config = example(
        items=[{"decision_id": "ticket-4711", "rating": True}, {"decision_id": "ticket-4712", "label": ["Bram Stoker"]}]
    )

    items: Items
    """Each as the body of /v1/feedback, with an id of its own."""


class OutcomeBody(RequestBody):
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

    decision_id: Annotated[DecisionIdText, limits(ID)]
    """The decision that /v1/route returned."""
    status: OutcomeStatus = "answered"
    """How the pipeline ended."""
    answer: Annotated[Text, limits(STORABLE, maxLength=MAX_TEXT)] = None
    """The answer; a label is compared with it. A blank one is wrong by every label."""
    steps: Annotated[int | float, wanted("a finite number"), limits(_FROM_0)] = 0.0
    """Rounds of search and generation; by default only these are charged, and a cost without them is refused."""
    cost: Annotated[
        dict[str, Annotated[int | float, wanted("a finite number")]],
        limits(properties=_COSTS, additionalProperties=False),
    ] = Field(default_factory=dict)
    """What else it used, by the names of Cost, for example dollars."""
    stop_reason: Annotated[str, limits(STORABLE, maxLength=64)] = ""
    """Why it stopped, in a word."""
    error: Annotated[Text, limits(STORABLE)] = None
    """What failed; of a longer text the first 20,000 characters are kept."""


def identity(given: str | None, *, key: str | None, field: str) -> str | None:
    """The id of the body, or else of the header Idempotency-Key. field: the body's name of it.

    Raises InvalidInput if they are two ids, or if the header's is none.
    """
    if key is None or key == given:
        return given
    if given is None:
        return checked_id(key, field=KEY_HEADER)
    remedy = f"send the id once, as {field} or in the header, or the same in both"
    raise InvalidInput(f"{key!r:.80} is not the body's {field}, {given!r:.80}", field=KEY_HEADER, remedy=remedy)


def id_in_header(key: str | None) -> str | None:
    """The decision id that a header Idempotency-Key gives; None without the header. Raises InvalidInput."""
    return None if key is None else checked_id(plain_decision_id(key), field=KEY_HEADER)
