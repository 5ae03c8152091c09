"""Results from accumulated sums: estimates, intervals, differences, segments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ragbandit.router.offline.estimation.anytime import Sequences
from ragbandit.router.offline.estimation.diagnostics import BIN_EDGES, WeightTally
from ragbandit.router.offline.estimation.estimators import Estimator, combination, estimated
from ragbandit.router.offline.estimation.intervals import (
    Interval,
    corrected,
    cressie_read,
    extreme_rows,
    heavy_weight,
    normal,
    rows_needed,
    verdict,
)
from ragbandit.router.offline.estimation.moments import Moments
from ragbandit.router.offline.replay.candidates import CandidatePmf
from ragbandit.router.offline.replay.plan import CandidateSpec, Plan
from ragbandit.router.offline.replay.results import (
    Arm,
    CandidateResult,
    CandidateVerdict,
    EstimateWithInterval,
    Histogram,
    ImportanceWeights,
    Pair,
    SegmentResult,
)
from ragbandit.router.offline.replay.sums import Accumulators, LogSummary, RowGroup
from ragbandit.router.offline.types import Matrix
from ragbandit.shared.types import FEWEST_EFFECTIVE

#: a segment with fewer effective rows gets no interval, as nothing is known of its coverage there, and a candidate with
#: fewer no forecast
FEWEST = 20
#: versions that are named
MOST_VERSIONS = 4

_MINE, _THEIRS = slice(0, 3), slice(3, 6)


@dataclass(frozen=True, kw_only=True)
class ResultAssembler:
    """Builds the results of a replay from its sums."""

    plan: Plan
    #: of each candidate
    estimators: Sequence[Estimator]
    summary: LogSummary
    accumulators: Accumulators
    #: index of the candidate that is the baseline; None: the logged policy
    baseline: int | None
    #: chance that each check calls a right log wrong
    alpha: float
    #: intervals that hold at every look, unsupported decisions included; or None
    sequences: Sequences | None

    @property
    def compared(self) -> int:
        """Differences to the baseline, that share the error."""
        return max(1, len(self.summary.weights) - (self.baseline is not None))

    def candidate(self, index: int, *, spec: CandidateSpec, described: CandidatePmf) -> CandidateResult:
        """All of one candidate."""
        weights = self.summary.weights[index]
        reward, quality, cost = self._values(index)
        gap, better, dearer = self._differences(index)
        if gap is not None and self._few(index):
            gap = _open(gap)
        standing = _standing(gap, unsupported_mass=weights.unsupported_mass)
        return CandidateResult(
            name=spec.name,
            described=described.described,
            estimator=f"{self.estimators[index]}{', tuned' if self.plan.tuned else ''}",
            reward=reward,
            quality=quality,
            cost=cost,
            difference=gap,
            quality_difference=better,
            cost_difference=dearer,
            verdict=standing,
            rows_needed=self._needed(gap, weights=weights) if standing == "cannot tell" else None,
            weights=_weights(weights, alpha=self.alpha),
            unsupported={
                arm: float(h) / weights.rows
                for arm, h in zip(self.summary.names, weights.unsupported, strict=True)
                if h > 0.0
            },
            bounds=None
            if not weights.unsupported_mass or reward.low is None or reward.high is None
            else (reward.low, reward.high),
            shares={arm: float(s) / weights.rows for arm, s in zip(self.summary.names, weights.shares, strict=True)},
            over_time=tuple(self._segment("", group, index=index) for group in self.accumulators.stretches),
            segments={
                name: tuple(self._segment(value, group, index=index) for value, group in groups.items())
                for name, groups in self.accumulators.segments.items()
            },
            others={
                name: self._other(name, moments, index=index)
                for name, moments in self.accumulators.others[index].items()
            },
            notes=(*described.notes, *self._few(index)),
        )

    def _rating_weight(self, target: int) -> float:
        """Of rewards and qualities; costs are known of every row."""
        return self.summary.rating_weight if target < 2 else 1.0

    def _values(self, index: int) -> list[EstimateWithInterval]:
        """Reward, quality and cost. With unsupported decisions only the reward has an interval, and a widened one."""
        whole, weights = self.accumulators.whole(index), self.summary.weights[index]
        reward, *others = (self._value(whole[target], index=index, target=target) for target in range(3))
        if self.sequences is not None:
            reward = _within(reward, self.sequences[index, "value"])
        elif weights.unsupported_mass:
            reward = self._opened(reward, weights, within=self.summary.bounds(0))
        return [
            reward,
            *(_open(each) if self.sequences is not None or weights.unsupported_mass else each for each in others),
        ]

    def _differences(self, index: int) -> list[EstimateWithInterval] | list[None]:
        """Differences of reward, quality and cost to the baseline; None for the baseline itself."""
        if index == self.baseline:
            return [None] * 3
        whole, both = self.accumulators.whole(index), self._both(index)
        share = corrected(self.plan.confidence, comparisons=self.compared)
        reward, *others = (self._difference(whole[t], index=index, target=t, confidence=share) for t in range(3))
        if self.sequences is not None:
            reward = _within(reward, self.sequences[index, "difference"])
        else:
            reward = self._apart_at_most(reward, *both)
        unknown = self.sequences is not None or any(each.unsupported_mass for each in both)
        return [reward, *(_open(each) if unknown else each for each in others)]

    def pairs(self, names: Sequence[str]) -> tuple[Pair, ...]:
        """Every candidate against every other one."""
        if len(names) < 2:
            return ()
        share = corrected(self.plan.confidence, comparisons=len(self.accumulators.pairs))
        found = []
        for (first, second), moments in sorted(self.accumulators.pairs.items()):
            gap = self._apart(moments, first=first, second=second, target=0, confidence=share)
            if self.sequences is not None:
                gap = _within(gap, self.sequences[first, second])
            else:
                gap = self._apart_at_most(gap, self.summary.weights[first], self.summary.weights[second])
            found.append(Pair(first=names[first], second=names[second], difference=gap))
        return tuple(found)

    def baseline_values(self) -> list[EstimateWithInterval]:
        """Reward, quality and cost of the baseline."""
        if self.baseline is not None:
            return self._values(self.baseline)
        whole = self.accumulators.whole(0)
        found = []
        for target in range(3):
            logged = _part(whole[target], _THEIRS)
            value = float(logged.mean[1])
            extremes = extreme_rows(
                [1.0], rewards=self.summary.bounds(target), rating_weight=self._rating_weight(target)
            )
            low, high = cressie_read(_scored(logged), confidence=self.plan.confidence, extremes=extremes, value=value)
            found.append(EstimateWithInterval(value=value, low=low, high=high))
        return found if self.sequences is None else [_open(each) for each in found]

    def _value(self, moments: Moments, *, index: int, target: int) -> EstimateWithInterval:
        return self._single(self.estimators[index], _part(moments, _MINE), index=index, target=target)

    def _other(self, name: str, moments: Moments, *, index: int) -> EstimateWithInterval:
        found = self._single(Estimator.parse(name), moments, index=index, target=0)
        if self.sequences is not None:
            return _open(found)
        return self._opened(found, self.summary.weights[index], within=self.summary.bounds(0))

    def _single(self, estimator: Estimator, moments: Moments, *, index: int, target: int) -> EstimateWithInterval:
        """An estimate from the moments of (w, e, b)."""
        found, confidence = estimated(estimator, moments=moments), self.plan.confidence
        if found.biased:
            low, high = normal(found.value, standard_error=found.standard_error, confidence=confidence)
            return EstimateWithInterval(value=found.value, low=low, high=high, biased=True)
        extremes = extreme_rows(
            [self._heavy(index)],
            rewards=self.summary.bounds(target),
            rating_weight=self._rating_weight(target),
            baseline=_predicted(estimator, moments.mean[2]),
        )
        low, high = cressie_read(_scored(moments), confidence=confidence, extremes=extremes, value=found.value)
        return EstimateWithInterval(value=found.value, low=low, high=high)

    def _difference(self, moments: Moments, *, index: int, target: int, confidence: float) -> EstimateWithInterval:
        """Candidate minus baseline."""
        if self.baseline is not None:
            return self._apart(moments, first=index, second=self.baseline, target=target, confidence=confidence)
        mine = estimated(self.estimators[index], moments=_part(moments, _MINE))
        value = mine.value - float(moments.mean[4])
        if mine.biased:
            return _chance_only(value, self._error(moments, first=index, second=None), confidence=confidence)
        extremes = extreme_rows(
            [self._heavy(index)],
            rewards=self.summary.bounds(target),
            rating_weight=self._rating_weight(target),
            baseline=_predicted(self.estimators[index], moments.mean[2]),
            minus_logged=True,
        )
        columns_of = moments.combined(np.array([[0, 1, 1, 0, -1, 0], [1, 0, 0, 0, 0, 0]], dtype=np.float64))
        low, high = cressie_read(columns_of, confidence=confidence, extremes=extremes, value=value)
        return EstimateWithInterval(value=value, low=low, high=high)

    def _apart(
        self, moments: Moments, *, first: int, second: int, target: int, confidence: float
    ) -> EstimateWithInterval:
        """First minus second candidate, from the six columns of both."""
        mine = estimated(self.estimators[first], moments=_part(moments, _MINE))
        theirs = estimated(self.estimators[second], moments=_part(moments, _THEIRS))
        value = mine.value - theirs.value
        if mine.biased:
            return _chance_only(value, self._error(moments, first=first, second=second), confidence=confidence)
        extremes = extreme_rows(
            [self._heavy(first), self._heavy(second)],
            rewards=self.summary.bounds(target),
            rating_weight=self._rating_weight(target),
            baseline=_predicted(self.estimators[first], (moments.mean[2] + moments.mean[5]) / 2.0),
        )
        columns = moments.combined(
            np.array([[0, 1, 1, 0, -1, -1], [1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]], dtype=np.float64)
        )
        low, high = cressie_read(columns, confidence=confidence, extremes=extremes, value=value)
        return EstimateWithInterval(value=value, low=low, high=high)

    def _error(self, moments: Moments, *, first: int, second: int | None) -> float:
        """Standard error of the paired difference of a biased estimator; second None: to the logged policy."""
        mine = combination(self.estimators[first], moments=_part(moments, _MINE))
        theirs = np.array([0.0, 1.0, 0.0])
        if second is not None:
            theirs = combination(self.estimators[second], moments=_part(moments, _THEIRS))
        gap = moments.combined(np.concatenate([mine, -theirs])[None, :])
        return float(np.sqrt(max(gap.covariance[0, 0], 0.0) / max(moments.rows, 1)))

    def _heavy(self, index: int) -> float:
        """Weight of a heavy row of a candidate."""
        return heavy_weight(self.summary.weights[index].powers)

    def _segment(self, name: str, group: RowGroup, *, index: int) -> SegmentResult:
        moments = group.moments[index][0]
        value = self._value(moments, index=index, target=0)
        gap = (
            EstimateWithInterval(value=0.0, low=0.0, high=0.0)
            if index == self.baseline
            else self._difference(moments, index=index, target=0, confidence=self.plan.confidence)
        )
        effective = estimated(self.estimators[index], moments=_part(moments, _MINE)).effective_rows
        # The unsupported mass is not counted per group.
        if effective < FEWEST or self.sequences is not None or any(each.unsupported_mass for each in self._both(index)):
            value, gap = _open(value), _open(gap)
        timed = np.isfinite(group.begin)
        return SegmentResult(
            name=name,
            rows=moments.rows,
            effective_rows=effective,
            baseline=value.value - gap.value,
            value=value,
            difference=gap,
            begin=group.begin if timed else None,
            end=group.end if timed else None,
        )

    def _opened(self, measured: EstimateWithInterval, *weights: WeightTally, within: Interval) -> EstimateWithInterval:
        """Widened by range / 2 x unsupported mass: unsupported decisions are imputed with the midpoint of the range."""
        low, high = self.summary.bounds(0)
        span = sum(each.unsupported_mass for each in weights) * (high - low) / 2.0
        if span == 0.0 or measured.low is None or measured.high is None:
            return measured
        return replace(measured, low=max(within[0], measured.low - span), high=min(within[1], measured.high + span))

    def _apart_at_most(self, gap: EstimateWithInterval, *weights: WeightTally) -> EstimateWithInterval:
        """`_opened` for a difference."""
        low, high = self.summary.bounds(0)
        return self._opened(gap, *weights, within=(low - high, high - low))

    def _few(self, index: int) -> list[str]:
        # With no overlap at all the interval is the whole range, which is valid.
        if all(each.effective_rows >= FEWEST_EFFECTIVE or not each.total for each in self._both(index)):
            return []
        return [f"no verdict: fewer than {FEWEST_EFFECTIVE} effective rows, of it or of the baseline"]

    def _both(self, index: int) -> list[WeightTally]:
        """The weights that a difference to the baseline rests on."""
        return [self.summary.weights[each] for each in (index, self.baseline) if each is not None]

    def _needed(self, gap: EstimateWithInterval | None, *, weights: WeightTally) -> int | None:
        """Rows needed for a verdict; None where too little is known for a forecast."""
        if gap is None or gap.low is None or gap.high is None or gap.biased or weights.effective_rows < FEWEST:
            return None
        return rows_needed((gap.low, gap.high), rows=self.summary.rows, value=gap.value)


def _part(moments: Moments, columns: slice) -> Moments:
    return Moments(rows=moments.rows, mean=moments.mean[columns], scatter=moments.scatter[columns, columns])


def _scored(moments: Moments) -> Moments:
    """(e + b, w) from (w, e, b)."""
    return moments.combined(np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]))


def _chance_only(value: float, error: float, *, confidence: float) -> EstimateWithInterval:
    low, high = normal(value, standard_error=error, confidence=confidence)
    return EstimateWithInterval(value=value, low=low, high=high, biased=True)


def _open(measured: EstimateWithInterval) -> EstimateWithInterval:
    """Without its interval, which would hold for one look only, or is not known."""
    return replace(measured, low=None, high=None)


def _within(measured: EstimateWithInterval, interval: tuple[float, float]) -> EstimateWithInterval:
    """With another interval, that of the whole sequence of looks."""
    low, high = interval
    return replace(measured, low=min(low, measured.value), high=max(high, measured.value))


def _predicted(estimator: Estimator, mean: float) -> float:
    """Mean prediction of the reward model; without a model the baseline holds only imputed midpoints."""
    return float(mean) if estimator.facts.needs_model else 0.0


def _standing(gap: EstimateWithInterval | None, *, unsupported_mass: float) -> CandidateVerdict:
    if gap is None:
        return "baseline"
    found: CandidateVerdict = "cannot tell"
    if gap.low is not None and gap.high is not None and not gap.biased:
        found = verdict((gap.low, gap.high))
    return "cannot be judged" if unsupported_mass and found == "cannot tell" else found


def _weights(tally: WeightTally, *, alpha: float) -> ImportanceWeights:
    low, high = tally.mean_interval(alpha=alpha)
    return ImportanceWeights(
        effective_rows=tally.effective_rows,
        largest=tally.largest,
        possible=tally.possible,
        mean=EstimateWithInterval(value=tally.total / tally.rows, low=low, high=high),
        clipped=tally.clipped / tally.rows,
        clip=tally.clip,
        histogram=Histogram(
            edges=tuple(float(edge) for edge in BIN_EDGES), counts=tuple(int(count) for count in tally.counts)
        ),
    )


def arms_of(summary: LogSummary, *, alpha: float) -> tuple[Arm, ...]:
    """The log's own table."""
    tally = summary.arms
    means: Matrix = np.divide(
        tally.sums, tally.drawn[:, None], out=np.full(tally.sums.shape, np.nan), where=tally.drawn[:, None] > 0
    )
    found = []
    for index, (arm, plausible) in enumerate(zip(summary.names, tally.plausible(alpha=alpha), strict=True)):
        reward, quality, cost = (None if np.isnan(value) else float(value) for value in means[index])
        found.append(
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
    return tuple(found)


def others_largest(counts: Mapping[str, int], *, most: int = MOST_VERSIONS) -> dict[str, int]:
    """The largest ones by name, the rest together, with how many they are."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    found = dict(ranked[:most])
    if len(ranked) > most:
        found[f"by {len(ranked) - most} others"] = sum(count for _, count in ranked[most:])
    return found
