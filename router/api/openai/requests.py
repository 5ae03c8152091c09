"""Requests of OpenAI's interface: the names of models, the bodies, and the question that is made of a body."""

import json
import math
import re
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Self

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, PrivateAttr, model_validator

from ragbandit.router.api.dependencies import caller_of, router_of
from ragbandit.router.api.openai.chats import MESSAGE, Chat, Choice, WholeNumber
from ragbandit.router.api.openai.errors import ModelNotFound
from ragbandit.router.api.openai.replies import ListedModel, ModelList
from ragbandit.router.api.openai.tool_loops import hash_conversation
from ragbandit.router.api.schemas.question_headers import header_value, headers_of
from ragbandit.router.api.schemas.requests import ANY_TEXT, ONE_PRICE, Aim, EffortBound, Price, schema_limits
from ragbandit.router.api.security.ownership import may_force, permitted_arms, terms_of_caller, unit_of
from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.config.server import ARM_PREFIXES
from ragbandit.router.policies.base import serves_prices
from ragbandit.router.serving.abilities import short_names
from ragbandit.router.serving.checks.questions import checked_text
from ragbandit.router.serving.conversations import question_and_history
from ragbandit.router.serving.prices import price_terms
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.rows.conversion import body_hash
from ragbandit.shared.additions import load_offered
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import (
    NOTHING_CONTINUED,
    ArmName,
    Caller,
    Continues,
    Conversation,
    DecisionId,
    Json,
    Query,
    Sent,
)

AUTO: Final = "auto"
_OWNER: Final = "ragbandit"
#: signs of a pattern in `server.model_aliases`
_PATTERN: Final = re.compile(r"[*?\[]")
#: `created` of every model: the start of this process, seconds since 1970
_STARTED: Final = int(time.time())


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelChoice:
    #: the arm to use; None if the policy chooses
    arm: ArmName | None = None
    #: name of the price (setting `cost_weights`) at which the policy chooses; None for the default price
    price: str | None = None


def model_list(router: Router, *, caller: Caller) -> ModelList:
    """The models among `auto`, `auto:<price>`, `arm/<arm>` and names of `server.model_aliases` without a pattern that
    this caller may use; none if it may use no arm.
    """
    arms = _arms_of(caller, router=router)
    names = _policy_models(router, caller=caller) if arms else []
    if may_force(caller, tenant=caller.tenant or "default", tenants=router.settings.tenants):
        names += [f"arm/{arm}" for arm in arms]
    means = {model_choice(name, router=router) for name in names}
    for alias in router.settings.server.model_aliases:
        with suppress(ModelNotFound):  # the arm is gone, or the caller's own stack runs it
            if not _PATTERN.search(alias) and model_choice(alias, router=router) in means:
                names.append(alias)
    listed = [named_model(name, router=router, caller=caller) for name in dict.fromkeys(names)]
    return {"object": "list", "data": listed}


def named_model(name: str, *, router: Router, caller: Caller) -> ListedModel:
    """The model of this name, with its context window if that is known. Raises ModelNotFound."""
    arm = model_choice(name, router=router, field=None).arm
    window = _largest_window([arm] if arm else _arms_of(caller, router=router), router=router)
    model: ListedModel = {"id": name, "object": "model", "created": _STARTED, "owned_by": _OWNER}
    if window is not None:
        model |= {"context_length": window, "context_window": window, "max_model_len": window}
    return model


def _arms_of(caller: Caller, *, router: Router) -> list[ArmName]:
    """The workers' arms that a caller's key may use."""
    allowed = caller.scopes.get("arms")
    return [arm for arm in router.service.worker_arms if not isinstance(allowed, list) or arm in allowed]


def _largest_window(arms: Iterable[ArmName], *, router: Router) -> int | None:
    """The largest context window of these arms, tokens; None if one takes prompts of any or of unknown length."""
    passing = router.service.passing
    windows = [passing[arm][1] if arm in passing else None for arm in arms]
    return max((window for window in windows if window is not None), default=None) if None not in windows else None


