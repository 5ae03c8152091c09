"""What a waiting decision goes through before it is learned: adjustments, in the one order that `Learner` lists.

1. `corrected_prices.Repricing`: its outcome gets the right dollars, by the corrections of prices.
2. `sources.Screening`: feedback that must not be learned is left out, and the rest gets factors on its weight.
3. `examples.Joining`: it waits for its time (`ClosingRule`), or gets the reward of what 1 and 2 have left.
4. `arm_changes.ArmChanges`: it is rejected if its arm has changed since, or restarts arms. This is the last one, since
   only a decision that is learned begins a version of its arm.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ragbandit.shared.types import ArmName, ClosedDecision, Feedback, JoinedDecision, Reward


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """The reward of a decision, and the feedback that the reward was computed from."""

    reward: Reward
    feedback: tuple[Feedback, ...]
    #: all feedback that arrived in time, whether it was used or not
    in_time: tuple[Feedback, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AdjustedRow:
    """A decision as the adjustments so far have left it."""

    joined: JoinedDecision
    #: feedback that must not be learned: excluded, beyond a rater's cap, of weight 0, replaced, or retracted
    left_out: tuple[Feedback, ...] = ()
    #: feedback id -> factor on its weight; the factor is 1 if the id is missing
    factors: Mapping[str, float] = field(default_factory=dict)
    #: None before the reward is computed, and if the decision must wait
    example: Example | None = None
    #: arms that restart before the decision is learned
    restarts: tuple[ArmName, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether the decision has feedback, but none that can be learned."""
        return bool(self.left_out) and all(item.value is None for item in self.joined.feedback)


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """When and with which features a ledger learns. width: number of features of its rows; None if it has no row."""

    now: float
    needs_features: bool
    encoder_hash: str
    width: int | None = None


class Adjustment(ABC):
    """One step of the list: it changes a decision, rejects it, or lets it wait. A subclass has `adjust`."""

    def refresh(self) -> None:  # noqa: B027 - most steps read nothing
        """Read the step's data for all decisions, in `Learner.drain` and `Learner.catch_up`. Raises StoreError."""

    def look_up(self, page: Sequence[JoinedDecision]) -> None:  # noqa: B027 - as `refresh`
        """Read the step's data for these decisions, before they are adjusted. Raises StoreError."""

    @abstractmethod
    def adjust(self, row: AdjustedRow, *, basis: Basis) -> AdjustedRow | ClosedDecision | None:
        """Returns the decision as changed, its closure with the reason, or None if it must wait."""


class Adjustments:
    """The list, in its order."""

    def __init__(self, *order: Adjustment) -> None:
        self._order = order

    def refresh(self) -> None:
        for each in self._order:
            each.refresh()

    def look_up(self, page: Sequence[JoinedDecision]) -> None:
        for each in self._order:
            each.look_up(page)

    def adjust(self, joined: JoinedDecision, *, basis: Basis) -> AdjustedRow | ClosedDecision:
        """The decision after all adjustments, or its closure. It has no example if it must wait."""
        row = AdjustedRow(joined=joined)
        for each in self._order:
            result = each.adjust(row, basis=basis)
            if isinstance(result, ClosedDecision):
                return result
            if result is None:
                break
            row = result
        return row
