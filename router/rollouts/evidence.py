"""Evidence on one version: its draws as arrays, and what rewards and outcomes since it came to its state add up to.

Pure: rows in, numbers out. How rows are cut into pages changes nothing, and every bound is looked at after each row.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from ragbandit.router.config.sections import RolloutSettings
from ragbandit.shared.confidence_sequences import (
    BURN_IN_EFFECTIVE,
    FEWEST_EFFECTIVE,
    BettingSequence,
    JudgeSlopes,
    Tried,
    asymptotic_width,
    doubly_robust,
    robust_scores,
)
from ragbandit.shared.types import effective_rows, surely_effective_rows

Array = npt.NDArray[np.float64]

#: they differ on a row where more probability than that lies elsewhere
_SAME: Final = 1e-6
#: number of rows where the asymptotic bound is tightest
_TUNED_ROWS: Final = 1000.0
#: what rounding may make of the difference of two policies that are the same, in shares of the reward's range
_ROUNDING: Final = 1e-9
#: points that are kept of a sequence, for its picture
_POINTS: Final = 200
_STRIDE: Final = 25

#: (rows, difference, low, high) in units of the reward
Point = tuple[int, float, float, float]


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
        return replace(self, ids=ids, **{name: getattr(self, name)[here] for name in columns})

    def drawn(self, pmf: Array) -> Array:
        """Of each row the probability of the arm drawn under this pmf, shape (n,)."""
        chances: Array = pmf[np.arange(len(self.arm)), self.arm]
        return chances

    def robust(self, share: Array, *, value: Array, guess: Array) -> Array:
        """Doubly robust scores of sum_k share_k E[value of arm k], shape (n,); `guess` as of `doubly_robust`."""
        weight = self.drawn(share) / self.drawn(self.pmf)
        return np.add(*doubly_robust(weight, share=share, arm=self.arm, value=value, guess=guess))

    @property
    def ratio(self) -> Array:
        """Importance weights of the candidate, shape (n,)."""
        return self.drawn(self.candidate) / self.drawn(self.pmf)

    @property
    def weights(self) -> Array:
        """Importance weights of the candidate, their squares, and what these are expected to be, shape (3, n)."""
        squares = np.divide(self.candidate**2, self.pmf, out=np.zeros_like(self.pmf), where=self.pmf > 0.0)
        return np.stack([self.ratio, self.ratio**2, squares.sum(axis=1)])


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


def note_rows(digest: "hashlib._Hash", ids: Sequence[str], *columns: Array) -> None:
    """Take rows into the sha256 of all rows of a reading: however they are cut into pages, it is the same."""
    for key, *numbers in zip(ids, *columns, strict=True):
        digest.update(f"{key} {[float(number) for number in numbers]!r}\n".encode())


def _tried(rows: int, weights: Array, *, needed: int = FEWEST_EFFECTIVE, differing: float = math.inf) -> Tried:
    """What a difference rests on. weights: sums of `Draws.weights`. differing: rows on which the policies differ."""
    total, squares, expected = map(float, weights)
    effective = surely_effective_rows(total, squares=squares, rows=rows, expected_squares=expected)
    effective = min(effective, differing)
    return Tried(draws=rows, judged=rows, effective=effective, questions=rows, needed=needed)


@dataclass(kw_only=True, slots=True)
class JudgeControl:
    """A judge's scores as a control variate: of a rated row, b (mean of the scores since the last rating - its own).

    Its mean is 0 whatever the scores are, if who is rated is chance, since b rests on the ratings before. The scores
    are doubly robust ones of the same difference. Bets go without: what a score may fall to costs more than it tells.
    """

    slopes: JudgeSlopes = field(default_factory=JudgeSlopes)
    predictions: Predictions = field(default_factory=Predictions)
    #: answers since the last rating that a judge alone scored, and the sum of their scores
    since: Array = field(default_factory=lambda: np.zeros(2))

    def add(self, draws: Draws, *, share: Array, value: Array, judge: Array) -> tuple[Array, Array, Array, Array]:
        """Of the rated rows: b, the judge's score and its guess, shape (n, K), and the mean score since the last one.

        value, judge: shape (n,), in [0, 1], NaN where there is none.
        """
        rated, known, guess = ~np.isnan(value), ~np.isnan(judge), np.zeros(share.shape)
        slopes = self.slopes.before(draws.arms, arm=draws.arm, value=value, judge=judge)
        guess[known] = self.predictions.before(draws.arms, arm=draws.arm[known], value=judge[known])
        g = np.nan_to_num(judge)
        scores = draws.robust(share, value=g, guess=guess)
        alone = known & ~rated
        upto = self.since[:, None] + np.cumsum([alone, scores * alone], axis=1)
        at = np.flatnonzero(rated)
        count, total = np.diff(upto[:, at], axis=1, prepend=0.0)
        self.since = upto[:, -1] - (upto[:, at[-1]] if len(at) else 0.0)
        b = np.where(known[at], slopes[at] * count / (count + 1.0), 0.0)
        return b, g[at], guess[at], total / np.maximum(count, 1.0)


@dataclass(kw_only=True, slots=True)
class RewardEvidence:
    """The paired doubly robust difference of rewards, candidate less champion.

    Proven better: by bets, exact at any number of rows, since a wrong promotion is served to all. Seen to be worse: by
    an asymptotic sequence from BURN_IN_EFFECTIVE effective rows on, which tells earlier: a wrong one costs a retry.
    """

    settings: RolloutSettings
    minimum: float = -1.0
    maximum: float = 1.0
    rows: int = 0
    #: rows after which it was seen to be worse; None: it was not
    worse_at: int | None = None
    points: list[Point] = field(default_factory=list)
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    better: BettingSequence | None = None
    _stride: int = _STRIDE
    #: of the scores, their squares, the ratios, their squares, the expected squares, and the rows that differ
    _sums: Array = field(default_factory=lambda: np.zeros(6))
    _predictions: Predictions = field(default_factory=Predictions)
    _control: JudgeControl = field(default_factory=JudgeControl)

    def add(self, judged: Judged) -> None:
        """Take rows in, in the order of the ledger."""
        if self.better is None:
            self.minimum, self.maximum = judged.minimum, judged.maximum
            null, alpha = self.settings.margin / self._range, self.settings.alpha
            self.better = BettingSequence(floor=-1.0, null=null, alpha=alpha)
        draws, rated = judged.draws, ~np.isnan(judged.reward)
        value = np.clip((judged.reward - self.minimum) / self._range, 0.0, 1.0)
        share = draws.candidate - draws.champion
        told = None
        if judged.judge is not None:
            judge = np.clip((judged.judge - self.minimum) / self._range, 0.0, 1.0)
            told = self._control.add(draws, share=share, value=value, judge=judge)
            draws, share, value = draws.cut(rated), share[rated], value[rated]
        scores = np.clip((draws.scores - self.minimum) / self._range, 0.0, 1.0)
        guess = self._predictions.before(draws.arms, arm=draws.arm, value=value, scores=scores)
        cut = robust_scores(share=share, pmf=draws.pmf, arm=draws.arm, value=value, guess=guess)
        if told is None:
            plain = draws.robust(share, value=value, guess=guess)
        else:
            b, own, theirs, mean = told
            plain = draws.robust(share, value=value - b * own, guess=guess - b[:, None] * theirs) + b * mean
        # Where they agree the score is 0 whatever comes: many such rows and few others look like certainty.
        differs = np.abs(share).sum(axis=1) > 2.0 * _SAME
        sums = np.stack([plain, plain**2, *draws.weights, differs])
        first = 0
        while first < len(draws):  # cut where a point of the picture is due, so that pages do not show
            upto = min(len(draws), first + self._stride - self.rows % self._stride)
            self.better.add(cut[:, first:upto])
            self._take(sums[:, first:upto])
            first = upto
        note_rows(self.digest, judged.draws.ids, judged.reward, *([] if judged.judge is None else [judged.judge]))

    @property
    def difference(self) -> float:
        """The estimate, in units of the reward; 0 without rows."""
        return float(self._sums[0]) / self.rows * self._range if self.rows else 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation of one row's score, in units of the reward."""
        if self.rows < 2:
            return math.inf
        mean, square = map(float, self._sums[:2] / self.rows)
        return math.sqrt(max(square - mean * mean, 0.0)) * self._range

    @property
    def effective(self) -> float:
        """Effective rows of the candidate, by its weights as they were drawn or as they are expected."""
        return _tried(self.rows, self._sums[2:5]).effective

    @property
    def tried(self) -> Tried:
        """What the difference rests on: effective rows of the candidate, and rows on which the two policies differ."""
        return _tried(self.rows, self._sums[2:5], needed=BURN_IN_EFFECTIVE, differing=float(self._sums[5]))

    @property
    def low(self) -> float:
        """The difference is not below it, with confidence 1 - alpha; in units of the reward."""
        return -self._range if self.better is None else self.better.lower() * self._range

    @property
    def high(self) -> float:
        """The difference is not above it, with confidence 1 - rollback_alpha, once it was `tried` enough."""
        if not self.tried.enough:
            return self._range
        width = self._half_width(np.array([float(self.rows)]))[0]
        return min(self._range, self.difference + self.deviation * float(width))

    @property
    def _range(self) -> float:
        return self.maximum - self.minimum

    def _take(self, sums: Array) -> None:
        """sums: what each row adds to `_sums`, shape (6, n)."""
        rows = self.rows + np.arange(1.0, sums.shape[1] + 1.0)
        running = self._sums[:, None] + np.cumsum(sums, axis=1)
        if self.worse_at is None:
            total, squares, ratios, ratio_squares, expected_squares, differing = running
            mean = total / rows
            deviation = np.sqrt(np.maximum(squares / rows - mean**2, 0.0))
            high = mean + deviation * self._half_width(rows)
            effective = np.minimum(ratios**2 / np.maximum(ratio_squares, 1e-12), rows**2 / expected_squares)
            enough = np.minimum(effective, differing) >= BURN_IN_EFFECTIVE
            worse = (high < -self.settings.harm / self._range - _ROUNDING) & enough
            if worse.any():
                self.worse_at = int(rows[np.argmax(worse)])
        self.rows, self._sums = int(rows[-1]), running[:, -1]
        if self.tried.enough and self.rows % self._stride == 0:
            self.points.append((self.rows, self.difference, self.low, self.high))
            if len(self.points) >= _POINTS:
                self.points, self._stride = self.points[1::2], 2 * self._stride

    def _half_width(self, rows: Array) -> Array:
        """Of the one-sided asymptotic confidence sequence, for scores of standard deviation 1."""
        return asymptotic_width(rows, alpha=self.settings.rollback_alpha, tightest_at=_TUNED_ROWS, sides=1)


