"""Requests: the JSON bodies that callers send. The text below a field is its description in /openapi.json.

The classes check only types; `serving/checks/` checks values. The fields repeat the limits of these checks as JSON
Schema, so that a request that fits the OpenAPI document is never refused as invalid. `add_limits`
(`schemas/openapi.py`) adds limits that depend on settings.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetPydanticSchema, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from ragbandit.router.serving.checks import questions
from ragbandit.router.serving.checks.reports import MAX_ANSWERS, MAX_RATER, USUAL_SCALES, bounds_of
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.model_servers.efforts import EFFORTS
from ragbandit.shared.types import MAX_AMOUNT, MAX_TEXT, MAX_WEIGHT, REPORTED_COSTS, Cost, DecisionUnit, OutcomeStatus

#: required field -> its type; other required fields are strings
_REQUIRED: Final = {"items": "list", "messages": "list", "body": "object", "input": "text or a list"}
#: prefix of pydantic's messages about wrong values, before the accepted values
_SHOULD: Final = "Input should be "
#: pydantic's error type -> accepted values, for messages that we replace
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


class Malformed(InvalidInput, code="BAD_REQUEST", status=400):
    """The request is not valid HTTP/1.1, its body contradicts its head, or it needs a refused feature."""


def accepts(accepted: str) -> GetPydanticSchema:
    """Report one error for a field of several types, instead of one for each type. accepted: the types, in words."""

    def schema(source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.custom_error_schema(
            handler(source), custom_error_type="wanted", custom_error_message=f"{_SHOULD}{accepted}"
        )

    return GetPydanticSchema(schema)


def invalid_input_of(fault: Mapping[str, Any]) -> InvalidInput:
    """Convert an error of pydantic to InvalidInput."""
    kind, sent = fault["type"], fault.get("input")
    field = ".".join(map(str, fault["loc"])) or "body"
    if kind == "extra_forbidden":
        remedy = "remove it; /docs lists the fields"
        if field == "wait_s":
            remedy = "send it to /v1/answer as a query parameter: /v1/answer?wait_s=10"
        return InvalidInput(f'"{field}" is not a field of this request', field=field, remedy=remedy)
    if kind == "missing":
        kind = _REQUIRED.get(field, "string")
        return InvalidInput(f'"{field}" is required ({kind})', field=field, remedy=f"add it to the request: {kind}")
    accepted = _KINDS.get(kind) or fault["msg"].removeprefix(_SHOULD)
    if accepted == fault["msg"]:
        return InvalidInput(f'"{field}": {accepted}', field=field, remedy="/docs describes what is accepted")
    return InvalidInput(f'"{field}" must be {accepted}, not {_in_words(sent)}', field=field, remedy=f"send {accepted}")


def body_of(kind: type[_Body], sent: Mapping[str, Any]) -> _Body:
    """Check an item of a batch as a body of the class `kind`. Raises InvalidInput."""
    try:
        return kind.model_validate(sent)
    except ValidationError as error:
        raise invalid_input_of(error.errors()[0]) from None


def _in_words(sent: object) -> str:
    if isinstance(sent, dict | list):
        return "this object" if isinstance(sent, dict) else "this list"
    return f"{json.dumps(sent, ensure_ascii=False):.80}"


def schema_limits(*schemas: dict[str, Any], **keywords: Any) -> FieldInfo:
    """Limits in the JSON Schema of a field, which check nothing. Each keyword applies to values of its own type."""
    extra: dict[str, Any] = {name: value for schema in (*schemas, keywords) for name, value in schema.items()}
    return FieldInfo(json_schema_extra=extra)


#: regex of a character that can be stored and is not white space (str.isspace)
_VISIBLE: Final = r"[^\u0000\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
_NO_NUL: Final = r"[^\u0000]*"

ID: Final[dict[str, Any]] = {"pattern": f"^{questions.ID_PATTERN.pattern}$"}
NAME: Final[dict[str, Any]] = {"pattern": "^[A-Za-z0-9_.-]{1,64}$"}
TEXT: Final[dict[str, Any]] = {"minLength": 1, "maxLength": MAX_TEXT, "pattern": f"^{_NO_NUL}{_VISIBLE}{_NO_NUL}$"}
#: JSON Schema of a text that is empty or has a visible character
ANY_TEXT: Final[dict[str, Any]] = {"maxLength": MAX_TEXT, "pattern": f"^({_NO_NUL}{_VISIBLE}{_NO_NUL})?$"}
#: JSON Schema of a text without NUL, which databases refuse
STORABLE: Final[dict[str, Any]] = {"pattern": f"^{_NO_NUL}$"}

#: header that callers may send in place of decision_id or feedback_id
KEY_HEADER: Final = "Idempotency-Key"

DecisionIdText = Annotated[str, AfterValidator(questions.plain_decision_id)]
Text = Annotated[str | None, accepts("text or null")]
OwnId = Annotated[
    str | None,
    accepts("text or null"),
    AfterValidator(lambda sent: sent and questions.plain_decision_id(sent)),
    schema_limits(ID),
]
Count = Annotated[int | None, accepts("a whole number or null")]
Amount = Annotated[int | float | None, accepts("a finite number or null")]
CountCap = Annotated[Count, schema_limits(minimum=1, maximum=int(MAX_AMOUNT))]
#: number above 0. OpenAPI 3.0 and 3.1 write "above 0" differently, so the schema has a tiny inclusive minimum
AmountCap = Annotated[Amount, schema_limits(minimum=1e-9, maximum=int(MAX_AMOUNT))]
Rating = Annotated[
    bool | int | float | None, accepts("true, false, a finite number or null"), schema_limits(minimum=-1, maximum=100)
]
NotBlank = Annotated[str, schema_limits(TEXT)]
Fact = Annotated[
    Annotated[str, schema_limits(STORABLE, maxLength=MAX_TEXT)]
    | int
    | float
    | bool
    | Annotated[list[NotBlank], schema_limits(maxItems=questions.MAX_WORDS)]
    | None,
    accepts("text, a finite number, true, false, a list of texts or null"),
]
Price = Annotated[
    int | float | str | None,
    accepts("a finite number, the name of a price, or null"),
    schema_limits(minimum=0, maximum=int(MAX_WEIGHT)),
]
Aim = Annotated[
    Annotated[dict[str, Annotated[int | float, accepts("a finite number")]], Field(min_length=1, max_length=1)] | None,
    accepts("an object of one number (quality, steps or dollars), or null"),
    schema_limits(
        properties={
            name: {"type": "number", "minimum": 1e-9, "maximum": int(most)} for name, most in questions.AIMS.items()
        },
        additionalProperties=False,
    ),
]
EffortBound = Annotated[str | None, accepts("text or null"), schema_limits(enum=[*EFFORTS, None])]
Items = Annotated[list[dict[str, Any]], schema_limits(minItems=1)]
_FROM_0: Final[dict[str, Any]] = {"minimum": 0, "maximum": int(MAX_AMOUNT)}
_COSTS: Final[dict[str, Any]] = {
    name: {"type": "integer" if isinstance(getattr(Cost(), name), int) else "number", **_FROM_0}
    for name in REPORTED_COSTS
}
#: the schema lists the usual scales, since JSON Schema cannot express that a number is on the scale of another field
_WITHIN_SCALE: Final[list[dict[str, Any]]] = [
    {
        **({"required": ["scale"]} if scale != USUAL_SCALES[0] else {}),
        "properties": {
            "scale": {"enum": [scale]},
            "rating": dict(zip(("minimum", "maximum"), map(int, bounds_of(scale)), strict=True)),
        },
    }
    for scale in USUAL_SCALES
]


#: JSON Schema of a request that may have `cost_weight` or `aim`, but not both
ONE_PRICE: Final[dict[str, Any]] = {
    "anyOf": [{"properties": {name: {"type": "null"}}} for name in ("cost_weight", "aim")]
}


class RequestBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def example(**body: Any) -> ConfigDict:
    return _schema(example=body)


def _schema(**keywords: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra=keywords)


class BudgetBody(RequestBody):
    """Caps on one answer, all above 0. The smaller of your cap and the service's cap applies; null: you set no cap."""

    # Bodies that are frozen are hashable. Pydantic would copy a default value that is not hashable for each request.
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
    """Price of the generator's tokens, if it has a price."""


