"""Results from accumulated sums: estimates, intervals, differences, segments."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from ragbandit.router.offline.estimation import (
    ESTIMATORS,
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
from ragbandit.router.offline.estimation.bandit_log import (
    ALPHA,
    BY_FEATURES,
    BY_ID,
    BY_TEXT,
    SUM_TOLERANCE,
    WeightTally,
)
from ragbandit.router.offline.logs import BadRow
from ragbandit.router.offline.replay.plan import (
    LOGGED,
    Arm,
    CandidatePmf,
    CandidateResult,
    CandidateSpec,
    CandidateVerdict,
    EstimateWithInterval,
    ImportanceWeights,
    LoggedPolicies,
    LoggedPolicy,
    Pair,
    Plan,
    ReplayResult,
    SegmentResult,
    Skipped,
    deciders,
)
from ragbandit.router.offline.replay.sums import LogSummary, Scores, ScoreSums, ranked
from ragbandit.shared.confidence_sequences import Tried
from ragbandit.shared.types import ArmName, Vector

#: why nothing of a log has an interval whose arms were not drawn, or not rated, as it says
WRONG_LOG = "the log contradicts its own probabilities, so that no interval holds"
#: versions, and bad rows, that are named
MOST_VERSIONS, MOST_NAMED = 4, 20
#: a log with a smaller share of different questions gets a note
FRESH = 0.8


@dataclass(frozen=True, kw_only=True)
class ResultAssembler:
    """Builds the results of a replay from its sums."""

    plan: Plan
    candidates: Sequence[CandidateSpec]
    columns: Scores
    summary: LogSummary
    sums: ScoreSums
    #: index of the candidate that is the baseline; None: the logged policy
    baseline: int | None

    def result(
        self,
        candidate_pmfs: Sequence[CandidatePmf],
        *,
        logged: LoggedPolicies,
        notes: Sequence[str],
        skipped: Sequence[BadRow],
        **about: Any,
    ) -> ReplayResult:
        """All of it; about: what it has of the log as it is."""
        summary = self.summary
        versions: Mapping[str, int] = summary.fields.get("version", {})
        known = deciders(logged, versions)
        reward, quality, cost = (self._shown(self.baseline, target=target) for target in range(3))
        timed = summary.least[3] <= summary.most[3]
        default = summary.marked["defaulted"]
        sources = {"explicit": summary.rows - default, "default": default, "late": summary.marked["late"]}
        return ReplayResult(
            **about,
            rows=summary.rows,
            begin=float(summary.least[3]) if timed else None,
            end=float(summary.most[3]) if timed else None,
            plan=self.plan,
            baseline="the logged policy" if self.baseline is None else self.candidates[self.baseline].name,
            baseline_reward=reward,
            baseline_quality=quality,
            baseline_cost=cost,
            comparisons=self._compared,
            arms=self._arms(),
            sources={name: count for name, count in sources.items() if count},
            versions=others_largest({name: rows for name, rows in versions.items() if name}),
            logged=known,
            candidates=tuple(
                self._judged(index, described=each, logged=known) for index, each in enumerate(candidate_pmfs)
            ),
            pairs=self._pairs(),
            faults=self.faults,
            notes=(*notes, *notes_on(summary)),
            skipped_rows=len(skipped),
            skipped=tuple(
                Skipped(where=f"line {row.line}", reason=f"{row.field} {row.reason}") for row in skipped[:MOST_NAMED]
            ),
        )

    @property
    def _alpha(self) -> float:
        """Chance that each check calls a right log wrong; the checks share ALPHA."""
        return ALPHA / (1 + len(self.summary.names) + len(self.summary.weights))

    @property
    def _compared(self) -> int:
        """Differences to the baseline, that share the error."""
        return max(1, len(self.summary.weights) - (self.baseline is not None))

    def _candidate(self, index: int, *, described: CandidatePmf) -> CandidateResult:
        """All of one candidate."""
        weights, names, spec = self.summary.weights[index], self.summary.names, self.candidates[index]
        reward, quality, cost = (self._shown(index, target=target) for target in range(3))
        gaps: list[EstimateWithInterval] | list[None] = [None] * 3
        if index != self.baseline:
            share = corrected(self.plan.confidence, comparisons=self._compared)
            gaps = [self._shown(index, self.baseline, target=target, confidence=share) for target in range(3)]
        gap = gaps[0]
        standing = _standing(gap, unsupported_mass=weights.unsupported_mass)
        return CandidateResult(
            name=spec.name,
            described=described.described,
            estimator=self.plan.estimator,
            reward=reward,
            quality=quality,
            cost=cost,
            difference=gap,
            quality_difference=gaps[1],
            cost_difference=gaps[2],
            verdict=standing,
            missing=WRONG_LOG if self.faults else self._missing(index),
            rows_needed=self._needed(gap) if standing == "cannot tell" else None,
            weights=_weights(weights, alpha=self._alpha),
            unsupported={
                arm: float(h) / weights.rows for arm, h in zip(names, weights.unsupported, strict=True) if h > 0.0
            },
            bounds=reward.interval if weights.unsupported_mass else None,
            shares={arm: float(s) / weights.rows for arm, s in zip(names, weights.shares, strict=True)},
            segments={
                name: tuple(self._segment(value, moments, index=index) for value, moments in groups.items())
                for name, groups in self.sums.segments.items()
            },
            others={
                name: self._shown(index, other=name)
                for name in ESTIMATORS
                if name != self.plan.estimator and (self.columns.modelled or not Estimator(name=name).needs_model)
            },
            notes=(*self._not_offered(spec), *described.notes),
            learned=described.learned,
        )

    def _judged(self, index: int, *, described: CandidatePmf, logged: Sequence[LoggedPolicy]) -> CandidateResult:
        """The candidate, without a verdict if a policy is compared with itself. logged: the policies that served.

        A policy learned from the log is the same if its name is. Along the log its params and weight must agree too.
        """
        candidate = self._candidate(index, described=described)
        if index != self.baseline and self.summary.apart[index] <= SUM_TOLERANCE:
            none = EstimateWithInterval(value=0.0, low=0.0, high=0.0)
            alike: dict[str, Any] = {"difference": none, "same_policy": True, "verdict": "same policy"}
            return replace(candidate, **alike, missing=None, rows_needed=None)
        mine, plan = described.policy, self.plan
        if mine is None or plan.baseline != LOGGED or not logged:
            return candidate
        same = set(logged) == {mine} and plan.weight is None
        if not (same if plan.learn else {each.name for each in logged} == {mine.name}):
            return candidate
        verdict = "same policy" if candidate.verdict in ("better", "worse") else candidate.verdict
        return replace(candidate, same_policy=True, verdict=verdict, rows_needed=None)

    def _not_offered(self, spec: CandidateSpec) -> list[str]:
        """A note on rows that did not offer the arm of a fixed candidate."""
        summary = self.summary
        if spec.kind != "fixed" or spec.what not in summary.names:
            return []
        missing = summary.rows - int(summary.offered[summary.names.index(ArmName(spec.what))])
        return [f"{spec.what} was not offered in {missing} rows: there all offered arms alike"] if missing else []

    def _pairs(self) -> tuple[Pair, ...]:
        """Every candidate against every other, except the policy that serves, which is the baseline."""
        asked = [number for number, spec in enumerate(self.candidates) if not spec.current]
        numbers = list(itertools.combinations(asked, 2))
        share = corrected(self.plan.confidence, comparisons=max(1, len(numbers)))
        return tuple(
            Pair(
                first=self.candidates[first].name,
                second=self.candidates[second].name,
                difference=self._shown(first, second, confidence=share),
            )
            for first, second in numbers
        )

    def _shown(
        self, *sides: int | None, target: int = 0, other: str | None = None, confidence: float | None = None
    ) -> EstimateWithInterval:
        """`_measured` on the whole log, without its interval if the log has too few rows.

        Unsupported decisions widen the interval of the reward by range / 2 x their mass; quality and cost get none.
        """
        measured = self._measured(self.sums.whole, *sides, target=target, other=other, confidence=confidence)
        mass = sum(self.summary.weights[side].unsupported_mass for side in sides if side is not None)
        if not self._holds(self._tried(*sides)) or (mass and target):
            return _open(measured)
        if not mass or measured.interval is None:
            return measured
        (first, last), (low, high) = measured.interval, self.summary.bounds(0)
        span = mass * (high - low) / 2.0
        least, most = (low, high) if len(sides) == 1 else (low - high, high - low)
        return replace(measured, low=max(least, first - span), high=min(most, last + span))

    def _measured(
        self,
        moments: Moments,
        *sides: int | None,
        target: int = 0,
        other: str | None = None,
        confidence: float | None = None,
    ) -> EstimateWithInterval:
        """A candidate, or the first of two sides minus the second, from the moments of all scores.

        sides: indices of candidates; the last may be None, the logged policy. other: another estimator.
        """
        confidence, bounds = self.plan.confidence if confidence is None else confidence, self.summary.bounds(target)
        if sides == (None,):
            return _mean(moments.combined(self.columns.logged(target)[None]), possible=bounds, confidence=confidence)
        estimator = Estimator(name=other or self.plan.estimator)
        value, score, weights = 0.0, np.zeros(len(moments.mean)), list[Vector]()
        heavy, predicted = list[float](), list[float]()
        for sign, side in zip((1.0, -1.0), sides, strict=False):
            if side is None:
                logged = self.columns.logged(target)
                value, score = value + sign * float(moments.mean @ logged), score + sign * logged
                continue
            own = self.columns.of(side, target=target, estimator=estimator)
            parts = moments.combined(own)
            value, score = value + sign * estimated(estimator, moments=parts).value, score + sign * (own[1] + own[2])
            weights.append(own[0])
            heavy.append(heavy_weight(self.summary.weights[side].powers))
            predicted.append(float(parts.mean[2]))
        if estimator.biased:
            return EstimateWithInterval(value=value)
        extremes = extreme_rows(
            heavy,
            rewards=bounds,
            # Without a model the baseline holds only imputed midpoints.
            baseline=fmean(predicted) if estimator.needs_model else 0.0,
            minus_logged=None in sides,
        )
        scored = moments.combined(np.stack([score, *weights]))
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
        if self.faults or not tried.enough or any(self.summary.weights[each].unsupported_mass for each in both):
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
        estimator = Estimator(name=self.plan.estimator)
        mine = moments.combined(self.columns.of(index, target=0, estimator=estimator))
        return estimated(estimator, moments=mine).effective_rows

    def _tried(self, *candidates: int | None) -> Tried:
        """What the log has of these candidates: of the one that it has least of; None: the logged policy."""
        rows = self.summary.rows
        found = [Tried(draws=rows, judged=rows, effective=rows, questions=rows)]
        for weights in (self.summary.weights[index] for index in candidates if index is not None):
            draws = weights.draws
            found.append(Tried(draws=draws, judged=draws, effective=weights.surely_effective_rows, questions=rows))
        return min(found, key=lambda one: one.effective)

    def _missing(self, index: int) -> str | None:
        """Which side of a comparison has too few rows, and what gives more; None if both have enough."""
        sides = [side for side in (index, self.baseline) if side is not None]
        name = self.candidates[min(sides, key=lambda side: self._tried(side).effective)].name
        more = f". They are missing for {name}: a larger policy.floor or policy.harm draws its arms more often"
        missing = self._tried(index, self.baseline).missing
        return missing and missing + more

    def _holds(self, tried: Tried) -> bool:
        """Whether the log has enough rows for an interval. Without any row the interval is the whole range."""
        return not self.faults and (tried.enough or not tried.draws)

    def _needed(self, gap: EstimateWithInterval | None) -> int | None:
        """Rows needed for a verdict, or None if that cannot be forecast."""
        if gap is None or gap.interval is None:
            return None
        return rows_needed(gap.interval, rows=self.summary.rows, value=gap.value)

    def _arms(self) -> tuple[Arm, ...]:
        """The log's own table."""
        tally, never = self.summary.arms, self.summary.arms.drawn == 0
        plausible = tally.plausible(alpha=self._alpha)
        means = np.where(never[:, None], np.nan, tally.sums / np.where(never, 1.0, tally.drawn)[:, None])
        return tuple(
            Arm(
                name=arm,
                drawn=float(tally.drawn[index]) / tally.rows,
                expected=float(tally.expected[index]) / tally.rows,
                plausible=bool(plausible[index]),
                **{
                    name: None if np.isnan(mean) else float(mean)
                    for name, mean in zip(("reward", "quality", "cost"), means[index], strict=True)
                },
            )
            for index, arm in enumerate(self.summary.names)
        )

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """Faults of the log: arms were not drawn or rated as logged, and no interval holds."""
        faults, tally = [], self.summary.arms
        for arm, plausible, drawn, expected in zip(
            self.summary.names, tally.plausible(alpha=self._alpha), tally.drawn, tally.expected, strict=True
        ):
            if not plausible:
                less = "less" if drawn < expected else "more"
                faults.append(
                    f"{arm} has {drawn:.0f} rows where the logged probabilities give {expected:.1f}: it was not drawn "
                    f"as logged, or its answers were judged {less} often than others"
                )
        if not tally.likely(alpha=self._alpha):
            more = "more" if tally.surplus > 0.0 else "less"
            faults.append(f"the arms that were drawn are {more} likely by the logged probabilities than chance allows")
        for spec, weights in zip(self.candidates, self.summary.weights, strict=True):
            if not weights.plausible(alpha=self._alpha):
                low, high = weights.mean_interval(alpha=self._alpha)
                faults.append(
                    f"the weights of {spec.name} average {weights.total / weights.rows:.3f} ({low:.3f} to {high:.3f}), "
                    f"where true probabilities give {1.0 - weights.unsupported_mass:.3f}"
                )
        return tuple(faults)


