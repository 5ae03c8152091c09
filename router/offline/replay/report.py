"""What a replay shows: a comparison of each candidate with the baseline, and facts about the log."""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from ragbandit.router.comparison import NOT_KNOWN, Comparison, words
from ragbandit.router.comparison.assessment import Assessment, FrontierPoint, NumberTable
from ragbandit.router.offline.replay.plan import CandidateResult, ReplayResult
from ragbandit.shared.texts.formats import counted, decimal, moment, number, one_line, percent

#: a possible weight of at least this is printed as unbounded
_UNBOUNDED: Final = 1e6


def comparisons(replayed: ReplayResult) -> list[Comparison]:
    """Each candidate, except the baseline, compared with the baseline."""
    return [comparison for _, comparison in _judged(replayed)]


def _judged(replayed: ReplayResult) -> list[tuple[CandidateResult, Comparison]]:
    return [(one, one.comparison) for one in replayed.candidates if one.comparison is not None]


def headline(replayed: ReplayResult) -> list[str]:
    """A sentence for each comparison. Every sentence has its caveats, since it may be quoted alone."""
    sample = ""
    if replayed.sampled_from is not None:
        sample = f" (on {replayed.rows:,} of {replayed.sampled_from:,} rows, drawn by id)"
    return [f"{_sentence(candidate, comparison)}{sample}" for candidate, comparison in _judged(replayed)]


def _sentence(candidate: CandidateResult, comparison: Comparison) -> str:
    if candidate.same_policy:
        return f"{comparison.first} and {comparison.second} are the same policy"
    text = words.sentence(comparison)
    if comparison.verdict != NOT_KNOWN and candidate.unsupported:
        arms = ", ".join(one_line(arm) for arm in candidate.unsupported)
        share = percent(round(sum(candidate.unsupported.values()), 3))
        text += f"; whatever the reward of what the log never tried: {share} of the decisions of "
        text += f"{one_line(candidate.name)} are for arms that the log never tried there ({arms})"
    if comparison.verdict == NOT_KNOWN and candidate.bounds is not None:
        low, high = map(decimal, candidate.bounds)
        text += f"; its reward may lie anywhere from {low} to {high}"
    return text


def replay_assessment(replayed: ReplayResult) -> Assessment:
    """A replay's result for people. Faults of the log replace the sentence and all verdicts."""
    compared = comparisons(replayed)
    first = compared[0] if compared else None
    sentence, *others = headline(replayed) or [""]
    names = {
        one.verdict: [one_line(each.first) for each in compared if each.verdict == one.verdict] for one in compared
    }
    lead = "; ".join(f"{verdict}: {', '.join(same)}" for verdict, same in names.items())
    if replayed.faults:
        faults = "; ".join(map(one_line, replayed.faults))
        sentence = f"this log is wrong, so that no number from it is reliable: {faults}"
    return Assessment(
        title=f"Replay of {one_line(replayed.log)}",
        sentence=sentence,
        number=words.lead_words(first),
        about="" if first is None else f"reward per question, {first.first} minus {first.second}",
        headline="" if first is None or replayed.faults else f"Against {first.second}: {lead}",
        verdict=None if first is None else first.verdict,
        comparisons=tuple(compared),
        frontier=tuple(_frontier(replayed)),
        frontier_note="; ".join(filter(None, map(_why_not_drawn, compared))),
        missing=_missing(compared),
        tables=(_rewards(replayed), _weights(replayed), _arms(replayed), *_segments(replayed)),
        notes=(*others, *_about_the_log(replayed)),
    )


def _missing(compared: Sequence[Comparison]) -> str | None:
    """What each candidate needs for a verdict, by name if there are several; None if all have a verdict."""
    if len(compared) == 1:
        return compared[0].missing
    needs: dict[str, list[str]] = {}
    for one in compared:
        if one.missing:
            needs.setdefault(one.missing, []).append(one_line(one.first))
    return "; ".join(f"{', '.join(names)}: {missing}" for missing, names in needs.items()) or None


def _frontier(replayed: ReplayResult) -> Iterator[FrontierPoint]:
    for candidate, comparison in _judged(replayed):
        if not _why_not_drawn(comparison):
            kind: Literal["arm", "candidate"] = "arm" if candidate.name.startswith("fixed:") else "candidate"
            quality, cost = candidate.quality.estimate or 0.0, candidate.cost.estimate or 0.0
            yield FrontierPoint(name=one_line(candidate.name), quality=quality, cost=cost, kind=kind)
    quality, cost = replayed.baseline_quality.estimate or 0.0, replayed.baseline_cost.estimate or 0.0
    yield FrontierPoint(name=replayed.against, quality=quality, cost=cost, kind="served")