def _policy_models(router: Router, *, caller: Caller | None = None) -> list[str]:
    """`auto`, and `auto:<price>` for each price that the policy serves, without prices that `caller` may not use."""
    settings = router.settings
    prices = settings.cost_weights if serves_prices(router.service.serving.policy) else {}
    lowest, highest = 0.0, math.inf
    if caller is not None:
        tenant = settings.tenant(caller.tenant or "default")
        bounds = price_terms(caller.scopes, tenant=tenant, named=settings.cost_weights).cost_weights
        if bounds is not None:
            lowest, highest = bounds
    return [AUTO, *(f"{AUTO}:{name}" for name, weight in prices.items() if lowest <= weight <= highest)]


def model_choice(name: str, *, router: Router, field: str | None = "model") -> ModelChoice:
    """Look up the name of a model. field: the parameter that has the name. Raises ModelNotFound."""
    aliases = router.settings.server.model_aliases
    name = next((aliases[alias] for alias in aliases if fnmatchcase(name, alias)), name)
    if name in (AUTO, _OWNER, f"{_OWNER}/{AUTO}"):
        return ModelChoice()
    models = _policy_models(router)
    if name.removeprefix(f"{_OWNER}/") in models:
        return ModelChoice(price=name.rpartition(":")[2])
    arms = router.service.worker_arms
    for prefix in ARM_PREFIXES:
        arm = ArmName(name.removeprefix(prefix))
        if name.startswith(prefix) and arm in arms:
            return ModelChoice(arm=arm)
        if name.startswith(prefix) and arm in router.service.arms:
            message = f"the arm {arm!r:.80} is run by your own stack (run_by: caller), so it answers nothing here"
            raise ModelNotFound(message, field=field, remedy="route the question by POST /v1/route, and run the arm")
    models += [f"arm/{arm}" for arm in arms]
    raise ModelNotFound(
        f"there is no model {name!r:.80}",
        field=field,
        remedy=f"known here: {', '.join(models)}; or set server.model_aliases",
    )


#: largest number of pairs in `metadata`; this and the two lengths below (characters) are OpenAI's limits
_MOST_PAIRS: Final = 16
_LONGEST_KEY: Final = 64
_LONGEST_VALUE: Final = 512
LONGEST_USER: Final = 256


def configured(**example: Any) -> ConfigDict:
    """Pydantic's configuration of a body that has this example, and accepts parameters that it does not declare."""
    return ConfigDict(extra="allow", strict=True, json_schema_extra={"example": example, **ONE_PRICE})


