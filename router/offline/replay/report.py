"""Sentences and number formats of replay reports, the same for terminal, page and JSON."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ragbandit.router.offline.charts import number_table, print_whole
from ragbandit.router.offline.replay.plan import (
    CandidateResult,
    EstimateWithInterval,
    ReplayResult,
    SegmentResult,
    instant,
)
from ragbandit.shared.confidence_sequences import NOT_TRIED
from ragbandit.shared.formats import decimal, number, one_line, percent

_SOURCES = {
    "explicit": "from feedback",
    "default": "default rewards (no feedback)",
    "late": "with later feedback that came after they were learned",
}
_LEARNED = {"folds": "learned from this log", "along": "learning along this log", "before": "as it was then"}
#: maximum number of decimals, however narrow the interval is
_DIGITS = 6
_COLUMNS, _LINES = 80, 24
#: a possible weight of at least this is printed as unbounded
_UNBOUNDED = 1e6
#: a difference is called close to zero if a verdict needs more than this many times the rows of the log
_HOPELESS = 100


def alarm(replayed: ReplayResult) -> list[str]:
    """Warnings to print before any number; empty if the log passes its checks."""
    if not replayed.faults:
        return []
    wrong = [f"This log is wrong: {one_line(fault)}" for fault in replayed.faults]
    return [*wrong, "The numbers below are not reliable."]


def headline(replayed: ReplayResult) -> list[str]:
    # Every sentence has the caveat, since it may be quoted without the others.
    sample = ""
    if replayed.sampled_from is not None:
        sample = f" (on {replayed.rows:,} of {replayed.sampled_from:,} rows, drawn by id)"
    sentences = []
    for candidate in compared(replayed):
        caveat = "If the log were right: " if replayed.faults and not candidate.missing else ""
        sentences.append(f"{caveat}{_sentence(candidate, replayed=replayed)}{sample}")
    return sentences


def compared(replayed: ReplayResult) -> list[CandidateResult]:
    return [candidate for candidate in replayed.candidates if candidate.verdict != "baseline"]


def judged(replayed: ReplayResult) -> list[CandidateResult]:
    return [candidate for candidate in compared(replayed) if candidate.verdict != "cannot be judged"]


def _sentence(candidate: CandidateResult, *, replayed: ReplayResult) -> str:
    assert candidate.difference is not None
    name, difference = one_line(candidate.name), candidate.difference
    if candidate.verdict == "cannot be judged":
        return f"{name} cannot be judged: {_unsupported(candidate, are=' are')}{_bounds(candidate, replayed=replayed)}"
    if candidate.same_policy and difference.low == difference.high:
        return f"{side(candidate)} against {_baseline_side(replayed)}: the same policy, so there is no difference"
    if candidate.missing is not None:
        return f"{side(candidate)} against {_baseline_side(replayed)}: {candidate.missing}"
    ends = interval(difference, sign="+")
    between = f"between {ends[0]} and {ends[1]}" if ends else "no interval can be computed"
    gain = f"{estimate(difference, sign='+')} reward per question ({between})"
    return f"{side(candidate)} against {_baseline_side(replayed)}: {gain}: {_verdict(candidate, replayed=replayed)}"


def side(candidate: CandidateResult) -> str:
    name = one_line(candidate.name)
    return name if candidate.learned is None else f"{name}, {_LEARNED[candidate.learned]},"


def _baseline_side(replayed: ReplayResult) -> str:
    for candidate in replayed.candidates:
        if candidate.verdict == "baseline":
            return side(candidate).removesuffix(",")
    names = sorted({one_line(policy.name) for policy in replayed.logged})
    who = " and ".join(names) or one_line(replayed.baseline)
    they = "they" if len(names) > 1 else "it"
    learning = f" while {they} learned" if len(replayed.versions) > 1 else ""
    return f"{who} as {they} served{learning}"


def _verdict(candidate: CandidateResult, *, replayed: ReplayResult) -> str:
    assert candidate.difference is not None
    if candidate.difference.low is None:
        return f"cannot tell: {candidate.estimator} is biased"
    if candidate.same_policy:
        return _same_policy(candidate)
    if candidate.verdict == "cannot tell":
        return f"cannot tell yet{_forecast(candidate, rows=replayed.rows)}"
    spite = f", whatever the reward of the {_unsupported(candidate)}" if candidate.unsupported else ""
    return f"{candidate.verdict}{spite}{_quality_and_cost(candidate)}"


def _same_policy(candidate: CandidateResult) -> str:
    assert candidate.difference is not None
    if candidate.verdict == "cannot tell":
        return "cannot tell, as it should be: it is the same policy"
    if candidate.learned == "along":
        return "the same policy, so this is no difference between policies; it was not served as it is replayed"
    if candidate.difference.value > 0.0:
        return "the same policy: this is what having learned is worth, not a better policy"
    return "the same policy: this is what not having seen these questions costs, not a worse policy"


def _quality_and_cost(candidate: CandidateResult) -> str:
    if candidate.quality_difference is None or candidate.cost_difference is None:
        return ""
    quality, cost = estimate(candidate.quality_difference, sign="+"), estimate(candidate.cost_difference, sign="+")
    return f"; quality {quality}, cost {cost}"


def _unsupported(candidate: CandidateResult, *, are: str = "") -> str:
    arms = ", ".join(one_line(arm) for arm in candidate.unsupported)
    share = percent(sum(candidate.unsupported.values()))
    return f"{share} of its decisions{are} for arms that the log never tried there ({arms})"


def _bounds(candidate: CandidateResult, *, replayed: ReplayResult) -> str:
    if candidate.bounds is None:
        return ""
    low, high = (estimate(EstimateWithInterval(value=bound)) for bound in candidate.bounds)
    against = f"{one_line(replayed.baseline)} has {estimate(replayed.baseline_reward)}"
    return f"; its reward per question may lie anywhere from {low} to {high} ({against})"


def _forecast(candidate: CandidateResult, *, rows: int) -> str:
    """Rows needed to detect a difference as large as the estimate with 50 % power; "" if no forecast is possible."""
    if candidate.rows_needed is None:
        return ""
    if candidate.rows_needed > _HOPELESS * rows:
        return "; the difference is close to zero: more questions will not settle it soon"
    total = round(candidate.rows_needed, 1 - math.floor(math.log10(candidate.rows_needed)))  # two digits
    total = total if total > rows else -(-max(candidate.rows_needed, rows + 1) // 10) * 10
    needed = f"takes about {total:,} rated questions (you have {rows:,})"
    return f"; not enough data: to detect a difference this large with 50 % power {needed}"


def about_the_log(replayed: ReplayResult) -> list[str]:
    plan, baseline = replayed.plan, one_line(replayed.baseline)
    parts = {"reward": replayed.baseline_reward, "quality": replayed.baseline_quality, "cost": replayed.baseline_cost}
    values = ", ".join(f"{name} {cell(part)}" for name, part in parts.items())
    shared = f", and {replayed.comparisons} comparisons share the error" if replayed.comparisons > 1 else ""
    weight = "as logged" if plan.weight is None else f"{plan.weight:g} for all rows"
    sentences = [
        f"Log: {number(replayed.rows)} questions from {one_line(replayed.log)} ({_times(replayed)})",
        f"Compared with {baseline}: {values}",
        f"Estimated by {one_line(plan.estimator)}; reward model {one_line(plan.reward_model)}, {plan.folds} folds",
        f"Intervals: {percent(plan.confidence)} confidence; they are valid for one look, fixed in advance{shared}",
        f"Cost weight: {weight}",
        _listed("Rewards", {_SOURCES.get(source, source): rows for source, rows in replayed.sources.items()}),
        _listed("Policy versions in the log", replayed.versions),
        f"Left out: {number(replayed.skipped_rows)} rows" if replayed.skipped_rows else "",
        *(f"    {one_line(row.where)}: {one_line(row.reason)}" for row in replayed.skipped),
        *(f"Note: {one_line(note)}" for note in replayed.notes),
        *(f"Note on {one_line(c.name)}: {one_line(note)}" for c in replayed.candidates for note in c.notes),
    ]
    return [line for line in sentences if line]


def _times(replayed: ReplayResult) -> str:
    if replayed.begin is None or replayed.end is None:
        return "no times"
    since = "" if replayed.since is None else f"; none before {instant(replayed.since)} was read"
    return " to ".join(dict.fromkeys(instant(seconds) for seconds in (replayed.begin, replayed.end))) + since


def footnotes(replayed: ReplayResult) -> list[str]:
    shown = {c.estimator for c in judged(replayed)} | {name for c in judged(replayed) for name in c.others}
    pairs = [" and ".join(pair) for pair in (("snips", "ips"), ("sndr", "dr")) if shown.issuperset(pair)]
    if not pairs:
        return []
    second = f", so do {pairs[1]}" if pairs[1:] else ""
    return [f"{pairs[0]} share an interval (empirical likelihood){second}"]


def values_of(candidate: CandidateResult) -> tuple[str, str, str, str]:
    """Returns (reward, difference, quality, cost) as text; only bounds if unsupported decisions prevent a verdict."""
    if candidate.verdict == "cannot be judged":
        assert candidate.difference is not None
        reward = " to ".join(estimate(EstimateWithInterval(value=bound)) for bound in candidate.bounds or ())
        difference = " to ".join(interval(candidate.difference, sign="+") or ())
        return reward or "not known", difference or "not known", "not known", "not known"
    if candidate.missing is not None:
        return (NOT_TRIED,) * 4
    difference = "" if candidate.difference is None else cell(candidate.difference, sign="+")
    return cell(candidate.reward), difference, estimate(candidate.quality), estimate(candidate.cost)


def interval(measured: EstimateWithInterval, *, sign: str = "") -> tuple[str, str] | None:
    ends = _ends(measured)
    return ends and (_decimal(measured, ends[0], sign=sign), _decimal(measured, ends[1], sign=sign))


def cell(measured: EstimateWithInterval, *, sign: str = "") -> str:
    ends = interval(measured, sign=sign)
    return estimate(measured, sign=sign) + (f" ({ends[0]} to {ends[1]})" if ends else "")


def estimate(measured: EstimateWithInterval, *, sign: str = "") -> str:
    """The number with three decimals; more if three would hide the interval, fewer for a large number."""
    return _decimal(measured, measured.value, sign=sign)


def _decimal(measured: EstimateWithInterval, value: float, *, sign: str) -> str:
    if not math.isfinite(value):
        return "not known"
    return decimal(value, _digits(measured), sign=sign)


def _digits(measured: EstimateWithInterval) -> int:
    size = abs(measured.value)
    if size >= 100.0:
        return 1 if size < 1000.0 else 0
    low, high = _ends(measured) or (0.0, 0.0)
    # An interval's end of +0.0004, shown as +0.000, would hide the verdict.
    seen = [size for size in (abs(low), abs(high), (high - low) / 10.0) if size > 10.0**-_DIGITS]
    digits = 3
    while digits < _DIGITS and any(round(size, digits) == 0.0 for size in seen):
        digits += 1
    return digits


def _ends(measured: EstimateWithInterval) -> tuple[float, float] | None:
    return measured.interval if measured.interval and all(map(math.isfinite, measured.interval)) else None


def _listed(title: str, rows: Mapping[str, int]) -> str:
    counts = "; ".join(f"{number(count)} {one_line(name)}" for name, count in rows.items())
    return f"{title}: {counts}" if rows else ""


_STYLES = {
    "better": "green",
    "worse": "red",
    "cannot tell": "yellow",
    "same policy": "yellow",
    "cannot be judged": "magenta",
    "baseline": "dim",
    "not drawn as logged": "bold red",
}


#: title, names of the columns, rows of cells
_Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]


def _estimates(replayed: ReplayResult) -> Iterator[_Table]:
    names: Sequence[str] = ("candidate", "reward", "difference", "quality", "cost", "estimator", "verdict")
    yield "The candidates", names, [_candidate(candidate) for candidate in replayed.candidates]
    names = ("candidate", "effective rows", "largest weight", "largest possible", "mean weight (right: 1)")
    weights = [_weights(candidate, rows=replayed.rows) for candidate in compared(replayed)]
    yield "How far each candidate is from the log", names, weights
    yield _arms(replayed)
    yield _others(replayed)


def _comparisons(replayed: ReplayResult) -> Iterator[_Table]:
    pairs = [(f"{pair.first} - {pair.second}", cell(pair.difference, sign="+")) for pair in replayed.pairs]
    yield "The candidates against each other", ("first - second", "difference"), pairs
    names = ("group", "candidate", "questions", "effective rows", "baseline", "reward", "difference")
    candidates = judged(replayed)
    for field in dict.fromkeys(field for candidate in candidates for field in candidate.segments):
        rows = [
            _segment(segment, of=candidate) for candidate in candidates for segment in candidate.segments.get(field, ())
        ]
        yield f"By {field}", names, rows


def _candidate(candidate: CandidateResult) -> Sequence[str]:
    described = "" if candidate.described == candidate.name else f" ({candidate.described})"
    return (candidate.name + described, *values_of(candidate), candidate.estimator, candidate.verdict)


def _weights(candidate: CandidateResult, *, rows: int) -> Sequence[str]:
    weights = candidate.weights
    return (
        candidate.name,
        f"{number(weights.effective_rows)} of {number(rows)}",
        number(weights.largest),
        number(weights.possible) if weights.possible < _UNBOUNDED else "unbounded",
        cell(weights.mean) if weights.possible < _UNBOUNDED else estimate(weights.mean),
    )


def _arms(replayed: ReplayResult) -> _Table:
    names = ("arm", "drawn", "expected", "reward", "quality", "cost")
    faulty = not all(arm.plausible for arm in replayed.arms)
    rows = []
    for arm in replayed.arms:
        means = (
            "" if mean is None else estimate(EstimateWithInterval(value=mean))
            for mean in (arm.reward, arm.quality, arm.cost)
        )
        fault = ("" if arm.plausible else "not drawn as logged",) if faulty else ()
        rows.append((arm.name, percent(arm.drawn), percent(arm.expected), *means, *fault))
    return "The arms in the log", (*names, "fault") if faulty else names, rows


def _others(replayed: ReplayResult) -> _Table:
    candidates = [candidate for candidate in replayed.candidates if candidate.verdict != "cannot be judged"]
    names = list(dict.fromkeys(name for candidate in candidates for name in candidate.others))
    rows = [
        (candidate.name, *(cell(candidate.others[name]) if name in candidate.others else "" for name in names))
        for candidate in candidates
        if names
    ]
    return "The reward by other estimators", ("candidate", *names), rows


def _segment(segment: SegmentResult, *, of: CandidateResult) -> Sequence[str]:
    return (
        segment.name,
        of.name,
        number(segment.rows),
        number(segment.effective_rows),
        estimate(EstimateWithInterval(value=segment.baseline)),
        cell(segment.value),
        cell(segment.difference, sign="+"),
    )


def print_summary(replayed: ReplayResult, console: Console) -> None:
    """Print sentences, notes and the log in at most 80 columns and 24 lines, and the number of lines left out."""
    about = about_the_log(replayed)
    hint = "--all prints the tables and notes, --report FILE.html writes them as a page"
    ends = [part for line in [*about[:2], hint] for part in wrap(line, _COLUMNS)]
    room = _LINES - len(ends) - 1
    left_out = 0
    notes = [(line, "") for line in about if line.startswith(("Left out", "Note:"))]
    for line, style in [*_sentences(replayed), *notes]:
        parts = wrap(line, _COLUMNS)
        if left_out or len(parts) > room:
            left_out += 1
            continue
        room -= len(parts)
        for part in parts:
            console.print(Text(part, style=style), soft_wrap=True)
    for line in [f"({left_out} more: --all)"] * bool(left_out) + ends:
        console.print(Text(line), soft_wrap=True)


def _sentences(replayed: ReplayResult) -> list[tuple[str, str]]:
    styles = [_STYLES[candidate.verdict] for candidate in compared(replayed)]
    return [*((line, "bold red") for line in alarm(replayed)), *zip(headline(replayed), styles, strict=True)]


def print_replay(replayed: ReplayResult, console: Console) -> None:
    """Print the sentences and the tables that are not empty. In a file or pipe, each table gets its full width."""
    for line, style in _sentences(replayed):
        console.print(Text(line, style=style), soft_wrap=True)
    _print_tables(_estimates(replayed), console=console)
    for line in footnotes(replayed):
        console.print(Text(line), soft_wrap=True)
    _print_tables(_comparisons(replayed), console=console)
    for line in about_the_log(replayed):
        console.print(Text(line), soft_wrap=True)


def _print_tables(tables: Iterable[_Table], *, console: Console) -> None:
    for title, names, rows in tables:
        printed = number_table(*(escape(one_line(name)) for name in names))
        printed.title, printed.title_justify, printed.title_style = Text(one_line(title)), "left", "bold"
        for row in rows:
            printed.add_row(*(Text(one_line(cell), style=_STYLES.get(cell, "")) for cell in row))
        print_whole(printed, console=console)
