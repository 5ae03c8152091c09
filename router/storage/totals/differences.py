"""The policy against always taking one arm: doubly robust differences in reward, one per update and arm.

For an update with the arms b that were offered, their probabilities p(b), the arm a that was drawn and its reward r:

    m(b) = the policy's score of b when it decided, kept within the bounds of the reward; without scores their middle
    policy = sum over b of p(b) m(b) + r - m(a)
    always x = m(x) + [a = x] (r - m(x)) / p(x)
    difference = policy - always x

Both are doubly robust estimates of what one question is worth (Dudik, Langford and Li 2011) with one model, which
cannot have seen the reward: so the mean of the differences estimates, without bias, what the policy earned beyond
always x on the questions that were learned. A poor model costs width, no truth. An arm that was not offered, or could
not be drawn, gives no difference; a question with one arm alone (a turn that stayed, a caller's choice) gives none.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


def differences(
    *,
    pmf: Sequence[float],
    scores: Sequence[float] | None,
    drawn: int,
    reward: float,
    minimum: float,
    maximum: float,
) -> Vector:
    """The difference for every arm, shape (arms,); NaN where there is none. drawn: the place of the arm."""
    p = np.asarray(pmf, dtype=np.float64)
    if scores is None or len(scores) != len(p):
        model = np.full(len(p), _middle(minimum, maximum))
    else:
        model = np.clip(np.nan_to_num(np.asarray(scores, dtype=np.float64)), minimum, maximum)
    always = np.where(p > 0.0, model, np.nan)
    if p[drawn] > 0.0:
        always[drawn] += (reward - model[drawn]) / p[drawn]
    policy = float(p @ model) + reward - model[drawn]
    result: Vector = policy - always
    return result


def comparisons(
    *,
    pmf: Sequence[float],
    scores: Sequence[float] | None,
    drawn: int,
    reward: float,
    minimum: float,
    maximum: float,
) -> Iterator[tuple[int, dict[str, float]]]:
    """The place of each arm that has a difference, with what the update adds to its `ArmTotals`."""
    reward_range = maximum - minimum
    values = differences(pmf=pmf, scores=scores, drawn=drawn, reward=reward, minimum=minimum, maximum=maximum)
    for index, difference in enumerate(values.tolist()):
        if not math.isfinite(difference):
            continue
        weight = 1.0 / pmf[index]
        amounts = {"compared": 1, "difference": difference, "difference_squares": difference * difference}
        amounts |= {"expected_squares": weight, "expected_cubes": weight * weight * reward_range}
        amounts |= {"reward_range": reward_range}
        if index == drawn:
            amounts |= {"weight": weight, "weight_squares": weight * weight}
        yield index, amounts


def _middle(minimum: float, maximum: float) -> float:
    """A value that no reward is far from."""
    middle = 0.5 * (minimum + maximum)
    return middle if np.isfinite(middle) else 0.0
