"""Rewards where most rows have no human rating: a judge's scores stand in, and the ratings that there are correct them.

Row i has a judge's score s where the judge sampled it (J = 1, with chance c), and a human quality y where somebody
rated it (H = 1, with chance p). With g(s, a) what a rater would say of such a score, learned from the rows that have
both, b_a its mean over the arm and y_a the arm's mean rating, the completed quality is

    f = b_a + J / c (g - b_a)
    y' = y_a + L (f - y_a) + H / p (y - y_a - L (f - y_a)),     0 <= L <= 1.

Its mean is that of y for any g, b, y_a and L if p and c are right, and also for wrong p if f is right: doubly robust
over who was rated. g, b, y_a, L and a p that is not told are learned from the other folds. L = 1 is prediction-powered
inference (Angelopoulos, Bates, Fannjiang, Jordan and Zrnic 2023), L = 0 the ratings alone; L is the one of least
variance (PPI++; Angelopoulos, Duchi and Zrnic 2023), so that a judge who knows nothing costs nothing.

What is completed goes through the estimators and intervals of a replay like any other reward. All of it rests on one
thing that no log tells: among answers of one arm with one score, who is rated does not hang on how good the answer was.
"""

import math
from dataclasses import dataclass

import numpy as np

from ragbandit.router.offline.types import Choices, Flags, Matrix, Vector
from ragbandit.shared.errors import InvalidInput

