"""The sentence of a report, and what it shows on a screen and a page."""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ragbandit.router.comparison import NOT_KNOWN, Comparison, words as comparison_words
from ragbandit.router.comparison.assessment import Assessment, FrontierPoint, NumberTable
from ragbandit.router.reporting.left_out import SHOWN_FROM, Unit
from ragbandit.router.reporting.next_steps import NOW_S
from ragbandit.router.reporting.reading import Report, Sample
from ragbandit.shared.texts.formats import counted, duration, iso_time, moment, money, number, percent, worth

#: largest number of changes that a report names
_CHANGES: Final = 2


def report_sentence(report: Report, *, now: float) -> str:
    """A report in one sentence: state, period, money, undrawn questions, verdict."""
    total = report.total
    start = f"{report.state}. " if report.state else ""
    parts = [_sums(report), *undrawn_words(report), _compared(report)]
    parts.append("no questions that compare two arms" if total is None else _verdict(total, report))
    return f"{start}{period_of(report, now=now)}: {'; '.join(filter(None, parts))}."


def change_words(report: Report) -> Iterator[str]:
    """The newest changes within the period, each with the command that reads only the time after it."""
    for one in report.changes[:_CHANGES]:
        since = str(iso_time(math.ceil(one.at)))[:19]
        tenant = "" if report.tenant is None else f" --tenant {shlex.quote(report.tenant)}"
        newer = f"`ragbandit report --since {since}{tenant}` reads only the time since then"
        yield f"{one.what}. The means of this period mix both times: {newer}"


def undrawn_words(report: Report) -> list[str]:
    """Who decided questions without a draw, if the questions or their costs are a large share of the period's."""
    lines = []
    for one in report.undrawn:
        if max(one.questions / report.questions, one.spent / report.spent if report.spent else 0.0) < SHOWN_FROM:
            continue
        shown = [] if one.quality is None else [f"quality {number(one.quality)}"]
        shown += [money(one.spent, report.unit)] if report.unit == "dollars" else []
        about = f" ({', '.join(shown)})" if shown else ""
        were = "was" if one.questions == 1 else "were"
        of = f"{one.questions:,} of {counted(report.questions, 'question')} {were} decided by {one.by}{about}"
        lines.append(f"{of}: {'it is' if one.questions == 1 else 'they are'} in no comparison")
    return lines


def unpriced_words(report: Report) -> str:
    return ", ".join(f"{counted(answers, 'answer')} of {arm}" for arm, answers in report.unpriced.items())


def _verdict(total: Comparison, report: Report) -> str:
    if not total.questions:
        return f"no question was offered {total.second_arm}"
    if not total.rated:
        return "no answer was rated, so that nothing is known of quality"
    sentence = "; ".join(filter(None, (report.untried, comparison_words.sentence(total))))
    in_dollars = None if report.state else worth_words(total, report)
    return sentence if in_dollars is None else f"{sentence}; it is worth {in_dollars}, {_right_answer(report)}"


def _sums(report: Report) -> str:
    """Questions and costs of the whole period; "" without questions."""
    if not report.questions:
        return ""
    if report.sample is not None:
        return f"{_spent(report)}, {sample_words(report.sample)}"
    return f"{counted(report.questions, 'question')} for {_spent(report)}"


def _spent(report: Report) -> str:
    """Costs of the whole period, and the arm's estimated costs if all questions are compared."""
    total, spent = report.total, _money(report.spent, report)
    if report.unpriced and report.unit == "dollars":
        return f"{spent} and {counted(sum(report.unpriced.values()), 'answer')} without a price"
    if total is None or _priced(total) != report.questions or comparison_words.cost_change(total.cost) is None:
        return spent
    return f"{spent} instead of {_money(_sum(total.cost.second, total), report)} with {total.second}"


def _compared(report: Report) -> str:
    """Costs of the compared questions and the arm's estimated costs, unless all questions are compared."""
    total = report.total
    if total is None or _priced(total) == report.questions or comparison_words.cost_change(total.cost) is None:
        return ""
    spent, instead = (_money(_sum(mean, total), report) for mean in (total.cost.first, total.cost.second))
    which = f" that could draw {total.second_arm}" if 0 < total.bounded < total.questions else ""
    return f"{counted(_priced(total), 'compared question')}{which}: {spent} instead of {instead} with {total.second}"


def _priced(total: Comparison) -> int:
    """Number of questions whose costs are compared."""
    return total.questions - total.bounded or total.questions


def _sum(mean: float | None, total: Comparison) -> float | None:
    return None if mean is None else mean * _priced(total)


def _money(amount: float | None, report: Report) -> str:
    """An amount in the report's unit; if it is scaled from a sample, with two digits."""
    if report.sample is None:
        return money(amount, report.unit)
    return f"about {money(None if amount is None else float(f'{amount:.2g}'), report.unit)}"


