"""A report in one line, for a prompt or a status bar: arms, then costs against always one arm."""

from collections.abc import Mapping
from typing import Final

from ragbandit.router.comparison import NOT_KNOWN, words
from ragbandit.router.reporting.reading import Report
from ragbandit.router.reporting.words import worth_words
from ragbandit.shared.texts.formats import money, number, percent

#: largest number of arms that are named
MOST_SHARES: Final = 4


def prompt_line(report: Report, *, shares: Mapping[str, float]) -> str:
    """What decides, arms, costs with interval and number of questions, and the verdict on the reward.

    shares: arm -> its share of all questions of the period, the largest first
    """
    total = report.total
    arms = ", ".join(f"{arm} {percent(round(share, 2))}" for arm, share in [*shares.items()][:MOST_SHARES])
    state = None if report.state is None else report.state.partition(":")[0]
    if total is None or not arms:
        return "; ".join(filter(None, (state, arms, "no questions that compare two arms")))
    count = total.questions - total.bounded or total.questions
    costs = f"{report.unit} against {total.second}: {NOT_KNOWN}"
    if words.cost_change(total.cost) is not None:
        means = total.cost.estimate, total.cost.low, total.cost.high
        spent, low, high = (_signed(mean, count, unit=report.unit) for mean in means)
        costs = f"{spent} ({low} to {high}) against {total.second}"
    in_dollars = None if report.state else worth_words(total, report)
    reward = f"reward {total.verdict}" if in_dollars is None else f"reward {total.verdict} ({in_dollars})"
    return "; ".join(filter(None, (state, arms, f"{costs}, n {number(count)}", report.untried, reward)))


def _signed(mean: float | None, count: int, *, unit: str) -> str:
    amount = (mean or 0.0) * count
    return ("+" if amount > 0.0 else "") + money(amount, unit)
