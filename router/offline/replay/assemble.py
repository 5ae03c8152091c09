"""Results from accumulated sums: estimates, intervals, differences, segments."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from ragbandit.router.offline.estimation import (
    Estimator,
    Interval,
    Moments,
    corrected,
    cressie_read,
    estimated,
    extreme_rows,
    heavy_weight,
    rows_needed,
    verdict,
)
from ragbandit.router.offline.estimation.bandit_log import BY_FEATURES, BY_ID, BY_TEXT, WeightTally
from ragbandit.router.offline.replay.plan import (
    Arm,
    CandidatePmf,
    CandidateResult,
    CandidateSpec,
    CandidateVerdict,
    EstimateWithInterval,
    ImportanceWeights,
    Pair,
    Plan,
    SegmentResult,
)
from ragbandit.router.offline.replay.sums import LogSummary, RewardModel, ScoreColumns, ScoreSums
from ragbandit.shared.confidence_sequences import Tried
from ragbandit.shared.types import ArmName, Matrix, Vector

#: why nothing of a log has an interval whose arms were not drawn, or not rated, as it says
WRONG_LOG = "the log contradicts its own probabilities, so that no interval holds"
#: versions that are named
MOST_VERSIONS = 4


@dataclass(frozen=True, kw_only=True)
class ResultAssembler:
    """Builds the results of a replay from its sums."""

    plan: Plan
    columns: ScoreColumns
    summary: LogSummary
    sums: ScoreSums
    #: index of the candidate that is the baseline; None: the logged policy
    baseline: int | None
    #: arms were not drawn or rated as logged: no interval holds
    is_wrong: bool = False

    @property
    def compared(self) -> int:
        """Differences to the baseline, that share the error."""
        return max(1, len(self.summary.weights) - (self.baseline is not None))

    def candidate(self, index: int, *, spec: CandidateSpec, described: CandidatePmf, alpha: float) -> CandidateResult:
        """All of one candidate. alpha: chance that each check calls a right log wrong."""
        weights, names = self.summary.weights[index], self.summary.names
        reward, quality, cost = self._values(index)
        gap, better, costlier = self._differences(index)
        tried = self._tried(index, self.baseline)
        standing = _standing(gap, unsupported_mass=weights.unsupported_mass)
        return CandidateResult(
            name=spec.name,
            described=described.described,
            estimator=self.plan.estimator,
            reward=reward,
            quality=quality,
            cost=cost,
            difference=gap,
            quality_difference=better,
            cost_difference=costlier,
            verdict=standing,
            missing=WRONG_LOG if self.is_wrong else tried.missing,
            rows_needed=self._needed(gap) if standing == "cannot tell" else None,
            weights=_weights(weights, alpha=alpha),
            unsupported={
                arm: float(h) / weights.rows for arm, h in zip(names, weights.unsupported, strict=True) if h > 0.0
            },
            bounds=None
            if not weights.unsupported_mass or reward.low is None or reward.high is None
            else (reward.low, reward.high),
            shares={arm: float(s) / weights.rows for arm, s in zip(names, weights.shares, strict=True)},
            segments={
                name: tuple(self._segment(value, moments, index=index) for value, moments in groups.items())
                for name, groups in self.sums.segments.items()
            },
            others={name: self._shown(index, other=name) for name in self.columns.others},
            notes=described.notes,
        )

    def _values(self, index: int) -> list[EstimateWithInterval]:
        """Reward, quality and cost."""
        return [self._shown(index, target=target) for target in range(3)]

    def _differences(self, index: int) -> list[EstimateWithInterval] | list[None]:
        """Differences of reward, quality and cost to the baseline; None for the baseline itself."""
        if index == self.baseline:
            return [None] * 3
        share = corrected(self.plan.confidence, comparisons=self.compared)
        return [self._shown(index, self.baseline, target=target, confidence=share) for target in range(3)]

    def pairs(self, candidates: Sequence[CandidateSpec]) -> tuple[Pair, ...]:
        """Every candidate against every other one, but for the policy that serves: with it all are compared."""
        names = [spec.name for spec in candidates]
        asked = [number for number, spec in enumerate(candidates) if not spec.current]
        numbers = list(itertools.combinations(asked, 2))
        share = corrected(self.plan.confidence, comparisons=max(1, len(numbers)))
        return tuple(
            Pair(first=names[pair[0]], second=names[pair[1]], difference=self._shown(*pair, confidence=share))
            for pair in numbers
        )

    def baseline_values(self) -> list[EstimateWithInterval]:
        """Reward, quality and cost of the baseline."""
        if self.baseline is not None:
            return self._values(self.baseline)
        values = []
        for target in range(3):
            logged = self.sums.whole.part([self.columns.logged(target)])
            value = float(logged.mean[0])
            extremes = extreme_rows([1.0], rewards=self.summary.bounds(target))
            # Of the logged policy every weight is 1.
            scored = Moments(
                rows=logged.rows, mean=np.array([value, 1.0]), scatter=np.diag([float(logged.scatter[0, 0]), 0.0])
            )
            low, high = cressie_read(scored, confidence=self.plan.confidence, extremes=extremes, value=value)
            measured = EstimateWithInterval(value=value, low=low, high=high)
            values.append(measured if self._holds(self._tried(None)) else _open(measured))
        return values

    def _shown(
        self, *sides: int | None, target: int = 0, other: str | None = None, confidence: float | None = None
    ) -> EstimateWithInterval:
        """`_measured` on the whole log, without its interval where the log has too little to say.

        Unsupported decisions are imputed with the midpoint of the range: they widen the interval of the reward by
        range / 2 x their mass, and leave none to quality and cost.
        """
        measured = self._measured(self.sums.whole, *sides, target=target, other=other, confidence=confidence)
        mass = sum(self.summary.weights[side].unsupported_mass for side in sides if side is not None)
        if not self._holds(self._tried(*sides)) or (mass and target):
            return _open(measured)
        if not mass or measured.low is None or measured.high is None:
            return measured
        low, high = self.summary.bounds(0)
        span = mass * (high - low) / 2.0
        least, most = (low, high) if len(sides) == 1 else (low - high, high - low)
        return replace(measured, low=max(least, measured.low - span), high=min(most, measured.high + span))

    def _measured(
        self,
        moments: Moments,
        *sides: int | None,
        target: int = 0,
        other: str | None = None,
        confidence: float | None = None,
    ) -> EstimateWithInterval:
        """A candidate, or the first of two sides less the second, from the moments of all scores.

        sides: indices of candidates; the second may be None, the logged policy. other: by another estimator than the
        candidate's.
        """
        estimator = self.columns.estimator if other is None else Estimator(name=other)
        value, columns, score = 0.0, list[int](), list[float]()
        heavy, predicted, weights = list[float](), list[float](), list[int]()
        for sign, side in zip((1.0, -1.0), sides, strict=False):
            if side is None:
                own = [self.columns.logged(target)]
                value += sign * float(moments.mean[own[0]])
                score.append(sign)
            else:
                own = self.columns.of(side, target=target, other=other)
                value += sign * estimated(estimator, moments=moments.part(own)).value
                heavy.append(heavy_weight(self.summary.weights[side].powers))
                predicted.append(float(moments.mean[own[2]]))
                weights.append(len(score))
                score += [0.0, sign, sign]
            columns += own
        if estimator.biased:
            return EstimateWithInterval(value=value)
        extremes = extreme_rows(
            heavy,
            rewards=self.summary.bounds(target),
            # Without a model the baseline holds only imputed midpoints.
            baseline=fmean(predicted) if estimator.needs_model else 0.0,
            minus_logged=None in sides,
        )
        scored = moments.part(columns).combined(np.vstack([score, np.eye(len(score))[weights]]))
        confidence = self.plan.confidence if confidence is None else confidence
        low, high = cressie_read(scored, confidence=confidence, extremes=extremes, value=value)
        return EstimateWithInterval(value=value, low=low, high=high)

    def _segment(self, name: str, moments: Moments, *, index: int) -> SegmentResult:
        value = self._measured(moments, index)
        gap = EstimateWithInterval(value=0.0, low=0.0, high=0.0)
        if index != self.baseline:
            gap = self._measured(moments, index, self.baseline)
        both = [index] if self.baseline is None else [index, self.baseline]
        effective, *others = (self._effective(moments, index=each) for each in both)
        rows = moments.rows
        tried = Tried(draws=rows, judged=rows, effective=min(effective, *others, rows), questions=rows)
        # The unsupported mass is not counted per group.
        if self.is_wrong or not tried.enough or any(self.summary.weights[each].unsupported_mass for each in both):
            value, gap = _open(value), _open(gap)
        return SegmentResult(
            name=name,
            rows=rows,
            effective_rows=effective,
            baseline=value.value - gap.value,
            value=value,
            difference=gap,
        )

    def _effective(self, moments: Moments, *, index: int) -> float:
        """Effective rows of a candidate in a group."""
        mine = moments.part(self.columns.of(index))
        return estimated(self.columns.estimator, moments=mine).effective_rows

    def _tried(self, *candidates: int | None) -> Tried:
        """What the log has of these candidates: of the one that it has least of; None: the logged policy."""
        rows = self.summary.rows
        found = [Tried(draws=rows, judged=rows, effective=rows, questions=rows)]
        for weights in (self.summary.weights[index] for index in candidates if index is not None):
            draws = weights.draws
            found.append(Tried(draws=draws, judged=draws, effective=weights.surely_effective_rows, questions=rows))
        return min(found, key=lambda one: one.effective)

    def _holds(self, tried: Tried) -> bool:
        """Whether the log has enough for an interval; that of no rows at all is all that can be."""
        return not self.is_wrong and (tried.enough or not tried.draws)

    def _needed(self, gap: EstimateWithInterval | None) -> int | None:
        """Rows needed for a verdict; None where too little is known for a forecast."""
        if gap is None or gap.low is None or gap.high is None:
            return None
        return rows_needed((gap.low, gap.high), rows=self.summary.rows, value=gap.value)


def mean_of(values: Vector, *, possible: Interval, confidence: float) -> EstimateWithInterval:
    """Mean of rows of weight 1, shape (n,), with an interval; without one where there are too few.

    possible: the least and the largest value that a row can have: a few rows need not show either.
    """
    mean, rows = float(values.mean()), len(values)
    if not Tried(draws=rows, judged=rows, effective=rows, questions=rows).enough:
        return EstimateWithInterval(value=mean)
    moments, extremes = Moments.of(values, np.ones(rows)), extreme_rows([1.0], rewards=possible)
    low, high = cressie_read(moments, confidence=confidence, extremes=extremes, value=mean)
    return EstimateWithInterval(value=mean, low=low, high=high)


def _open(measured: EstimateWithInterval) -> EstimateWithInterval:
    """Without its interval, which is not known."""
    return replace(measured, low=None, high=None)


def _standing(gap: EstimateWithInterval | None, *, unsupported_mass: float) -> CandidateVerdict:
    if gap is None:
        return "baseline"
    standing: CandidateVerdict = "cannot tell"
    if gap.low is not None and gap.high is not None:
        standing = verdict((gap.low, gap.high))
    return "cannot be judged" if unsupported_mass and standing == "cannot tell" else standing


def _weights(tally: WeightTally, *, alpha: float) -> ImportanceWeights:
    low, high = tally.mean_interval(alpha=alpha)
    return ImportanceWeights(
        effective_rows=tally.effective_rows,
        largest=tally.largest,
        possible=tally.possible,
        mean=EstimateWithInterval(value=tally.total / tally.rows, low=low, high=high),
    )


def arms_of(summary: LogSummary, *, alpha: float) -> tuple[Arm, ...]:
    """The log's own table."""
    tally = summary.arms
    means: Matrix = np.divide(
        tally.sums, tally.drawn[:, None], out=np.full(tally.sums.shape, np.nan), where=tally.drawn[:, None] > 0
    )
    arms = []
    for index, (arm, plausible) in enumerate(zip(summary.names, tally.plausible(alpha=alpha), strict=True)):
        reward, quality, cost = (None if np.isnan(value) else float(value) for value in means[index])
        arms.append(
            Arm(
                name=arm,
                drawn=float(tally.drawn[index]) / tally.rows,
                expected=float(tally.expected[index]) / tally.rows,
                plausible=plausible,
                reward=reward,
                quality=quality,
                cost=cost,
            )
        )
    return tuple(arms)


