"""What an arm did and earned in an hour, as counts and sums: any hours, and any arms, can be added."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Final, Literal

#: upper edges of the latency histogram, seconds; what is slower is in one bucket more. Never changed: rows have it.
LATENCY_EDGES: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)

#: rows of which the arms are counted: decisions under ids that callers named, all, those with an outcome, those that
#: were judged
SampleStage = Literal["named", "drawn", "ended", "judged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmTotals:
    """Totals of one arm under one policy. Two can be added.

    Decisions are counted in the hour in which they were made, outcomes in the hour in which they ended, and what was
    learned in the hour of its decision.
    """

    #: decisions with this arm; imported ones are not traffic, and are in no count
    decided: int = 0
    #: of these: another arm was at least as likely
    explored: int = 0
    #: of these: a turn that stayed on the arm of an earlier one
    sticky: int = 0
    #: of these: the caller chose the arm
    forced: int = 0
    #: of these: drawn while the kill switch was thrown
    killed: int = 0
    #: of these: the policy's own probabilities could not be used
    faults: int = 0
    #: outcomes with an answer, of a spent budget too
    answered: int = 0
    #: outcomes without one
    failed: int = 0
    #: of no count above: callers ended them
    cancelled: int = 0
    dollars: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    steps: float = 0.0
    #: wall clock of the outcomes in `latency`, seconds
    seconds: float = 0.0
    #: outcomes that say how long they took and were not cancelled, by LATENCY_EDGES
    latency: tuple[int, ...] = field(default=(0,) * (len(LATENCY_EDGES) + 1))
    #: the least and the largest of these, seconds; None while there are none
    fastest: float | None = None
    slowest: float | None = None
    #: updates made of feedback, and of the default reward
    learned: int = 0
    defaulted: int = 0
    #: over both; squares: sums of the squares
    reward: float = 0.0
    reward_squares: float = 0.0
    quality: float = 0.0
    quality_squares: float = 0.0
    cost: float = 0.0
    cost_squares: float = 0.0

    #: by how much oftener the arm was drawn than the probabilities promise, and the variance of that: over decisions
    #: under ids that callers named, all, those with an outcome, those that were judged (storage/totals/excesses.py)
    named_excess: float = 0.0
    named_spread: float = 0.0
    drawn_excess: float = 0.0
    drawn_spread: float = 0.0
    ended_excess: float = 0.0
    ended_spread: float = 0.0
    judged_excess: float = 0.0
    judged_spread: float = 0.0

    def __add__(self, other: "ArmTotals") -> "ArmTotals":
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name not in _TIMES}
        ranges = [one.latency_range for one in (self, other) if one.latency_range is not None]
        return ArmTotals(
            **sums,
            latency=tuple(a + b for a, b in zip(self.latency, other.latency, strict=True)),
            fastest=min((fastest for fastest, _ in ranges), default=None),
            slowest=max((slowest for _, slowest in ranges), default=None),
        )

    @property
    def rewarded(self) -> int:
        """Updates."""
        return self.learned + self.defaulted

    @property
    def ended(self) -> int:
        """Outcomes that callers did not end."""
        return self.answered + self.failed

    @property
    def latency_range(self) -> tuple[float, float] | None:
        """The least and the largest latency, seconds; None while there is none."""
        return None if self.fastest is None or self.slowest is None else (self.fastest, self.slowest)

    def latency_at(self, share: float) -> float | None:
        """The latency that this share (0 to 1) of the outcomes did not exceed, seconds; None while there are none.

        Within its bucket it is taken to rise evenly, between the least and the largest that were observed.
        """
        observed = self.latency_range
        if observed is None:
            return None
        least, largest = observed
        wanted, below, lower = share * sum(self.latency), 0, 0.0
        for count, edge in zip(self.latency, (*LATENCY_EDGES, largest), strict=True):
            if count and below + count >= wanted:
                low, high = max(lower, least), min(edge, largest)
                return min(high, low + (high - low) * max(0.0, wanted - below) / count)
            below, lower = below + count, edge
        return largest


_TIMES: Final = ("latency", "fastest", "slowest")


def sum_of(parts: Iterable[ArmTotals]) -> ArmTotals:
    """The sum of any number of totals."""
    return sum(parts, ArmTotals())