class MessageBody(RequestBody):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    """Who wrote the message."""
    content: Annotated[str, schema_limits(ANY_TEXT)]
    """Text of the message; blank messages are ignored."""


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
        **ONE_PRICE,
    )

    question: NotBlank
    """The question. Its text, and the context keys that the setting `context` declares, influence the choice."""
    decision_id: OwnId = None
    """Your own id; it makes the request idempotent."""
    context: Annotated[dict[str, Fact], schema_limits(propertyNames=TEXT)] = Field(default_factory=dict)
    """Your own facts, stored with the decision."""
    arms: Annotated[list[Annotated[str, schema_limits(NAME)]] | None, schema_limits(minItems=1, uniqueItems=True)] = (
        None
    )
    """The arms that may be drawn; default: all. One arm is your choice: nothing is learned from its answer."""
    budget: BudgetBody = BudgetBody()
    """Caps on the answer, in addition to those of the service."""
    tenant: Annotated[str, schema_limits(ID)] = "default"
    """Tenant that asks; stored with the decision."""
    session_id: Annotated[Text, schema_limits(TEXT, maxLength=questions.MAX_SESSION)] = None
    """Your own id of the conversation."""
    messages: list[MessageBody] = Field(default_factory=list)
    """The conversation before the question, oldest message first. If the service has a model for it, the question is
    rewritten to be understood without them. The arm sees the last messages."""
    unit: DecisionUnit | None = None
    """What one draw decides. `turn`: this question. `task`: all questions with this `session_id` until the task ends;
    later ones get the same arm, and their cost and feedback count for the first. Default: the setting
    `conversation.unit`, which keys with the scope forced=false may not change."""
    cost_weight: Price = None
    """What one unit of cost is worth to you in right answers, in place of `reward.weight`: a number of at least 0, or a
    name in the setting `cost_weights`. Default: that of your key, of the tenant, or of the service."""
    aim: Aim = None
    """An aim in place of `cost_weight`. {"quality": 0.9}: the cheapest arms that reach this share of the best arm's
    expected quality. {"steps": 1.8}, {"dollars": 0.004} or {"seconds": 2}: this mean over questions with this aim."""
    effort_min: EffortBound = None
    """Lowest reasoning effort of the arms that may answer; arms without the param `effort` are not affected."""
    effort_max: EffortBound = None
    """Highest reasoning effort of the arms that may answer."""
    failover: bool | None = None
    """For `/v1/answer`: false if no other arm may answer when the drawn arm fails. Default: `server.failover`."""


