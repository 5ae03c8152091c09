"""The report of a period: its costs and quality against always one arm; by tenant, price and week too.

Verdicts come from two intervals, of the differences in quality and in cost, each of 95 % and valid at every look.
Quality is as good if its lower bound is above -MARGIN (non-inferiority); a cost is the same if its interval lies within
SAME_COST of the other.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from ragbandit.router.config.settings import PolicySettings
from ragbandit.router.learning.monitoring.arm_changes import lately
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
from ragbandit.router.reporting.words import (
    CostWord,
    Price,
    QualityWord,
    difference,
    earned_words,
    price_of,
    sample_words,
    saved,
    sentence,
    verdict_in_words,
)
from ragbandit.router.storage.rows.outcome_rows import day_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.confidence_sequences import NOT_TRIED, pace
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.shared.formats import NOTHING, decimal, duration, money, number, percent, roughly
from ragbandit.shared.types import Vector

#: quality per question that may be lost where two are called as good: of right answers 95 in 100 stay, as is usual
MARGIN: Final = 0.05
#: share of the other's cost within which two costs are called the same
SAME_COST: Final = 0.02
#: start of the note that always one arm earns as much as the router
FIX: Final = "fix: "
#: least gain a question, in right answers, that is worth a router; questions from which on the verdict may be "fix": of
#: fewer a policy has learned too little
WORTH: Final = 0.01
FEWEST_TO_FIX: Final = 300
#: lines of a table: the largest groups
MOST_LINES: Final = 20
_WEEK_S: Final = 7 * 86_400.0
#: 1970-01-05 was a Monday
_MONDAY_S: Final = 4 * 86_400.0
#: a forecast of more than this multiple of the questions so far is not printed
_FARTHEST: Final = 1000.0


def report(
    database: Database,
    scope: ReportScope,
    *,
    policy: PolicySettings,
    against: str | None = None,
    now: float | None = None,
) -> Report:
    """The report of a period. It has no verdict while draws, outcomes or ratings favour an arm, and gives the reason.

    against: the arm; None for the holdback's, else the incumbent, else the most expensive arm that is tried enough.
    now: None for the end of the period. Raises InvalidInput for an impossible period, NotFound for an arm that no
    question was offered, StoreError.
    """
    if not (math.isfinite(scope.since) and math.isfinite(scope.until) and 0.0 <= scope.since < scope.until < 1e11):
        raise InvalidInput(f"since {scope.since:g}, until {scope.until:g}", field="since", remedy="give an earlier one")
    uneven = lately(database, policy=scope.label, now=scope.until)
    alarm = None if uneven is None else uneven.sentence
    log = read_log(database, scope)
    asked = None if log.whole is None else read_asked(database, scope)
    return report_of(log, scope, policy=policy, against=against, alarm=alarm, now=now, asked=asked)


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
    """`report` of rows that were read. alarm: names the side that the log favours. Raises NotFound."""
    unit = _unit(log)
    days, price = (scope.until - log.made_at.min(initial=scope.until)) / 86_400.0, price_of(scope.reward)
    lines = _Lines(log, unit=unit, days=days, alarm=alarm, price=price)
    everything = np.ones(len(log.arm), dtype=np.bool_)
    arms = [lines.line(f"always {arm}", everything, against=place) for place, arm in enumerate(log.arms)]
    chosen, why = _against(log, arms, policy=policy, given=against)
    total = None if chosen is None else arms[chosen]
    left_out = {why: round(count * log.scale) for why, count in log.left_out.items()}
    groups: dict[str, Any] = {"tenants": (), "prices": (), "weeks": ()}
    costs: dict[Unit, Comparison] = {}
    if chosen is not None and total is not None:
        if lost := int((log.pmf[:, chosen] == 0.0).sum()):
            left_out[f"{total.against} was not offered, or could not be drawn"] = round(lost * log.scale)
        week = ((log.made_at - _MONDAY_S) // _WEEK_S).astype(np.intp)
        names = {number: day_of(number * _WEEK_S + _MONDAY_S) for number in np.unique(week).tolist()}
        groups = {
            "tenants": lines.table(log.tenant, names=dict(enumerate(log.tenants)), against=chosen),
            "prices": lines.table(log.price, names=dict(enumerate(log.prices)), against=chosen),
            "weeks": lines.table(week, names=names, against=chosen),
        }
        units = [one for one in UNITS if np.nansum(log.costs[one]) > 0.0]
        costs = {one: _cost(log.part(log.pmf[:, chosen] > 0.0), one, against=chosen) for one in units}
    found = Report(
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
        arms=tuple(sorted(arms, key=lambda one: (-one.cost.draws, one.name))),
        **groups,
        left_out=left_out,
        notes=(
            *(_fix(arms) if alarm is None else ()),
            *_notes(log, asked, policy=policy, unit=unit, compares=total is not None),
        ),
    )
    return replace(
        found, sentence=sentence(found, now=scope.until if now is None else now), notes=tuple(_footnotes(found))
    )


def _unit(log: ReportRows) -> Unit:
    """The unit of the sentence: dollars if some were reported, else steps unless all are alike, else seconds."""
    if np.nansum(log.costs["dollars"]) > 0.0:
        return "dollars"
    steps = log.costs["steps"][~np.isnan(log.costs["steps"])]
    return "seconds" if len(steps) and np.ptp(steps) == 0.0 and np.nansum(log.costs["seconds"]) > 0.0 else "steps"


def _against(
    log: ReportRows, arms: Sequence[Line], *, policy: PolicySettings, given: str | None
) -> tuple[int | None, str | None]:
    """The place of the arm to compare with, and why it is this one."""
    if given is not None:
        if given not in log.arms:
            known = f"use one of {', '.join(sorted(log.arms))}" if log.arms else "ask for a longer time"
            raise NotFound(f"no question of this time was offered {given!r}", field="against", remedy=known)
        return log.arms.index(given), "as asked"
    named = (
        (None if policy.holdback is None else policy.holdback.arm, "the arm of policy.holdback"),
        (policy.incumbent, "policy.incumbent"),
    )
    for arm, why in named:
        if arm in log.arms:
            return log.arms.index(arm), why
    tried = [(line.cost.always, place) for place, line in enumerate(arms) if line.cost.always is not None]
    if tried:
        return max(tried)[1], "the most expensive arm that is tried enough"
    return None, None


@dataclass(frozen=True, slots=True)
class _Lines:
    """Makes lines of a log."""

    log: ReportRows
    unit: Unit
    #: since the first of the questions
    days: float
    alarm: str | None
    price: Price | None

    def table(self, group: Choices, *, names: Mapping[int, str], against: int) -> tuple[Line, ...]:
        """A line for each group, the largest first; none where all is one group."""
        numbers, counts = np.unique(group[self.log.pmf[:, against] > 0.0], return_counts=True)
        if len(numbers) < 2:
            return ()
        first = numbers[np.argsort(-counts, kind="stable")][:MOST_LINES].tolist()
        return tuple(self.line(names[number], group == number, against=against) for number in first)

    def line(self, name: str, rows: Flags, *, against: int) -> Line:
        """These rows, as far as they can be compared with always this arm."""
        log = self.log.part(rows & (self.log.pmf[:, against] > 0.0))
        ends = _ends(log.quality)
        value = None if log.reward is None else _rated(log, log.reward, against=against, ends=_ends(log.reward))
        return line_of(
            name,
            log.arms[against],
            questions=round(len(log.arm) * log.scale),
            quality=_clipped(
                _rated(log, log.quality, against=against, ends=ends), ends[0] - ends[1], ends[1] - ends[0]
            ),
            cost=_cost(log, self.unit, against=against),
            unit=self.unit,
            days=self.days,
            alarm=self.alarm,
            sampled=self.log.whole is not None,
            rated=float((~np.isnan(log.quality)).mean()) if len(log.arm) else 0.0,
            value=value,
            price=self.price,
        )


def _fix(arms: Sequence[Line]) -> Iterator[str]:
    """The verdict "fix", if what was served earned less than WORTH more than always the best arm."""
    known = [(one, one.value) for one in arms if one.value is not None and one.questions >= FEWEST_TO_FIX]
    gains = [
        (each.always, one.against, each.high)
        for one, each in known
        if each.always is not None and each.high is not None
    ]
    if gains and max(gains)[2] < WORTH:
        yield f"{FIX}always {max(gains)[1]} earns as much; see `ragbandit advise`"


def _ends(values: Vector) -> tuple[float, float]:
    """Between which values of quality lie: [0, 1], and what is beyond."""
    return float(np.nanmin(values, initial=0.0)), float(np.nanmax(values, initial=1.0))


def _rated(log: ReportRows, values: Vector, *, against: int | Choices, ends: tuple[float, float]) -> Comparison:
    """The comparison of values that only rated rows have."""
    told: dict[str, Any] = {"predicted": log.expected_quality, "judge": log.judge, "counts": log.counts}
    found = compared(values, arm=log.arm, pmf=log.pmf, against=against, least=ends[0], most=ends[1], **told)
    return _of_sample(found, log)


def _spent(log: ReportRows, unit: Unit, *, against: int | Choices, most: float) -> Comparison:
    """The comparison of costs, which every outcome has: an answer may cost anything from nothing to `most`."""
    given: dict[str, Any] = {"arm": log.arm, "pmf": log.pmf, "predicted": log.expected_cost, "against": against}
    return _of_sample(compared(log.costs[unit], least=0.0, most=most, **given), log)


def _of_sample(comparison: Comparison, log: ReportRows) -> Comparison:
    """The comparison without a forecast if it was made from a sample, which does not grow with the questions."""
    if comparison.missing is None or log.whole is None:
        return comparison
    counts = f"{comparison.draws:,} draws, {comparison.seen:,} judged in the sample"
    return replace(comparison, missing=f"{NOT_TRIED}: {counts}")


def _cost(log: ReportRows, unit: Unit, *, against: int) -> Comparison:
    """The comparison of costs in this unit: an answer may cost as much as the most expensive one of the arm."""
    most = np.nanmax(log.costs[unit][log.arm == against], initial=0.0)
    cost = _spent(log, unit, against=against, most=float(most))
    return _clipped(cost, -math.inf, cost.served or 0.0)  # the other would have cost nothing at least


def _clipped(comparison: Comparison, low: float, high: float) -> Comparison:
    """Its interval within what can be."""
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
    price: Price | None = None,
) -> Line:
    """The line of comparisons over the same questions. days: since the first question. rated: the share that is rated.

    value: in reward at the configured weight of cost; price: of a right answer.
    """
    worth, expense = _quality_word(quality), _cost_word(cost)
    missing = [alarm] if alarm is not None else []
    forecast = partial(_missing, questions=questions, days=days, sampled=sampled)
    if worth is None and alarm is None:
        missing.append(f"quality: {forecast(quality, margin=MARGIN, rated=rated)}")
    earned = None
    if value is not None and price is not None and alarm is None:
        more = forecast(value, margin=0.0, rated=rated)
        earned = earned_words(value, against=against, questions=questions, price=price, forecast=more)
    if expense is None and alarm is None:
        missing.append(f"cost: {'none was reported' if cost.always == 0.0 else forecast(cost, margin=0.0)}")
    why = "; ".join(missing) or None
    return Line(
        name=name,
        against=against,
        questions=questions,
        cost=cost,
        quality=quality,
        value=value,
        earned=earned,
        verdict=f"{worth}, {expense}" if why is None else "cannot tell yet",
        missing=why,
        saved=saved(cost, questions, unit),
        words=verdict_in_words(
            *(worth, expense) if alarm is None else (None, None), quality=quality, cost=cost, missing=why
        ),
    )


def _quality_word(quality: Comparison) -> QualityWord | None:
    if quality.low is None or quality.high is None:
        return None
    if quality.low > 0.0:
        return "better"
    return "as good" if quality.low >= -MARGIN else "worse" if quality.high < 0.0 else None


def _cost_word(cost: Comparison) -> CostWord | None:
    if cost.low is None or cost.high is None or not cost.always:
        return None
    near = SAME_COST * cost.always
    if -near <= cost.low and cost.high <= near:
        return "same cost"
    return "cheaper" if cost.high < 0.0 else "more expensive" if cost.low > 0.0 else None


def _missing(
    comparison: Comparison, *, margin: float, questions: int, days: float, sampled: bool, rated: float | None = None
) -> str:
    """What the comparison lacks until its interval lies above -margin, or below 0, in words.

    rated: share of the questions that are rated; None for a comparison of costs.
    """
    if comparison.missing is not None or comparison.low is None or comparison.high is None:
        return comparison.missing or "nothing is known"
    if sampled:
        return "the sample does not settle it; `ragbandit replay` reads every question"
    off = comparison.difference or 0.0
    half = max(off + margin, -off)
    times = ((comparison.high - comparison.low) / (2.0 * half)) ** 2 if half > 0.0 else math.inf
    more = questions * (times - 1.0)
    if not times < _FARTHEST:
        return "the difference is too small to settle at this rate"
    seconds = max(more, 1.0) / pace(questions, first=0.0, until=86_400.0 * days)
    size = next((size for size in (86_400.0, 3_600.0, 60.0) if seconds >= 2.0 * size), 1.0)
    wait = duration(float(f"{seconds / size:.0e}") * size)
    asked = "more questions" if rated is None else "more rated questions"
    return f"{roughly(more * (1.0 if rated is None else rated))} {asked}, {wait} at this rate"


def _notes(
    log: ReportRows, asked: Asked | None, *, policy: PolicySettings, unit: Unit, compares: bool
) -> Iterator[str]:
    """How the log limits the numbers."""
    if log.sample is not None:
        yield f"comparisons are {sample_words(log.sample)}, drawn by their ids; sums are scaled to all of them"
    values = log.costs[unit]
    ended = int((~np.isnan(values)).sum())
    if (silent := int((values == 0.0).sum())) and unit == "dollars":
        yield f"{silent:,} of {ended:,} outcomes report no dollars, and count as 0"
    if np.nansum(log.costs["seconds"]) > 0.0:
        yield f"shares of these questions, and mean seconds of an answer: {'; '.join(_spread(log, asked))}"
    if log.judge is not None and (both := ~np.isnan(log.quality + log.judge)).sum() > 1:
        with np.errstate(invalid="ignore", divide="ignore"):  # one of the two is always the same
            alike = float(np.nan_to_num(np.corrcoef(log.quality[both], log.judge[both])[0, 1]))
        scored = int((~np.isnan(log.judge)).sum())
        yield f"the judge's scores of {scored:,} answers narrow these intervals; correlation with ratings {alike:.2f}"
    if policy.holdback is None:
        yield "no holdback is set: policy.holdback would make verdicts come sooner"
    if compares:
        yield _explored(log, unit=unit)


def _spread(log: ReportRows, asked: Asked | None) -> Iterator[str]:
    """Each arm in words, the most used first: its share, and the mean seconds of its outcomes."""
    drawn = np.bincount(log.arm, minlength=len(log.arms)) / len(log.arm)
    shares = dict(zip(log.arms, drawn.tolist(), strict=True)) if asked is None else asked.shares
    for arm, share in sorted(shares.items(), key=lambda pair: -pair[1]):
        seconds = log.costs["seconds"][log.arm == log.arms.index(arm)] if arm in log.arms else np.zeros(0)
        known = seconds[~np.isnan(seconds)]
        took = f"{number(float(known.mean()))} s" if len(known) else NOTHING
        yield f"{arm} {percent(share)}, {took}"


def exploration(log: ReportRows, *, unit: Unit) -> tuple[Comparison, Comparison]:
    """(quality, cost) of what was served against always the likeliest arm of each question."""
    likeliest, most = log.pmf.argmax(axis=1), float(np.nanmax(log.costs[unit], initial=0.0))
    quality = _rated(log, log.quality, against=likeliest, ends=(0.0, _ends(log.quality)[1]))
    return quality, _spent(log, unit, against=likeliest, most=most)


def _explored(log: ReportRows, *, unit: Unit) -> str:
    """What drawing other arms than the likeliest cost so far, in words."""
    quality, cost = exploration(log, unit=unit)
    if quality.difference is None or cost.difference is None:
        return f"what exploration cost is not known: {quality.missing or cost.missing}"
    ends = [money(end, unit) for end in (cost.difference, cost.low, cost.high)]
    return (
        f"exploration: against always the likeliest arm of each question, quality {difference(quality)}, and cost "
        f"{ends[0]} ({ends[1]} to {ends[2]}) a question"
    )


def _footnotes(report: Report) -> Iterator[str]:
    """How the numbers are meant, and what is not among them."""
    if report.total is not None:
        yield f"compared with always {report.total.against}: {report.why}"
        rated = report.total.quality
        yield (
            f"costs are of all outcomes, quality of rated answers; of {rated.draws:,} draws of {report.total.against} "
            f"{rated.seen:,} are rated; 95 % intervals stay valid however often you look"
        )
        yield f"as good: not more than {decimal(MARGIN)} below, by the whole interval"
    if report.left_out:
        parts = ", ".join(f"{count:,} ({why})" for why, count in sorted(report.left_out.items()))
        yield f"questions that are in no comparison: {parts}"
    yield from report.notes
