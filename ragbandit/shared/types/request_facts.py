"""Three records of a question: what the client sent with it, what it continues, and the terms of its decision.

The store and replies contain them as one JSON object, see `records_json`. The object lacks fields that have their
default. A stored value of another type, which another release may have written, is read as the default.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final, cast, get_type_hints

from ragbandit.shared.types.names import MOST_FACTOR, Json


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """Statements of the client, and facts derived from them before the question was decided."""

    #: interface of the request: `openai`, `responses`, `anthropic` or another door; None for the library
    surface: str | None = None
    #: id of the user who asks
    user: str | None = None
    #: the client's id of the answer, by which a rating finds the decision
    message: str | None = None
    #: pairs of `metadata`, except those that the setting `context` declares
    metadata: Mapping[str, Json] = field(default_factory=dict)
    #: names of parameters and parts that the arm did not get
    ignored: tuple[str, ...] = ()
    #: whether another arm may answer if the arm fails
    may_fail_over: bool = True
    #: whether the caller chose the decision's id; None before the question is checked
    named_id: bool | None = None
    #: header x-request-id
    request_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    #: the agent that asks, if it is not the main agent of the conversation; each agent has its own tasks
    agent: str | None = None
    #: the model that the client named, if it is not `auto`; requests for different models belong to different tasks
    asked_model: str | None = None
    #: abilities that an arm must have; and further ones, required only if some arm has all abilities of both kinds
    needs: tuple[str, ...] = ()
    optional_needs: tuple[str, ...] = ()
    #: estimated tokens of the prompt
    tokens: int | None = None
    #: number of messages whose text was shortened for the features
    clipped: int | None = None
    #: lowest and highest reasoning effort that the caller allows
    effort_min: str | None = None
    effort_max: str | None = None
    #: counts of the earlier messages that were left out or shortened
    history: Mapping[str, Json] = field(default_factory=dict)
    #: how the question was rewritten; empty if it was not
    rewrite: Mapping[str, Json] = field(default_factory=dict)
    #: the arm that a language model has picked, or why there is no pick; empty if no model was asked
    pick: Mapping[str, Json] = field(default_factory=dict)
    #: notes of additions, each under names of its own
    others: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """The loop of tools whose results a turn brings."""

    #: the turn of a task that began the loop; None if the decision began it
    begun_by: str | None = None
    #: the arm that made the calls, if the turn may go to another arm
    called_by: str | None = None
    #: the decision of the loop
    first: str = ""
    #: the arms that the caller may use, if it has not named the arm; None for all arms
    permitted: tuple[str, ...] | None = None
    #: the turn that made the calls
    previous: str = ""
    #: number of this turn, from 2
    turn: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedArm:
    """A failed attempt, after which another arm answers."""

    arm: str = ""
    #: number of the attempt that takes over, from 2
    attempt: int = 0
    #: the drawn decision
    first: str = ""
    #: arms that may still be asked
    left: tuple[str, ...] = ()
    #: `Failure.reason`
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Continues:
    """Earlier calls, answers or responses that the request continues; see storage/decisions/continuing.py."""

    #: hash of the caller and of all messages
    conversation: str | None = None
    #: hash of the whole chat and its parameters; requests with the same hash count as one request
    chat: str | None = None
    #: the loop of tools that the request continues; None if it brings no results of tools
    loop: Loop | None = None
    #: the decision whose answer a chat without an id continues; None if the same chat has continued it before
    answer: str | None = None
    #: the failed attempt that the decision replaces; None if it replaces none
    failed: FailedArm | None = None
    #: id of the response that this one continues, as the caller sent it
    previous: str | None = None
    #: ids of the responses before this one, nearest first
    chain: tuple[str, ...] = ()
    #: ids of the responses from which the items in the input come, as far as the ids of the items reveal them
    quoted: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """The terms of the question's decision: settings of its key, its tenant and their budgets for the cost weight."""

    #: cost weight of a question that names none: a number or a name; None for the setting `reward.weight`
    cost_weight: float | str | None = None
    #: smallest and largest weight that a question may name; None if every weight is allowed
    cost_weights: tuple[float, ...] | None = None
    #: who has set `cost_weights`: "key" or "tenant"
    narrowed_by: str | None = None
    #: factor (>= 1) by which a nearly spent budget raises the weight
    budget_factor: float = 1.0

    @property
    def is_spent(self) -> bool:
        """Whether a budget is spent, so that the cheapest arm should answer."""
        return self.budget_factor >= MOST_FACTOR

    @property
    def has_prices(self) -> bool:
        """Whether a key or a tenant sets the cost weight or its range."""
        return self.cost_weight is not None or self.cost_weights is not None


_Reader = Callable[[Json], Any]


def _value_reader(*kinds: type) -> _Reader:
    """Returns a function that returns values of these types unchanged, and None for others."""
    if int in kinds:  # True is an int, too
        return lambda value: value if isinstance(value, kinds) and not isinstance(value, bool) else None
    return lambda value: value if isinstance(value, kinds) else None


