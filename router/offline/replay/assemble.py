"""Builds the results of a replay from its sums."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, Final

import numpy as np

from ragbandit.router.comparison import NOT_KNOWN, Comparison, Difference, compare
from ragbandit.router.comparison.intervals import (
    PARTS,
    Moments,
    corrected_confidence,
    cressie_read,
    extreme_rows,
    heavy_weight,
)
from ragbandit.router.offline.estimation.bandit_log import ALPHA, SUM_TOLERANCE
from ragbandit.router.offline.logs import BadRow
from ragbandit.router.offline.replay.plan import (
    Arm,
    CandidateResult,
    CandidateSpec,
    Description,
    ImportanceWeights,
    Plan,
    ReplayResult,
    side_name,
)
from ragbandit.router.offline.replay.sums import LogMoments, LogSummary
from ragbandit.shared.confidence_sequences import FEWEST_EFFECTIVE, SampleSize
from ragbandit.shared.texts.formats import one_line, percent
from ragbandit.shared.types import ArmName, Vector

#: largest number of unusable rows that the result names
MOST_NAMED = 20
#: name of the baseline if candidates are compared with what was served
LOGGED_POLICY: Final = "the logged policy"


@dataclass(frozen=True, kw_only=True)
class ResultAssembler:
    plan: Plan
    candidates: Sequence[CandidateSpec]
    evidence: LogMoments
    baseline: int | None  #: index of the candidate that is the baseline; None for the logged policy
    assumption: str | None = None  #: sentence on the assumption of a verdict, see `Comparison`; None if there is none

    def result(self, descriptions: Sequence[Description], *, skipped: Sequence[BadRow], **about: Any) -> ReplayResult:
        against = LOGGED_POLICY
        if self.baseline is not None:
            against = side_name(self.candidates[self.baseline].name, learned=descriptions[self.baseline].learned)
        reward, quality, cost = (self._estimate(self.evidence, self.baseline, target=target) for target in range(3))
        begin, end = self._times or (None, None)
        return ReplayResult(
            **about,
            rows=self.summary.rows,
            questions=self.evidence.whole.rows,
            begin=begin,
            end=end,
            plan=self.plan,
            baseline=LOGGED_POLICY if self.baseline is None else self.candidates[self.baseline].name,
            against=against,
            baseline_reward=reward,
            baseline_quality=quality,
            baseline_cost=cost,
            comparisons=self._comparisons,
            arms=self._arms(),
            candidates=tuple(
                self._candidate(index, about=about_it, against=against) for index, about_it in enumerate(descriptions)
            ),
            faults=self.faults,
            skipped_rows=len(skipped),
            skipped=tuple(skipped[:MOST_NAMED]),
        )

    @property
    def summary(self) -> LogSummary:
        return self.evidence.summary

    @property
    def _times(self) -> tuple[float, float] | None:
        first, last = float(self.summary.least[3]), float(self.summary.most[3])
        return (first, last) if first <= last else None

    @property
    def _alpha(self) -> float:
        """Significance level of one check of the log: ALPHA divided by the number of checks."""
        return ALPHA / (1 + len(self.summary.names) + len(self.summary.weights))

    @property
    def _comparisons(self) -> int:
        return max(1, len(self.summary.weights) - (self.baseline is not None))

    def _candidate(self, index: int, *, about: Description, against: str) -> CandidateResult:
        weights, names, spec = self.summary.weights[index], self.summary.names, self.candidates[index]
        reward, quality, cost = (self._estimate(self.evidence, index, target=target) for target in range(3))
        mass = weights.unsupported_mass
        low, high = weights.mean_interval(alpha=self._alpha)
        same = index != self.baseline and bool(self.summary.distances[index] <= SUM_TOLERANCE)
        comparison = None
        if index != self.baseline:
            first = side_name(spec.name, learned=about.learned)
            comparison = self._compare(
                self.evidence, index, self.baseline, names=(first, against), comparisons=self._comparisons
            )
            if same:
                means = {"first": reward.estimate, "second": reward.estimate}
                zero = Difference(estimate=0.0, low=0.0, high=0.0, effective_rows=float(self.summary.rows), **means)
                comparison = replace(
                    comparison,
                    reward=zero,
                    quality=zero,
                    cost=zero,
                    verdict="as good",
                    quality_verdict="as good",
                    missing=None,
                    progress=1.0,
                )
        return CandidateResult(
            name=spec.name,
            described=about.described,
            reward=reward,
            quality=quality,
            cost=cost,
            comparison=comparison,
            weights=ImportanceWeights(
                effective_rows=weights.effective_rows,
                largest=weights.largest,
                possible=weights.possible,
                mean=Difference(estimate=weights.total / weights.rows, low=low, high=high),
            ),
            unsupported={
                arm: float(mass) / weights.rows
                for arm, mass in zip(names, weights.unsupported, strict=True)
                if mass > 0.0
            },
            bounds=None if reward.low is None or reward.high is None or not mass else (reward.low, reward.high),
            shares={arm: float(share) / weights.rows for arm, share in zip(names, weights.shares, strict=True)},
            segments={} if comparison is None else self._segments(index, names=(comparison.first, against)),
            notes=(*self._not_offered(spec), *about.notes),
            learned=about.learned,
            same_policy=same,
        )

    def _not_offered(self, spec: CandidateSpec) -> list[str]:
        summary = self.summary
        if spec.kind != "fixed" or spec.what not in summary.names:
            return []
        missing = summary.rows - int(summary.offered[summary.names.index(ArmName(spec.what))])
        if not missing:
            return []
        return [f"{spec.what} was not offered in {missing} rows: there all offered arms alike"]

    def _segments(self, index: int, *, names: Sequence[str]) -> dict[str, dict[str, Comparison]]:
        segments: dict[str, dict[str, Comparison]] = {}
        for (name, value), part in self.evidence.segments.items():
            comparison = self._compare(part, index, self.baseline, names=names, comparisons=1)
            segments.setdefault(name, {})[value] = comparison
        return segments

    def _compare(self, evidence: LogMoments, *sides: int | None, names: Sequence[str], comparisons: int) -> Comparison:
        """The first of two sides compared with the second. None stands for the logged policy."""
        confidence = corrected_confidence(self.plan.confidence, comparisons=comparisons)
        tried, parts = self._counts(evidence, *sides), dict[str, Any]()
        for target, part in enumerate(PARTS):
            gap = self._estimate(evidence, *sides, target=target, confidence=confidence)
            first, second = (self._estimate(evidence, one, target=target).estimate for one in sides)
            parts[part] = replace(gap, effective_rows=tried.effective, first=first, second=second)
        times = self._times if evidence.design == "logged draws" else None
        return compare(
            *names,
            design=evidence.design,
            questions=evidence.whole.rows,
            rated=evidence.whole.rows,
            confidence=self.plan.confidence,
            seconds=None if times is None else times[1] - times[0],
            needed=FEWEST_EFFECTIVE,
            blocked=self._obstacle(evidence, *sides, reward=parts["reward"]),
            assumption=self.assumption,
            **parts,
        )

    def _obstacle(self, evidence: LogMoments, *sides: int | None, reward: Difference) -> str | None:
        """What must change before there can be a verdict; None if more rows of this kind suffice."""
        if self.faults:
            return "a log that does not contradict its own probabilities"
        missing = self._counts(evidence, *sides).missing
        if missing:
            known = [index for index in sides if index is not None]
            worst = min(known, key=lambda index: self._counts(evidence, index).effective)
            remedy = "a larger policy.floor or policy.harm draws its arms more often"
            return f"{missing}. They are missing for {self.candidates[worst].name}: {remedy}"
        for index in sides:
            mass = 0.0 if index is None else evidence.summary.weights[index].unsupported_mass
            if index is not None and mass and reward.verdict() == NOT_KNOWN:
                weights = evidence.summary.weights[index]
                arms = [arm for arm, one in zip(evidence.summary.names, weights.unsupported, strict=True) if one > 0.0]
                share, name = percent(round(mass, 3)), one_line(self.candidates[index].name)
                listed = ", ".join(map(one_line, arms))
                return f"rows in which {listed} could be drawn: {share} of the decisions of {name} are for these arms"
        return None

    def _estimate(
        self, evidence: LogMoments, *sides: int | None, target: int = 0, confidence: float | None = None
    ) -> Difference:
        """`_estimate_moments` on all questions, without an interval if there are too few rows, or the log has faults.

        With unsupported decisions, the interval of the reward grows on both sides by half of the reward's range x share
        of these decisions; quality, cost and segments then get no interval.
        """
        measured = self._estimate_moments(evidence, evidence.whole, *sides, target=target, confidence=confidence)
        mass = sum(evidence.summary.weights[index].unsupported_mass for index in sides if index is not None)
        tried = self._counts(evidence, *sides)
        enough_rows = tried.enough or not tried.draws  # if no row has a weight, the interval is the whole range
        if self.faults or not enough_rows or (mass and (target or evidence.is_segment)):
            return replace(measured, low=None, high=None)
        if not mass or measured.low is None or measured.high is None:
            return measured
        least, most = evidence.summary.bounds(0)
        span = mass * (most - least) / 2.0
        if len(sides) == 2:
            least, most = least - most, most - least
        return replace(measured, low=max(least, measured.low - span), high=min(most, measured.high + span))

    def _estimate_moments(
        self,
        evidence: LogMoments,
        moments: Moments,
        *sides: int | None,
        target: int = 0,
        confidence: float | None = None,
    ) -> Difference:
        """Estimate one side, or the first of two sides minus the second, from the moments of all scores.

        The estimate is the mean over the rows; its interval counts the questions. Let S be the sum of a question's
        scores, n its number of rows, and m the mean of n. The interval is that of the mean over the questions of
        (S - estimate x n) / m + estimate, the linearised ratio of two means.

        sides: indices of candidates; None for the logged policy.
        target: 0 for reward, 1 for quality, 2 for cost.
        """
        confidence = self.plan.confidence if confidence is None else confidence
        bounds, columns = evidence.summary.bounds(target), evidence.measure.columns
        ones = np.eye(columns.width)[-1]
        each = float(moments.mean @ ones)  # rows per question
        score, weights = np.zeros(columns.width), list[Vector]()
        heavy, predicted = list[float](), list[float]()
        for sign, index in zip((1.0, -1.0), sides, strict=False):
            if index is None:
                score = score + sign * columns.logged_coefficients(target)
                continue
            weight, correction, baseline = columns.coefficients_of(index, target=target)
            score = score + sign * (correction + baseline)
            weights.append(weight)
            # A heavy weight of one row is spread over the rows of its question.
            heavy.append(1.0 + (heavy_weight(evidence.summary.weights[index].powers) - 1.0) / each)
            predicted.append(float(moments.mean @ baseline) / each)
        value = float(moments.mean @ score) / each
        if evidence.design == "paired outcomes" or not weights:  # the value of every question is known: no weights
            low, high = bounds if len(sides) == 1 else (bounds[0] - bounds[1], bounds[1] - bounds[0])
            weights, extremes = [ones], extreme_rows([1.0], rewards=(low, high))
        else:
            extremes = extreme_rows(heavy, rewards=bounds, baseline=fmean(predicted), minus_logged=None in sides)
        rows = np.stack([(score - value * ones) / each, *((weight - ones) / each for weight in weights)])
        scored = moments.combined(rows)
        scored = replace(scored, mean=scored.mean + np.array([value, *[1.0] * len(weights)]))
        low, high = cressie_read(scored, confidence=confidence, extremes=extremes, value=value)
        return Difference(estimate=value, low=low, high=high)

    def _counts(self, evidence: LogMoments, *sides: int | None) -> SampleSize:
        """Numbers of rows of the side with the fewest effective rows. None stands for the logged policy."""
        rows, questions = evidence.rows, evidence.whole.rows
        tried = [SampleSize(draws=rows, judged=rows, effective=questions, questions=questions)]
        for index in sides if evidence.design == "logged draws" else ():
            if index is not None:
                draws = rows if evidence.is_segment else evidence.summary.weights[index].draws
                effective = evidence.effective_rows(index)
                tried.append(SampleSize(draws=draws, judged=draws, effective=effective, questions=questions))
        return min(tried, key=lambda rows_of_side: rows_of_side.effective)

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
                    for name, mean in zip(PARTS, means[index], strict=True)
                },
            )
            for index, arm in enumerate(self.summary.names)
        )

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """Contradictions between the log and its probabilities. A log with faults has no valid interval."""
        faults, tally = [], self.summary.arms
        if self.summary.marked["partial"]:  # for some rows, only the drawn arm's probability was logged
            return ()
        for arm, plausible, drawn, expected in zip(
            self.summary.names, tally.plausible(alpha=self._alpha), tally.drawn, tally.expected, strict=True
        ):
            if not plausible:
                less = "less" if drawn < expected else "more"
                faults.append(
                    f"{arm} has {drawn:.0f} rows where the logged probabilities give {expected:.1f}: it was not drawn "
                    f"as logged, or its answers were rated {less} often than others"
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
