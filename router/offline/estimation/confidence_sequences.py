"""Intervals that hold at every look at a growing log at once, however often one looks and whenever one stops.

Exact at any number of rows, and where the logging policy or the model depend on earlier rows. The price is width.

A mean is bounded below by bets against it. Where no score is below `least`, and the mean given the past is m, the
capital of a bet k >= 0,

    prod_i (1 + k (s_i - least)) / (1 + k (m - least)),

is a nonnegative martingale that starts at 1. So is its average over many bets, and by Ville's inequality that reaches
1 / alpha at any time with probability alpha at most (Waudby-Smith and Ramdas 2023, "Estimating means of bounded random
variables by betting"). The capital falls in m: the bound is the m at which it is 1 / alpha. Written so, rows enter by
one sum per bet, sum_i log(1 + k (s_i - least)), whatever the m: one pass over them serves every look.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.intervals import Interval
from ragbandit.router.offline.types import Choices, Matrix, Vector

__all__ = ["Looks", "betting_ips", "doubly_robust", "lower_bound"]

#: numbers of rows after which one looks, rising, shape (looks,)
Looks = npt.NDArray[np.intp]

#: Bets in units of 1 / (high - least). The best one falls like 1 / sqrt(n variance): the least serves ten million rows.
_BETS = np.geomspace(1e-4, 1e1, 16)
#: How far below 0 a doubly robust score may fall, in units of the rewards' range. Small ones allow bolder bets, which
#: tells sooner; large ones keep more of the model, which tells more in the end. The capital is spread over the three.
_REACHES = np.array([1.0, 4.0, 16.0])
#: rows whose bets are in memory at once
_CHUNK = 1 << 12
#: halvings of [low, high] in search of the bound
_HALVINGS = 36
#: a score may lie below its least value by rounding only
_ROUNDING = 1e-9


def lower_bound(scores: Vector, *, least: float, low: float, high: float, confidence: float, looks: Looks) -> Vector:
    """Lower bounds of the mean of the scores after each look, shape (looks,), all true at once with this confidence.

    scores: shape (n,), none below `least`, in the order in which they came. low, high: where the mean must lie; least
    <= low < high. The bounds never fall from one look to the next. Raises InvalidInput for scores below `least`.
    """
    return _bounds(
        lambda rows: scores[None, rows], least=np.array([least]), within=(low, high), confidence=confidence, looks=looks
    )


def betting_ips(
    weight: Vector, *, reward: Vector, rewards: Interval, confidence: float, looks: Looks
) -> tuple[Vector, Vector]:
    """(lows, highs) of a candidate's value after each look, both of shape (looks,), without a model.

    weight, reward: shape (n,); rewards: the least and the largest reward. From bets on w (r - least) and w (most - r),
    with half the error each. Where the logging policy gave no chance to arms of the candidate, these may be worth
    anything: the bounds remain true.
    """
    scaled, (least, most) = _scaled(reward, rewards=rewards), rewards
    sides = [
        lower_bound(weight * gain, least=0.0, low=0.0, high=1.0, confidence=(1.0 + confidence) / 2, looks=looks)
        for gain in (scaled, 1.0 - scaled)
    ]
    return least + (most - least) * sides[0], most - (most - least) * sides[1]


def doubly_robust(
    reward: Vector,
    *,
    action: Choices,
    pmf: Matrix,
    candidate: Matrix,
    model: Matrix,
    rival: Matrix | None = None,
    rewards: Interval,
    confidence: float,
    looks: Looks,
) -> tuple[Vector, Vector]:
    """(lows, highs) of a candidate's value after each look, both of shape (looks,); with a rival, of the difference.

    reward, action: shape (n,), in the order in which they came. pmf (logged), candidate, rival: shape (n, K). rival:
    whose value is subtracted; the logged pmf itself for the policy that logged. model: predicted reward of every arm,
    shape (n, K), each row predicted *from earlier rows only*: cross-fitted predictions have seen the future and break
    the promise. rewards: the least and the largest reward.

    With D = candidate (- rival), e = D / pmf, rewards scaled to [0, 1] and predictions M, the score of a row is
    sum_k D_k M_k + e_a (r - M_a). It may use any predictions made before the draw; so each M_k is cut to where
    e_k (r - M_k) cannot fall below -reach (Waudby-Smith, Wu, Ramdas, Karampatziakis and Mineiro 2022, "Anytime-valid
    off-policy inference for contextual bandits"), which makes large bets safe. An upper bound is a lower one of 1 - r
    and 1 - M. Arms without chance under pmf may be worth anything: the bounds remain true.

    Where low > high, the value has not stayed the same while the log grew.
    """
    least, most = rewards
    share = candidate if rival is None else candidate - rival
    # A difference of pmfs times predictions in [0, 1] is not below -1.
    floor, total = (0.0, 1.0) if rival is None else (-1.0, 0.0)
    gain, guess = _scaled(reward, rewards=rewards), np.clip((model - least) / (most - least), 0.0, 1.0)

    def side(gain: Vector, guess: Matrix) -> Vector:
        return _bounds(
            lambda rows: _scores(gain[rows], guess=guess[rows], share=share[rows], pmf=pmf[rows], action=action[rows]),
            least=floor - _REACHES,
            within=(floor, 1.0),
            confidence=(1.0 + confidence) / 2,
            looks=looks,
        )

    lows, highs = side(gain, guess), total - side(1.0 - gain, 1.0 - guess)
    shift = least if rival is None else 0.0
    return shift + (most - least) * lows, shift + (most - least) * highs


def _scores(gain: Vector, *, guess: Matrix, share: Matrix, pmf: Matrix, action: Choices) -> Matrix:
    """Doubly robust scores with each of the reaches, shape (reaches, rows)."""
    ratio = np.divide(share, pmf, out=np.copysign(np.inf, share), where=pmf > 0.0)
    ratio[share == 0.0] = 0.0
    at = np.arange(len(gain)), action
    scores = np.empty((len(_REACHES), len(gain)))
    for place, reach in enumerate(_REACHES):
        with np.errstate(divide="ignore"):
            room = reach / np.abs(ratio)
        cut = np.where(ratio > 0.0, np.minimum(guess, room), np.maximum(guess, 1.0 - room))
        scores[place] = (share * cut).sum(axis=1) + ratio[at] * (gain - cut[at])
    return scores


def _bounds(
    scores: Callable[[slice], Matrix], *, least: Vector, within: Interval, confidence: float, looks: Looks
) -> Vector:
    """Lower bounds after each look of the mean that all sorts of scores have; shape (looks,).

    scores: rows -> their scores of every sort, shape (sorts, rows); least: of each sort, shape (sorts,).
    """
    if not 0.0 < confidence < 1.0:
        raise InvalidInput(f"{confidence:g}", field="confidence", remedy="give a number between 0 and 1, as 0.95")
    low, high = within
    bets = _BETS / (high - least)[:, None]
    grown = _grown(scores, least=least, bets=bets, looks=looks)
    goal = -math.log1p(-confidence)

    def rich(mean: Vector) -> npt.NDArray[np.bool_]:
        """True where the capital against these means, one a look, has reached the goal."""
        cost = looks[:, None, None] * np.log1p(bets * (mean[:, None, None] - least[:, None]))
        capital = (grown - cost).reshape(len(looks), -1)
        top = capital.max(axis=1)
        total: Vector = top + np.log(np.exp(capital - top[:, None]).mean(axis=1))
        return total >= goal

    below, above = np.full(len(looks), low), np.full(len(looks), high)
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        refuted = rich(middle)
        below, above = np.where(refuted, middle, below), np.where(refuted, above, middle)
    return np.maximum.accumulate(below)


def _grown(scores: Callable[[slice], Matrix], *, least: Vector, bets: Matrix, looks: Looks) -> npt.NDArray[np.float64]:
    """Sums of log(1 + bet (score - least)) over the rows before each look, shape (looks, sorts, bets)."""
    if len(looks) == 0 or looks[0] < 1 or (np.diff(looks) <= 0).any():
        raise InvalidInput("not rising from 1 row on", field="looks", remedy="give rising numbers of rows")
    grown, so_far, first = np.empty((len(looks), *bets.shape)), np.zeros(bets.shape), 0
    for place, look in enumerate(looks):
        while first < look:
            last = min(first + _CHUNK, int(look))
            above = scores(slice(first, last)) - least[:, None]
            if above.shape[1] < last - first:
                raise InvalidInput(f"{look} rows where there are fewer", field="looks", remedy="look at rows there are")
            if not (above >= -_ROUNDING * np.maximum(1.0, np.abs(least))[:, None]).all():
                raise InvalidInput(f"below its least value, or no number, after row {first}", field="scores")
            so_far += np.log1p(bets[:, :, None] * np.maximum(above, 0.0)[:, None, :]).sum(axis=2)
            first = last
        grown[place] = so_far
    return grown


def _scaled(reward: Vector, *, rewards: Interval) -> Vector:
    """Rewards as shares of their range, in [0, 1]."""
    least, most = rewards
    scaled = (reward - least) / (most - least)
    if not ((scaled >= -_ROUNDING) & (scaled <= 1.0 + _ROUNDING)).all():
        raise InvalidInput(f"outside [{least:g}, {most:g}]", field="reward", remedy="declare the bounds that they have")
    return np.clip(scaled, 0.0, 1.0)
