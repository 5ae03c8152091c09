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

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["differences"]

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
    found: Vector = policy - always
    return found


def _middle(minimum: float, maximum: float) -> float:
    """A value that no reward is far from."""
    middle = 0.5 * (minimum + maximum)
    return middle if np.isfinite(middle) else 0.0