def others_largest(counts: Mapping[str, int], *, most: int = MOST_VERSIONS) -> dict[str, int]:
    """The largest ones by name, the rest together, with how many they are."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    largest = dict(ranked[:most])
    if len(ranked) > most:
        largest[f"by {len(ranked) - most} others"] = sum(count for _, count in ranked[most:])
    return largest


#: a log with a smaller share of different questions says so
FRESH = 0.8


def faults_of(summary: LogSummary, *, candidates: Sequence[CandidateSpec], alpha: float) -> tuple[str, ...]:
    """Faults of the log; the checks share ALPHA."""
    faults = []
    for arm, plausible, drawn, expected in zip(
        summary.names, summary.arms.plausible(alpha=alpha), summary.arms.drawn, summary.arms.expected, strict=True
    ):
        if not plausible:
            less = "less" if drawn < expected else "more"
            faults.append(
                f"{arm} has {drawn:.0f} rows where the logged probabilities give {expected:.1f}: it was not drawn as "
                f"logged, or its answers were judged {less} often than others"
            )
    if not summary.arms.likely(alpha=alpha):
        more = "more" if summary.arms.surplus > 0.0 else "less"
        faults.append(f"the arms that were drawn are {more} likely by the logged probabilities than chance allows")
    for spec, tally in zip(candidates, summary.weights, strict=True):
        if not tally.plausible(alpha=alpha):
            low, high = tally.mean_interval(alpha=alpha)
            faults.append(
                f"the weights of {spec.name} average {tally.total / tally.rows:.3f} ({low:.3f} to {high:.3f}), "
                f"where true probabilities give {1.0 - tally.unsupported_mass:.3f}"
            )
    return tuple(faults)


def noted(described: CandidatePmf, spec: CandidateSpec, summary: LogSummary) -> CandidatePmf:
    """With a word on rows that did not offer the arm of a fixed candidate."""
    if spec.kind != "fixed" or spec.what not in summary.names:
        return described
    missing = summary.rows - int(summary.offered[summary.names.index(ArmName(spec.what))])
    if not missing:
        return described
    note = f"{spec.what} was not offered in {missing} rows: there all offered arms alike"
    return replace(described, notes=(note, *described.notes))


def notes_on(summary: LogSummary, *, model: RewardModel, undrawn: int) -> list[str]:
    """What the reader must know of the log. undrawn: rows that were left out, as nobody drew their arm."""
    plan = model.plan
    notes = _notes_on_rows(summary, undrawn=undrawn) + _notes_on_questions(summary)
    if not model.has_features and plan.reward_model != "mean":
        notes.append("the rows have no features: the reward model knows the arms' means only")
    if plan.weight is not None and summary.raw:
        notes.append(f"{summary.raw} rewards came whole: they keep their value whatever the weight of cost")
    if summary.defaulted:
        notes.append(f"{summary.defaulted} of {summary.rows} rewards are the default: nobody judged those answers")
    return notes


def _notes_on_rows(summary: LogSummary, *, undrawn: int) -> list[str]:
    """Rows that no candidate could have moved, questions that come again and again, rewards of a judge."""
    notes = []
    if undrawn:
        reason = "each stayed on the arm of an earlier turn of its session, or was pinned"
        notes.append(f"{undrawn:,} decisions are left out: {reason}")
    texts, different = int(summary.known_by[BY_TEXT]), summary.different_texts
    if texts and different <= FRESH * texts:
        reason = "the intervals speak of more traffic with these questions, not of new ones"
        notes.append(f"{different} different questions in {texts} rows: {reason}")
    if summary.judged:
        notes.append(
            f"{summary.judged:,} of {summary.rows:,} rewards are a judge's, taken as they were learned: the intervals "
            "do not count what the judge gets wrong"
        )
    return notes


def _notes_on_questions(summary: LogSummary) -> list[str]:
    """How repeated questions are recognised, where not by their text: the folds hang on it."""
    notes = []
    if summary.known_by[BY_FEATURES]:
        reason = "those with the same features count as the same question in the folds"
        notes.append(f"{summary.known_by[BY_FEATURES]:,} rows have no text: {reason}")
    if summary.known_by[BY_ID]:
        reason = "a question that occurs several times is not recognised, and may lie in several folds"
        notes.append(f"{summary.known_by[BY_ID]:,} rows have neither text nor features: {reason}")
    return notes