def sample_words(sample: Sample) -> str:
    return f"from a sample of {sample.questions:,} of {counted(sample.out_of, 'question')}"


def period_of(report: Report, *, now: float) -> str:
    tenant = "" if report.tenant is None else f", tenant {report.tenant}"
    if abs(now - report.until) < NOW_S:
        days = (report.until - report.since) / 86_400.0
        return f"Last {f'{number(days)} days' if days >= 2 else duration(86_400.0 * days)}{tenant}"
    return f"{moment(report.since)} to {moment(report.until)}{tenant}"


def report_assessment(
    report: Report, *, now: float, arms: Sequence[str] = (), steps: Sequence[str | None] = ()
) -> Assessment:
    """A report for people.

    arms: see `Assessment.arms`. steps: next steps to a verdict that is not known yet (`next_steps`)
    """
    total = report.total
    others = [one for one in report.arms if total is None or one.second != total.second]
    served = (*([] if total is None else [total]), *others)
    groups = (("tenant", report.tenants), ("price", report.prices), ("week", report.weeks))
    tables = [
        ("what was served against each arm", served, True),
        *((f"by {name}", rows, False) for name, rows in groups),
    ]
    verdict = report.sentence if total is None else f"{'; '.join([*undrawn_words(report), _verdict(total, report)])}."
    lead, shown, asked = total, served, report.asked
    if asked is not None:
        again = replace(asked.comparison, second=f"{asked.comparison.second}, asked again")
        shown = (again, *served) if asked.asked else served
        if total is not None and _tells_more(again, total):
            lead = again
            verdict = f"{asked.sentence} By live traffic, {verdict}"
        else:
            verdict = f"{verdict} {asked.sentence}"
    verdict = " ".join(filter(None, (verdict, report.before, report.withdrawn)))
    first, about = _first_number(lead, report)
    return Assessment(
        title=f"RagBandit: {period_of(report, now=now)}",
        sentence=f"{report.state}. {verdict}" if report.state and total is not None else verdict,
        number=first,
        about=about,
        headline=report_headline(report, lead),
        interval="" if lead is None else _interval(lead),
        verdict=None if lead is None else lead.verdict,
        state=report.state,
        comparisons=shown,
        frontier=tuple(_frontier(served)),
        kinds=report.kinds,
        kinds_of=report.kinds_of,
        arms=tuple(arms),
        curves=() if report.curve is None else (report.curve,),
        missing=None if lead is None else lead.missing,
        actions=tuple(_actions(report, lead, steps=steps)),
        tables=tuple(_table(title, rows, unit=report.unit, by_arm=by_arm) for title, rows, by_arm in tables if rows),
        notes=(
            *([report.price] if report.price else []),
            *([f"state of learning: {report.learning}"] if report.learning else []),
            *report.notes,
        ),
        cost_unit=report.unit,
        facts={} if total is None else _facts(total, report),
    )


def _actions(report: Report, lead: Comparison | None, *, steps: Sequence[str | None]) -> Iterator[str]:
    yield from change_words(report)
    if report.advice is not None:
        yield report.advice
    waiting = 0 if report.asked is None else report.asked.waiting
    if waiting:
        yield f"label {counted(waiting, 'answer')} on the page Labels: answers of both ways to the same questions"
    elif lead is not None and lead.verdict == NOT_KNOWN:
        yield from filter(None, steps)


def report_headline(report: Report, lead: Comparison | None) -> str:
    """One line that answers the first questions: how much was saved, and whether answers are as good.

    lead: the comparison whose verdict is shown
    """
    total, spent = report.total, f"Spent {_spent(report) if report.unpriced else _money(report.spent, report)}"
    if total is None or lead is None:
        return f"{spent}; there is nothing to compare yet" if report.questions else ""
    change = comparison_words.cost_change(total.cost)
    if change == 0.0:
        spent = f"{spent}, the same as with {total.second}"
    elif change is not None:
        instead, difference = _sum(total.cost.second, total), abs(_sum(total.cost.estimate, total) or 0.0)
        of = "Saved {} of {} ({})" if change < 0.0 else "Spent {} more than {} ({})"
        share = percent(round(abs(change), 2))
        spent = of.format(_money(difference, report), _money(instead, report), share)
    verdict = lead.quality_verdict
    if verdict == NOT_KNOWN or (report.state and lead is total):
        return f"{spent}; not known yet whether answers are as good"
    return f"{spent}; {report.untried if report.untried and lead is total else f'answers are {verdict}'}"


def worth_words(comparison: Comparison, report: Report) -> str | None:
    """The interval of the reward in dollars; None if it is not known, or if rewards have no price in dollars."""
    amounts = _in_dollars((comparison.reward.low, comparison.reward.high), report)
    if amounts is None or comparison_words.lead_words(comparison) == NOT_KNOWN:
        return None
    return f"{amounts} per 1,000 questions"


