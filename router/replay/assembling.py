"""From sums to what a reader is shown: estimates, intervals, differences, segments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from router.evaluation.comparison import corrected, rows_needed, verdict
from router.evaluation.diagnostics import BIN_EDGES, WeightTally
from router.evaluation.estimators import Estimate, Estimator, combination, estimated
from router.evaluation.intervals import cressie_read, extreme_rows, heavy_weight, normal
from router.evaluation.moments import Matrix, Moments
from router.replay.candidates import Asked, Judged
from router.replay.measuring import Columns, Group, Survey, Tallies
from router.replay.results import Arm, Candidate, Histogram, Measured, Pair, Segment, Verdict, Weights
from router.types import ArmName

__all__ = ["Assembling", "arms_of", "others_largest"]

#: a segment with fewer effective rows gets no interval: nothing is known of its coverage there
FEWEST = 20
#: versions that are named
MOST_VERSIONS = 4

_MINE, _THEIRS = slice(0, 3), slice(3, 6)
_NOTHING = Measured(value=float("nan"))


@dataclass(frozen=True, kw_only=True)
class Assembling:
    """What is needed to put results together."""

    estimator: Estimator
    confidence: float
    survey: Survey
    tallies: Tallies
    arms: tuple[ArmName, ...]
    #: index of the candidate that is the baseline; None: the logged policy
    baseline: int | None
    #: chance that each check calls a right log wrong
    doubt: float
    #: intervals that hold at every look, by (candidate, "value" | "difference") and (first, second); or None
    sequences: Mapping[tuple[int, str] | tuple[int, int], tuple[float, float]] | None

    @property
    def compared(self) -> int:
        """Differences to the baseline, that share the error."""
        return max(1, len(self.survey.weights) - (self.baseline is not None))

    def candidate(self, index: int, *, asked: Asked, judged: Judged) -> Candidate:
        """All of one candidate."""
        weights, whole = self.survey.weights[index], self.tallies.whole(index)
        values = [self._value(whole, index=index, target=target) for target in range(3)]
        differences: list[Measured | None] = [None] * 3
        if index != self.baseline:
            share = corrected(self.confidence, comparisons=self.compared)
            differences = [self._difference(whole, index=index, target=t, confidence=share) for t in range(3)]
        if self.sequences is not None:
            values = [_within(values[0], self.sequences[index, "value"]), *map(_open, values[1:])]
            if differences[0] is not None:
                inside = _within(differences[0], self.sequences[index, "difference"])
                differences = [inside, *(None if each is None else _open(each) for each in differences[1:])]
        gap = None if differences[0] is None else self._opened(differences[0], *self._both(index))
        bounds = self._bounds(values[0], weights)
        if bounds is not None:
            values[0] = replace(values[0], low=bounds[0], high=bounds[1])
        return Candidate(
            name=asked.name,
            described=judged.described,
            estimator=str(self.estimator),
            reward=values[0],
            quality=values[1],
            cost=values[2],
            difference=gap,
            quality_difference=differences[1],
            cost_difference=differences[2],
            verdict=None if gap is None else _verdict(gap),
            rows_needed=None
            if gap is None or any(each.hole for each in self._both(index))
            else _needed(self.survey.rows, gap),
            weights=_weights(weights, doubt=self.doubt),
            holes={arm: float(h) / weights.rows for arm, h in zip(self.arms, weights.holes, strict=True) if h > 0.0},
            bounds=bounds,
            shares={arm: float(s) / weights.rows for arm, s in zip(self.arms, weights.shares, strict=True)},
            over_time=tuple(self._segment("", group, index=index) for group in self.tallies.stretches),
            segments={
                name: tuple(self._segment(value, group, index=index) for value, group in groups.items())
                for name, groups in self.tallies.segments.items()
            },
            others={
                name: self._other(name, moments, index=index) for name, moments in self.tallies.others[index].items()
            },
            notes=judged.notes,
        )

    def pairs(self, names: Sequence[str]) -> tuple[Pair, ...]:
        """Every candidate against every other one."""
        if len(names) < 2:
            return ()
        share = corrected(self.confidence, comparisons=len(self.tallies.pairs))
        found = []
        for (first, second), moments in sorted(self.tallies.pairs.items()):
            gap = self._apart(moments, first=first, second=second, target=0, confidence=share)
            if self.sequences is not None:
                gap = _within(gap, self.sequences[first, second])
            gap = self._opened(gap, self.survey.weights[first], self.survey.weights[second])
            found.append(Pair(first=names[first], second=names[second], difference=gap))
        return tuple(found)

    def baseline_values(self) -> list[Measured]:
        """Reward, quality and cost of the baseline."""
        if self.baseline is not None:
            whole = self.tallies.whole(self.baseline)
            return [self._value(whole, index=self.baseline, target=target) for target in range(3)]
        whole = self.tallies.whole(0)
        found = []
        for target in range(3):
            logged = _part(whole.targets[target], _THEIRS)
            value = float(logged.mean[1])
            extremes = extreme_rows([1.0], rewards=self.survey.bounds(target))
            low, high = cressie_read(_scored(logged), confidence=self.confidence, extremes=extremes, value=value)
            found.append(Measured(value=value, low=low, high=high))
        return found if self.sequences is None else [_open(each) for each in found]

    def _value(self, columns: Columns, *, index: int, target: int) -> Measured:
        return self._single(
            self.estimator,
            _part(columns.targets[target], _MINE),
            index=index,
            target=target,
            confidence=self.confidence,
        )

    def _other(self, name: str, moments: Moments, *, index: int) -> Measured:
        found = self._single(Estimator.parse(name), moments, index=index, target=0, confidence=self.confidence)
        return found if self.sequences is None else _open(found)

    def _single(
        self, estimator: Estimator, moments: Moments, *, index: int, target: int, confidence: float
    ) -> Measured:
        """An estimate from the moments of (w, e, b)."""
        found = estimated(estimator, moments=moments)
        if found.biased:
            low, high = normal(found.value, standard_error=found.standard_error, confidence=confidence)
            return Measured(value=found.value, low=low, high=high, biased=True)
        extremes = extreme_rows(
            [self._heavy(index)],
            rewards=self.survey.bounds(target),
            baseline=float(moments.mean[2]),
        )
        low, high = cressie_read(_scored(moments), confidence=confidence, extremes=extremes, value=found.value)
        return Measured(value=found.value, low=low, high=high)

    def _difference(self, columns: Columns, *, index: int, target: int, confidence: float) -> Measured:
        """Candidate minus baseline."""
        moments = columns.targets[target]
        if self.baseline is not None:
            return self._apart(moments, first=index, second=self.baseline, target=target, confidence=confidence)
        mine = estimated(self.estimator, moments=_part(moments, _MINE))
        value = mine.value - float(moments.mean[4])
        if mine.biased:
            return _chance_only(value, self._error(moments, logged=True), confidence=confidence)
        extremes = extreme_rows(
            [self._heavy(index)],
            rewards=self.survey.bounds(target),
            baseline=float(moments.mean[2]),
            minus_logged=True,
        )
        columns_of = moments.combined(np.array([[0, 1, 1, 0, -1, 0], [1, 0, 0, 0, 0, 0]], dtype=np.float64))
        low, high = cressie_read(columns_of, confidence=confidence, extremes=extremes, value=value)
        return Measured(value=value, low=low, high=high)

    def _apart(self, moments: Moments, *, first: int, second: int, target: int, confidence: float) -> Measured:
        """First minus second candidate, from the six columns of both."""
        mine = estimated(self.estimator, moments=_part(moments, _MINE))
        theirs = estimated(self.estimator, moments=_part(moments, _THEIRS))
        value = mine.value - theirs.value
        if mine.biased:
            return _chance_only(value, self._error(moments, logged=False), confidence=confidence)
        extremes = extreme_rows(
            [self._heavy(first), self._heavy(second)],
            rewards=self.survey.bounds(target),
            baseline=float(moments.mean[2] + moments.mean[5]) / 2.0,
        )
        columns = moments.combined(
            np.array([[0, 1, 1, 0, -1, -1], [1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]], dtype=np.float64)
        )
        low, high = cressie_read(columns, confidence=confidence, extremes=extremes, value=value)
        return Measured(value=value, low=low, high=high)

    def _error(self, moments: Moments, *, logged: bool) -> float:
        """Standard error of the paired difference of a biased estimator."""
        mine = combination(self.estimator, moments=_part(moments, _MINE))
        theirs = np.array([0.0, 1.0, 0.0]) if logged else combination(self.estimator, moments=_part(moments, _THEIRS))
        gap = moments.combined(np.concatenate([mine, -theirs])[None, :])
        return float(np.sqrt(max(gap.covariance[0, 0], 0.0) / max(moments.rows, 1)))

    def _heavy(self, index: int) -> float:
        """What a heavy row of a candidate weighs."""
        return heavy_weight(self.survey.weights[index].powers)

    def _segment(self, name: str, group: Group, *, index: int) -> Segment:
        columns = group.columns[index]
        assert columns is not None, "every group has rows"
        moments = columns.targets[0]
        value = self._value(columns, index=index, target=0)
        gap = (
            Measured(value=0.0, low=0.0, high=0.0)
            if index == self.baseline
            else self._difference(columns, index=index, target=0, confidence=self.confidence)
        )
        effective = _kish(_part(moments, _MINE), self.estimator)
        if effective < FEWEST or self.sequences is not None:
            value, gap = _open(value), _open(gap)
        timed = np.isfinite(group.begin)
        return Segment(
            name=name,
            rows=moments.rows,
            effective_rows=effective,
            baseline=value.value - gap.value,
            value=value,
            difference=gap,
            begin=group.begin if timed else None,
            end=group.end if timed else None,
        )

    def _bounds(self, value: Measured, weights: WeightTally) -> tuple[float, float] | None:
        """With a hole: what is known of the rest, and the hole's share at the least and the most that is possible."""
        if weights.hole == 0.0 or value.low is None or value.high is None:
            return None
        low, high = self.survey.bounds(0)
        span = self._span(weights)
        return max(low, value.low - span), min(high, value.high + span)

    def _opened(self, gap: Measured, *weights: WeightTally) -> Measured:
        """The difference with all that the holes leave open."""
        span = sum(self._span(each) for each in weights)
        if span == 0.0 or gap.low is None or gap.high is None:
            return gap
        return replace(gap, low=gap.low - span, high=gap.high + span)

    def _both(self, index: int) -> list[WeightTally]:
        """The weights that a difference to the baseline rests on."""
        return [self.survey.weights[each] for each in (index, self.baseline) if each is not None]

    def _span(self, weights: WeightTally) -> float:
        """How far the estimate can be off for the holes: it took the model's word, or 0, for what was never tried."""
        low, high = self.survey.bounds(0)
        return weights.hole * max(high - low, abs(low), abs(high))