#: with fewer ratings a note says so
FEWEST_RATINGS = 50
#: rows of a cell that its share of rated rows is drawn to the whole by
_SHRINK = 50.0
#: cells of the judge's scores, within an arm, for the chance of being rated, at most; and ratings for each of them
_CELLS, _RATINGS_OF_CELL = 10, 25
#: least chance of being rated that is believed, as a share of the whole's
_LEAST_SHARE = 0.2
#: penalty of the calibration, in rows: of the common slope, and of what an arm has of its own
_RIDGE, _RIDGE_OF_ARM = 1.0, 10.0
#: standard errors from which on a difference is told
_CLEAR = 3.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratings:
    """What people and the judge said of n rows; vectors of shape (n,)."""

    #: place of the drawn arm
    arm: Choices
    #: somebody rated the row
    rated: Flags
    #: what they said; anything where nobody did
    quality: Vector
    #: the judge's score, NaN where there is none
    score: Vector
    #: chance with which the judge sampled the row, NaN: not told
    score_chance: Vector
    #: chance with which the row was rated, NaN: not told
    rating_chance: Vector


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingFacts:
    """What the report says of them."""

    rows: int
    rated: int
    scored: int
    both: int
    #: weight of the judge in the completed rewards, in [0, 1], mean over the folds
    judge_weight: float
    #: correlation of what the judge predicts with what people said, on folds not learned; None with too few
    correlation: float | None
    #: mean score of rated rows minus that of the others of the same arm, and its standard error; None: too few
    selection: tuple[float, float] | None
    #: standard deviation of the completed qualities with the ratings alone over that with the judge
    gain: float
    #: largest 1 / chance of being rated
    largest: float
    #: what is wrong with the told chances
    faults: tuple[str, ...]

    @property
    def selected(self) -> bool:
        """Whether being rated clearly hangs on the judge's score."""
        return self.selection is not None and abs(self.selection[0]) > _CLEAR * self.selection[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Completed:
    """Qualities and rewards of all rows, shape (n,)."""

    quality: Vector
    reward: Vector
    #: what people would say of the judge's score; without one, the arm's mean
    judged: Vector
    facts: RatingFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class Pricing:
    """From qualities to rewards: clip(quality - weight * cost), all of shape (n,)."""

    weight: Vector
    cost: Vector
    minimum: float
    maximum: float

    def reward(self, quality: Vector) -> Vector:
        """The rewards of these qualities."""
        rewards: Vector = np.clip(quality - self.weight * self.cost, self.minimum, self.maximum)
        return rewards


def completed(
    ratings: Ratings, *, pricing: Pricing, arms: int, folds_of_rows: Choices, judge_weight: float | None = None
) -> Completed:
    """Completed qualities and rewards. arms: how many there are. judge_weight: L for all rows; None chooses it.

    Raises InvalidInput where nobody rated a row.
    """
    if not ratings.rated.any():
        raise InvalidInput(
            "no row has a human rating: nothing says how far the judge can be trusted",
            field="log",
            remedy="have people rate some answers, a chance sample if you can",
        )
    parts = _crossfitted(ratings, arms=arms, folds_of_rows=folds_of_rows)
    weight = _judge_weights(ratings, parts, folds_of_rows=folds_of_rows, given=judge_weight)
    quality = _joined(ratings, parts, weight=weight)
    alone = _joined(ratings, parts, weight=np.zeros(len(weight)))
    priced = _Parts(
        prediction=pricing.reward(parts.prediction),
        base=pricing.reward(parts.base),
        mean=pricing.reward(parts.mean),
        score_chance=parts.score_chance,
        rating_chance=parts.rating_chance,
    )
    reward = _joined(ratings, priced, weight=weight, human=pricing.reward(ratings.quality))
    facts = _facts(ratings, parts, weight=weight, both=(alone, quality))
    return Completed(quality=quality, reward=reward, judged=parts.prediction, facts=facts)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Parts:
    """What is learned from the other folds, of every row, shape (n,)."""

    #: g, where there is a score; else b
    prediction: Vector
    base: Vector
    mean: Vector
    score_chance: Vector
    rating_chance: Vector


def _crossfitted(ratings: Ratings, *, arms: int, folds_of_rows: Choices) -> _Parts:
    count = len(ratings.arm)
    parts = _Parts(**{name: np.zeros(count) for name in _Parts.__slots__})
    for fold in np.unique(folds_of_rows):
        here, there = folds_of_rows == fold, folds_of_rows != fold
        if not ratings.rated[there].any():  # all ratings in one fold: better the same rows than none
            there = np.ones(count, dtype=np.bool_)
        _fill(parts, ratings, here=here, there=there, arms=arms)
    return parts


def _fill(parts: _Parts, ratings: Ratings, *, here: Flags, there: Flags, arms: int) -> None:
    """Learn from the rows `there`, say it of those `here`."""
    arm, scored = ratings.arm, ~np.isnan(ratings.score)
    mean = _arm_means(ratings.quality, arm=arm, rows=there & ratings.rated, arms=arms)
    design = _design(np.where(scored, ratings.score, 0.0), arm=arm, arms=arms)
    learned = there & ratings.rated & scored
    prediction = np.clip(mean[arm] + design @ _slopes(design, ratings, mean[arm], rows=learned), 0.0, 1.0)
    base = mean.copy()
    for one in range(arms):
        mine = there & scored & (arm == one)
        base[one] = prediction[mine].mean() if mine.any() else mean[one]
    parts.mean[here] = mean[arm[here]]
    parts.base[here] = base[arm[here]]
    parts.prediction[here] = np.where(scored, prediction, base[arm])[here]
    known = ~np.isnan(ratings.score_chance)
    share = _shares(scored, cell=arm, rows=there, cells=arms)
    parts.score_chance[here] = np.where(known, ratings.score_chance, share[arm])[here]
    known = ~np.isnan(ratings.rating_chance)
    cell = _cells(ratings, rows=there, arms=arms)
    share = _shares(ratings.rated, cell=cell, rows=there & ~known, cells=arms * (_CELLS + 1))
    parts.rating_chance[here] = np.where(known, ratings.rating_chance, share[cell])[here]


def _arm_means(values: Vector, *, arm: Choices, rows: Flags, arms: int) -> Vector:
    """Mean of these rows by arm, shape (arms,), drawn to the mean of all as by a few rows more."""
    whole = float(values[rows].mean())
    count = np.bincount(arm[rows], minlength=arms)
    total = np.bincount(arm[rows], weights=values[rows], minlength=arms)
    means: Vector = (total + 2.0 * whole) / (count + 2.0)
    return means


def _design(score: Vector, *, arm: Choices, arms: int) -> Matrix:
    """Columns 1, s - 1/2, and both for each arm: an arm has what is common and something of its own."""
    common = np.stack([np.ones(len(score)), score - 0.5], axis=1)
    own = np.zeros((len(score), 2 * arms))
    own[np.arange(len(score)), 2 * arm] = common[:, 0]
    own[np.arange(len(score)), 2 * arm + 1] = common[:, 1]
    return np.concatenate([common, own], axis=1)


def _slopes(design: Matrix, ratings: Ratings, mean: Vector, *, rows: Flags) -> Vector:
    """Ridge regression of what people said, less their arm's mean, on the judge's score."""
    z = design[rows]
    penalty = np.array([_RIDGE, _RIDGE] + [_RIDGE_OF_ARM] * (design.shape[1] - 2))
    return np.asarray(np.linalg.solve(z.T @ z + np.diag(penalty), z.T @ (ratings.quality - mean)[rows]))


def _cells(ratings: Ratings, *, rows: Flags, arms: int) -> Choices:
    """Cell of each row: its arm, and the quantile of its score or that it has none."""
    scored = ~np.isnan(ratings.score)
    known = ratings.score[rows & scored]
    count = min(max(int(np.count_nonzero(ratings.rated & rows)) // (_RATINGS_OF_CELL * arms), 2), _CELLS)
    edges = np.quantile(known, np.arange(1, count) / count) if len(known) else np.zeros(1)
    part = np.where(scored, np.searchsorted(edges, np.where(scored, ratings.score, 0.0)), _CELLS)
    cells: Choices = (part * arms + ratings.arm).astype(np.intp)
    return cells


def _shares(flags: Flags, *, cell: Choices, rows: Flags, cells: int) -> Vector:
    """Share of rows with the flag in every cell, drawn to the whole's, and not far below it; shape (cells,)."""
    if not rows.any():
        return np.ones(cells)
    whole = max(float(flags[rows].mean()), 1.0 / (1.0 + np.count_nonzero(rows)))
    count = np.bincount(cell[rows], minlength=cells)
    total = np.bincount(cell[rows], weights=flags[rows].astype(np.float64), minlength=cells)
    shares: Vector = np.maximum((total + _SHRINK * whole) / (count + _SHRINK), _LEAST_SHARE * whole)
    return shares


def _filled(ratings: Ratings, parts: _Parts) -> Vector:
    """F: the judge's word on every row, also on those that it did not sample; shape (n,)."""
    sampled = ~np.isnan(ratings.score) / parts.score_chance
    filled: Vector = parts.base + sampled * (parts.prediction - parts.base)
    return filled


def _joined(ratings: Ratings, parts: _Parts, *, weight: Vector, human: Vector | None = None) -> Vector:
    """Completed values; human: what people said, in the unit of the parts."""
    rating = np.where(ratings.rated, ratings.quality if human is None else human, 0.0)
    model = parts.mean + weight * (_filled(ratings, parts) - parts.mean)
    joined: Vector = model + np.where(ratings.rated, (rating - model) / parts.rating_chance, 0.0)
    return joined


def _judge_weights(ratings: Ratings, parts: _Parts, *, folds_of_rows: Choices, given: float | None) -> Vector:
    """L of each row: of least variance on the other folds, in [0, 1]."""
    if given is not None:
        return np.full(len(ratings.arm), given)
    inverse = ratings.rated / parts.rating_chance
    people = inverse * (np.where(ratings.rated, ratings.quality, 0.0) - parts.mean)
    judge = (inverse - 1.0) * (_filled(ratings, parts) - parts.mean)
    weights = np.zeros(len(ratings.arm))
    for fold in np.unique(folds_of_rows):
        there = folds_of_rows != fold
        if np.count_nonzero(there & ratings.rated) < 2:
            continue
        spread = float(np.var(judge[there]))
        if spread > 0.0:
            best = float(np.cov(people[there], judge[there], ddof=0)[0, 1]) / spread
            weights[folds_of_rows == fold] = min(max(best, 0.0), 1.0)
    return weights


def _facts(ratings: Ratings, parts: _Parts, *, weight: Vector, both: tuple[Vector, Vector]) -> RatingFacts:
    scored = ~np.isnan(ratings.score)
    pair = scored & ratings.rated
    correlation = None
    if np.count_nonzero(pair) >= 10 and ratings.quality[pair].std() > 0.0 and parts.prediction[pair].std() > 0.0:
        correlation = float(np.corrcoef(parts.prediction[pair], ratings.quality[pair])[0, 1])
    alone, judged = (float(values.std()) for values in both)
    return RatingFacts(
        rows=len(ratings.arm),
        rated=int(np.count_nonzero(ratings.rated)),
        scored=int(np.count_nonzero(scored)),
        both=int(np.count_nonzero(pair)),
        judge_weight=float(weight.mean()),
        correlation=correlation,
        selection=_selection(ratings, scored=scored),
        gain=alone / judged if judged > 0.0 else 1.0,
        largest=float((1.0 / parts.rating_chance[ratings.rated]).max()),
        faults=_faults(ratings, scored=scored),
    )


def _selection(ratings: Ratings, *, scored: Flags) -> tuple[float, float] | None:
    """Mean score of rated rows minus the others', within arms, and its standard error; None where one side is small.

    Rows whose chance of being rated is told are weighted by it, so that a sample that was drawn by score is no fault.
    """
    inverse = np.where(np.isnan(ratings.rating_chance), 1.0, 1.0 / np.maximum(ratings.rating_chance, 1e-6))
    gaps, shares = [], []
    for arm in np.unique(ratings.arm[scored]):
        mine = scored & (ratings.arm == arm)
        rated, others = mine & ratings.rated, mine
        if min(np.count_nonzero(rated), np.count_nonzero(mine & ~ratings.rated)) < 5:
            continue
        weight = inverse[rated] / inverse[rated].sum()
        mean = float(weight @ ratings.score[rated])
        spread = float((weight**2) @ (ratings.score[rated] - mean) ** 2)
        rest = ratings.score[others]
        gaps.append((mean - float(rest.mean()), spread + float(rest.var()) / len(rest)))
        shares.append(np.count_nonzero(mine))
    if not gaps:
        return None
    part = np.array(shares) / sum(shares)
    gap = math.fsum(w * g for w, (g, _) in zip(part, gaps, strict=True))
    return gap, math.sqrt(math.fsum(w * w * v for w, (_, v) in zip(part, gaps, strict=True)))


def _faults(ratings: Ratings, *, scored: Flags) -> tuple[str, ...]:
    """Told chances that do not fit what was drawn."""
    faults = []
    for name, flags, chance in (
        ("judge_probability", scored, ratings.score_chance),
        ("the chances of a rating", ratings.rated, ratings.rating_chance),
    ):
        known = ~np.isnan(chance)
        if not known.all():  # told of the drawn rows alone: how many were not drawn nobody knows
            continue
        drawn, expected = int(np.count_nonzero(flags)), float(chance.sum())
        error = math.sqrt(float((chance * (1.0 - chance)).sum()))
        if abs(drawn - expected) > _CLEAR * max(error, 0.5):
            faults.append(f"{name}: {drawn:,} rows were drawn, the chances say {expected:,.0f}")
    return tuple(faults)