def _tuple_reader(*kinds: type) -> _Reader:
    """Returns a function from a list to the tuple of its members of these types, and from other values to None."""
    return lambda value: tuple([x for x in value if isinstance(x, kinds)]) if isinstance(value, list | tuple) else None


_READERS: Final[Mapping[Any, _Reader]] = {
    **dict.fromkeys((str, str | None), _value_reader(str)),
    **dict.fromkeys((bool, bool | None), _value_reader(bool)),
    **dict.fromkeys((int, int | None), _value_reader(int)),
    **dict.fromkeys((tuple[str, ...], tuple[str, ...] | None), _tuple_reader(str)),
    float: _value_reader(int, float),
    float | str | None: _value_reader(int, float, str),
    tuple[float, ...] | None: _tuple_reader(int, float),
    Mapping[str, Json]: _value_reader(dict),
    Loop | None: lambda value: _LOOP.record(value) if isinstance(value, dict) and value else None,
    FailedArm | None: lambda value: _FAILED.record(value) if isinstance(value, dict) and value else None,
}


def _plain(value: Any) -> Json:
    if isinstance(value, Loop):
        return _LOOP.entries(value)
    if isinstance(value, FailedArm):
        return _FAILED.entries(value)
    return list(value) if isinstance(value, tuple) else value


class _Form:
    """The JSON form of a record. It omits fields that have their default, or only None if the record is a part."""

    def __init__(self, kind: type[Any], *, is_part: bool = False, **names: str) -> None:  # names: field -> JSON name
        hints = {name: hint for name, hint in get_type_hints(kind).items() if name != "others"}
        self._kind, self.empty = kind, kind()
        self._columns = attrgetter(*hints)
        self._defaults = (None,) * len(hints) if is_part else self._columns(self.empty)
        self.names = [names.get(name, name) for name in hints]
        #: name in JSON -> (field, function that returns its value, or None for a value of another type)
        self._fields = {names.get(name, name): (name, _READERS[hint]) for name, hint in hints.items()}

    def entries(self, record: object) -> dict[str, Json]:
        if record is self.empty:
            return {}
        values = zip(self.names, self._columns(record), self._defaults, strict=True)
        return {name: _plain(value) for name, value, default in values if value is not default and value != default}

    def record(self, entries: Mapping[str, Json]) -> Any:
        values = {}
        for name, entry in entries.items():
            if name in self._fields:
                field_name, read = self._fields[name]
                if (value := read(entry)) is not None:
                    values[field_name] = value
        return self._kind(**values) if values else self.empty


_SENT: Final = _Form(Sent, may_fail_over="failover")
_LOOP: Final[_Form] = _Form(Loop, is_part=True)
_FAILED: Final[_Form] = _Form(FailedArm, is_part=True)
_CONTINUES: Final = _Form(
    Continues,
    conversation="conversation_hash",
    chat="chat_hash",
    loop="tool_turn",
    answer="continues",
    failed="failover",
    previous="previous_response_id",
)
_TERMS: Final = _Form(Terms)
NOTHING_SENT: Final[Sent] = _SENT.empty
NOTHING_CONTINUED: Final[Continues] = _CONTINUES.empty
NO_TERMS: Final[Terms] = _TERMS.empty
#: JSON name of the object with the fields of Terms except `budget_factor`, and the JSON name of that field
_PRICES: Final = "prices"
_FACTOR: Final = "budget_factor"
#: names in the object of `records_json`, besides those of additions
REQUEST_NAMES: Final = frozenset({*_SENT.names, *_CONTINUES.names, _PRICES, _FACTOR})


def records_json(sent: Sent, *, continues: Continues, terms: Terms, by_caller: bool) -> dict[str, Json]:
    """The three records of a query as one JSON object. by_caller: whether the caller has chosen the arm"""
    prices, entries = _TERMS.entries(terms), {**sent.others, **_SENT.entries(sent), **_CONTINUES.entries(continues)}
    if continues.loop is not None and by_caller:  # for processes of releases without the column `arm_by`
        entries["tool_turn"] = {**_LOOP.entries(continues.loop), "named": True}
    if _FACTOR in prices:
        entries[_FACTOR] = prices.pop(_FACTOR)
    return {**entries, _PRICES: prices} if prices else entries


def sent_of(entries: Mapping[str, Json]) -> Sent:
    """The `Sent` from the object of `records_json`."""
    others = {key: value for key, value in entries.items() if key not in REQUEST_NAMES and value not in (None, [], {})}
    sent: Sent = _SENT.record(entries)
    return replace(sent, others=others) if others else sent


def continues_of(entries: Mapping[str, Json]) -> Continues:
    """The `Continues` from the object of `records_json`."""
    return cast(Continues, _CONTINUES.record(entries))


def terms_of(entries: Mapping[str, Json], *, factor: float | None = None) -> Terms:
    """The `Terms` from the object of `records_json`. factor: column `budget_factor`; None to read the object."""
    prices = entries.get(_PRICES)
    known = {_FACTOR: entries.get(_FACTOR) if factor is None else factor}
    return cast(Terms, _TERMS.record({**(prices if isinstance(prices, Mapping) else {}), **known}))
