from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ragbandit.router.policies.draw import Offer
from ragbandit.router.serving.deciding.needs import LACKING
from ragbandit.router.serving.health.circuit_breaker import EXCLUDED_ARMS
from ragbandit.shared.types import LABEL_QUEUE, REBUILDING, STICKY, ArmName, Decision, DecisionId, Json, Query


@dataclass(frozen=True, kw_only=True, slots=True)
class Stay:
    """The reason why a turn of a session keeps the arm of an earlier turn."""

    arm: ArmName
    first: DecisionId
    #: number of this turn; the turn with the draw is 1
    turn: int
    #: number of turns with this arm, the drawn one included; 0 if the turn stays because a cached prompt saves cost
    turns: int
    #: "gain": reward that the best other arm would add, "saves": reward that the cached prompt saves; {} if turns > 0
    prefix: Mapping[str, float] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Json]:
        return {"first": self.first, "turn": self.turn, "turns": self.turns, **self.prefix}


@dataclass(kw_only=True, slots=True)
class Question(Offer):
    """A checked question. Made when a query is submitted; the steps of its batch fill in the other fields."""

    #: arms that `run_by` and the caller (or the API key) allow; `arms` is the part that the champion may draw
    allowed: tuple[ArmName, ...]
    excluded: tuple[ArmName, ...] = ()
    #: whether all allowed arms are offered because all of them fail
    fail_open: bool = False
    #: arms that only candidates offer
    added: tuple[ArmName, ...] = ()
    stay: Stay | None = None
    #: arm that cannot do what the request needs -> needs that the arm lacks
    lacking: Mapping[ArmName, Sequence[str]] = field(default_factory=dict)
    decision: Decision | None = None
    rebuilding: bool = False
    #: the fact LABEL_QUEUE of the decision; empty if no labels are requested
    label: Mapping[str, Json] = field(default_factory=dict)

    @property
    def served(self) -> Query:
        """The query with the cost weight at which it is decided."""
        return replace(self.query, cost_weight=self.cost_weight)

    @property
    def notes(self) -> dict[str, Json]:
        notes: dict[str, Json] = {} if self.stay is None else {STICKY: self.stay.facts}
        if self.label:
            notes[LABEL_QUEUE] = dict(self.label)
        if self.excluded:
            notes[EXCLUDED_ARMS] = list(self.excluded)
        if self.rebuilding:
            notes[REBUILDING] = True
        if self.lacking:
            notes[LACKING] = dict(self.lacking)
        return notes
