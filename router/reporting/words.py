"""The texts of a report: its sentence, and the cells of its tables."""

from typing import Final, Literal, NamedTuple

from ragbandit.router.config.sections import RewardSettings
from ragbandit.router.reporting.estimates import Comparison
from ragbandit.router.reporting.reading import Line, Report, Sample, Unit
from ragbandit.shared.confidence_sequences import NOT_TRIED
from ragbandit.shared.formats import counted, decimal, duration, moment, money, number, percent, worth

QualityWord = Literal["better", "as good", "worse"]
CostWord = Literal["cheaper", "same cost", "more expensive"]

#: if the end of a report differs from now by fewer than this number of seconds, its period is called "Last N days"
_NOW_S: Final = 120.0
#: if the hourly totals are behind by more than this number of seconds, the report gives the time of the last count
_LATE_S: Final = 120.0


class Price(NamedTuple):
    """A right answer is worth `amount` of `unit`."""

    amount: float
    unit: str
    words: str  #: "a right answer is worth ..."; empty if the reward charges no cost


def price_of(reward: RewardSettings | None) -> Price | None:
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
    """Whether the interval contains 0 and is as wide as the range of a quality, so that any difference is possible."""
    low, high = comparison.low, comparison.high
    return low is not None and high is not None and low < 0.0 < high and high - low >= 1.0


def earned_words(value: Comparison, *, against: str, questions: int, price: Price, forecast: str) -> str | None:
    if value.low is None or value.difference is None or value.high is None:
        return None
    if tells_nothing(value):
        return f"what routing earned against always {against} is not known yet: {forecast}"
    sign = -1.0 if value.high < 0.0 else 1.0
    ends = sorted(sign * end * questions * price.amount for end in (value.low, value.difference, value.high))
    low, middle, high = (money(end, price.unit) for end in ends)
    if ends[0] > 0.0:
        more_or_less = "more" if sign > 0.0 else "less"
        return f"routing earned {middle} {more_or_less} than always {against}, between {low} and {high}"
    loss = money(-ends[0], price.unit)
    return f"whether routing earned more than always {against} is open: between {loss} less and {high} more"


def sentence(report: Report, *, now: float) -> str:
    line, unit = report.total, report.unit
    start = f"{period_of(report, now=now)}: "
    if report.sample is not None:
        start += f"{_totals(report)}; {sample_words(report.sample)}: "
    if line is None:
        return f"{start}no questions that compare two arms."
    cost = line.cost
    questions = "" if report.sample is not None else f"{counted(line.questions, 'question')} for "
    parts = [f"{questions}{amount(cost.served, line.questions, unit)}"]
    if cost.always is not None:
        parts[0] += f" instead of {amount(cost.always, line.questions, unit)} with always {line.against} ({line.saved})"
    parts.append(quality_words(line.quality))
    if line.earned is not None and line.value is not None:
        if tells_nothing(line.value):
            parts.append(line.earned)
        else:
            parts = [report.price, line.earned, *parts] if report.price else [line.earned, *parts]
    return f"{start}{'; '.join(parts)}; verdict: {line.words}."


def sample_words(sample: Sample) -> str:
    return f"from a sample of {sample.questions:,} of {counted(sample.out_of, 'question')}"


def _totals(report: Report) -> str:
    totals, sample = report.asked, report.sample
    if totals is None:
        return f"{0 if sample is None else sample.out_of:,} questions"
    text = f"{totals.questions:,} questions for {money(getattr(totals, report.unit), report.unit)}"
    return f"{text} (counted up to {moment(totals.counted_to)})" if totals.behind_s > _LATE_S else text


def period_of(report: Report, *, now: float) -> str:
    tenant = "" if report.tenant is None else f", tenant {report.tenant}"
    if abs(now - report.until) < _NOW_S:
        days = (report.until - report.since) / 86_400.0
        return f"Last {f'{number(days)} days' if days >= 2 else duration(86_400.0 * days)}{tenant}"
    return f"{moment(report.since)} to {moment(report.until)}{tenant}"


def amount(mean: float | None, questions: int, unit: str) -> str:
    return money(None if mean is None else mean * questions, unit)


def saved(cost: Comparison, n: int, unit: Unit) -> str:
    if cost.difference is None or cost.low is None or cost.high is None:
        return cost.missing or number(None)
    ends = (cost.low, cost.difference, cost.high)
    if cost.difference > 0.0:
        low, middle, high = (money(end * n, unit) for end in ends)
        return f"cost {middle} more, between {low} and {high}"
    high, middle, low = (money(-end * n, unit) for end in ends)
    return f"saved {middle}, between {low} and {high}"


def quality_words(quality: Comparison) -> str:
    if quality.served is None:
        return "no answer was rated"
    if quality.always is None:
        return f"quality {decimal(quality.served)}"
    return f"quality {decimal(quality.served)} against {decimal(quality.always)} (difference {difference(quality)})"


def difference(quality: Comparison) -> str:
    if quality.difference is None:
        return quality.missing or number(None)
    if tells_nothing(quality):
        return "not known yet"
    middle, low, high = (decimal(end, sign="+") for end in (quality.difference, quality.low, quality.high))
    return f"{middle}, between {low} and {high}"


def verdict_in_words(
    worth: QualityWord | None, price: CostWord | None, *, quality: Comparison, cost: Comparison, missing: str | None
) -> str:
    """The verdict with its numbers. A higher cost is not called more expensive before the quality is known."""
    settled = []
    if worth is not None:
        settled.append(f"worse by {decimal(-(quality.difference or 0.0))}" if worth == "worse" else worth)
    change = percent(round(abs((cost.difference or 0.0) / (cost.always or 1.0)), 2))
    if price == "more expensive" and worth is None:
        settled.append("what the higher cost bought is not known yet")
    elif price is not None:
        settled.append(price if price == "same cost" else f"{change} {price}")
    text = ", ".join(settled)
    if missing is None:
        return text
    return f"{text}; cannot tell yet: {missing}" if text else f"cannot tell yet: {missing}"


#: titles of the columns after the first column, whose title `tables` returns
COLUMNS: Final = ("Questions", "Earned", "Spent, instead of", "Saved", "Quality, instead of", "Difference", "Verdict")


def tables(report: Report) -> list[tuple[str, tuple[Line, ...]]]:
    groups = [("Tenant", report.tenants), ("Price", report.prices), ("Week from", report.weeks)]
    return [("Against", report.arms)] + [(title, lines) for title, lines in groups if lines]


def cells(line: Line, unit: Unit) -> tuple[str, ...]:
    n = line.questions
    cost, quality = line.cost, line.quality
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
