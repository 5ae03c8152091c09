"""Adjustments: the steps between a waiting decision and its update, in the order that `Learner` lists.

1. `Repricing`: corrects the dollars of the decision's outcome.
2. `sources.Screening`: leaves out feedback that must not be learned, and sets factors on the weight of the rest.
3. `examples.Joining`: lets the decision wait until its time (`ClosingRule`), then computes its reward.
4. `arm_changes.ArmChanges`: rejects the decision if its arm has changed since, or restarts changed arms. This is the
   last step, since only a decision that is learned begins a version of its arm.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ragbandit.router.storage.access.corrections import Corrections, corrections_of
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.types import ArmName, ClosedDecision, Feedback, JoinedDecision, Reward


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """The reward of a decision, and the feedback that the reward was computed from."""

    reward: Reward
    feedback: tuple[Feedback, ...]
    #: all feedback that arrived in time, whether the reward uses it or it was left out
    in_time: tuple[Feedback, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AdjustedRow:
    """A decision after some of the adjustments."""

    joined: JoinedDecision
    #: feedback that must not be learned: excluded, beyond a rater's cap, of weight 0, replaced, or retracted
    left_out: tuple[Feedback, ...] = ()
    #: feedback id -> factor on its weight; the factor is 1 if the id is missing
    factors: Mapping[str, float] = field(default_factory=dict)
    #: reward and feedback; None before the reward is computed, and if the decision must wait
    example: Example | None = None
    #: arms that restart before the decision is learned
    restarts: tuple[ArmName, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether the decision has feedback, but none that can be learned."""
        return bool(self.left_out) and all(item.value is None for item in self.joined.feedback)


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """Time and features with which a ledger learns. width: number of features of a row; None without rows."""

    now: float
    needs_features: bool
    encoder_hash: str
    width: int | None = None


class Adjustment(ABC):
    """A step that changes a decision, rejects it, or lets it wait. Subclasses implement `adjust`."""

    def refresh(self) -> None:  # noqa: B027 - most steps read nothing
        """Read the step's data for all decisions, in `Learner.drain` and `Learner.catch_up`. Raises StoreError."""

    def look_up(self, page: Sequence[JoinedDecision]) -> None:  # noqa: B027 - as `refresh`
        """Read the step's data for these decisions, before they are adjusted. Raises StoreError."""

    @abstractmethod
    def adjust(self, row: AdjustedRow, *, basis: Basis) -> AdjustedRow | ClosedDecision | None:
        """Returns the decision as changed, its closure with the reason, or None if it must wait."""


class Repricing(Adjustment):
    """Corrects the dollars of outcomes by the corrections that `data reprice` stores. Stored outcomes do not change."""

    def __init__(self, ledger: Ledger) -> None:
        self._database = ledger.database
        self._corrections = Corrections()

    def refresh(self) -> None:
        with self._database.read() as connection:
            self._corrections = corrections_of(connection)

    def adjust(self, row: AdjustedRow, *, basis: Basis) -> AdjustedRow:  # noqa: ARG002 - of the protocol
        joined = self._corrections.applied(row.joined)
        return row if joined is row.joined else replace(row, joined=joined)


class Adjustments:
    """Applies adjustments in their order."""

    def __init__(self, *order: Adjustment) -> None:
        self._order = order

    def refresh(self) -> None:
        for step in self._order:
            step.refresh()

    def look_up(self, page: Sequence[JoinedDecision]) -> None:
        for step in self._order:
            step.look_up(page)

    def adjust(self, joined: JoinedDecision, *, basis: Basis) -> AdjustedRow | ClosedDecision:
        """The decision after all adjustments, or its closure. A decision that must wait has no example."""
        row = AdjustedRow(joined=joined)
        for step in self._order:
            result = step.adjust(row, basis=basis)
            if isinstance(result, ClosedDecision):
                return result
            if result is None:
                break
            row = result
        return row
