"""The served answers against the answers of one arm (docs/estimates.md, steps 4 to 6)."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ragbandit.router.reporting.estimates.draws import LEAST_CHANCE, Draws
from ragbandit.router.reporting.estimates.mean_intervals import Interval, MeanInterval, mean_interval
from ragbandit.shared.types import Flags, Matrix, Vector

#: share of the range of values by which an unseen value may differ from the mean, even if the mean is at its end
LEAST_ROOM: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """The served answers, to be compared with the answers of one arm.

    A question that the arm itself answered contributes no difference. It is a control for the other questions, with
    the weight (1 - p) / p, where p is the arm's probability: the effect on the treated with known p, doubly robust
    (Hahn 1998, "On the role of the propensity score in efficient semiparametric estimation of average treatment
    effects", section 3).
    """

    draws: Draws
    place: int  #: index of the arm
    least: float
    most: float
    values: Vector  #: f, the estimated value of each served answer
    is_other: Flags  #: whether another arm answered
    away: Vector  #: probability of other arms, 0 where the arm could not be drawn
    is_bounded: Flags  #: whether another arm answered because this arm could not be drawn

    @classmethod
    def of(cls, draws: Draws, *, place: int, least: float, most: float) -> "Served":
        chance, is_other = draws.pmf[:, place], draws.arm != place
        could = chance >= LEAST_CHANCE
        return cls(
            draws=draws,
            place=place,
            least=least,
            most=most,
            values=draws.served(),
            is_other=is_other,
            away=np.where(could, 1.0 - chance, 0.0),
            is_bounded=is_other & ~could,
        )

    @property
    def of_others(self) -> Vector:
        """The values of the answers of other arms; 0 where the arm answered."""
        return np.where(self.is_other, self.values, 0.0)

    def effective_controls(self, draws: Draws) -> float:
        """Effective number of controls; 0 if no value of the arm was seen, or if `away` is 0 everywhere."""
        if not (draws.is_tried[self.place] and self.away.any()):
            return 0.0
        effective = draws.effective(self._at_place(self.away))
        return effective if effective > 0.0 else 0.0  # also for NaN

    def effective_rated(self) -> float:
        """Effective number of rated answers of other arms."""
        return self.draws.effective_seen(self.is_other)

    def difference_interval(
        self, elsewhere: Vector, *, draws: Draws | None, alpha: float, least: Vector | float | None
    ) -> MeanInterval:
        """The interval of the served answers minus the arm's answers.

        elsewhere: scores e of the arm's answers (`Draws.elsewhere`). draws: draws behind `elsewhere`; None if the arm's
        values are known. least: smallest possible values of the served answers; None if they are not known
        """
        difference = self.of_others - elsewhere
        effective, farthest = self.effective_rated(), self._farthest_rated(least)
        if draws is not None:
            deviations = difference - difference.mean()
            others, own = (self._squares(deviations, rows=rows) for rows in (self.is_other, ~self.is_other))
            effective = _pooled((others, own), rows=(effective, self.effective_controls(draws)))
            # A better answer of the arm lowers the difference; the best possible answer lowers it most.
            above, below = self._farthest_control(elsewhere, draws=draws)
            farthest = max(farthest[0], below), max(farthest[1], above)
        unknown = float((self.is_other & ~self.draws.is_tried[self.draws.arm]).mean())
        margin = unknown * (self.most - self.least)
        return mean_interval(
            difference, effective=effective, farthest=farthest, margin=margin, alpha=alpha, cluster=self.draws.cluster
        )

    def _squares(self, deviations: Vector, *, rows: Flags) -> float:
        """The sum of squared deviations of these rows, by cluster."""
        cluster, part = self.draws.cluster, deviations[rows]
        sums = part if cluster is None else np.bincount(cluster[rows], weights=part)
        return float((sums**2).sum())

    def _farthest_rated(self, least: Vector | float | None) -> Interval:
        """Amounts by which the most extreme unseen answer of other arms could lower and raise the mean difference."""
        draws, is_seen = self.draws, self.draws.seen_weight > 0.0
        rated = is_seen & self.is_other
        if is_seen[self.is_other].all():
            return 0.0, 0.0
        heavy = 1.0 / float(draws.seen_share[draws.arm[rated]].min())
        if draws.counts is not None:
            heavy = draws.heavy(np.zeros_like(draws.pmf), in_row=self.is_other.astype(np.float64))
        elif draws.cluster is not None:
            heavy *= draws.rows_each(draws.seen_weight[rated] / draws.seen_share[draws.arm[rated]], rows=rated)
        below, above = self._room(self.values)
        if least is not None and not isinstance(least, float):  # known costs bound each of these answers
            below = max(float((draws.value - least)[rated].mean()), self._least_room)
        return heavy * below / len(draws.arm), heavy * above / len(draws.arm)

    def _farthest_control(self, elsewhere: Vector, *, draws: Draws) -> Interval:
        """Amounts by which the most extreme unseen answer of the arm could lower and raise the mean of `elsewhere`."""
        away = self._at_place(self.away)
        heavy = draws.heavy(away, in_row=draws.ratio(away)) / len(elsewhere)
        below, above = self._room(elsewhere)
        return heavy * below, heavy * above

    def _room(self, values: Vector) -> Interval:
        """How far a value may lie below and above the mean of `values`; each at least LEAST_ROOM of the range."""
        mean = float(values[self.is_other].mean())
        return max(mean - self.least, self._least_room), max(self.most - mean, self._least_room)

    @property
    def _least_room(self) -> float:
        return LEAST_ROOM * (self.most - self.least)

    def _at_place(self, column: Vector) -> Matrix:
        table = np.zeros_like(self.draws.pmf)
        table[:, self.place] = column
        return table


def _pooled(squares: Interval, *, rows: Interval) -> float:
    """Effective rows of the sum of two independent means, by the variance of each (Satterthwaite 1946).

    squares: sums of squared deviations of both. rows: their effective rows
    """
    total = squares[0] + squares[1]
    if total <= 0.0:
        return min(rows)
    return 1.0 / sum((square / total) ** 2 / count for square, count in zip(squares, rows, strict=True))
