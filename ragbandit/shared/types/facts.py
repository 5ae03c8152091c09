"""Facts of decisions: typed values that the steps of deciding store, each under its own key of `Decision.facts`.

Facts that only one step reads are in the file of that step (router/serving/deciding/steps/). The facts in this file are
also read by storage, audits, reports and replay.
"""

from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, ClassVar, Final, Self, get_args, get_origin

from ragbandit.shared.types.names import ArmName, DecisionId, DecisionUnit, Json


class Fact:
    """A frozen dataclass with a key. A fact with one field is stored as this field's value, another fact as an object.

    A field with a default is stored only if it differs from the default. Fields are texts, numbers, flags, tuples and
    mappings.
    """

    __slots__ = ()
    key: ClassVar[str]

    @classmethod
    def of(cls, facts: Mapping[str, Json]) -> Self | None:
        """The fact among a decision's facts; None if there is none, or if a required field is missing or damaged."""
        return cls.read(facts[cls.key]) if cls.key in facts else None

    @classmethod
    def read(cls, value: Json) -> Self | None:
        """The fact from its stored value. A damaged field that is optional gets its default, or None."""
        known = fields(cls)  # type: ignore[arg-type] # every fact is a dataclass
        if len(known) == 1:
            value = {known[0].name: value}
        if not isinstance(value, Mapping):
            return None
        values: dict[str, Any] = {}
        for field in known:
            item = _value_of_type(value.get(field.name), kind=field.type)
            if item is None and field.default is not MISSING:
                item = field.default
            if item is None and type(None) not in get_args(field.type):
                return None
            values[field.name] = item
        return cls(**values)

    @property
    def stored(self) -> Json:
        """The value as JSON, to store under `key`."""
        known = fields(self)  # type: ignore[arg-type] # every fact is a dataclass
        values = {field.name: getattr(self, field.name) for field in known}
        if len(known) == 1:
            return _plain(values[known[0].name])
        return {field.name: _plain(values[field.name]) for field in known if values[field.name] != field.default}


@cache
def _required(kind: Any) -> tuple[Any, Any]:
    """Returns (type of a field without None, its origin). ArmName is stored as a str."""
    kind = get_args(kind)[0] if type(None) in get_args(kind) else kind
    return getattr(kind, "__supertype__", kind), get_origin(kind)


def _value_of_type(value: Any, *, kind: Any) -> Any:
    """The value if it has the type of its field, with tuples instead of lists; otherwise None."""
    kind, origin = _required(kind)
    if origin is tuple:
        parts = value if isinstance(value, list | tuple) else [None]
        items = [_value_of_type(item, kind=get_args(kind)[0]) for item in parts]
        return None if None in items else tuple(items)
    if origin is Mapping:
        pairs = value.items() if isinstance(value, Mapping) else ()
        fitting = {key: _value_of_type(item, kind=get_args(kind)[1]) for key, item in pairs}
        return {key: item for key, item in fitting.items() if item is not None} or None
    if isinstance(value, bool) != (kind is bool):
        return None
    return value if isinstance(value, int | float if kind is float else kind) else None