class OpenAIBody(BaseModel):
    model_config = configured()

    model: str
    """`auto`: the policy chooses the arm. `auto:<price>`: it chooses at this price of the setting `cost_weights`.
    `arm/<name>`: this arm is used, and nothing is learned."""
    stream: bool | None = None
    """Send the answer in pieces, as server-sent events."""
    cost_weight: Price = None
    """What one unit of cost is worth in right answers, or the name of a price, as for /v1/route. Clients that cannot
    add a field use the model `auto:<price>`."""
    aim: Aim = None
    """An aim in place of `cost_weight`, as for /v1/route."""
    failover: bool | None = None
    """false: no other arm answers if the drawn arm fails. true or null: the setting `server.failover` decides."""
    effort_min: EffortBound = None
    """Lowest reasoning effort of the arms that may answer; arms without the param `effort` are not affected."""
    effort_max: EffortBound = None
    """Highest reasoning effort of the arms that may answer. `reasoning_effort` allows only arms with equal effort."""
    metadata: dict[str, Any] | None = None
    """Keys declared in the setting `context` influence the choice. The others are passed on; the first 16 of them with
    texts (keys of up to 64 characters, values of up to 512) are stored."""
    user: Annotated[str | None, schema_limits(ANY_TEXT, maxLength=LONGEST_USER)] = None
    """Id of the user who asks; stored with the decision."""
    safety_identifier: Annotated[str | None, schema_limits(ANY_TEXT, maxLength=LONGEST_USER)] = None
    """Newer name of `user`."""
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call, for arms that pass them on (docs/gateway.md)."""
    tool_choice: Choice = None
    """Which function the model calls. `none`: no function is called, and any arm may answer."""
    top_logprobs: Annotated[WholeNumber, schema_limits(minimum=0, maximum=20)] = None
    """Number of tokens at each place that get log-probabilities."""

    @property
    def sent_fields(self) -> dict[str, Any]:
        """The fields that the client sent, declared or not."""
        sent = self.model_fields_set
        return {name: value for name, value in self.__dict__.items() if name in sent} | (self.__pydantic_extra__ or {})


def as_completion(body: object) -> tuple[object, list[str]]:
    """Convert a body in another interface's form, which Cursor and some proxies send. Returns (the chat completion,
    names of what it lacks); any other value unchanged. Raises as `Door.in_chat_form`.
    """
    ignored = list[str]()
    for door in load_offered("doors").values() if isinstance(body, dict) else ():
        body, lacking = door.in_chat_form(body)
        ignored += lacking
    return body, ignored


class ChatBody(OpenAIBody):
    """A request for a chat completion. Arms of the class `model` pass on all other parameters too."""

    model_config = configured(model="auto", messages=[{"role": "user", "content": "Who wrote Dracula?"}])

    _ignored: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="wrap")
    @classmethod
    def _from_other_forms(cls, body: object, validate: ModelWrapValidatorHandler[Self]) -> Self:
        completion, ignored = as_completion(body)
        chat = validate(completion)
        if ignored:
            chat._ignored = tuple(short_names(ignored))  # noqa: SLF001 - its own class
        return chat

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of fields that the body had in another interface's form, and that a chat completion cannot have."""
        return self._ignored

    # Not in the JSON Schema: of the messages by users and assistants, the last must be a user's.
    messages: Annotated[list[Annotated[dict[str, Any], schema_limits(MESSAGE)]], schema_limits(minItems=1)]
    """The conversation: objects with `role` and `content`. `content` is text or a list of parts: `text`, `image_url`,
    `input_audio`, `file`. Arms of the class `model` get the messages unchanged, with parts of any type."""
    stream_options: dict[str, Any] | None = None
    """{"include_usage": true}: send the usage as the last chunk."""
    n: Annotated[WholeNumber, schema_limits(enum=[1, None])] = None
    """Number of answers: always 1."""
    functions: list[dict[str, Any]] | None = None
    """Older name of `tools`."""
    function_call: Choice = None
    """Older name of `tool_choice`."""
    response_format: Annotated[dict[str, Any] | None, schema_limits(required=["type"])] = None
    """The form of the answer: `text`, `json_object` or `json_schema`."""
    logprobs: bool | None = None
    """Log-probabilities of the answer's tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatQuestion:
    """What an interface has read of a chat: the query, and keys that find earlier turns."""

    query: Query
    #: keys of the tool calls that the chat may continue; () if it does not end with results
    calls: tuple[str, ...]
    #: key of the last answer, by which a chat without an id is continued; None without an answer
    answered: str | None
    streamed: bool


#: `hash_conversation` of a question without other turns
_NO_TURNS: Final[tuple[str | None, tuple[str, ...], str | None]] = (None, (), None)


def chat_question(
    request: Request,
    body: OpenAIBody,
    *,
    chat: Chat,
    conversation: Conversation,
    decision_id: str | None,
    session: str | None = None,
    own_id: str | None = None,
    earlier: tuple[str, int] | None = None,
    sent: Sent,
    continues: Continues = NOTHING_CONTINUED,
) -> ChatQuestion:
    """Make the question of a body. Raises ModelNotFound, Forbidden, and InvalidInput with the name of the parameter.

    chat: the conversation as a chat completion, by which the question is decided.
    conversation: what a model's server gets; context keys are removed here from its `metadata`.
    decision_id: id for the decision; None if the service chooses it.
    session: id of the conversation if no header names one.
    own_id: id of a conversation that begins here, if nothing else identifies it.
    earlier: (hash, number) of the first messages; None if none of the messages is stored.
    sent: facts from the door: surface, ignored names, whether the caller named the id, and notes of its addition.
    continues: the earlier response that the request continues, and the responses whose items it quotes.
    """
    router, caller = router_of(request), caller_of(request)
    model, tenant = model_choice(body.model, router=router), caller.tenant or "default"
    headers = headers_of(request)
    named = headers.arm or model.arm
    named_arms = None if named is None else (named,)
    door = str(sent.surface)
    arms = permitted_arms(
        named_arms, unit=headers.unit, door=door, tenant=tenant, caller=caller, router=router, run_by="worker"
    )
    unit, one_turn = unit_of(caller, given=headers.unit), router.settings.conversation.one_turn_models
    if headers.unit is None and body.model != AUTO and any(fnmatchcase(body.model, pattern) for pattern in one_turn):
        unit = "turn"
    schema = router.settings.context
    context, metadata = _split_metadata(conversation.fields.get("metadata"), schema=schema)
    messages, turns = chat.fields["messages"], _NO_TURNS
    has_turns = chat.hash is not None or router.settings.conversation.is_task(unit, door=door)
    if has_turns or len(messages) > 1:  # a single plain question continues nothing, and is never continued
        origin = [tenant, caller.key, None if headers.session == session else headers.session]
        begin, start = earlier or (body_hash(origin), 0)
        turns = hash_conversation(messages, earlier_hash=begin, start=start, encoding=chat.encoding)
    hashed, calls, answered = turns
    question, asked, history, counts = question_and_history(chat.turns, settings=router.settings.conversation)
    query = Query(
        id=None if decision_id is None else DecisionId(decision_id),
        text=question,
        context=headers.merge_context(context, schema=schema) if schema else context,
        arms=arms,
        arm_by=None if named is None else "caller",
        cost_weight=_cost_weight(body, model=model),
        aim=body.aim or {},
        tenant=tenant,
        session=headers.session or session or own_id,
        unit=unit,
        messages=history,
        asked=asked,
        api_key=caller.key,
        sent=replace(
            sent,
            user=_user_id(body, named=sent.user),
            message=headers.message,
            metadata=metadata,
            may_fail_over=body.failover is not False,
            agent=headers.agent,
            asked_model=None if body.model == AUTO else checked_text(body.model, field="model", most=_LONGEST_VALUE),
            needs=chat.sent.needs,
            optional_needs=chat.sent.optional_needs,
            tokens=chat.sent.tokens,
            clipped=chat.sent.clipped,
            effort_min=body.effort_min,
            effort_max=body.effort_max,
            history=counts,
        ),
        continues=replace(continues, chat=chat.hash, conversation=hashed) if has_turns else continues,
        terms=terms_of_caller(caller, tenant=tenant, router=router),
        conversation=_without_context(conversation, context=context) if context else conversation,
    )
    return ChatQuestion(query=query, calls=calls, answered=answered, streamed=bool(body.stream))


def _cost_weight(body: OpenAIBody, *, model: ModelChoice) -> float | str | None:
    """The weight of cost that the field `cost_weight` or the model names. Raises InvalidInput if they differ."""
    if None not in (body.cost_weight, model.price) and body.cost_weight != model.price:
        message = "cost_weight and model name different weights of cost"
        raise InvalidInput(message, field="cost_weight", remedy="send one of them")
    return model.price if body.cost_weight is None else body.cost_weight


def _user_id(body: OpenAIBody, *, named: str | None) -> str | None:
    """The id of the user who asks, from the door or else from the body; None without one. Raises InvalidInput."""
    user = body.safety_identifier or body.user
    if user:
        field = "safety_identifier" if body.safety_identifier else "user"
        checked_text(user, field=field, most=LONGEST_USER)
    return named or user or None


def _split_metadata(metadata: object, *, schema: ContextSchema) -> tuple[dict[str, Json], dict[str, str]]:
    """Split metadata. Returns (context keys that settings declare, converted to their types; other pairs to store)."""
    context: dict[str, Json] = {}
    stored: dict[str, str] = {}
    for key, value in metadata.items() if isinstance(metadata, Mapping) else ():
        declared = schema.get(key)
        if declared is not None and not declared.is_computed:
            if value is not None:
                context[key] = header_value(_text_of(value), declared=declared, field=f"metadata.{key}")
        elif isinstance(value, str) and len(key) <= _LONGEST_KEY and len(value) <= _LONGEST_VALUE:
            stored[key] = value
    return context, dict(list(stored.items())[:_MOST_PAIRS])


def _without_context(conversation: Conversation, *, context: Collection[str]) -> Conversation:
    fields: dict[str, Any] = dict(conversation.fields)
    metadata = {key: value for key, value in fields.pop("metadata").items() if key not in context}
    return conversation.having(fields | ({"metadata": metadata} if metadata else {}))


def _text_of(value: object) -> str:
    """The value of a context key as the text that OpenAI's metadata would have."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)
