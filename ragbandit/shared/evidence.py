"""The one rule of evidence: an interval is printed only where enough rows carry it; else one sentence says what lacks.

Whoever prints an interval, or an estimate with an error, asks `Tried` first, of the very comparison that it prints.
"""

import math
from dataclasses import dataclass
from typing import Final

#: a comparison with fewer effective rows has no interval and no verdict on any surface: coverage was measured from
#: here on (benchmarks/coverage)
FEWEST_EFFECTIVE: Final = 10
#: effective rows before an asymptotic confidence sequence says anything: its promise is of many rows
BURN_IN_EFFECTIVE: Final = 50
#: what stands in place of a number, where there is no room for `Tried.missing`
NOT_TRIED: Final = "not tried enough"
#: a forecast of more than so many times the questions so far is none
_FARTHEST: Final = 1000


def pace(questions: float, *, first: float, until: float) -> float:
    """Questions in a second, of so many since the first of them. first, until: seconds since the epoch."""
    return questions / max(until - first, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """How much a log has of one comparison."""

    #: decisions that drew what is compared
    draws: int
    #: of these: those with a reward
    judged: int
    #: effective rows of the comparison, (sum of weights)^2 / sum of squared weights; >= 0
    effective: float
    #: questions of the log in which these rows came
    questions: int
    #: effective rows that the method needs
    needed: int = FEWEST_EFFECTIVE

    @property
    def enough(self) -> bool:
        """An interval may be printed; never where `effective` is no number."""
        return self.effective >= self.needed

    @property
    def missing(self) -> str | None:
        """Why no interval is printed, in words; None where one may be."""
        if self.enough:
            return None
        counts = f"{self.draws:,} {'draw' if self.draws == 1 else 'draws'}, {self.judged:,} judged"
        return f"{NOT_TRIED}: {counts}; {self.needed} effective rows needed, {self._forecast}"

    @property
    def _forecast(self) -> str:
        """How many more questions it takes where effective rows go on to come as often as they came."""
        lacking = self.needed - self.effective
        if not 0.0 < lacking <= _FARTHEST * self.effective:
            return "no end in sight at this rate"
        more = max(1, math.ceil(lacking * self.questions / self.effective))
        unit = 10 ** max(0, len(str(more)) - 2)  # a forecast is no more precise than two digits
        more = -(-more // unit) * unit
        return f"about {more:,} {'question' if more == 1 else 'questions'} more at this rate"
