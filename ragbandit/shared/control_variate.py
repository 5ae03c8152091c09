"""A judge's scores as a control variate: how much of a score the estimate of a mean may use, from earlier rows alone.

Where people rated some answers, y, and a judge scored these and others, g, the mean of y is also that of
y + b (mean of g over all scored answers - g), whatever b is, if who is rated is chance (prediction-powered inference:
Angelopoulos, Bates, Fannjiang, Jordan and Zrnic 2023). Its variance is least where b is the slope of y on g. A b that
rests on earlier rows alone keeps intervals valid at every look, whoever wrote the scores.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.shared.types import Vector

#: decisions with both from which on a slope is used, and at which it counts half
FEWEST_BOTH: Final = 20
#: standard errors by which an arm's rated answers may score otherwise than its other answers, by chance
_UNLIKE: Final = 4.0


@dataclass(kw_only=True, slots=True)
class JudgeSlopes:
    """b before each row; state is eight numbers per arm, whatever the number of rows."""

    #: by arm: rows with both, the sums of y, g, y g, g g over them; other scored rows, the sums of g and g g over them
    _sums: dict[str, Vector] = field(default_factory=dict)

    def before(self, arms: tuple[str, ...], *, arm: npt.NDArray[np.intp], value: Vector, judge: Vector) -> Vector:
        """Of every row, shape (n,), from 0 to 1; the rows count from then on.

        arm: the column drawn. value: in [0, 1], judge: scores in [0, 1]; NaN where there is none. The slope is that
        among the answers of one arm, drawn to 0 by FEWEST_BOTH rows. It is 0 while an arm's rated answers score
        otherwise than its other answers: who is rated, or what is scored, is then no chance.
        """
        both = ~np.isnan(value) & ~np.isnan(judge)
        y, g = np.where(both, value, 0.0), np.nan_to_num(judge)
        products = np.stack([np.ones(len(g)), y, g, y * g, g * g])
        total, unlike = np.zeros((3, len(g))), np.zeros(len(g), dtype=np.bool_)
        for name in dict.fromkeys((*arms, *self._sums)):
            mine = arm == (arms.index(name) if name in arms else -1)
            rows = np.concatenate([products * (mine & both), products[[0, 2, 4]] * (mine & ~both & ~np.isnan(judge))])
            upto = self._sums.get(name, np.zeros(8))[:, None] + np.cumsum(rows, axis=1)
            n, sy, sg, syg, sgg, others, so, soo = upto - rows
            count, rest = np.maximum(n, 1.0), np.maximum(others, 1.0)
            total += n, syg - sy * sg / count, sgg - sg * sg / count
            spread, beside = sgg / count - (sg / count) ** 2, soo / rest - (so / rest) ** 2
            error = np.maximum(spread, 1e-3) / count + np.maximum(beside, 1e-3) / rest
            gap = (sg / count - so / rest) ** 2 > _UNLIKE**2 * error
            unlike |= gap & (np.minimum(n, others) >= FEWEST_BOTH)
            if len(g):
                self._sums[name] = upto[:, -1]
        slope = np.clip(total[1] / np.maximum(total[2], 1e-9), 0.0, 1.0) * total[0] / (total[0] + FEWEST_BOTH)
        return np.where((total[0] >= FEWEST_BOTH) & ~unlike, slope, 0.0)


def judge_score(surrogates: str | None) -> float:
    """A judge's score beside a person's rating, of a row's JSON `surrogates`; NaN: there is none."""
    return float(json.loads(surrogates).get("judge", math.nan)) if surrogates else math.nan