def _plain(value: Any) -> Any:
    """The value with lists instead of tuples, as it is read back from the store."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, kw_only=True, slots=True)
class AppliedRules(Fact):
    """The operator's rules that apply to the question, and the arms that they allow."""

    key: ClassVar[str] = "rules"
    names: tuple[str, ...]
    arms: tuple[ArmName, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LackingArms(Fact):
    """The arms that cannot do what the request needs. needs: arm -> the needs that it does not meet."""

    key: ClassVar[str] = "lacking"
    needs: Mapping[ArmName, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskTurn(Fact):
    """The position of a turn in its task. All turns of a task belong to its first decision, which drew their arm."""

    key: ClassVar[str] = "task"
    #: key in the table `units`
    unit: str
    #: number of this turn; the first decision is turn 1
    turn: int
    #: when the task ends if no further turn comes, seconds since 1970
    until: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedTurn(Fact):
    """A turn of a task or of a loop of tools whose arm differs from that of its decision, or of the turns before it."""

    key: ClassVar[str] = "moved"
    reason: str


def decided_unit(facts: Collection[str]) -> DecisionUnit | None:
    """The unit that a decision was drawn for: "task" if it begins or continues a task, None for one turn."""
    return "task" if TaskTurn.key in facts else None


@dataclass(frozen=True, kw_only=True, slots=True)
class StickyTurn(Fact):
    """A turn that kept the arm of an earlier turn, without a draw. Only earlier releases stored it."""

    key: ClassVar[str] = "sticky"
    #: the decision that drew the arm
    first: DecisionId
    #: number of this turn; the turn with the draw is 1
    turn: int
    #: number of turns with this arm, the drawn one included; 0 if the arm was kept because a cached prompt saves cost
    turns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedArm(Fact):
    """The arm that the kill switch pinned when the decision was made: the policy drew no arm."""

    key: ClassVar[str] = "killed"
    arm: ArmName
    #: revision of `PolicyControl`
    revision: int | None


#: keys of the facts of decisions whose arm was not drawn, but kept from an earlier turn or pinned
UNDRAWN: Final = (StickyTurn.key, PinnedArm.key)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rebuilding(Fact):
    """An interim policy drew the arm, because the configured policy was being learned again from its ledger."""

    key: ClassVar[str] = "rebuilding"
    interim: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelRequest(Fact):
    """Whether the decision was put into the label queue, and with which probability."""

    key: ClassVar[str] = "label_queue"
    #: whether the decision was put into the queue
    asked: bool
    #: random number in [0, 1); the decision is put into the queue if it is below q
    draw: float | None
    #: probability of being put into the queue
    q: float
    #: `learning.labels_per_day` / counted decisions a day, at most 1
    share: float
    #: whether the smallest possible q would have sufficed, so that the choice does not depend on the question
    uniform: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeRequest(LabelRequest):
    """Whether the answer is drawn for the judge, and with which probability; only if this depends on the decision.

    share: the setting `judge.share`
    """

    key: ClassVar[str] = "judge_sample"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPick(Fact):
    """A language model's pick of the arm, before the draw. `Sent.pick` has the same values, and the cost."""

    key: ClassVar[str] = "pick"
    #: the picked arm; None if the model failed
    arm: ArmName | None = None
    #: why no arm was picked; None if one was picked
    failed: str | None = None
    #: the model that was asked; None if the caller sent the pick
    by: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ColdStartFloors(Fact):
    """Floors of arms with few learned outcomes, if they were above the floor of all arms."""

    key: ClassVar[str] = "cold_start_floor"
    floors: Mapping[ArmName, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class UntriedArms(Fact):
    """The offered arms of which the policy had learned no rows."""

    key: ClassVar[str] = "untried"
    arms: tuple[ArmName, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SafeStart(Fact):
    """The safe start: how far the draw was limited to the incumbent arm."""

    key: ClassVar[str] = "incumbent"
    #: the incumbent
    arm: ArmName | None
    #: share of the policy in the draw, in [0, 1]; the incumbent has the rest
    share: float
    #: reward that may still be lost compared with the incumbent; None if the policy does not count it
    slack: float | None
    reason: str | None
    #: exploration floor before the incumbent's share was added
    floor: float | None
    #: whether a spent budget released the draw from the incumbent; the row then does not count against it
    released: bool = False


def is_released(facts: Mapping[str, Json]) -> bool:
    """Whether a spent budget released this decision's draw from the safe start."""
    fact = SafeStart.of(facts)
    return fact is not None and fact.released


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldbackShare(Fact):
    """The share of the draw that the setting `holdback` reserved for one arm."""

    key: ClassVar[str] = "holdback"
    arm: ArmName
    share: float
    #: exploration floor before the holdback was added
    floor: float | None
    #: settings of a falling share, and number of the arm's learned answers (`falling_share`); None if it does not fall
    first: float | None = None
    until: int | None = None
    then: float | None = None
    learned: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateNote(Fact):
    """The draw that a version in shadow would have made."""

    version: str | None
    #: snapshot of the version's policy
    snapshot: str | None
    #: the version's pmf over `Decision.arms`; None if there is none
    pmf: tuple[float, ...] | None
    #: why there is no pmf; None if there is one
    fault: str | None
    #: the version's probability of arms that were not offered
    unseen: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateNotes(Fact):
    """The notes of all versions in shadow, in the order in which they were asked."""

    key: ClassVar[str] = "candidate"
    notes: tuple[CandidateNote, ...]

    @classmethod
    def read(cls, value: Json) -> Self | None:
        """The notes from the stored list, without damaged ones; None if the value is no list."""
        if not isinstance(value, list):
            return None
        notes = map(CandidateNote.read, value)
        return cls(notes=tuple(note for note in notes if note is not None))

    @property
    def stored(self) -> Json:
        """The list of the notes."""
        return [note.stored for note in self.notes]


#: keys of the numbers that policies log about a draw
NUMBERS_OF_POLICIES: Final = frozenset(
    {"quality", "cost", "weight", "probability", "epsilon", "learning_rate", "gamma", "ucb", "popularity", "threshold"}
)
_KINDS: Final = (
    *(AppliedRules, TaskTurn, StickyTurn, PinnedArm, Rebuilding, LabelRequest, JudgeRequest, ModelPick),
    *(ColdStartFloors, UntriedArms, SafeStart, HoldbackShare, CandidateNotes, CandidateNote),
)
_KEYS: Final = NUMBERS_OF_POLICIES | {kind.key for kind in _KINDS if kind is not CandidateNote}
_NAMES: Final = frozenset(field.name for kind in _KINDS for field in fields(kind))


def facts_without_texts(facts: Mapping[str, Json], *, arms: Collection[str]) -> dict[str, Json]:
    """The facts whose names RagBandit defines, without texts. All others may contain words of callers and models.

    arms: the offered arms, which are keys in some facts
    """
    return {key: _without_texts(value, names={*_NAMES, *arms}) for key, value in facts.items() if key in _KEYS}


def _without_texts(value: Json, *, names: Collection[str]) -> Json:
    if isinstance(value, Mapping):
        kept = {key: item for key, item in value.items() if key in names and not isinstance(item, str)}
        return {key: _without_texts(item, names=names) for key, item in kept.items()}
    if isinstance(value, list):
        return [_without_texts(item, names=names) for item in value if not isinstance(item, str)]
    return value


def candidate_notes(facts: Mapping[str, Json]) -> tuple[CandidateNote, ...]:
    """The notes of all versions in shadow; () if there was none."""
    notes = CandidateNotes.of(facts)
    return () if notes is None else notes.notes


def candidate_note(facts: Mapping[str, Json], version: str) -> CandidateNote | None:
    """The note of the version of this name; None if it was not in shadow."""
    return next((note for note in candidate_notes(facts) if note.version == version), None)