def _in_dollars(rewards: Sequence[float | None], report: Report) -> str | None:
    """Rewards per question, signed, in dollars per 1,000 questions; None if one or its price is not known."""
    known, dollars = [reward for reward in rewards if reward is not None], report.dollars_per_reward
    if dollars is None or len(known) < len(rewards):
        return None
    amounts = (1_000.0 * dollars * reward for reward in known)
    return " to ".join(("+" if amount > 0.0 else "") + money(amount, "dollars") for amount in amounts)


def _right_answer(report: Report) -> str:
    return f"a right answer at {worth(report.dollars_per_reward or 0.0, 'dollars')}"


def _interval(lead: Comparison) -> str:
    is_known = comparison_words.lead_words(lead) != NOT_KNOWN
    return f"{comparison_words.interval_words(lead.reward)} a question" if is_known else ""


def _first_number(lead: Comparison | None, report: Report) -> tuple[str, str]:
    """Returns (the main number of a page, what the number is of): in dollars if rewards have a price in dollars."""
    if lead is None or report.total is None:
        return NOT_KNOWN, ""
    what = f"routing minus {report.total.second}{'' if lead is report.total else ', both asked again'}"
    first = NOT_KNOWN if report.state and lead is report.total else comparison_words.lead_words(lead)
    if first == NOT_KNOWN:
        return first, f"reward per question, {what}"
    reward, interval = lead.reward, "" if lead.verdict in comparison_words.CLEAR else "interval of the "
    amounts = _in_dollars((reward.low, reward.high) if interval else (reward.estimate,), report)
    if amounts is None:
        return first, f"{interval}reward per question, {what}"
    return amounts, f"{interval}worth of 1,000 questions, costs subtracted: {what}, {_right_answer(report)}"


def _tells_more(first: Comparison, second: Comparison) -> bool:
    """Whether the first comparison has a verdict, and the second comparison has no verdict or a wider interval."""
    if first.verdict == NOT_KNOWN or second.verdict == NOT_KNOWN:
        return first.verdict != NOT_KNOWN
    return _width(first) < _width(second)


def _width(comparison: Comparison) -> float:
    reward = comparison.reward
    return math.inf if reward.low is None or reward.high is None else reward.high - reward.low


def _facts(total: Comparison, report: Report) -> dict[str, str]:
    compared = {f"compared with {total.second}": number(total.questions)}
    counts = {"questions": number(report.questions), **compared, "rated of the compared": number(total.rated)}
    return counts | {"spent": _spent(report)}


def curve_words(comparison: Comparison, *, break_even: int | None, is_sample: bool) -> str:
    """How to read the learning curve of a comparison."""
    text = f"It is not known yet whether routing gets ahead of {comparison.second}."
    if comparison.verdict == "better":
        text = "Routing is ahead, and was at no time surely behind."
        text = text if break_even is None else "Routing was behind and is ahead; where it breaks even is an estimate."
    elif comparison.verdict != NOT_KNOWN:
        text = (
            f"Routing is {comparison.verdict} {'than' if comparison.verdict == 'worse' else 'as'} {comparison.second}."
        )
    text += " The means are estimates, and noisy on the left, where few answers were rated. The bar is the interval of "
    text += f"the difference with {percent(round(comparison.confidence, 3))} confidence."
    return f"{text} Ratings are those of the sample." if is_sample else text


def _frontier(comparisons: Sequence[Comparison]) -> list[FrontierPoint]:
    """Points of the served answers, and of the arms whose quality compared with the served answers is known."""
    known = [one for one in comparisons if one.quality_verdict != NOT_KNOWN]
    ways = [(one.second, one.quality.second, one.cost.second, "arm") for one in known]
    ways += [("what was served", one.quality.first, one.cost.first, "served") for one in comparisons[:1] if known]
    return [
        FrontierPoint(name=name, quality=quality, cost=cost, kind=kind)  # type: ignore[arg-type]
        for name, quality, cost, kind in ways
        if quality is not None and cost is not None
    ]


def _table(title: str, rows: Sequence[Comparison], *, unit: Unit, by_arm: bool) -> NumberTable:
    columns = ("", "questions", "rated", "reward", "quality", f"cost, {unit}", "verdict")
    cells = (
        (
            one.second if by_arm else one.first,
            number(one.questions),
            number(one.rated),
            comparison_words.difference(one.reward),
            comparison_words.difference(one.quality),
            _costs(one, unit),
            one.verdict,
        )
        for one in rows
    )
    return NumberTable(title=f"{title}: difference a question", columns=columns, rows=tuple(cells))


def _costs(comparison: Comparison, unit: Unit) -> str:
    second = None if comparison_words.cost_change(comparison.cost) is None else comparison.cost.second
    return f"{comparison_words.amount(comparison.cost.first, unit)} instead of {comparison_words.amount(second, unit)}"
