"""Texts of a report: its sentence, and the cells of its tables."""

from typing import Final, Literal, NamedTuple

from ragbandit.router.config.sections import RewardSettings
from ragbandit.router.reporting.estimates import Comparison
from ragbandit.router.reporting.reading import Line, Report, Sample, Unit
from ragbandit.shared.confidence_sequences import NOT_TRIED
from ragbandit.shared.formats import counted, decimal, duration, moment, money, number, percent, worth

QualityWord = Literal["better", "as good", "worse"]
CostWord = Literal["cheaper", "same cost", "more expensive"]

#: a report that ends within this time of now is about "the last 7 days", seconds
_NOW_S: Final = 120.0
#: hourly totals that are farther behind the newest question are dated, seconds
_LATE_S: Final = 120.0


class Price(NamedTuple):
    """The price of a right answer."""

    amount: float
    unit: str
    #: as a clause; empty if the reward charges no cost
    words: str


def price_of(reward: RewardSettings | None) -> Price | None:
    """What a right answer is worth by the reward setting: in its one cost term, else in units of cost."""
    if reward is None:
        return None
    charged = {term: price for term, price in reward.cost.items() if price > 0.0}
    if reward.weight == 0.0 or not charged:
        return Price(1.0, "right answers", "")
    (term, price), *others = charged.items()
    if others:
        term, price = "units of cost", 1.0
    amount = 1.0 / (reward.weight * price)
    return Price(amount, term.removesuffix("_total"), f"a right answer is worth {worth(amount, term)}")


def tells_nothing(comparison: Comparison) -> bool:
    """Whether its interval holds 0 and is as wide as the range of a quality: it could be anything."""
    low, high = comparison.low, comparison.high
    return low is not None and high is not None and low < 0.0 < high and high - low >= 1.0


def earned_words(value: Comparison, *, against: str, questions: int, price: Price, forecast: str) -> str | None:
    """What routing earned at the price; "earned more" or "less" only if the interval leaves 0. None without one."""
    if value.low is None or value.difference is None or value.high is None:
        return None
    if tells_nothing(value):
        return f"what routing earned against always {against} is not known yet: {forecast}"
    sign = -1.0 if value.high < 0.0 else 1.0
    ends = sorted(sign * end * questions * price.amount for end in (value.low, value.difference, value.high))
    low, middle, high = (money(end, price.unit) for end in ends)
    if ends[0] > 0.0:
        word = "more" if sign > 0.0 else "less"
        return f"routing earned {middle} {word} than always {against}, between {low} and {high}"
    less = money(-ends[0], price.unit)
    return f"whether routing earned more than always {against} is open: between {less} less and {high} more"


def sentence(report: Report, *, now: float) -> str:
    """The report in one sentence: first what routing earned, as far as known, then cost, quality and verdict."""
    line, unit, start = report.total, report.unit, f"{period_of(report, now=now)}: "
    if report.sample is not None:
        start += f"{_asked(report)}; {sample_words(report.sample)}: "
    if line is None:
        return f"{start}no questions that compare two arms."
    cost = line.cost
    questions = "" if report.sample is not None else f"{counted(line.questions, 'question')} for "
    parts = [f"{questions}{amount(cost.served, line.questions, unit)}"]
    if cost.always is not None:
        parts[0] += f" instead of {amount(cost.always, line.questions, unit)} with always {line.against} ({line.saved})"
    parts.append(quality_words(line.quality))
    if line.earned is not None and line.value is not None:
        price = [report.price] if report.price else []
        parts = [*parts, line.earned] if tells_nothing(line.value) else [*price, line.earned, *parts]
    return f"{start}{'; '.join(parts)}; verdict: {line.words}."


def sample_words(sample: Sample) -> str:
    """The size of a sample."""
    return f"from a sample of {sample.questions:,} of {counted(sample.out_of, 'question')}"


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


def amount(mean: float | None, questions: int, unit: str) -> str:
    """A mean per question over so many questions, in all."""
    return money(None if mean is None else mean * questions, unit)


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
    if tells_nothing(quality):
        return "not known yet"
    middle, low, high = (decimal(end, sign="+") for end in (quality.difference, quality.low, quality.high))
    return f"{middle}, between {low} and {high}"


def verdict_in_words(
    worth: QualityWord | None, price: CostWord | None, *, quality: Comparison, cost: Comparison, missing: str | None
) -> str:
    """The verdict with its numbers: first the settled parts, then the open ones.

    A router that costs more is not called expensive before its quality is known.
    """
    known = []
    if worth is not None:
        known.append(f"worse by {decimal(-(quality.difference or 0.0))}" if worth == "worse" else worth)
    share = percent(round(abs((cost.difference or 0.0) / (cost.always or 1.0)), 2))
    if price == "more expensive" and worth is None:
        known.append("what the higher cost bought is not known yet")
    elif price is not None:
        known.append(price if price == "same cost" else f"{share} {price}")
    settled = [", ".join(known)] if known else []
    return "; ".join(settled if missing is None else [*settled, f"cannot tell yet: {missing}"])


#: columns of `cells` after the first
COLUMNS: Final = ("Questions", "Earned", "Spent, instead of", "Saved", "Quality, instead of", "Difference", "Verdict")


def tables(report: Report) -> list[tuple[str, tuple[Line, ...]]]:
    """The title and the lines of each table that has some, the arms first."""
    groups = (("Tenant", report.tenants), ("Price", report.prices), ("Week from", report.weeks))
    return [("Against", report.arms), *((title, lines) for title, lines in groups if lines)]


def cells(line: Line, unit: Unit) -> tuple[str, ...]:
    """A line of a table."""
    n, cost, quality = line.questions, line.cost, line.quality
    return (
        line.name,
        number(n),
        line.earned or NOT_TRIED,
        f"{amount(cost.served, n, unit)}, {amount(cost.always, n, unit)}",
        NOT_TRIED if cost.difference is None else line.saved.removeprefix("saved "),
        f"{decimal(quality.served)}, {decimal(quality.always)}",
        NOT_TRIED if quality.difference is None else difference(quality),
        line.words,
    )