class RouteBatchBody(RequestBody):
    """Many questions; each is decided or refused on its own."""

    model_config = example(
        items=[{"question": "Who wrote Dracula?", "decision_id": "ticket-4711"}, {"question": "And who filmed it?"}]
    )

    items: Items
    """Bodies of /v1/route, each with its own id."""


class FeedbackBody(RequestBody):
    """One judgement (exactly one of label, rating, reward and event), or a retraction."""

    model_config = _schema(
        example={"decision_id": "ticket-4711", "feedback_id": "ticket-4711-stars", "rating": 4, "scale": "1-5"},
        oneOf=[
            {"required": [name], "properties": {name: {"not": {"type": "null"}}}}
            for name in ("label", "rating", "reward", "retract", "event")
        ],
        allOf=[{"anyOf": [{"properties": {name: {"type": "null"}}} for name in ("event", "source")]}],
        anyOf=_WITHIN_SCALE,
    )

    decision_id: Annotated[DecisionIdText, schema_limits(ID)]
    """The decision that is judged, or its chat completion."""
    feedback_id: Annotated[Text, schema_limits(ID)] = None
    """Your own id; it makes the feedback idempotent. Beginnings of the service's own ids, as label-, are refused."""
    label: Annotated[
        str | list[NotBlank] | None,
        accepts("text, a list of texts or null"),
        schema_limits(TEXT, minItems=1, maxItems=MAX_ANSWERS),
    ] = None
    """Gold answers; any of them is right."""
    rating: Rating = None
    """A user's judgement of the answer: true, false, or a number on `scale`."""
    scale: Annotated[str, schema_limits(enum=[*USUAL_SCALES])] = "0-1"
    """Scale of a number in `rating`: WORST-BEST, the worst and the best number. Other numbers than these work too."""
    reward: Amount = None
    """The reward itself, cost included."""
    event: Annotated[Text, schema_limits(NAME)] = None
    """What the user did: a name in the setting `feedback_events`."""
    source: Annotated[Text, schema_limits(enum=["human", "label", "judge", "code", None])] = None
    """Who judged: human (default), label, judge or code; not allowed for an event."""
    rater: Annotated[Text, schema_limits(TEXT, maxLength=MAX_RATER)] = None
    """Id of the person or model that judged, up to 64 characters. Until the decision is closed, a later judgement by
    the same rater replaces the earlier one."""
    retract: Annotated[Text, schema_limits(enum=["label", "rating", "reward", None])] = None
    """Retract the earlier judgement of this kind (label, rating or reward) by the same source and rater."""


