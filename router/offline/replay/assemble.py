"""Builds the results of a replay from its sums."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from ragbandit.router.offline.estimation import (
    Interval,
    Moments,
    corrected,
    cressie_read,
    extreme_rows,
    heavy_weight,
    rows_needed,
    verdict,
)
from ragbandit.router.offline.estimation.bandit_log import ALPHA, SUM_TOLERANCE
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
from ragbandit.shared.types import ArmName, Vector, effective_rows

#: largest number of versions, and of unusable rows, that the result names
MOST_VERSIONS, MOST_NAMED = 4, 20


@dataclass(frozen=True, kw_only=True)
class ResultAssembler:
    plan: Plan
    candidates: Sequence[CandidateSpec]
    columns: Scores
    summary: LogSummary
    sums: ScoreSums
    baseline: int | None  #: index of the candidate that is the baseline; None for the logged policy

    def result(
        self, candidate_pmfs: Sequence[CandidatePmf], *, logged: LoggedPolicies, skipped: Sequence[BadRow], **about: Any
    ) -> ReplayResult:
        summary = self.summary
        versions: Mapping[str, int] = summary.fields.get("version", {})
        policies = deciders(logged, versions)
        reward, quality, cost = (self._shown(self.baseline, target=target) for target in range(3))
        has_times = summary.least[3] <= summary.most[3]
        default = summary.marked["defaulted"]
        sources = {"explicit": summary.rows - default, "default": default, "late": summary.marked["late"]}
        return ReplayResult(
            **about,
            rows=summary.rows,
            begin=float(summary.least[3]) if has_times else None,
            end=float(summary.most[3]) if has_times else None,
            plan=self.plan,
            baseline="the logged policy" if self.baseline is None else self.candidates[self.baseline].name,
            baseline_reward=reward,
            baseline_quality=quality,
            baseline_cost=cost,
            comparisons=self._comparisons,
            arms=self._arms(),
            sources={name: count for name, count in sources.items() if count},
            versions=others_largest({name: rows for name, rows in versions.items() if name}),
            logged=policies,
            candidates=tuple(
                self._judged(index, described=pmf, logged=policies) for index, pmf in enumerate(candidate_pmfs)
            ),
            pairs=self._pairs(),
            faults=self.faults,
            skipped_rows=len(skipped),
            skipped=tuple(
                Skipped(where=f"line {row.line}", reason=f"{row.field} {row.reason}") for row in skipped[:MOST_NAMED]
            ),
        )

    @property
    def _alpha(self) -> float:
        """Significance level of one check of the log: ALPHA divided by the number of checks."""
        return ALPHA / (1 + len(self.summary.names) + len(self.summary.weights))

    @property
    def _comparisons(self) -> int:
        return max(1, len(self.summary.weights) - (self.baseline is not None))

    def _candidate(self, index: int, *, described: CandidatePmf) -> CandidateResult:
        weights, names, spec = self.summary.weights[index], self.summary.names, self.candidates[index]
        reward, quality, cost = (self._shown(index, target=target) for target in range(3))
        gaps: list[EstimateWithInterval] | list[None] = [None] * 3
        if index != self.baseline:
            confidence = corrected(self.plan.confidence, comparisons=self._comparisons)
            gaps = [self._shown(index, self.baseline, target=target, confidence=confidence) for target in range(3)]
        gap = gaps[0]
        verdict = _verdict(gap, unsupported_mass=weights.unsupported_mass)
        low, high = weights.mean_interval(alpha=self._alpha)
        needed = None
        if gap is not None and gap.interval is not None and verdict == "cannot tell":
            needed = rows_needed(gap.interval, rows=self.summary.rows, value=gap.value)
        return CandidateResult(
            name=spec.name,
            described=described.described,
            reward=reward,
            quality=quality,
            cost=cost,
            difference=gap,
            quality_difference=gaps[1],
            cost_difference=gaps[2],
            verdict=verdict,
            missing=self._missing(index),
            rows_needed=needed,
            weights=ImportanceWeights(
                effective_rows=weights.effective_rows,
                largest=weights.largest,
                possible=weights.possible,
                mean=EstimateWithInterval(value=weights.total / weights.rows, low=low, high=high),
            ),
            unsupported={
                arm: float(mass) / weights.rows
                for arm, mass in zip(names, weights.unsupported, strict=True)
                if mass > 0.0
            },
            bounds=reward.interval if weights.unsupported_mass else None,
            shares={arm: float(share) / weights.rows for arm, share in zip(names, weights.shares, strict=True)},
            segments={
                name: tuple(self._segment(value, moments, index=index) for value, moments in groups.items())
                for name, groups in self.sums.segments.items()
            },
            notes=(*self._not_offered(spec), *described.notes),
            learned=described.learned,
        )

    def _judged(self, index: int, *, described: CandidatePmf, logged: Sequence[LoggedPolicy]) -> CandidateResult:
        """The candidate's result. A policy that is compared with itself gets neither the verdict better nor worse.

        logged: the policies that served the log. The candidate is the same policy if all of them have its name; if it
        learns along the log, they must also have its params, and the plan must not change the cost weight.
        """
        candidate = self._candidate(index, described=described)
        if index != self.baseline and self.summary.apart[index] <= SUM_TOLERANCE:
            zero = EstimateWithInterval(value=0.0, low=0.0, high=0.0)
            return replace(
                candidate, difference=zero, same_policy=True, verdict="same policy", missing=None, rows_needed=None
            )
        policy, plan = described.policy, self.plan
        if policy is None or plan.baseline != LOGGED or not logged:
            return candidate
        if plan.learn:
            same = set(logged) == {policy} and plan.weight is None
        else:
            same = {served.name for served in logged} == {policy.name}
        if not same:
            return candidate
        verdict = "same policy" if candidate.verdict in ("better", "worse") else candidate.verdict
        return replace(candidate, same_policy=True, verdict=verdict, rows_needed=None)

    def _not_offered(self, spec: CandidateSpec) -> list[str]:
        summary = self.summary
        if spec.kind != "fixed" or spec.what not in summary.names:
            return []
        missing = summary.rows - int(summary.offered[summary.names.index(ArmName(spec.what))])
        if not missing:
            return []
        return [f"{spec.what} was not offered in {missing} rows: there all offered arms alike"]

    def _pairs(self) -> tuple[Pair, ...]:
        indices = [index for index, spec in enumerate(self.candidates) if not spec.current]
        pairs = list(itertools.combinations(indices, 2))
        confidence = corrected(self.plan.confidence, comparisons=max(1, len(pairs)))
        return tuple(
            Pair(
                first=self.candidates[first].name,
                second=self.candidates[second].name,
                difference=self._shown(first, second, confidence=confidence),
            )
            for first, second in pairs
        )

    def _shown(self, *sides: int | None, target: int = 0, confidence: float | None = None) -> EstimateWithInterval:
        """`_measured` on the whole log, without an interval if the log has too few rows.

        With unsupported decisions, the interval of the reward grows on both sides by half of the reward's range x share
        of these decisions; quality and cost then get no interval.
        """
        measured = self._measured(self.sums.whole, *sides, target=target, confidence=confidence)
        mass = sum(self.summary.weights[side].unsupported_mass for side in sides if side is not None)
        tried = self._tried(*sides)
        enough_rows = tried.enough or not tried.draws  # if no row has a weight, the interval is the whole range
        if self.faults or not enough_rows or (mass and target):
            return _without_interval(measured)
        if not mass or measured.interval is None:
            return measured
        low, high = measured.interval
        least, most = self.summary.bounds(0)
        span = mass * (most - least) / 2.0
        if len(sides) == 2:
            least, most = least - most, most - least
        return replace(measured, low=max(least, low - span), high=min(most, high + span))

    def _measured(
        self,
        moments: Moments,
        *sides: int | None,
        target: int = 0,
        confidence: float | None = None,
    ) -> EstimateWithInterval:
        """Estimate one side, or the first of two sides minus the second, from the moments of all scores.

        sides: indices of candidates; the last may be None for the logged policy.
        target: 0 for reward, 1 for quality, 2 for cost.
        """
        confidence = self.plan.confidence if confidence is None else confidence
        bounds = self.summary.bounds(target)
        if sides == (None,):
            return _mean(moments.combined(self.columns.logged(target)[None]), possible=bounds, confidence=confidence)
        value, score = 0.0, np.zeros(len(moments.mean))
        weights = list[Vector]()
        heavy, predicted = list[float](), list[float]()
        for sign, side in zip((1.0, -1.0), sides, strict=False):
            if side is None:
                logged = self.columns.logged(target)
                value += sign * float(moments.mean @ logged)
                score += sign * logged
                continue
            weight, correction, baseline = self.columns.of(side, target=target)
            value += sign * float(moments.mean @ (correction + baseline))
            score += sign * (correction + baseline)
            weights.append(weight)
            heavy.append(heavy_weight(self.summary.weights[side].powers))
            predicted.append(float(moments.mean @ baseline))
        extremes = extreme_rows(
            heavy,
            rewards=bounds,
            baseline=fmean(predicted),
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
        sides = [index] if self.baseline is None else [index, self.baseline]
        effective = [self._effective_rows(moments, index=side) for side in sides]
        rows = moments.rows
        tried = Tried(draws=rows, judged=rows, effective=min(*effective, rows), questions=rows)
        # The unsupported mass is not known per segment.
        if self.faults or not tried.enough or any(self.summary.weights[side].unsupported_mass for side in sides):
            value, gap = _without_interval(value), _without_interval(gap)
        return SegmentResult(
            name=name,
            rows=rows,
            effective_rows=effective[0],
            baseline=value.value - gap.value,
            value=value,
            difference=gap,
        )

    def _effective_rows(self, moments: Moments, *, index: int) -> float:
        weight = moments.combined(self.columns.of(index, target=0)[:1])
        total = moments.rows * float(weight.mean[0])
        return effective_rows(total, squares=float(weight.scatter[0, 0]) + total * float(weight.mean[0]))

    def _tried(self, *sides: int | None) -> Tried:
        """Row counts of the side with the fewest effective rows. None stands for the logged policy."""
        rows = self.summary.rows
        tried = [Tried(draws=rows, judged=rows, effective=rows, questions=rows)]
        for weights in (self.summary.weights[side] for side in sides if side is not None):
            draws = weights.draws
            tried.append(Tried(draws=draws, judged=draws, effective=weights.surely_effective_rows, questions=rows))
        return min(tried, key=lambda rows_of_side: rows_of_side.effective)

    def _missing(self, index: int) -> str | None:
        """Why the log gives no interval for the difference: it has faults, or too few rows; None if neither is true."""
        if self.faults:
            return "the log contradicts its own probabilities, so that no interval holds"
        missing = self._tried(index, self.baseline).missing
        if not missing:
            return None
        sides = [side for side in (index, self.baseline) if side is not None]
        name = self.candidates[min(sides, key=lambda side: self._tried(side).effective)].name
        remedy = f"They are missing for {name}: a larger policy.floor or policy.harm draws its arms more often"
        return f"{missing}. {remedy}"

    def _arms(self) -> tuple[Arm, ...]:
        tally = self.summary.arms
        plausible = tally.plausible(alpha=self._alpha)
        never = tally.drawn == 0
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
        """Contradictions between the log and its probabilities. A log with faults has no valid interval."""
        faults, tally = [], self.summary.arms
        if self.summary.marked["partial"]:  # the other probabilities are made up
            return ()
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
    """Mean of values, shape (n,), with an interval if there are enough values. possible: range of a value."""
    rows, mean = len(values), _mean(Moments.of(values), possible=possible, confidence=confidence)
    enough = Tried(draws=rows, judged=rows, effective=rows, questions=rows).enough
    return mean if enough else _without_interval(mean)


def _mean(moments: Moments, *, possible: Interval, confidence: float) -> EstimateWithInterval:
    value = float(moments.mean[0])
    scored = Moments(
        rows=moments.rows, mean=np.array([value, 1.0]), scatter=np.diag([float(moments.scatter[0, 0]), 0.0])
    )
    extremes = extreme_rows([1.0], rewards=possible)
    low, high = cressie_read(scored, confidence=confidence, extremes=extremes, value=value)
    return EstimateWithInterval(value=value, low=low, high=high)


def _without_interval(measured: EstimateWithInterval) -> EstimateWithInterval:
    return replace(measured, low=None, high=None)


def _verdict(gap: EstimateWithInterval | None, *, unsupported_mass: float) -> CandidateVerdict:
    if gap is None:
        return "baseline"
    by_interval = "cannot tell" if gap.interval is None else verdict(gap.interval)
    return "cannot be judged" if unsupported_mass and by_interval == "cannot tell" else by_interval


def others_largest(counts: Mapping[str, int]) -> dict[str, int]:
    names = ranked(counts)
    others = names[MOST_VERSIONS:]
    largest = {name: counts[name] for name in names[:MOST_VERSIONS]}
    if others:
        largest[f"by {len(others)} others"] = sum(counts[name] for name in others)
    return largest
