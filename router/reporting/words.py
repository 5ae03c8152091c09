"""Texts of a report: its sentence, and the cells of its tables."""

from collections.abc import Iterator
from typing import Final, Literal

from ragbandit.router.reporting.estimates import Comparison
from ragbandit.router.reporting.reading import Line, Report, Sample, Unit
from ragbandit.shared.confidence_sequences import NOT_TRIED
from ragbandit.shared.formats import decimal, duration, moment, number, percent

QualityWord = Literal["better", "as good", "worse"]
CostWord = Literal["cheaper", "same cost", "more expensive"]

#: a report that ends within this time of now is about "the last 7 days", seconds
_NOW_S: Final = 120.0
#: hourly totals that are farther behind the newest question are dated, seconds
_LATE_S: Final = 120.0


def sentence(report: Report, *, now: float) -> str:
    """The whole report in one sentence: exact figures of the period, then comparisons, of a sample of a large one."""
    line, unit, start = report.total, report.unit, f"{period_of(report, now=now)}: "
    if report.sample is not None:
        start += f"{_asked(report)}; {sample_words(report.sample)}: "
    if line is None:
        return f"{start}no questions that compare two arms."
    questions, cost, quality = line.questions, line.cost, line.quality
    counted = "" if report.sample is not None else f"{questions:,} questions for "
    text = f"{start}{counted}{amount(cost.served, questions, unit)}"
    if cost.always is not None:
        text += f" instead of {amount(cost.always, questions, unit)} with always {line.against} ({line.saved})"
    text += f"; {quality_words(quality)}; verdict: {line.words}"
    return text + "."


def sample_words(sample: Sample) -> str:
    """The size of a sample."""
    return f"from a sample of {sample.questions:,} of {sample.out_of:,} questions"


def _asked(report: Report) -> str:
    """The exact number of questions of a sampled period, and what they cost."""
    asked, sample = report.asked, report.sample
    if asked is None:
        return f"{0 if sample is None else sample.out_of:,} questions"
    text = f"{asked.questions:,} questions for {money(getattr(asked, report.unit), report.unit)}"
    return f"{text} (counted up to {moment(asked.counted_to)})" if asked.behind_s > _LATE_S else text


def period_of(report: Report, *, now: float) -> str:
    """The time that it is about."""
    tenant = "" if report.tenant is None else f", tenant {report.tenant}"
    if abs(now - report.until) < _NOW_S:
        days = (report.until - report.since) / 86_400.0
        return f"Last {f'{number(days)} days' if days >= 2 else duration(86_400.0 * days)}{tenant}"
    return f"{moment(report.since)} to {moment(report.until)}{tenant}"


def amount(mean: float | None, questions: int, unit: Unit) -> str:
    """A mean per question over so many questions, in all."""
    return money(None if mean is None else mean * questions, unit)


def money(value: float | None, unit: Unit) -> str:
    """An amount with its unit, a minus before the sign: `$310`, `-$1.25`, `5,310 steps`, `2.5 h`."""
    if value is None:
        return number(None)
    minus, size = "-" if value < 0 else "", abs(value)
    if unit == "dollars":
        return (
            f"{minus}${size:,.0f}" if size >= 100 else f"{minus}${size:.2f}" if size >= 1 else f"{minus}${number(size)}"
        )
    return minus + (duration(size) if unit == "seconds" else f"{number(size)} steps")


def saved(cost: Comparison, n: int, unit: Unit) -> str:
    """The amount saved over all questions, with its interval."""
    if cost.difference is None or cost.low is None or cost.high is None:
        return cost.missing or number(None)
    ends = (cost.low, cost.difference, cost.high)
    if cost.difference > 0.0:
        low, middle, high = (money(end * n, unit) for end in ends)
        return f"cost {middle} more, between {low} and {high}"
    high, middle, low = (money(-end * n, unit) for end in ends)
    return f"saved {middle}, between {low} and {high}"


def quality_words(quality: Comparison) -> str:
    """The quality of both, with the interval of the difference."""
    if quality.served is None:
        return "no answer was rated"
    if quality.always is None:
        return f"quality {decimal(quality.served)}"
    return f"quality {decimal(quality.served)} against {decimal(quality.always)} (difference {difference(quality)})"


def difference(quality: Comparison) -> str:
    """A difference in quality with its interval."""
    if quality.difference is None:
        return quality.missing or number(None)
    middle, low, high = (decimal(end, sign="+") for end in (quality.difference, quality.low, quality.high))
    return f"{middle}, between {low} and {high}"


def verdict_in_words(
    worth: QualityWord | None, price: CostWord | None, *, quality: Comparison, cost: Comparison, missing: str | None
) -> str:
    """The verdict with its numbers: first the settled parts, then the open ones."""
    known = (
        [] if worth is None else [f"worse by {decimal(-(quality.difference or 0.0))}" if worth == "worse" else worth]
    )
    if price is not None:
        share = (
            ""
            if price == "same cost"
            else f"{percent(round(abs((cost.difference or 0.0) / (cost.always or 1.0)), 2))} "
        )
        known.append(share + price)
    open_ends = [] if missing is None else [f"cannot tell yet: {missing}"]
    return "; ".join([*([", ".join(known)] if known else []), *open_ends])


#: columns of `cells` after the first
COLUMNS: Final = ("Questions", "Spent, instead of", "Saved", "Quality, instead of", "Difference", "Verdict")


def tables(report: Report) -> Iterator[tuple[str, tuple[Line, ...]]]:
    """The title and the lines of each table that has some."""
    named = (
        ("Against", report.arms),
        ("Tenant", report.tenants),
        ("Price", report.prices),
        ("Week from", report.weeks),
    )
    yield from ((title, lines) for title, lines in named if lines)


def cells(line: Line, unit: Unit) -> tuple[str, ...]:
    """A line of a table."""
    n, cost, quality = line.questions, line.cost, line.quality
    return (
        line.name,
        number(n),
        f"{amount(cost.served, n, unit)}, {amount(cost.always, n, unit)}",
        NOT_TRIED if cost.difference is None else line.saved.removeprefix("saved "),
        f"{decimal(quality.served)}, {decimal(quality.always)}",
        NOT_TRIED if quality.difference is None else difference(quality),
        line.words,
    )