class SessionEndBody(RequestBody):
    """The end of a conversation's task, with or without a judgement."""

    model_config = example(feedback={"rating": True, "source": "code"})

    tenant: Annotated[str, schema_limits(ID)] = "default"
    """Tenant of the questions."""
    feedback: dict[str, Any] | None = None
    """The judgement: a body of /v1/feedback without decision_id. `{"rating": true, "source": "code"}`: the task is
    solved, as a program has checked."""


class FeedbackBatchBody(RequestBody):
    """Up to a thousand judgements; each is stored or refused on its own."""

    model_config = example(
        items=[{"decision_id": "ticket-4711", "rating": True}, {"decision_id": "ticket-4712", "label": ["Bram Stoker"]}]
    )

    items: Items
    """Bodies of /v1/feedback, each with its own id."""


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
        # Which costs are accepted without `steps` depends on the setting reward.cost, so the schema accepts none.
        anyOf=[{"required": ["steps"]}, {"properties": {"cost": {"maxProperties": 0}}}],
    )

    decision_id: Annotated[DecisionIdText, schema_limits(ID)]
    """The decision that /v1/route returned."""
    status: OutcomeStatus = "answered"
    """How the pipeline ended."""
    answer: Annotated[Text, schema_limits(STORABLE, maxLength=MAX_TEXT)] = None
    """The answer, which labels are compared with. A blank answer is always wrong."""
    steps: Annotated[int | float, accepts("a finite number"), schema_limits(_FROM_0)] = 0.0
    """Rounds of search and generation. By default only `steps` are charged, and costs without `steps` are refused."""
    cost: Annotated[
        dict[str, Annotated[int | float, accepts("a finite number")]],
        schema_limits(properties=_COSTS, additionalProperties=False),
    ] = Field(default_factory=dict)
    """Other costs, by the field names of Cost, for example dollars."""
    stop_reason: Annotated[str, schema_limits(STORABLE, maxLength=64)] = ""
    """Why the pipeline stopped, in a word."""
    error: Annotated[Text, schema_limits(STORABLE)] = None
    """What failed; the first 20,000 characters are stored."""


def idempotency_id(body_id: str | None, *, key: str | None, field: str) -> str | None:
    """The id of a request, from its body or the header Idempotency-Key; None without both. field: name of the id in the
    body. Raises InvalidInput if the two differ, or if the header is not a valid id.
    """
    if key is None or key == body_id:
        return body_id
    if body_id is None:
        return questions.checked_id(key, field=KEY_HEADER)
    remedy = f"send the id once, as {field} or in the header, or the same in both"
    message = f"the header {KEY_HEADER} has {key!r:.80}, which is not the body's {field} {body_id!r:.80}"
    raise InvalidInput(message, field=KEY_HEADER, remedy=remedy)


def item_ids(items: Sequence[Mapping[str, Any]], *, key: str | None, field: str) -> list[str | None]:
    """Ids of the items of a batch that has the header Idempotency-Key: KEY-0, KEY-1 and so on.

    None for an item with an id of its own in `field`, and for all items without the header. Raises InvalidInput if KEY,
    or KEY with the number of the last item, is not a valid id.
    """
    if key is None:
        return [None] * len(items)
    for sent in (f"{key}-{len(items) - 1}", key):  # KEY alone may be empty, which is not valid
        questions.checked_id(sent, field=KEY_HEADER)
    return [f"{key}-{number}" if item.get(field) is None else None for number, item in enumerate(items)]


def id_in_header(key: str | None) -> str | None:
    """The decision id in the header Idempotency-Key; None without the header. Raises InvalidInput."""
    return None if key is None else questions.checked_id(questions.plain_decision_id(key), field=KEY_HEADER)
