"""The sentence of a report, and what it shows on a screen and a page."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ragbandit.router.comparison import NOT_KNOWN, Comparison, words as comparison_words
from ragbandit.router.comparison.assessment import Assessment, FrontierPoint, NumberTable, QuestionKind
from ragbandit.router.reporting.next_steps import NOW_S
from ragbandit.router.reporting.reading import PairedComparison, Report, Sample, Unit
from ragbandit.shared.texts.formats import counted, duration, moment, money, number, percent


def report_sentence(report: Report, *, now: float) -> str:
    """State, period, money, verdict: all of a report in one sentence."""
    total = report.total
    start = f"{report.state}. " if report.state else ""
    start += f"{period_of(report, now=now)}: "
    if total is None:
        return f"{start}no questions that compare two arms."
    if not total.questions:
        return f"{start}{_verdict(total)}."
    text = f"{_asked(total)} for {_spent(total, report.unit)}"
    if report.sample is not None:
        text = f"{_spent(total, report.unit, is_sample=True)}, {sample_words(report.sample)}"
    return f"{start}{text}; {_verdict(total)}."


def with_before(report: Report, before: str) -> Report:
    """The report with the findings of before the start, also in its sentence."""
    return replace(report, before=before, sentence=f"{report.sentence} {before}")


def with_asked(report: Report, asked: PairedComparison) -> Report:
    """The report with the comparison by questions that were asked again, also in its sentence."""
    return replace(report, asked=asked, sentence=f"{report.sentence} {asked_words(asked)}")


def asked_words(asked: PairedComparison) -> str:
    of = f"{asked.asked:,} of the {counted(asked.differing, 'question')} that went to other arms"
    waiting = f"{counted(asked.waiting, 'label')} missing (page Labels)"
    if not asked.asked:
        return f"Both were asked again: {waiting}."
    more = f"; {waiting}" if asked.waiting and asked.comparison.verdict != NOT_KNOWN else ""
    return f"Both asked again on {of}: {comparison_words.sentence(asked.comparison)}{more}."


def _verdict(total: Comparison) -> str:
    if not total.questions:
        return f"no question was offered {total.second_arm}"
    if not total.rated:
        return "no answer was rated, so that nothing is known of quality"
    return comparison_words.sentence(total)


def _asked(total: Comparison) -> str:
    questions = counted(total.questions, "question")
    if total.bounded in (0, total.questions):
        return questions
    return f"{total.questions - total.bounded:,} of {questions}, which could draw {total.second_arm},"


def _spent(total: Comparison, unit: Unit, *, is_sample: bool = False) -> str:
    """Sums of the period; if they are scaled from a sample, with two digits."""
    priced = total.questions - total.bounded or total.questions
    sums = [None if mean is None else mean * priced for mean in (total.cost.first, total.cost.second)]
    if is_sample:
        sums = [None if one is None else float(f"{one:.2g}") for one in sums]
    spent, instead = (f"{'about ' * is_sample}{money(one, unit)}" for one in sums)
    if comparison_words.cost_change(total.cost) is None:
        return spent
    return f"{spent} instead of {instead} with {total.second}"


def sample_words(sample: Sample) -> str:
    return f"from a sample of {sample.questions:,} of {counted(sample.out_of, 'question')}"


def period_of(report: Report, *, now: float) -> str:
    tenant = "" if report.tenant is None else f", tenant {report.tenant}"
    if abs(now - report.until) < NOW_S:
        days = (report.until - report.since) / 86_400.0
        return f"Last {f'{number(days)} days' if days >= 2 else duration(86_400.0 * days)}{tenant}"
    return f"{moment(report.since)} to {moment(report.until)}{tenant}"


def report_assessment(
    report: Report,
    *,
    now: float,
    kinds: Sequence[QuestionKind] = (),
    kinds_of: str = "",
    arms: Sequence[str] = (),
    steps: Sequence[str | None] = (),
) -> Assessment:
    """What a report shows. kinds: kinds of questions, from a map of the policy. arms: see `Assessment.arms`.

    steps: next steps to a verdict that is not known yet (`next_steps`)
    """
    total = report.total
    others = [one for one in report.arms if total is None or one.second != total.second]
    served = (*([] if total is None else [total]), *others)
    groups = [
        ("tenant", report.tenants),
        ("price", report.prices),
        ("week from", report.weeks),
    ]
    tables = [
        ("what was served against each arm", served, True),
        *((f"by {name}", rows, False) for name, rows in groups),
    ]
    verdict = report.sentence if total is None else f"{_verdict(total)}."
    about = "" if total is None else f"reward a question of routing, compared with {total.second}"
    lead, shown, asked = total, served, report.asked
    if asked is not None:
        again = replace(asked.comparison, second=f"{asked.comparison.second}, asked again")
        shown = (again, *served) if asked.asked else served
        if total is not None and _tells_more(again, total):
            lead, about = again, f"{about}, both asked again"
            verdict = f"{asked_words(asked)} By live traffic, {verdict}"
        else:
            verdict = f"{verdict} {asked_words(asked)}"
    if report.before is not None:
        verdict = f"{verdict} {report.before}"
    known = lead is not None and lead.verdict != NOT_KNOWN
    return Assessment(
        title=f"RagBandit: {period_of(report, now=now)}",
        sentence=f"{report.state}. {verdict}" if report.state and total is not None else verdict,
        number=comparison_words.estimate_words(lead.reward) if lead is not None and known else NOT_KNOWN,
        about=about,
        verdict=None if lead is None else lead.verdict,
        state=report.state,
        comparisons=shown,
        frontier=tuple(_frontier(served)),
        kinds=tuple(kinds),
        kinds_of=kinds_of,
        arms=tuple(arms),
        curves=() if report.curve is None else (report.curve,),
        missing=None if lead is None else lead.missing,
        progress=1.0 if lead is None else lead.progress,
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
    if report.advice is not None:
        yield report.advice
    waiting = 0 if report.asked is None else report.asked.waiting
    if waiting:
        yield f"label {counted(waiting, 'answer')} on the page Labels: answers of both ways to the same questions"
    elif lead is not None and lead.verdict == NOT_KNOWN:
        yield from filter(None, steps)


def _tells_more(first: Comparison, second: Comparison) -> bool:
    """Whether the first comparison has a verdict, and the second one has none or a wider interval."""
    if first.verdict == NOT_KNOWN or second.verdict == NOT_KNOWN:
        return first.verdict != NOT_KNOWN
    return _width(first) < _width(second)


def _width(comparison: Comparison) -> float:
    reward = comparison.reward
    return math.inf if reward.low is None or reward.high is None else reward.high - reward.low


def _facts(total: Comparison, report: Report) -> dict[str, str]:
    spent = _spent(total, report.unit, is_sample=report.sample is not None)
    return {"questions": number(total.questions), "rated": number(total.rated), "spent": spent}


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
    """The arms whose quality is known against what was served, and what was served."""
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


def _costs(one: Comparison, unit: Unit) -> str:
    second = None if comparison_words.cost_change(one.cost) is None else one.cost.second
    return f"{comparison_words.amount(one.cost.first, unit)} instead of {comparison_words.amount(second, unit)}"
