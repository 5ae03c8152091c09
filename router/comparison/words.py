"""A comparison in words and numbers, the same on every screen, on every page and in every reply."""

from collections.abc import Sequence
from typing import Final

from ragbandit.router.comparison import NOT_KNOWN, SAME_COST, Comparison, Difference, Verdict
from ragbandit.shared.texts.formats import decimal, money, number, percent

#: verdict -> name of its colour in pages, and of its style on a terminal
COLOURS: Final[dict[Verdict, str]] = {"better": "good", "as good": "good", "worse": "bad", NOT_KNOWN: "busy"}
#: verdicts whose difference is known not to be 0: only with these, pages colour the number and show the estimate
CLEAR: Final[frozenset[Verdict]] = frozenset(("better", "worse"))
STYLES: Final[dict[str, str]] = {"good": "green", "bad": "red", "busy": "yellow"}
#: with at least this share of rated questions, a verdict assumes nothing about the other questions
_NEARLY_ALL: Final = 0.9
#: a cost that grows to at least this multiple is printed as a multiple, up to a largest one; else in percent
_LEAST_TIMES: Final = 10
_MOST_TIMES: Final = 1_000


def sentence(comparison: Comparison) -> str:
    """The verdict with its numbers and what it assumes. A difference that is not known yet has no point estimate."""
    first, second, reward = comparison.first, comparison.second, comparison.reward
    if comparison.verdict == NOT_KNOWN:
        parts = [f"whether {first} is better than {second} is not known yet"]
        if not reward.tells_nothing:
            parts[0] += f" (reward {interval_words(reward)} a question)"
        parts.append(f"missing: {comparison.missing}")
    elif comparison.verdict == "as good":
        parts = [f"{first} is as good as {second} (reward {interval_words(reward)} a question)"]
    else:
        parts = [f"{first} is {comparison.verdict} than {second}: {difference(reward)} reward a question"]
    parts += [text for text in (quality_words(comparison), cost_words(comparison), comparison.assumption) if text]
    return "; ".join(parts)


def assumption_words(judged: float) -> str | None:
    """The assumption of a verdict if raters chose to judge only this share of its questions, and a way to check it.
    None if nearly all questions were judged.
    """
    if judged >= _NEARLY_ALL:
        return None
    share = percent(round(judged, 2))
    return f"assumed: nobody chose what to rate by how good it was ({share} rated); `judge.share` would check it"


def against(comparisons: Sequence[Comparison]) -> list[str]:
    """Names of the comparisons, without the name of the first way if all comparisons have the same first way."""
    is_shared = len({comparison.first for comparison in comparisons}) == 1
    return [f"against {c.second}" if is_shared else f"{c.first} against {c.second}" for c in comparisons]


def unless_contained(text: str | None, *, sentence: str) -> str | None:
    """The text; None if the sentence contains it already."""
    return None if text is None or text.casefold() in sentence.casefold() else text


def quality_words(comparison: Comparison) -> str:
    """Both qualities with the verdict on them; "" if that is not known yet."""
    quality, verdict = comparison.quality, comparison.quality_verdict
    if verdict == NOT_KNOWN:
        return ""
    if quality.first is None or quality.second is None:
        return f"quality {verdict}"
    return f"quality {verdict} ({decimal(quality.first)} against {decimal(quality.second)})"


def cost_words(comparison: Comparison) -> str:
    """The change of cost in percent, or as a multiple; "" if it is not known whether the cost rises or falls."""
    change = cost_change(comparison.cost)
    if change is None:
        return ""
    if change == 0.0:
        return "same cost"
    if change < 0.0:
        return f"{'over 99 %' if -1.0 < change < -0.995 else percent(round(-change, 2))} less cost"
    times = float(f"{1.0 + change:.2g}")
    if times > _MOST_TIMES:
        return f"more than {_MOST_TIMES:,} times the cost"
    return f"{percent(round(change, 2))} more cost" if times < _LEAST_TIMES else f"{times:,.0f} times the cost"


def cost_change(cost: Difference) -> float | None:
    """Change of the cost as a share of the second cost: 0 if it is at most SAME_COST, None if its sign is not known."""
    if cost.low is None or cost.high is None or cost.estimate is None or not cost.second:
        return None
    margin = SAME_COST * cost.second
    if -margin <= cost.low and cost.high <= margin:
        return 0.0
    return None if cost.low <= 0.0 <= cost.high else cost.estimate / cost.second


def difference(value: Difference) -> str:
    """Estimate and interval, "+0.094 (+0.040 to +0.146)"; only the interval if it contains 0 or has no estimate; "not
    known yet" without an interval.
    """
    if value.low is None or value.high is None or value.tells_nothing:
        return NOT_KNOWN
    if value.low <= 0.0 <= value.high:
        return interval_words(value)
    return estimate_with_interval(value)


def estimate_with_interval(value: Difference) -> str:
    """Estimate and interval, also if the interval contains 0; only the interval if there is no estimate."""
    return interval_words(value) if value.estimate is None else f"{signed(value.estimate)} ({interval_words(value)})"


def estimate_words(value: Difference) -> str:
    """The estimate; the interval if there is no estimate."""
    return interval_words(value) if value.estimate is None else signed(value.estimate)


def lead_words(comparison: Comparison | None) -> str:
    """The main number of a page: the estimate if the verdict is better or worse, else the interval."""
    if comparison is None:
        return NOT_KNOWN
    if comparison.verdict in CLEAR:
        return estimate_words(comparison.reward)
    reward = comparison.reward
    if reward.low is None or reward.high is None or not reward.low <= 0.0 <= reward.high:
        return NOT_KNOWN  # no interval, or one without 0 that something else keeps from a verdict
    return difference(reward)


def interval_words(value: Difference) -> str:
    if decimal(value.low) == decimal(value.high) == decimal(0.0):
        return decimal(0.0)
    return f"{signed(value.low)} to {signed(value.high)}"


def signed(value: float | None) -> str:
    return decimal(value, sign="+")


def amount(value: float | None, unit: str) -> str:
    """A cost per question in its unit."""
    return number(value) if unit == "cost" else money(value, unit)