def _part(moments: Moments, columns: slice) -> Moments:
    return Moments(rows=moments.rows, mean=moments.mean[columns], scatter=moments.scatter[columns, columns])


def _scored(moments: Moments) -> Moments:
    """(e + b, w) from (w, e, b)."""
    return moments.combined(np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]))


def _chance_only(value: float, error: float, *, confidence: float) -> Measured:
    low, high = normal(value, standard_error=error, confidence=confidence)
    return Measured(value=value, low=low, high=high, biased=True)


def _open(measured: Measured) -> Measured:
    """Without its interval: it holds for one look only, or of it nothing is known."""
    return replace(measured, low=None, high=None)


def _within(measured: Measured, interval: tuple[float, float]) -> Measured:
    """With another interval, that of the whole sequence of looks."""
    low, high = interval
    return replace(measured, low=min(low, measured.value), high=max(high, measured.value))


def _verdict(gap: Measured) -> Verdict:
    if gap.low is None or gap.high is None or gap.biased:
        return "cannot tell"
    return verdict((gap.low, gap.high))


def _needed(rows: int, gap: Measured) -> int | None:
    if gap.low is None or gap.high is None or gap.biased:
        return None
    return rows_needed((gap.low, gap.high), rows=rows, value=gap.value)


def _kish(moments: Moments, estimator: Estimator) -> float:
    found: Estimate = estimated(estimator, moments=moments)
    return found.effective_rows


def _weights(tally: WeightTally, *, doubt: float) -> Weights:
    low, high = tally.mean_interval(doubt=doubt)
    return Weights(
        effective_rows=tally.effective_rows,
        largest=tally.largest,
        possible=tally.possible,
        mean=Measured(value=tally.total / tally.rows, low=low, high=high),
        clipped=tally.clipped / tally.rows,
        clip=tally.clip,
        histogram=Histogram(
            edges=tuple(float(edge) for edge in BIN_EDGES), counts=tuple(int(count) for count in tally.counts)
        ),
    )


def arms_of(survey: Survey, *, arms: Sequence[ArmName], doubt: float) -> tuple[Arm, ...]:
    """The log's own table."""
    tally = survey.arms
    means: Matrix = np.divide(
        tally.sums, tally.drawn[:, None], out=np.full(tally.sums.shape, np.nan), where=tally.drawn[:, None] > 0
    )
    found = []
    for index, (arm, plausible) in enumerate(zip(arms, tally.plausible(doubt=doubt), strict=True)):
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