def mean_of(values: Vector, *, possible: Interval, confidence: float) -> EstimateWithInterval:
    """Mean of values, shape (n,), with an interval if there are enough. possible: range of a value."""
    rows, measured = len(values), _mean(Moments.of(values), possible=possible, confidence=confidence)
    return measured if Tried(draws=rows, judged=rows, effective=rows, questions=rows).enough else _open(measured)


def _mean(moments: Moments, *, possible: Interval, confidence: float) -> EstimateWithInterval:
    """The mean of one column, of which every row has weight 1, with its interval."""
    value = float(moments.mean[0])
    scored = Moments(
        rows=moments.rows, mean=np.array([value, 1.0]), scatter=np.diag([float(moments.scatter[0, 0]), 0.0])
    )
    extremes = extreme_rows([1.0], rewards=possible)
    low, high = cressie_read(scored, confidence=confidence, extremes=extremes, value=value)
    return EstimateWithInterval(value=value, low=low, high=high)


def _open(measured: EstimateWithInterval) -> EstimateWithInterval:
    """Without its interval, which is not known."""
    return replace(measured, low=None, high=None)


def _standing(gap: EstimateWithInterval | None, *, unsupported_mass: float) -> CandidateVerdict:
    if gap is None:
        return "baseline"
    standing = "cannot tell" if gap.interval is None else verdict(gap.interval)
    return "cannot be judged" if unsupported_mass and standing == "cannot tell" else standing


