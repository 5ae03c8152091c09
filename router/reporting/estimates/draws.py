"""Draws of a log, and doubly robust scores of a policy, an arm and the served answers (docs/estimates.md).

Steps 1, 3 and 5 of the page. Its symbols: `seen_weight` is w, `seen_share` r, `balanced` v.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ragbandit.router.reporting.estimates.control_variates import fitted_values
from ragbandit.shared.confidence_sequences import doubly_robust
from ragbandit.shared.types import Flags, Indices, Matrix, Vector
from ragbandit.shared.types.ledger import effective_rows

#: an arm's mean is computed as if the arm had this number of additional rows, each with the mean of all arms
PRIOR_ROWS: Final = 2.0
#: an arm with a smaller probability counts as impossible to draw: for its answer, the row gives bounds only
LEAST_CHANCE: Final = 5e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """n draws over K arms, some of whose values were seen."""

    value: Vector
    arm: Indices
    pmf: Matrix
    predicted: Matrix
    counts: Vector | None
    #: number of the row's cluster, shape (n,): ratings by one rater of one question; None if each row is a cluster
    cluster: Indices | None
    seen_weight: Vector  #: `counts` of the seen rows, 0 for other rows, shape (n,)
    seen_share: Vector  #: share of an arm's draws whose value was seen, shape (K,); 1 for an arm without a seen row
    is_tried: Flags  #: whether a row of the arm was seen, shape (K,)
    balanced: Vector  #: `seen_weight` / probability of the drawn arm, scaled to the number of questions, shape (n,)

    @classmethod
    def of(
        cls,
        value: Vector,
        *,
        arm: Indices,
        pmf: Matrix,
        predicted: Matrix,
        counts: Vector | None = None,
        cluster: Indices | None = None,
    ) -> "Draws":
        seen_weight = np.where(np.isnan(value), 0.0, 1.0 if counts is None else counts)
        arms, inverse = pmf.shape[1], seen_weight / pmf[np.arange(len(arm)), arm]
        drawn = np.bincount(arm, minlength=arms)
        seen, total = (np.bincount(arm, weights=weights, minlength=arms) for weights in (seen_weight, inverse))
        is_tried = seen > 0.0
        scale = (pmf > 0.0).sum(axis=0) / np.where(is_tried, total, 1.0)
        return cls(
            value=value,
            arm=arm,
            pmf=pmf,
            predicted=predicted,
            counts=counts,
            cluster=None if cluster is None else _numbered(cluster, is_seen=seen_weight > 0.0),
            seen_weight=seen_weight,
            seen_share=np.where(is_tried, seen / np.maximum(drawn, 1), 1.0),
            is_tried=is_tried,
            balanced=inverse * scale[arm],
        )

    def of_values(self, value: Vector, *, predicted: Matrix) -> "Draws":
        """Draws with other values and predictions. Without `counts` and `cluster`, each row counts once."""
        return Draws.of(value, arm=self.arm, pmf=self.pmf, predicted=predicted)

    def drawn(self, table: Matrix) -> Vector:
        column: Vector = table[np.arange(len(self.arm)), self.arm]
        return column

    def ratio(self, policy: Matrix) -> Vector:
        return self.drawn(policy) / self.drawn(self.pmf)

    def effective(self, policy: Matrix) -> float:
        """Effective rows for a policy: the smaller number by the drawn rows and by the probabilities of all questions,
        which include questions that hardly ever draw an arm. policy: shape (n, K); a row may have a sum below 1
        """
        squares = (policy**2 / self._chance / self.seen_share).sum(axis=1)
        expected = float((squares if self.counts is None else squares * self.counts).sum())
        weight = self.drawn(policy) * self.balanced
        rows = min(_effective(weight), effective_rows(float(policy.sum()), squares=expected))
        return min(rows / self.rows_each(weight), self.effective_seen())

    def effective_seen(self, rows: Flags | slice = slice(None)) -> float:
        """Effective rows for the mean value of the drawn arms in these rows."""
        weight = self.seen_weight[rows] / self.seen_share[self.arm[rows]]
        return _effective(weight) / self.rows_each(weight, rows=rows)

    def rows_each(self, weight: Vector, *, rows: Flags | slice = slice(None)) -> float:
        """Mean number of rows of a cluster: effective rows of these weights / effective clusters, at least 1."""
        if self.cluster is None or not weight.any():
            return 1.0
        sums = np.bincount(self.cluster[rows], weights=weight)
        return float((sums**2).sum() / (weight**2).sum())

    def scores(self, policy: Matrix) -> Vector:
        models = np.zeros(policy.shape)
        for place in np.flatnonzero(policy.any(axis=0) & self.is_tried):
            weight = np.where(self.arm == place, self.balanced, 0.0)
            models[:, place] = fitted_values(self.value, weight=weight, predicted=self.predicted[:, place])
        return self._scored(self.drawn(policy) * self.balanced, share=policy, models=models)

    def _scored(self, weight: Vector, *, share: Matrix, models: Matrix) -> Vector:
        correction, model = doubly_robust(weight, share=share, arm=self.arm, value=self.value, guess=models)
        return correction + model

    def elsewhere(self, place: int, *, away: Vector) -> Vector:
        """Scores whose mean estimates the mean over all questions of (1 - p) x (value of this arm), shape (n,).

        p: the arm's probability. A question that drew the arm has (1 - p) / p times its value's difference from the
        model; other questions have the model's value. away: 1 - p; 0 if the arm could not be drawn
        """
        is_control = self.arm == place
        weight = np.where(is_control, self.seen_weight * away / self.pmf[np.arange(len(away)), self.arm], 0.0)
        share, models = np.zeros(self.pmf.shape), np.zeros(self.pmf.shape)
        share[:, place] = ~is_control
        models[:, place] = fitted_values(self.value, weight=weight, predicted=self.predicted[:, place])
        return self._scored(weight * float(away.sum() / weight.sum()), share=share, models=models)

    def heavy(self, policy: Matrix, *, in_row: Vector) -> float:
        """The weight of the heaviest rows: the mean of cubed weights divided by the mean of squared weights.

        It is computed from the probabilities (see `heavy_weight` in comparison/intervals), and counts a cluster as
        `rows_each` rows.

        in_row: amount that the value of each row would add to the difference
        """
        each = self.rows_each(self.seen_weight * np.abs(in_row) / self.seen_share[self.arm])
        if self.counts is not None:
            added = self.counts * np.abs(in_row) / self.seen_share[self.arm]
            return each * heaviest(added**2 / self.counts, added)
        weights = policy / self._chance / self.seen_share
        return each * heaviest(self.pmf * self.seen_share * weights**2, weights)

    @property
    def _chance(self) -> Matrix:
        return np.where(self.pmf > 0.0, self.pmf, np.inf)

    def served(self) -> Vector:
        """The estimated value of each served answer, shape (n,)."""
        value, is_seen = self.value, self.seen_weight > 0.0
        model, overall = np.empty(len(value)), float(np.average(value[is_seen], weights=self.seen_weight[is_seen]))
        predicted = self.drawn(self.predicted)
        for place in np.unique(self.arm):
            rows = self.arm == place
            seen = rows & is_seen
            if not seen.any():
                model[rows] = overall
                continue
            line = fitted_values(value[rows], weight=self.seen_weight[rows], predicted=predicted[rows])
            above_arm = overall - float(np.average(value[seen], weights=self.seen_weight[seen]))
            model[rows] = line + PRIOR_ROWS / (PRIOR_ROWS + seen.sum()) * above_arm
        share = (np.arange(self.pmf.shape[1]) == self.arm[:, None]).astype(np.float64)
        return self._scored(self.seen_weight / self.seen_share[self.arm], share=share, models=share * model[:, None])


def _numbered(cluster: Indices, *, is_seen: Flags) -> Indices | None:
    """The clusters, numbered from 0; each unseen row is a cluster. None if no cluster has two rows."""
    own = np.where(is_seen, cluster, cluster.max(initial=0) + 1 + np.arange(len(cluster)))
    numbers, places = np.unique(own, return_inverse=True)
    return None if len(numbers) == len(cluster) else places


def heaviest(squares: Vector | Matrix, weights: Vector | Matrix) -> float:
    total = float(squares.sum())
    return float((squares * weights).sum()) / total if total > 0.0 else 0.0


def _effective(weight: Vector) -> float:
    return effective_rows(float(weight.sum()), squares=float((weight**2).sum()))
