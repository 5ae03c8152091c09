"""Makes the report of a period: cost and quality of the served answers, compared with always using one arm.

Verdicts come from two 95 % intervals, of the differences in quality and in cost. Both hold however often the report is
made. Quality is "as good" if the interval's lower bound is above -MARGIN (non-inferiority). The verdict is "same cost"
if the interval of the cost lies within SAME_COST of the arm's cost.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ragbandit.router.config.settings import PolicySettings
from ragbandit.router.learning.monitoring.arm_changes import lately
from ragbandit.router.reporting import words
from ragbandit.router.reporting.estimates import Choices, Comparison, compared
from ragbandit.router.reporting.reading import (
    UNITS,
    Asked,
    Flags,
    Line,
    Report,
    ReportRows,
    ReportScope,
    Unit,
    read_asked,
    read_log,
)
from ragbandit.router.storage.rows.outcome_rows import day_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.confidence_sequences import NOT_TRIED, pace
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.shared.formats import NOTHING, decimal, duration, money, number, percent, roughly
from ragbandit.shared.types import Vector

#: largest mean loss of quality with the verdict "as good": 5 fewer right answers in 100 questions, a usual margin
MARGIN: Final = 0.05
#: largest difference of costs with the verdict "same cost", as a share of the arm's cost
SAME_COST: Final = 0.02
#: prefix of the note that always using one arm earns as much as routing
FIX: Final = "fix: "
#: smallest gain per question that justifies a router, in right answers
WORTH: Final = 0.01
#: smallest number of questions for the note `FIX`: with fewer questions a policy has learned too little
FEWEST_TO_FIX: Final = 300
#: maximum number of lines of a table; if there are more groups, the smallest are left out
MOST_LINES: Final = 20
_WEEK_S: Final = 7 * 86_400.0
#: a Monday, 1970-01-05 00:00 UTC, in seconds since 1970
_MONDAY_S: Final = 4 * 86_400.0
#: largest forecast that is printed, as a multiple of the questions so far
_FARTHEST: Final = 1000.0


def report(
    database: Database,
    scope: ReportScope,
    *,
    policy: PolicySettings,
    against: str | None = None,
    now: float | None = None,
) -> Report:
    """Make the report of a period. If draws, outcomes or ratings seem to favour an arm, lines have no verdict.

    against: arm to compare with. If None: the arm of the holdback; without a holdback, the incumbent; without both,
        the most expensive arm with enough draws
    now: time of the report, seconds since 1970; None for the end of the period

    Raises InvalidInput for an impossible period, NotFound for an arm that was never offered, StoreError.
    """
    if not (math.isfinite(scope.since) and math.isfinite(scope.until) and 0.0 <= scope.since < scope.until < 1e11):
        message = f"{scope.since:g} to {scope.until:g} is not a period"
        raise InvalidInput(message, field="since", remedy="give seconds since 1970, the earlier time first")
    uneven = lately(database, policy=scope.label, now=scope.until)
    alarm = None if uneven is None else uneven.sentence
    log = read_log(database, scope)
    totals = None if log.whole is None else read_asked(database, scope)
    return report_of(log, scope, policy=policy, against=against, alarm=alarm, now=now, asked=totals)


def report_of(
    log: ReportRows,
    scope: ReportScope,
    *,
    policy: PolicySettings,
    against: str | None = None,
    alarm: str | None = None,
    now: float | None = None,
    asked: Asked | None = None,
) -> Report:
    """Make the report from rows. alarm: why the rows favour an arm; asked: exact totals of a sampled period."""
    unit, price = _unit(log), words.price_of(scope.reward)
    days = (scope.until - log.made_at.min(initial=scope.until)) / 86_400.0
    lines = _Lines(log, unit=unit, days=days, alarm=alarm, price=price)
    everything = np.ones(len(log.arm), dtype=np.bool_)
    arms = [lines.line(f"always {arm}", everything, against=place) for place, arm in enumerate(log.arms)]
    chosen, why = _arm_to_compare(log, arms, policy=policy, against=against)
    total = None if chosen is None else arms[chosen]
    left_out = {reason: round(count * log.scale) for reason, count in log.left_out.items()}
    groups: dict[str, Any] = {"tenants": (), "prices": (), "weeks": ()}
    costs: dict[Unit, Comparison] = {}
    if chosen is not None:
        impossible = int((log.pmf[:, chosen] == 0.0).sum())
        if impossible:
            left_out[f"{log.arms[chosen]} was not offered, or could not be drawn"] = round(impossible * log.scale)
        week = ((log.made_at - _MONDAY_S) // _WEEK_S).astype(np.intp)
        names = {number: day_of(number * _WEEK_S + _MONDAY_S) for number in np.unique(week).tolist()}
        groups = {
            "tenants": lines.table(log.tenant, names=dict(enumerate(log.tenants)), against=chosen),
            "prices": lines.table(log.price, names=dict(enumerate(log.prices)), against=chosen),
            "weeks": lines.table(week, names=names, against=chosen),
        }
        comparable = log.part(log.pmf[:, chosen] > 0.0)
        units = [name for name in UNITS if np.nansum(log.costs[name]) > 0.0]
        costs = {name: _compared_costs(comparable, name, against=chosen) for name in units}
    notes = [] if alarm is not None else list(_fix_note(arms))
    notes += _notes(log, asked, policy=policy, unit=unit, compares=total is not None)
    result = Report(
        since=scope.since,
        until=scope.until,
        tenant=scope.tenant,
        unit=unit,
        why=why,
        price=None if price is None else price.words,
        sample=log.sample,
        asked=asked,
        total=total,
        costs=costs,
        arms=tuple(sorted(arms, key=lambda line: (-line.cost.draws, line.name))),
        **groups,
        left_out=left_out,
        notes=(),
    )
    text = words.sentence(result, now=scope.until if now is None else now)
    return replace(result, sentence=text, notes=(*_footnotes(result), *notes))


def _unit(log: ReportRows) -> Unit:
    if np.nansum(log.costs["dollars"]) > 0.0:
        return "dollars"
    steps = log.costs["steps"][~np.isnan(log.costs["steps"])]
    return "seconds" if len(steps) and np.ptp(steps) == 0.0 and np.nansum(log.costs["seconds"]) > 0.0 else "steps"


def _arm_to_compare(
    log: ReportRows, arms: Sequence[Line], *, policy: PolicySettings, against: str | None
) -> tuple[int | None, str | None]:
    """Returns (index of the arm to compare with, reason to choose it); None and None if no arm has enough draws."""
    if against is not None:
        if against not in log.arms:
            remedy = f"use one of {', '.join(sorted(log.arms))}" if log.arms else "ask for a longer period"
            raise NotFound(f"no question of this period was offered {against!r}", field="against", remedy=remedy)
        return log.arms.index(against), "as asked"
    if policy.holdback is not None and policy.holdback.arm in log.arms:
        return log.arms.index(policy.holdback.arm), "the arm of policy.holdback"
    if policy.incumbent in log.arms:
        return log.arms.index(policy.incumbent), "policy.incumbent"
    tried = [(line.cost.always, place) for place, line in enumerate(arms) if line.cost.always is not None]
    return (max(tried)[1], "the most expensive arm that is tried enough") if tried else (None, None)


@dataclass(frozen=True, slots=True)
class _Lines:
    log: ReportRows
    unit: Unit
    days: float  #: days since the first question
    alarm: str | None
    price: words.Price | None

    def table(self, group: Choices, *, names: Mapping[int, str], against: int) -> tuple[Line, ...]:
        numbers, counts = np.unique(group[self.log.pmf[:, against] > 0.0], return_counts=True)
        if len(numbers) < 2:
            return ()
        largest = numbers[np.argsort(-counts, kind="stable")][:MOST_LINES].tolist()
        return tuple(self.line(names[number], group == number, against=against) for number in largest)

    def line(self, name: str, rows: Flags, *, against: int) -> Line:
        """The line of these rows, without rows that could not have drawn the arm `against`."""
        log = self.log.part(rows & (self.log.pmf[:, against] > 0.0))
        least, most = _range_of(log.quality)
        quality = _compared_ratings(log, log.quality, against=against, least=least, most=most)
        value = None
        if log.reward is not None:
            lowest, highest = _range_of(log.reward)
            value = _compared_ratings(log, log.reward, against=against, least=lowest, most=highest)
        return line_of(
            name,
            log.arms[against],
            questions=round(len(log.arm) * log.scale),
            quality=_clipped(quality, least - most, most - least),
            cost=_compared_costs(log, self.unit, against=against),
            unit=self.unit,
            days=self.days,
            alarm=self.alarm,
            sampled=self.log.whole is not None,
            rated=float((~np.isnan(log.quality)).mean()) if len(log.arm) else 0.0,
            value=value,
            price=self.price,
        )


def _fix_note(arms: Sequence[Line]) -> Iterator[str]:
    gains = [
        (line.value.always, line.against, line.value.high)
        for line in arms
        if line.value is not None and line.value.always is not None and line.questions >= FEWEST_TO_FIX
    ]
    if gains:
        _, best, gain = max(gains)
        if gain is not None and gain < WORTH:
            yield f"{FIX}always {best} earns as much; see `ragbandit advise`"


def _range_of(values: Vector) -> tuple[float, float]:
    return float(np.nanmin(values, initial=0.0)), float(np.nanmax(values, initial=1.0))


def _compared_ratings(
    log: ReportRows, values: Vector, *, against: int | Choices, least: float, most: float
) -> Comparison:
    scores: dict[str, Any] = {"predicted": log.expected_quality, "judge": log.judge, "counts": log.counts}
    return _compared(log, values, against=against, least=least, most=most, **scores)


def _compared(log: ReportRows, values: Vector, **options: Any) -> Comparison:
    """Call `compared` with this log. For a sample, `missing` has no forecast, since a sample does not grow."""
    comparison = compared(values, arm=log.arm, pmf=log.pmf, **options)
    if comparison.missing is None or log.whole is None:
        return comparison
    counts = f"{comparison.draws:,} draws, {comparison.seen:,} judged in the sample"
    return replace(comparison, missing=f"{NOT_TRIED}: {counts}")


def _compared_costs(log: ReportRows, unit: Unit, *, against: int) -> Comparison:
    spent = log.costs[unit]
    most = float(np.nanmax(spent[log.arm == against], initial=0.0))
    cost = _compared(log, spent, predicted=log.expected_cost, against=against, least=0.0, most=most)
    return _clipped(cost, -math.inf, cost.served or 0.0)  # the difference is largest if the arm would have cost nothing


def _clipped(comparison: Comparison, low: float, high: float) -> Comparison:
    if comparison.low is None or comparison.high is None:
        return comparison
    return replace(comparison, low=max(comparison.low, low), high=min(comparison.high, high))


def line_of(
    name: str,
    against: str,
    *,
    questions: int,
    quality: Comparison,
    cost: Comparison,
    unit: Unit,
    days: float,
    alarm: str | None = None,
    sampled: bool = False,
    rated: float = 1.0,
    value: Comparison | None = None,
    price: words.Price | None = None,
) -> Line:
    """Make the line of comparisons over the same questions.

    days: days since the first question. alarm: reason to give no verdict. sampled: whether the questions are a sample
    rated: share of the questions that are rated
    value: comparison of the rewards at the configured weight of cost. price: price of a right answer
    """
    quality_word, cost_word = (None, None) if alarm is not None else (_quality_word(quality), _cost_word(cost))
    missing = [] if alarm is None else [alarm]

    def forecast(comparison: Comparison, *, margin: float = 0.0, rated: float | None = None) -> str:
        return _missing(comparison, margin=margin, questions=questions, days=days, sampled=sampled, rated=rated)

    if quality_word is None and alarm is None:
        missing.append(f"quality: {forecast(quality, margin=MARGIN, rated=rated)}")
    if cost_word is None and alarm is None:
        missing.append(f"cost: {'none was reported' if cost.always == 0.0 else forecast(cost)}")
    earned = None
    if value is not None and price is not None and alarm is None:
        further = forecast(value, rated=rated)
        earned = words.earned_words(value, against=against, questions=questions, price=price, forecast=further)
    why = "; ".join(missing) or None
    return Line(
        name=name,
        against=against,
        questions=questions,
        cost=cost,
        quality=quality,
        value=value,
        earned=earned,
        verdict=f"{quality_word}, {cost_word}" if why is None else "cannot tell yet",
        missing=why,
        saved=words.saved(cost, questions, unit),
        words=words.verdict_in_words(quality_word, cost_word, quality=quality, cost=cost, missing=why),
    )


def _quality_word(quality: Comparison) -> words.QualityWord | None:
    if quality.low is None or quality.high is None:
        return None
    if quality.low > 0.0:
        return "better"
    if quality.low >= -MARGIN:
        return "as good"
    return "worse" if quality.high < 0.0 else None


def _cost_word(cost: Comparison) -> words.CostWord | None:
    if cost.low is None or cost.high is None or not cost.always:
        return None
    margin = SAME_COST * cost.always
    if -margin <= cost.low and cost.high <= margin:
        return "same cost"
    if cost.high < 0.0:
        return "cheaper"
    return "more expensive" if cost.low > 0.0 else None


def _missing(
    comparison: Comparison, *, margin: float, questions: int, days: float, sampled: bool, rated: float | None
) -> str:
    """Text on what is missing for a verdict, that is until the whole interval is above -margin or below 0.

    rated: share of the questions that are rated; None for a comparison of costs, which needs no ratings
    """
    if comparison.missing is not None or comparison.low is None or comparison.high is None:
        return comparison.missing or "nothing is known"
    if sampled:
        return "the sample is too small to decide; `ragbandit replay` reads every question"
    middle = comparison.difference or 0.0
    half = max(middle + margin, -middle)  # half-width that would decide
    times = ((comparison.high - comparison.low) / (2.0 * half)) ** 2 if half > 0.0 else math.inf
    further = questions * (times - 1.0)
    if not times < _FARTHEST:
        return "the difference is too small to settle at this rate"
    seconds = max(further, 1.0) / pace(questions, first=0.0, until=86_400.0 * days)
    size = next((size for size in (86_400.0, 3_600.0, 60.0) if seconds >= 2.0 * size), 1.0)
    wait = duration(float(f"{seconds / size:.0e}") * size)
    if rated is None:
        return f"{roughly(further)} more questions, {wait} at this rate"
    return f"{roughly(further * rated)} more rated questions, {wait} at this rate"


def _notes(
    log: ReportRows, asked: Asked | None, *, policy: PolicySettings, unit: Unit, compares: bool
) -> Iterator[str]:
    if log.sample is not None:
        yield f"comparisons are {words.sample_words(log.sample)}, drawn by their ids; sums are scaled to all of them"
    costs = log.costs[unit]
    outcomes, free = int((~np.isnan(costs)).sum()), int((costs == 0.0).sum())
    if free and unit == "dollars":
        yield f"{free:,} of {outcomes:,} outcomes report no dollars, and count as 0"
    if np.nansum(log.costs["seconds"]) > 0.0:
        yield f"shares of these questions, and mean seconds of an answer: {'; '.join(_arm_shares(log, asked))}"
    has_both = np.zeros(0) if log.judge is None else ~np.isnan(log.quality + log.judge)
    if log.judge is not None and has_both.sum() > 1:
        with np.errstate(invalid="ignore", divide="ignore"):  # NaN if all ratings or all scores are equal
            correlation = float(np.nan_to_num(np.corrcoef(log.quality[has_both], log.judge[has_both])[0, 1]))
        scores = f"{int((~np.isnan(log.judge)).sum()):,} answers"
        yield f"the judge's scores of {scores} narrow these intervals; correlation with ratings {correlation:.2f}"
    if policy.holdback is None:
        yield "no holdback is set: policy.holdback would make verdicts come sooner"
    if compares:
        yield _exploration_note(log, unit=unit)


def _arm_shares(log: ReportRows, asked: Asked | None) -> Iterator[str]:
    drawn = np.bincount(log.arm, minlength=len(log.arms)) / len(log.arm)
    shares = dict(zip(log.arms, drawn.tolist(), strict=True)) if asked is None else asked.shares
    for arm, share in sorted(shares.items(), key=lambda pair: -pair[1]):
        seconds = log.costs["seconds"][log.arm == log.arms.index(arm)] if arm in log.arms else np.zeros(0)
        seconds = seconds[~np.isnan(seconds)]
        mean = f"{number(float(seconds.mean()))} s" if len(seconds) else NOTHING
        yield f"{arm} {percent(share)}, {mean}"


def exploration(log: ReportRows, *, unit: Unit) -> tuple[Comparison, Comparison]:
    """Compare the served answers with always using each question's likeliest arm. Returns (quality, cost)."""
    likeliest, spent = log.pmf.argmax(axis=1), log.costs[unit]
    quality = _compared_ratings(log, log.quality, against=likeliest, least=0.0, most=_range_of(log.quality)[1])
    most = float(np.nanmax(spent, initial=0.0))
    return quality, _compared(log, spent, predicted=log.expected_cost, against=likeliest, least=0.0, most=most)


def _exploration_note(log: ReportRows, *, unit: Unit) -> str:
    quality, cost = exploration(log, unit=unit)
    if quality.difference is None or cost.difference is None:
        return f"the cost of exploration is not known: {quality.missing or cost.missing}"
    middle, low, high = (money(end, unit) for end in (cost.difference, cost.low, cost.high))
    return (
        f"exploration: against always the likeliest arm of each question, quality {words.difference(quality)}, and "
        f"cost {middle} ({low} to {high}) a question"
    )


def _footnotes(report: Report) -> Iterator[str]:
    if report.total is not None:
        arm, quality = report.total.against, report.total.quality
        yield f"compared with always {arm}: {report.why}"
        yield (
            f"costs include all outcomes, quality only rated answers: {quality.seen:,} of {quality.draws:,} draws of "
            f"{arm} are rated; 95 % intervals stay valid however often you look"
        )
        yield f'"as good": the whole interval of the difference is above -{decimal(MARGIN)}'
    if report.left_out:
        parts = ", ".join(f"{count:,} ({reason})" for reason, count in sorted(report.left_out.items()))
        yield f"questions that are in no comparison: {parts}"
