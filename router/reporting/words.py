"""The report in words: one sentence for all, and the numbers of its tables."""

from collections.abc import Iterator
from typing import Final

from ragbandit.router.reporting.estimates import Comparison
from ragbandit.router.reporting.reading import Unit
from ragbandit.router.reporting.report import MARGIN, Line, Report
from ragbandit.shared.evidence import NOT_TRIED
from ragbandit.shared.formats import NOTHING, duration, moment, number, percent

#: a report that ends so near to now is told as "last 7 days", seconds
_NOW_S: Final = 120.0


def sentence(report: Report, *, now: float) -> str:
    """The whole report in one sentence."""
    line, period = report.total, period_of(report, now=now)
    if line is None:
        return f"{period}: no questions that compare two arms."
    questions, unit = line.questions, report.unit
    text = f"{period}: {questions:,} questions for {amount(line.cost.served, questions, unit)}"
    cost, quality = line.cost, line.quality
    if cost.always is not None:
        text += f" instead of {amount(cost.always, questions, unit)} with always {line.against} ({saved(line, unit)})"
    text += f"; {quality_words(quality)}; verdict: {verdict(line)}"
    return text + "."


def period_of(report: Report, *, now: float) -> str:
    """The time that it is about."""
    tenant = "" if report.tenant is None else f", tenant {report.tenant}"
    if abs(now - report.until) < _NOW_S:
        return f"Last {_long(report.until - report.since)}{tenant}"
    return f"{moment(report.since)} to {moment(report.until)}{tenant}"


def _long(seconds: float) -> str:
    days = seconds / 86_400.0
    return f"{number(days)} days" if days >= 2 else duration(seconds)


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


def saved(line: Line, unit: Unit) -> str:
    """What was saved in all, with its interval."""
    cost, n = line.cost, line.questions
    if cost.difference is None or cost.low is None or cost.high is None:
        return cost.tried.missing or number(None)
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
        return f"quality {_share(quality.served)}"
    return f"quality {_share(quality.served)} against {_share(quality.always)} (difference {difference(quality)})"


def difference(quality: Comparison) -> str:
    """A difference in quality with its interval."""
    if quality.difference is None:
        return quality.tried.missing or number(None)
    ends = (quality.difference, quality.low, quality.high)
    middle, low, high = (_share(0.0 if end is None else end, sign="+") for end in ends)
    return f"{middle}, between {low} and {high}"


def _share(value: float, *, sign: str = "") -> str:
    """Three decimals without the 0 before the point, as shares are written."""
    text = f"{round(value, 3) + 0.0:{sign}.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 0.9995 else text


def verdict(line: Line) -> str:
    """The verdict with its numbers; where there is none what is missing."""
    if line.missing is not None:
        return f"cannot tell yet: {line.missing}"
    quality, cost = line.quality.difference or 0.0, line.cost.difference or 0.0
    worth = f"worse by {_share(-quality)}" if line.worth == "worse" else line.worth
    if line.price == "same cost" or not line.cost.always:
        return f"{worth}, {line.price}"
    return f"{worth}, {percent(round(abs(cost / line.cost.always), 2))} {line.price}"


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
    both = (NOTHING if value is None else _share(value) for value in (quality.served, quality.always))
    return (
        line.name,
        number(n),
        f"{amount(cost.served, n, unit)}, {amount(cost.always, n, unit)}",
        NOT_TRIED if cost.difference is None else saved(line, unit).removeprefix("saved "),
        ", ".join(both),
        NOT_TRIED if quality.difference is None else difference(quality),
        verdict(line) if line.missing is None else line.verdict,
    )


def footnotes(report: Report) -> Iterator[str]:
    """How the numbers are meant, and what is not among them."""
    if report.total is not None:
        yield f"compared with always {report.total.against}: {report.why}"
        tried = report.total.quality.tried
        yield (
            f"costs are of all outcomes, quality of rated answers; of {tried.draws:,} draws of {report.total.against} "
            f"{tried.judged:,} are rated; intervals of 95 % hold however often somebody looks"
        )
        yield f"as good: not more than {_share(MARGIN)} below, by the whole interval"
    if report.left_out:
        parts = ", ".join(f"{count:,} ({why})" for why, count in sorted(report.left_out.items()))
        yield f"questions that are in no comparison: {parts}"
    yield from report.notes
