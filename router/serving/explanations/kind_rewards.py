"""What a policy and the best fixed arm earn on questions of a kind, and whether questions need different arms."""

import math
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from ragbandit.router.comparison import Difference
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE
from ragbandit.shared.types import Matrix, Vector

#: half the width of a 95 % interval, and size that chance exceeds in 5 % of cases, both in standard errors
_NORMAL_95, _CHANCE_5 = 1.96, 1.645
#: least sum of squares of (drawn - probability) on a side of a split: about so many draws against the odds
_FEWEST_DRAWS: Final = 2.0
#: fewest rated questions of a side of a split, in the half from which it is made and in the half that proves it
_FEWEST_RATED: Final = 10
#: number of questions before a question with whose probabilities its own are compared
_BEFORE: Final = 100
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, slots=True)
class KindRewards:
    """Rewards on n questions, of the policy and of K fixed arms; NaN where they are not known."""

    policy: Vector
    fixed: Matrix  #: shape (n, K)
    weights: Matrix  #: 1 / probability that the arm's reward is known, shape (n, K)
    #: whether the rewards confirm that the best arm differs between questions as the policy's probabilities do
    confirmed: bool
    #: draw minus probability of each arm, shape (n, K); None if the reward of every arm is known
    surprise: Matrix | None = None

    @classmethod
    def of_draws(cls, rewards: Vector, *, drawn: Rows, pmfs: Matrix, most: int) -> Self:
        """From the rewards of the drawn arms, the newest first, NaN where there are none.

        drawn: places of the arms, shape (n,). most: number of newest questions kept; `confirmed` is computed from all
        """
        confirmed = _confirmed_by_draws(rewards[::-1], drawn=drawn[::-1], pmfs=pmfs[::-1])
        rewards, drawn, pmfs = rewards[:most], drawn[:most], pmfs[:most]
        fixed = np.full(pmfs.shape, np.nan)
        fixed[np.arange(len(rewards)), drawn] = rewards
        weights, surprise = 1.0 / np.maximum(pmfs, 1e-9), np.eye(pmfs.shape[1])[drawn] - pmfs
        return cls(policy=rewards, fixed=fixed, weights=weights, confirmed=confirmed, surprise=surprise)

    @classmethod
    def of_outcomes(cls, rewards: Matrix, *, pmfs: Matrix) -> Self:
        """From the rewards of every arm, shape (n, K), on questions that the policy had not learned."""
        gains = ((pmfs - pmfs.mean(axis=0)) * rewards).sum(axis=1)
        error = float(gains.std()) / math.sqrt(len(gains))
        confirmed = float(gains.mean()) > _CHANCE_5 * error + 1e-9
        return cls(
            policy=(pmfs * rewards).sum(axis=1), fixed=rewards, weights=np.ones(rewards.shape), confirmed=confirmed
        )

    def newest(self, count: int) -> Self:
        """The rewards of the first `count` questions; confirmed by all."""
        surprise = None if self.surprise is None else self.surprise[:count]
        return replace(
            self,
            policy=self.policy[:count],
            fixed=self.fixed[:count],
            weights=self.weights[:count],
            surprise=surprise,
        )

    def best(self) -> int | None:
        """The place of the fixed arm with the highest mean; None if no arm has enough rows."""
        effective, means = self._fixed_means(np.arange(len(self.policy)))
        known = np.where(effective >= FEWEST_EFFECTIVE, means, -np.inf)
        return int(known.argmax()) if np.isfinite(known).any() else None

    def mean(self, places: Rows) -> float | None:
        rated = self.policy[places][~np.isnan(self.policy[places])]
        return float(rated.mean()) if len(rated) >= FEWEST_EFFECTIVE else None

    def over(self, arm: int, *, places: Rows, other: int | None = None) -> Difference:
        """Mean of the policy, or of another fixed arm, minus that of the fixed arm on these questions.

        The interval is a normal one of 95 %.
        """
        rated = places[~np.isnan(self.policy[places])]
        effective, means = self._fixed_means(rated)
        if min(effective[arm], np.inf if other is None else effective[other]) < FEWEST_EFFECTIVE:
            return Difference()
        first = float(self.policy[rated].mean() if other is None else means[other])
        second = float(means[arm])
        own = (self.policy[rated] - first) / len(rated) if other is None else self._moves(other, first, places=rated)
        # how far each question moves the difference of the means
        moves = own - self._moves(arm, second, places=rated)
        half = _NORMAL_95 * math.sqrt(float((moves**2).sum()))
        gap = round(first - second, 9)  # no rounding of equal means
        common = {"effective_rows": float(effective[arm]), "first": first, "second": second}
        return Difference(estimate=gap, low=gap - half, high=gap + half, **common)

    def better(self, arm: int, *, places: Rows) -> tuple[int, Difference] | None:
        """The arm that earns most on these questions, if it surely earns more than this fixed arm, and by how much."""
        _, means = self._fixed_means(places)
        known = [(other, self.over(arm, places=places, other=other)) for other in range(len(means)) if other != arm]
        sure = [(other, gap) for other, gap in known if gap.low is not None and gap.low > 0.0]
        return max(sure, key=lambda one: one[1].low or 0.0, default=None)

    def best_split(
        self, holds: npt.NDArray[np.bool_], *, places: Rows, made: npt.NDArray[np.bool_]
    ) -> tuple[float, int] | None:
        """(size, number) of the split whose two sides differ most in what an arm earns; None if it may be chance.

        A side's effect of an arm is the slope of the rewards on (drawn - probability), which has mean 0 whatever the
        question is (R-learner: Nie and Wager 2021). A split is made from one half of the questions, where chance makes
        the largest of T * (K - 1) normal scores up to sqrt(2 log(T * (K - 1))), and proved by the other half, in a
        one-sided test at 5 %. Each half makes one. holds: shape (T splits, n questions). made: one of the halves
        """
        if self.surprise is None or not len(holds):
            return None
        rated = places[~np.isnan(self.policy[places])]
        halves = [self._split_scores(holds, places=rated[made[rated] == side]) for side in (True, False)]
        most = math.sqrt(2.0 * math.log(max(halves[0].shape[0] * (halves[0].shape[1] - 1), 2)))
        splits = []
        for scores, proof in (halves, halves[::-1]):
            test, arm = np.unravel_index(np.abs(scores).argmax(), scores.shape)
            size, proved = abs(scores[test, arm]), proof[test, arm] * np.sign(scores[test, arm])
            if size > most and proved > _CHANCE_5:
                splits.append((float(size + proved), int(test)))
        return max(splits, default=None)

    def _split_scores(self, holds: npt.NDArray[np.bool_], *, places: Rows) -> Matrix:
        """Differences of the arms' effects between the sides of splits, in standard errors, shape (T, K); else 0."""
        if self.surprise is None or not len(places):
            return np.zeros((len(holds), self.fixed.shape[1]))
        surprise, rewards = self.surprise[places], self.policy[places, None]
        slopes, spans, residuals = [], [], []
        fits = np.ones(1, dtype=np.bool_)
        inside = holds[:, places].astype(np.float64)
        for side in (inside, 1.0 - inside):
            count = np.maximum(side.sum(axis=1, keepdims=True), 1.0)
            sums, totals = side @ surprise, side @ rewards
            span = side @ surprise**2 - sums**2 / count
            shared = side @ (surprise * rewards) - sums * totals / count
            fits = fits & (count >= _FEWEST_RATED) & (span >= _FEWEST_DRAWS)
            spans.append(np.maximum(span, 1e-9))
            slopes.append(shared / spans[-1])
            residuals.append(side @ rewards**2 - totals**2 / count - shared**2 / spans[-1])
        variance = np.maximum(residuals[0] + residuals[1], 1e-9) / len(places) * (1.0 / spans[0] + 1.0 / spans[1])
        scores: npt.NDArray[np.float64] = np.where(fits, (slopes[0] - slopes[1]) / np.sqrt(variance), 0.0)
        return scores

    def _moves(self, arm: int, mean: float, *, places: Rows) -> Vector:
        """How far each question moves the mean of a fixed arm."""
        fixed = self.fixed[places, arm]
        weights = np.where(np.isnan(fixed), 0.0, self.weights[places, arm])
        moves: Vector = weights / weights.sum() * (np.nan_to_num(fixed) - mean)
        return moves

    def _fixed_means(self, places: Rows) -> tuple[Vector, Vector]:
        """(effective rows, mean reward) of every fixed arm, shape (K,)."""
        fixed = self.fixed[places]
        weights = np.where(np.isnan(fixed), 0.0, self.weights[places])
        whole = np.maximum(weights.sum(axis=0), 1e-12)
        effective = weights.sum(axis=0) ** 2 / np.maximum((weights**2).sum(axis=0), 1e-12)
        return effective, (weights * np.nan_to_num(fixed)).sum(axis=0) / whole