def _weights(tally: WeightTally, *, alpha: float) -> ImportanceWeights:
    low, high = tally.mean_interval(alpha=alpha)
    return ImportanceWeights(
        effective_rows=tally.effective_rows,
        largest=tally.largest,
        possible=tally.possible,
        mean=EstimateWithInterval(value=tally.total / tally.rows, low=low, high=high),
    )


def others_largest(counts: Mapping[str, int], *, most: int = MOST_VERSIONS) -> dict[str, int]:
    """The largest counts by name, and the sum of the others."""
    names = ranked(counts)
    largest = {name: counts[name] for name in names[:most]}
    if names[most:]:
        largest[f"by {len(names) - most} others"] = sum(counts[name] for name in names[most:])
    return largest


def notes_on(summary: LogSummary) -> list[str]:
    """Notes on the log: rows left out, repeated questions and how they are recognised, and rewards by judges."""
    notes, plan, rows, marked = [], summary.model.plan, summary.rows, summary.marked
    if summary.left_out.undrawn:
        reason = "their arm was not drawn (an earlier turn's, or pinned), or their label was chosen by the label queue"
        notes.append(f"{summary.left_out.undrawn:,} decisions are left out: {reason}")
    if summary.left_out.early:
        notes.append(f"{summary.left_out.early:,} rows before the first exploration are left out: one arm was certain")
    texts, different = int(summary.known_by[BY_TEXT]), summary.different_texts
    if texts and different <= FRESH * texts:
        reason = "the intervals speak of more traffic with these questions, not of new ones"
        notes.append(f"{different} different questions in {texts} rows: {reason}")
    if marked["judged"]:
        notes.append(
            f"{marked['judged']:,} of {rows:,} rewards are a judge's, taken as they were learned: the intervals "
            "do not count what the judge gets wrong"
        )
    if summary.known_by[BY_FEATURES]:
        reason = "those with the same features count as the same question in the folds"
        notes.append(f"{summary.known_by[BY_FEATURES]:,} rows have no text: {reason}")
    if summary.known_by[BY_ID]:
        reason = "a question that occurs several times is not recognised, and may lie in several folds"
        notes.append(f"{summary.known_by[BY_ID]:,} rows have neither text nor features: {reason}")
    if not summary.model.has_features and plan.reward_model != "mean":
        notes.append("the rows have no features: the reward model knows the arms' means only")
    if plan.weight is not None and marked["raw"]:
        notes.append(f"{marked['raw']} rewards came whole: they keep their value whatever the weight of cost")
    if marked["defaulted"]:
        notes.append(f"{marked['defaulted']} of {rows} rewards are the default: nobody judged those answers")
    return notes
