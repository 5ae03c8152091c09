"""Checks of questions. A checked question can be stored, encoded, learned and printed."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import UnionType
from typing import Final

import uuid_utils

from ragbandit.router.config.context_schema import ContextSchema, check_declared
from ragbandit.router.config.settings import BudgetSettings
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.dialects.registry import DIALECTS
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import known_choices
from ragbandit.shared.texts.plain_values import plain
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.shared.types import MAX_AMOUNT, MAX_TEXT, ArmName, Budget, DecisionId, Json, Message, Query

#: maximum characters of the id of a conversation or of an agent. Longer ids are refused, since cut ids may be equal
MAX_SESSION: Final = 128
#: valid ids, which RQ also accepts as job ids
ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}")

#: id of a chat completion = this prefix + id of its decision
COMPLETION_PREFIX: Final = DIALECTS["chat"].reply_prefix
#: beginning of response ids that the service chooses; it is a part of the decision's id. LangChain recognises a
#: response by it
RESPONSE_PREFIX: Final = "resp_"


def new_id() -> DecisionId:
    return DecisionId(str(uuid_utils.uuid7()))  # ids are ordered by time


def plain_decision_id(sent: str) -> str:
    """The decision id: `sent` without the beginning of a reply's id in any dialect, if it has one.

    The id of a response is the decision's id, prefix included.
    """
    for dialect in DIALECTS.values():
        sent = sent.removeprefix(dialect.reply_prefix)
    return sent


def check_type(value: object, kind: type | UnionType, *, field: str, wanted: str) -> None:
    """Raises InvalidInput if a value is not of the type `kind`. wanted: this type in words, for the message."""
    if not isinstance(value, kind):
        remedy = f"pass {wanted}"
        raise InvalidInput(f'"{field}" must be {wanted}, not {type(value).__name__}', field=field, remedy=remedy)


def checked_text(text: object, *, field: str, most: int = MAX_TEXT, advice: str = "", blank: bool = False) -> str:
    """Refuse long texts, NUL, invalid Unicode and, unless `blank`, blank texts. advice: how to shorten a long text."""
    if not isinstance(text, str):
        raise InvalidInput(f'"{field}" must be text, not {type(text).__name__}', field=field, remedy="send a string")
    if not blank and is_blank(text):
        raise InvalidInput(f'"{field}" is empty', field=field, remedy="send at least one character that is not a space")
    if len(text) > most:
        raise InvalidInput(f'"{field}" has {len(text)} characters', field=field, remedy=f"send at most {most}{advice}")
    if "\x00" in text:
        raise InvalidInput(f'"{field}" holds a NUL character', field=field, remedy="remove it")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f'"{field}" is not valid Unicode (a lone surrogate)'
        raise InvalidInput(message, field=field, remedy="send UTF-8") from error
    return text


def checked_session(value: object, *, field: str) -> str:
    """Check the id of a conversation. An id that a URL cannot have is refused: a URL with the id ends its task."""
    text = checked_text(value, field=field, most=MAX_SESSION)
    if text in (".", ".."):  # HTTP clients and proxies remove such a part from a path, even if it is encoded
        raise InvalidInput(f'"{field}" is {text!r}, which a URL cannot have', field=field, remedy="use another id")
    return text


def checked_id(value: object, *, field: str) -> str:
    if not isinstance(value, str) or not ID_PATTERN.fullmatch(value):
        remedy = "use 1 to 64 letters, digits, dashes or underscores"
        raise InvalidInput(f"{value!r:.80} is not an id", field=field, remedy=remedy)
    return value


def checked_number(value: object, *, field: str, low: float = 0, high: float = MAX_AMOUNT, hint: str = "") -> float:
    """Check a finite number in [low, high]. Raises InvalidInput. hint: added to the remedy of a number out of range."""
    value = plain(value)
    remedy = f"send a number in [{low}, {high}]"
    # `isfinite` raises OverflowError for a very large int. The check of the range below refuses such a number.
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    if is_infinite or isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{value!r:.80} is not a finite number", field=field, remedy=remedy)
    if not low <= value <= high:
        raise InvalidInput(f"{value!r:.80} is out of range", field=field, remedy=remedy + hint)
    return float(value)


MAX_WORDS: Final = 100
MAX_MESSAGES: Final = 64
#: name of an aim -> largest value to aim at; a question may have an aim or a cost weight, not both
AIMS: Final[Mapping[str, float]] = {"quality": 1.0, "steps": 1e6, "dollars": 1e6, "seconds": 1e6}
_ROLES: Final = ("system", "user", "assistant")
_NO_BUDGET: Final = Budget()  # a constant saves time, because every question's budget is compared with it


def checked_query(
    query: Query,
    *,
    arms: Sequence[ArmName],
    configured: Collection[str],
    schema: ContextSchema,
    most_bytes: int,
) -> Query:
    """Returns the checked query, with an id and a sorted context. Raises InvalidInput.

    arms: the arms on offer. configured: all arms. schema: setting `context`. most_bytes: setting
    server.max_context_bytes. Fields that only one step of deciding reads are checked by that step.
    """
    check_type(query, Query, field="question", wanted="a string or a Query")
    checked_text(query.text, field="question")
    if query.id is not None:
        checked_id(query.id, field="decision_id")
    checked_id(query.tenant, field="tenant")
    _check_arms(query, known=arms, configured=configured)
    check_type(query.context, Mapping, field="context", wanted="a mapping")
    if query.context:
        query = replace(query, context={key: plain(value) for key, value in query.context.items()})
        _check_context(query.context, most_bytes=most_bytes)
    if query.context or schema:
        check_declared(query.context, schema=schema)
    if query.budget != _NO_BUDGET:
        _check_budget(query.budget)
    if query.session is not None or query.asked is not None or query.messages != ():
        _check_conversation(query)
    # Sorted as in the log, so that a policy sees the same context in a replay.
    context: Mapping[str, Json] = {}
    if query.context:
        context = {key: list(v) if isinstance(v, tuple) else v for key, v in sorted(query.context.items())}
    return replace(query, id=query.id or new_id(), context=context)


def _check_arms(query: Query, *, known: Sequence[ArmName], configured: Collection[str]) -> None:
    if not known:
        remedy = "route the question instead (Router.route or POST /v1/route) and run the arm yourself"
        raise InvalidInput("no arm of this service is run by workers", field="arms", remedy=remedy)
    arms = query.arms
    if arms is not None:
        check_type(arms, list | tuple, field="arms", wanted="a list of names")
        for arm in arms:
            check_type(arm, str, field="arms", wanted="a list of names")
        if not arms:
            raise InvalidInput("`arms` is empty", field="arms", remedy="name at least one arm, or leave `arms` out")
        if len(set(arms)) != len(arms):
            raise InvalidInput("an arm is named twice", field="arms", remedy="name each arm once")
        for arm in arms:
            if arm in configured and arm not in known:
                message = f"the arm {arm!r} is run by your own stack (run_by: caller)"
                remedy = f"use Router.route or POST /v1/route for it; our workers run {', '.join(known)}"
                raise InvalidInput(message, field="arms", remedy=remedy)
            if arm not in known:
                raise InvalidInput(f"unknown arm {arm!r}", field="arms", remedy=known_choices(known, given=arm))
    if query.arm_by is not None and (arms is None or len(arms) != 1):
        raise InvalidInput(
            "a question whose arm is chosen needs exactly one arm", field="arms", remedy="name one arm in `arms`"
        )


def _check_budget(budget: Budget) -> None:
    check_type(budget, Budget, field="budget", wanted="a Budget")
    for cap in ("rounds", "passages", "tokens", "seconds", "dollars"):
        value, is_count = getattr(budget, cap), cap not in ("seconds", "dollars")
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if is_count else int | float) or not value > 0:
            wanted = f"{'whole number' if is_count else 'number'} above 0"
            remedy = f"send a {wanted}, or leave the cap out"
            raise InvalidInput(f"{value!r:.80} is not a {wanted}", field=f"budget.{cap}", remedy=remedy)
        checked_number(value, field=f"budget.{cap}")


def cap_budget(budget: Budget, *, limits: BudgetSettings) -> Budget:
    """The budget with each cap reduced to the service's limit."""
    caps = {}
    for cap in Budget.__slots__:
        wanted, limit = getattr(budget, cap), getattr(limits, cap)
        caps[cap] = limit if wanted is None else wanted if limit is None else min(wanted, limit)
    return Budget(**caps)