def _why_not_drawn(comparison: Comparison) -> str:
    """Why the picture leaves a candidate out; "" if the picture shows the candidate."""
    verdicts = {"reward": comparison.verdict, "quality": comparison.quality_verdict}
    unknown = " and ".join(part for part, verdict in verdicts.items() if verdict == NOT_KNOWN)
    return unknown and f"{one_line(comparison.first)} is not drawn: {unknown} {NOT_KNOWN}"


def _about_the_log(replayed: ReplayResult) -> Iterator[str]:
    plan = replayed.plan
    shared = f", and {replayed.comparisons} comparisons share the error" if replayed.comparisons > 1 else ""
    weight = "as logged" if plan.weight is None else f"{plan.weight:g} for all rows"
    yield f"log: {counted(replayed.rows, 'question')} from {one_line(replayed.log)} ({_times(replayed)})"
    yield f"intervals: {percent(plan.confidence)} confidence; they are valid for one look, fixed in advance{shared}"
    yield f"weight of cost: {weight}"
    if replayed.skipped_rows:
        first = "; ".join(f"line {row.line}: {one_line(f'{row.field} {row.reason}')}" for row in replayed.skipped)
        yield f"left out: {counted(replayed.skipped_rows, 'row')} ({first})"
    yield from map(one_line, replayed.notes)
    for candidate in replayed.candidates:
        yield from (f"{one_line(candidate.name)}: {one_line(note)}" for note in candidate.notes)


def _times(replayed: ReplayResult) -> str:
    if replayed.begin is None or replayed.end is None:
        return "no times"
    since = "" if replayed.since is None else f"; none before {moment(replayed.since)} was read"
    return " to ".join(dict.fromkeys(moment(seconds) for seconds in (replayed.begin, replayed.end))) + since


def _rewards(replayed: ReplayResult) -> NumberTable:
    rows = [
        (
            one_line(candidate.described),
            words.difference(comparison.reward),
            words.difference(comparison.quality),
            words.difference(comparison.cost),
            comparison.verdict,
        )
        for candidate, comparison in _judged(replayed)
    ]
    columns = ("candidate", "reward", "quality", "cost", "verdict")
    return NumberTable(title=f"difference a question from {replayed.against}", columns=columns, rows=tuple(rows))


def _weights(replayed: ReplayResult) -> NumberTable:
    rows = []
    for candidate, _ in _judged(replayed):
        weights = candidate.weights
        possible = number(weights.possible) if weights.possible < _UNBOUNDED else "unbounded"
        effective = f"{weights.effective_rows:,.0f} of {number(replayed.rows)}"
        rows.append(
            (one_line(candidate.name), effective, number(weights.largest), possible, decimal(weights.mean.estimate))
        )
    columns = ("candidate", "effective rows", "largest weight", "largest possible", "mean weight (right: 1)")
    return NumberTable(title="how far each candidate is from the log", columns=columns, rows=tuple(rows))


def _arms(replayed: ReplayResult) -> NumberTable:
    rows = [
        (
            one_line(arm.name),
            percent(round(arm.drawn, 3)),
            percent(round(arm.expected, 3)),
            *map(decimal, (arm.reward, arm.quality, arm.cost)),
            "yes" if arm.plausible else "no",
        )
        for arm in replayed.arms
    ]
    columns = ("arm", "drawn", "expected", "reward", "quality", "cost", "drawn as logged")
    return NumberTable(title="the arms in the log, where they were drawn", columns=columns, rows=tuple(rows))


def _segments(replayed: ReplayResult) -> Iterator[NumberTable]:
    columns = ("group", "candidate", "questions", "effective rows", "difference in reward", "verdict")
    for field in dict.fromkeys(field for candidate, _ in _judged(replayed) for field in candidate.segments):
        rows = [
            (
                *map(one_line, (value, candidate.name)),
                number(one.questions),
                f"{one.reward.effective_rows:,.0f}",
                words.difference(one.reward),
                one.verdict,
            )
            for candidate, _ in _judged(replayed)
            for value, one in candidate.segments.get(field, {}).items()
        ]
        yield NumberTable(title=f"by {one_line(field)}", columns=columns, rows=tuple(rows))