GuardrailName = Literal["failures", "latency", "cost"]
GUARDRAILS: Final[tuple[GuardrailName, ...]] = ("failures", "latency", "cost")
#: first outcomes, from which the champion's 95th percentile and the unit of cost are taken
BURN_IN: Final = 100
#: of the champion's answers this share is slower than its 95th percentile
_SLOW: Final = 0.05
#: outcomes in which the newest answers of each side are looked for
_REMEMBERED: Final = 4000
#: a side fails suddenly where at least half of its newest answers failed, and of the champion's a third of that at most
_SUDDEN: Final = 0.5


@dataclass(kw_only=True, slots=True)
class Guardrail:
    """One guardrail: that candidate - factor * champion is not above `margin`, for values in [0, 1]."""

    factor: float
    margin: float
    alpha: float
    rows: int = 0
    passed: BettingSequence = field(init=False)
    kept: BettingSequence = field(init=False)
    #: of the scores, the ratios, their squares, and the expected squares
    sums: Array = field(default_factory=lambda: np.zeros(4))
    _predictions: Predictions = field(default_factory=Predictions)

    def __post_init__(self) -> None:
        self.passed = BettingSequence(floor=-self.factor, null=self.margin, alpha=self.alpha)
        self.kept = BettingSequence(floor=-1.0, null=-self.margin, alpha=self.alpha)

    def add(self, draws: Draws, value: Array) -> None:
        """Take rows in, in their order; those without a value, NaN, are left out."""
        seen = ~np.isnan(value)
        draws, value = draws.cut(seen), value[seen]
        share = draws.candidate - self.factor * draws.champion
        guess = self._predictions.before(draws.arms, arm=draws.arm, value=value)
        given: dict[str, Any] = {"pmf": draws.pmf, "arm": draws.arm, "value": value, "guess": guess}
        self.passed.add(robust_scores(share=share, **given))
        self.kept.add(robust_scores(share=-share, **given))
        self.rows += len(value)
        self.sums += np.stack([draws.robust(share, value=value, guess=guess), *draws.weights]).sum(axis=1)

    @property
    def tried(self) -> Tried:
        """What the excess rests on; `draws` and `judged` count outcomes."""
        return _tried(self.rows, self.sums[1:])

    @property
    def excess(self) -> float:
        """The estimate of candidate - factor * champion; 0 without rows."""
        return float(self.sums[0]) / self.rows if self.rows else 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which the excess lies."""
        return self.passed.lower(), -self.kept.lower()


@dataclass(kw_only=True, slots=True)
class GuardrailEvidence:
    """All three, with Bonferroni's share of `rollback_alpha` each, and the rule of sudden failures."""

    settings: RolloutSettings
    rows: int = 0
    #: rows after which the newest answers failed suddenly; None: they did not
    sudden_at: int | None = None
    #: seconds above which an answer is slow; None: not known yet
    slow_s: float | None = None
    #: cost that counts as 1, what is above is cut; None: not known yet; 0: nothing costs anything
    cost_unit: float | None = None
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    guardrails: dict[GuardrailName, Guardrail] = field(default_factory=dict)
    _early: list[tuple[float, float, float]] = field(default_factory=list)
    _newest: Array = field(default_factory=lambda: np.zeros((0, 2)))

    def __post_init__(self) -> None:
        self.guardrails["failures"] = self._guardrail(margin=self.settings.guardrails.failures)

    def add(self, outcomes: Outcomes) -> None:
        """Take rows in, in the order in which they came in."""
        draws, first = outcomes.draws, 0
        while first < len(draws):  # cut where the burn-in ends, so that pages do not show
            left = BURN_IN - self.rows
            upto = min(len(draws), first + left) if left > 0 else len(draws)
            self._take(outcomes, slice(first, upto))
            first = upto
        note_rows(self.digest, draws.ids, outcomes.failed, outcomes.seconds, outcomes.cost)

    @property
    def effective(self) -> float:
        """Effective rows of the candidate among the outcomes."""
        total, squares = map(float, self.guardrails["failures"].sums[1:3])  # every outcome tells of failure
        return effective_rows(total, squares=squares)

    def _guardrail(self, *, margin: float, factor: float = 1.0) -> Guardrail:
        return Guardrail(factor=factor, margin=margin, alpha=self.settings.rollback_alpha / len(GUARDRAILS))

    def _take(self, outcomes: Outcomes, here: slice) -> None:
        draws = outcomes.draws.cut(here)
        failed, seconds, cost = outcomes.failed[here], outcomes.seconds[here], outcomes.cost[here]
        self.guardrails["failures"].add(draws, failed)
        if "latency" in self.guardrails and self.slow_s is not None:
            self.guardrails["latency"].add(draws, np.where(np.isnan(seconds), np.nan, seconds > self.slow_s))
        if "cost" in self.guardrails and self.cost_unit:
            self.guardrails["cost"].add(draws, np.clip(cost / self.cost_unit, 0.0, 1.0))
        self._look_for_sudden(draws.weight * draws.ratio, failed=failed)
        self.rows += len(draws)
        if self.rows <= BURN_IN:
            weight = draws.drawn(draws.champion) / draws.drawn(draws.pmf)
            self._early += list(zip(weight, seconds, cost, strict=True))
            if self.rows == BURN_IN:
                self._set_units()

    def _set_units(self) -> None:
        weight, seconds, cost = np.array(self._early).T
        self._early = []
        timed = ~np.isnan(seconds) & (seconds > 0.0)
        if timed.sum() >= BURN_IN / 2:
            slowest = _quantile(seconds[timed], weight=weight[timed], share=1.0 - _SLOW)
            self.slow_s = (1.0 + self.settings.guardrails.latency) * slowest
            above = float((weight * (seconds > self.slow_s))[timed].sum() / max(weight[timed].sum(), 1e-12))
            self.guardrails["latency"] = self._guardrail(margin=max(_SLOW - above, 0.01))
        mean = float((weight * cost).sum() / max(weight.sum(), 1e-12))
        self.cost_unit = 2.0 * max(_quantile(cost, weight=weight, share=1.0 - _SLOW), mean)
        if self.cost_unit > 0.0:
            self.guardrails["cost"] = self._guardrail(margin=0.0, factor=1.0 + self.settings.guardrails.cost)

    def _look_for_sudden(self, share: Array, *, failed: Array) -> None:
        """share: the candidate's part in each draw, shape (n,): no draw is of one side alone."""
        before, events = len(self._newest), self.settings.failure_window
        self._newest = np.concatenate([self._newest, np.stack([share, failed], axis=1)])
        for row in np.flatnonzero(failed) if self.sudden_at is None and share.any() else ():
            mine, lost = self._newest[: before + int(row) + 1][-_REMEMBERED:][::-1].T
            ours, others = (_failing(part, failed=lost, events=events) for part in (mine, 1.0 - mine))
            if ours >= _SUDDEN and not others > ours / 3.0:  # of NaN neither holds
                self.sudden_at = self.rows + int(row) + 1
                break
        self._newest = self._newest[-_REMEMBERED:]


def _failing(part: Array, *, failed: Array, events: int) -> float:
    """Share of failures among the newest `events` answers of a side; NaN where it has not so many."""
    upto = int(np.searchsorted(np.cumsum(part), events - 1e-9)) + 1
    if upto > len(part):
        return math.nan
    return float((part * failed)[:upto].sum() / part[:upto].sum())


def _quantile(values: Array, *, weight: Array, share: float) -> float:
    order = np.argsort(values)
    upto = np.cumsum(weight[order])
    return float(values[order][min(int(np.searchsorted(upto, share * upto[-1])), len(values) - 1)])