def _check_context(context: Mapping[str, Json], *, most_bytes: int) -> None:
    for key, value in context.items():
        checked_text(key, field="context")
        field = f"context.{key}"
        if isinstance(value, str):
            checked_text(value, field=field, blank=True)
        elif isinstance(value, float) and not math.isfinite(value):
            raise InvalidInput(f'"{field}" is not a finite number', field=field, remedy="send null or leave it out")
        elif isinstance(value, list | tuple):
            if len(value) > MAX_WORDS:
                raise InvalidInput(f'"{field}" has {len(value)} texts', field=field, remedy=f"send at most {MAX_WORDS}")
            for text in value:
                check_type(text, str, field=field, wanted="a list of texts")
                checked_text(text, field=field)
        elif value is not None and not isinstance(value, bool | int | float):
            remedy = "send text, numbers, booleans, lists of texts or null"
            raise InvalidInput(f'"{field}" is a {type(value).__name__}', field=field, remedy=remedy)
    size = len(canonical(dict(context)).encode())
    if size > most_bytes:
        remedy = f"send at most {most_bytes} bytes (server.max_context_bytes)"
        raise InvalidInput(f'"context" has {size} bytes as JSON', field="context", remedy=remedy)


def _check_conversation(query: Query) -> None:
    if query.session is not None:
        checked_session(query.session, field="session_id")
    if query.asked is not None:
        checked_text(query.asked, field="question")
    check_type(query.messages, list | tuple, field="messages", wanted="a list of messages")
    if len(query.messages) > MAX_MESSAGES:
        fault = f'"messages" has {len(query.messages)} entries'
        raise InvalidInput(fault, field="messages", remedy=f"send at most {MAX_MESSAGES}")
    for message in query.messages:
        check_message(message)
    if sum(len(message.text) for message in query.messages) > MAX_TEXT:
        remedy = f"send at most {MAX_TEXT} characters of history: the last turns"
        raise InvalidInput('"messages" is too long', field="messages", remedy=remedy)


def check_message(message: object) -> None:
    """Raises InvalidInput if a Message cannot be stored. Its text may be blank."""
    if not isinstance(message, Message):
        check_type(message, Message, field="messages", wanted="a list of messages")
    assert isinstance(message, Message)
    if message.role not in _ROLES:
        remedy = f"use one of {', '.join(_ROLES)}"
        raise InvalidInput(f"a message has the role {message.role!r:.40}", field="messages", remedy=remedy)
    text: object = message.text
    if not isinstance(text, str):
        check_type(text, str, field="messages", wanted="messages of text")
    checked_text(message.text, field="messages", blank=True)
