"""Predictions of an arm's value that know earlier rows alone, as a sequence that may be looked at needs them."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.rollouts.rows import Array

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