def _confirmed_by_draws(rewards: Vector, *, drawn: Rows, pmfs: Matrix) -> bool:
    """Whether an arm earns more where the policy preferred it than elsewhere, in a one-sided test at 5 %.

    The probabilities of a question were fixed before its reward was known, so a policy that follows chance fails the
    test. A draw minus its probabilities has mean 0, so the effect of an arm, and of an arm that is preferred, are
    coefficients of least squares without weights of 1 / probability (R-learner: Nie and Wager 2021). A question's
    preference is its probability minus the mean of the questions just before it, so that drift is no preference.
    The oldest question comes first.
    """
    known = ~np.isnan(rewards)
    if known.sum() < FEWEST_EFFECTIVE:
        return False
    count, sums = np.arange(len(pmfs)), np.vstack([np.zeros(pmfs.shape[1]), np.cumsum(pmfs, axis=0)])
    first = np.maximum(count - _BEFORE, 0)
    preference = pmfs - (sums[count] - sums[first]) / np.maximum(count - first, 1)[:, None]
    preference[0] = 0.0
    surprise = np.eye(pmfs.shape[1])[drawn] - pmfs
    preferred = (surprise * preference).sum(axis=1)
    rows = np.column_stack([np.ones(len(pmfs)), surprise[:, 1:], preferred])[known]
    inverse = np.linalg.pinv(rows.T @ rows)
    effects = inverse @ rows.T @ rewards[known]
    # errors of rows with a large say on the effects are larger than their residuals (HC3)
    leverage = np.minimum((rows @ inverse * rows).sum(axis=1), 0.9)
    errors = (rewards[known] - rows @ effects) / (1.0 - leverage)
    spread = math.sqrt(float((((rows @ inverse)[:, -1] * errors) ** 2).sum()))
    return bool(effects[-1] > _CHANCE_5 * spread + 1e-9)
