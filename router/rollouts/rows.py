"""Rows: the draws that a version is judged by, as arrays; `evaluator` reads them from the database."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """n draws over K arms; an arm that was not offered has probability 0 in all three pmfs."""

    ids: tuple[str, ...]
    #: names of the columns
    arms: tuple[str, ...]
    #: the column that was drawn, shape (n,)
    arm: npt.NDArray[np.intp]
    #: what was drawn from, shape (n, K), each row of sum 1
    pmf: Array
    #: of the version, and of the champion, shape (n, K)
    candidate: Array
    champion: Array
    #: share of the candidate's pmf in `pmf`, shape (n,); 0 in shadow
    weight: Array
    #: rewards that the champion's policy expects, shape (n, K); NaN: it does not say
    scores: Array

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, here: slice | npt.NDArray[np.bool_]) -> "Draws":
        """These rows alone."""
        columns = ("arm", "pmf", "candidate", "champion", "weight", "scores")
        ids = tuple(np.array(self.ids, dtype=object)[here])
        return Draws(ids=ids, arms=self.arms, **{name: getattr(self, name)[here] for name in columns})

    def drawn(self, pmf: Array) -> Array:
        """Of each row the probability of the arm drawn under this pmf, shape (n,)."""
        chances: Array = pmf[np.arange(len(self.arm)), self.arm]
        return chances

    @property
    def ratio(self) -> Array:
        """Importance weights of the candidate, shape (n,)."""
        return self.drawn(self.candidate) / self.drawn(self.pmf)

    @property
    def weights(self) -> Array:
        """Importance weights of the candidate, their squares, and what these are expected to be, shape (3, n)."""
        squares = np.divide(self.candidate**2, self.pmf, out=np.zeros_like(self.pmf), where=self.pmf > 0.0)
        return np.stack([self.ratio, self.ratio**2, squares.sum(axis=1)])

    @property
    def champion_ratio(self) -> Array:
        """Importance weights of the champion, shape (n,)."""
        return self.drawn(self.champion) / self.drawn(self.pmf)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """Draws with their rewards, in the order of the candidate's ledger."""

    draws: Draws
    #: by the reward settings of the candidate, shape (n,); NaN where a judge alone scored, if `judge` is there
    reward: Array
    #: the bounds that these settings have
    minimum: float
    maximum: float
    #: the reward by a judge's score, shape (n,), NaN where there is none; None: people rated too few of its answers
    judge: Array | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """Draws with what their answers took, judged or not, in the order in which outcomes came in."""

    draws: Draws
    #: 1.0: the answer failed, shape (n,)
    failed: Array
    #: seconds of the whole answer, NaN where they were not reported
    seconds: Array
    #: in the terms of `reward.cost`
    cost: Array


#: rows of the overall mean that an arm's mean begins with
_PRIOR: Final = 2.0


@dataclass(kw_only=True, slots=True)
class Predictions:
    """The champion's logged scores, or each arm's mean so far: what has predicted better up to the row before.

    Values and scores in [0, 1]. State is a few numbers per arm, whatever the number of rows.
    """

    _count: dict[str, float] = field(default_factory=dict)
    _sum: dict[str, float] = field(default_factory=dict)
    _rows: float = 0.0
    _total: float = 0.0
    #: summed squared errors of the logged scores less those of the means; NaN scores are worth nothing
    _behind: float = 0.0

    def before(
        self, arms: tuple[str, ...], *, arm: npt.NDArray[np.intp], value: Array, scores: Array | None = None
    ) -> Array:
        """For every row and arm a prediction made from earlier rows, shape (n, K); the rows count from then on."""
        hits = np.zeros((len(value), len(arms)))
        at = np.arange(len(value)), arm
        hits[at] = 1.0
        count = np.array([self._count.get(name, 0.0) for name in arms]) + np.cumsum(hits, axis=0)
        total = np.array([self._sum.get(name, 0.0) for name in arms]) + np.cumsum(hits * value[:, None], axis=0)
        rows = self._rows + np.arange(len(value))
        overall = (self._total + np.cumsum(value) - value + 0.5) / (rows + 1.0)
        means = total - hits * value[:, None] + _PRIOR * overall[:, None]
        means /= count - hits + _PRIOR
        if len(value):
            self._count.update(zip(arms, map(float, count[-1]), strict=True))
            self._sum.update(zip(arms, map(float, total[-1]), strict=True))
            self._rows, self._total = self._rows + len(value), self._total + float(value.sum())
        if scores is None:
            return means
        known = ~np.isnan(scores).any(axis=1)
        worth = np.where(known, (scores[at] - value) ** 2 - (means[at] - value) ** 2, 0.0)
        behind = self._behind + np.cumsum(worth)
        if len(value):
            self._behind = float(behind[-1])
        use = known & (behind - worth < 0.0)
        chosen: Array = np.where(use[:, None], scores, means)
        return chosen
