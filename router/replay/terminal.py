"""What a replay found, in sentences and tables for the terminal; the page says the same sentences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from unicodedata import category

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as Printed
from rich.text import Text

from router.replay.results import Candidate, Measured, Replayed, Segment

__all__ = [
    "about_the_log",
    "alarm",
    "cell",
    "compared",
    "count",
    "headline",
    "interval",
    "judged",
    "moment",
    "number",
    "percent",
    "print_replay",
    "printable",
    "standing",
    "values_of",
    "weight_of",
]

_STYLES = {"better": "green", "worse": "red", "cannot tell": "yellow", "cannot be judged": "magenta", "baseline": "dim"}
_SOURCES = {
    "explicit": "judged by somebody",
    "default": "by the default reward, as nobody judged",
    "late": "with more feedback after they were learned",
}
#: no more decimals than this, however narrow the interval
_DIGITS = 6


def print_replay(replayed: Replayed, *, console: Console) -> None:
    """The sentences, then the tables, each wide enough to be whole in a file or a pipe; what is empty is left out."""
    for line in alarm(replayed):
        console.print(Text(line, style="bold red"), soft_wrap=True)
    for candidate, line in zip(compared(replayed), headline(replayed), strict=True):
        console.print(Text(line, style=_STYLES[standing(candidate)]), soft_wrap=True)
    for part in _parts(replayed):
        if isinstance(part, str):
            console.print(Text(part), soft_wrap=True)
        elif part.row_count:
            wide = Measurement.get(console, console.options.update(width=1000), part).maximum
            Console(file=console.file, width=max(wide, console.width), emoji=False).print(part)


def alarm(replayed: Replayed) -> list[str]:
    """What must be read before any number; empty where the log is sound."""
    if not replayed.faults:
        return []
    wrong = [f"This log is wrong: {printable(fault)}" for fault in replayed.faults]
    return [*wrong, "No number below can be trusted."]


def headline(replayed: Replayed) -> list[str]:
    """One plain sentence per candidate of `compared`, in that order."""
    doubt = "If the log were right: " if replayed.faults else ""  # whoever quotes the sentence alone quotes the doubt
    return [doubt + _sentence(candidate, replayed=replayed) for candidate in compared(replayed)]


def compared(replayed: Replayed) -> list[Candidate]:
    """The candidates but for the baseline itself."""
    return [candidate for candidate in replayed.candidates if standing(candidate) != "baseline"]


def judged(replayed: Replayed) -> list[Candidate]:
    """Those compared of which the log knows enough to say more than what it leaves open."""
    return [candidate for candidate in compared(replayed) if standing(candidate) != "cannot be judged"]


def standing(candidate: Candidate) -> str:
    """The verdict, "cannot be judged" where the log's holes prevent one, or "baseline"."""
    if candidate.difference is None:
        return "baseline"
    if candidate.verdict in ("better", "worse"):  # holes and all: their worst case is in the interval
        return candidate.verdict
    return "cannot be judged" if candidate.holes else "cannot tell"


def _sentence(candidate: Candidate, *, replayed: Replayed) -> str:
    assert candidate.difference is not None
    name, difference, verdict = printable(candidate.name), candidate.difference, standing(candidate)
    if verdict == "cannot be judged":
        return f"{name} cannot be judged: it gives {_holes(candidate)}{_open(candidate, replayed=replayed)}"
    ends = interval(difference, sign="+")
    between = f"between {ends[0]} and {ends[1]}" if ends else "no honest interval is known"
    if difference.biased:
        return f"{name}: cannot tell by a biased estimator ({between} by chance alone, and its bias on top)"
    if ends and replayed.anytime:
        between += ", however often you look"
    if verdict == "cannot tell":
        return f"{name}: cannot tell yet ({between}); {_needed(candidate, rows=replayed.rows)}"
    gain = f"{number(difference, sign='+')} reward per question ({between})"
    gain += _made_of(candidate)
    spite = f", whatever would come of {_holes(candidate)}" if candidate.holes else ""
    return f"{name} is {verdict} than {printable(replayed.baseline)}: {gain}{spite}"


def _made_of(candidate: Candidate) -> str:
    """What the difference is made of."""
    if candidate.quality_difference is None or candidate.cost_difference is None:
        return ""
    quality, cost = number(candidate.quality_difference, sign="+"), number(candidate.cost_difference, sign="+")
    return f"; quality {quality}, cost {cost}"


def _holes(candidate: Candidate) -> str:
    arms = ", ".join(printable(arm) for arm in candidate.holes)
    return f"{percent(sum(candidate.holes.values()))} of its decisions to arms that the log never tried there ({arms})"


def _open(candidate: Candidate, *, replayed: Replayed) -> str:
    """What the holes leave open."""
    if candidate.bounds is None:
        return ""
    low, high = (number(Measured(value=bound)) for bound in candidate.bounds)
    against = f"{printable(replayed.baseline)} has {number(replayed.baseline_reward)}"
    return f"; its reward per question may lie anywhere from {low} to {high} ({against})"


def _needed(candidate: Candidate, *, rows: int) -> str:
    if candidate.rows_needed is None:
        return "nobody can say how many more questions would settle it"
    more = max(1, candidate.rows_needed - rows)
    return f"about {_rounded(more):,} more questions like these would settle it"


def about_the_log(replayed: Replayed) -> list[str]:
    """What was read and how it was compared, a sentence each."""
    baseline = printable(replayed.baseline)
    parts = {"reward": replayed.baseline_reward, "quality": replayed.baseline_quality, "cost": replayed.baseline_cost}
    values = ", ".join(f"{name} {cell(part)}" for name, part in parts.items())
    times = " to ".join(dict.fromkeys(_day(seconds) for seconds in (replayed.begin, replayed.end)))
    every = "hold however often you look" if replayed.anytime else "hold for one look, decided on beforehand"
    shared = f", and {replayed.comparisons} comparisons share the error" if replayed.comparisons > 1 else ""
    weight = "each row's own" if replayed.weight is None else f"{replayed.weight:g} for all rows"
    said = [
        f"Log: {count(replayed.rows)} questions from {printable(replayed.log)} ({times})",
        f"Compared with {baseline}: {values}",
        f"Intervals: {percent(replayed.confidence)} confidence; they {every}{shared}",
        f"Weight of cost in the reward: {weight}",
        _listed("Rewards", {_SOURCES.get(source, source): rows for source, rows in replayed.sources.items()}),
        _listed("Policy versions in the log", replayed.versions),
        *(f"{printable(name)}: {printable(value)}" for name, value in replayed.facts.items()),
        f"Left out: {count(replayed.skipped_rows)} rows" if replayed.skipped_rows else "",
        *(f"    {printable(row.where)}: {printable(row.reason)}" for row in replayed.skipped),
        *(f"Note: {printable(note)}" for note in replayed.notes),
        *(f"Note on {printable(c.name)}: {printable(note)}" for c in replayed.candidates for note in c.notes),
    ]
    return [line for line in said if line]


def _parts(replayed: Replayed) -> Iterator[Printed | str]:
    yield _candidates(replayed)
    measured = [m for c in replayed.candidates for m in (c.reward, c.difference, *c.others.values()) if m]
    if any(one.biased for one in measured):
        yield "* beside an estimate: its estimator is biased, and the bias is not in the interval"
    yield from about_the_log(replayed)
    yield _arms(replayed)
    yield _others(replayed)
    yield _pairs(replayed)
    yield from _segments(replayed)


def _candidates(replayed: Replayed) -> Printed:
    table = _table(
        "candidate", "reward", "difference", "quality", "cost", "effective rows", "largest weight", "verdict"
    )
    for candidate in replayed.candidates:
        verdict = standing(candidate)
        weights = candidate.weights
        table.add_row(
            escape(printable(candidate.name)),
            *values_of(candidate),
            f"{count(weights.effective_rows)} of {count(replayed.rows)}",
            weight_of(weights.largest),
            Text(verdict, style=_STYLES[verdict]),
        )
    return table


def values_of(candidate: Candidate) -> tuple[str, str, str, str]:
    """Reward, difference, quality and cost; only what the holes leave open where they prevent a verdict."""
    if standing(candidate) == "cannot be judged":
        assert candidate.difference is not None
        reward = " to ".join(number(Measured(value=bound)) for bound in candidate.bounds or ())
        difference = " to ".join(interval(candidate.difference, sign="+") or ())
        return reward or "not known", difference or "not known", "not known", "not known"
    difference = "" if candidate.difference is None else cell(candidate.difference, sign="+")
    return cell(candidate.reward), difference, number(candidate.quality), number(candidate.cost)


def _arms(replayed: Replayed) -> Printed:
    table = _table("arm in the log", "drawn", "expected", "reward", "quality", "cost")
    if not all(arm.plausible for arm in replayed.arms):
        table.add_column("fault", no_wrap=True)
    for arm in replayed.arms:
        values = ("" if v is None else number(Measured(value=v)) for v in (arm.reward, arm.quality, arm.cost))
        fault = [] if arm.plausible else [Text("not drawn as logged", style="bold red")]
        table.add_row(escape(printable(arm.name)), percent(arm.drawn), percent(arm.expected), *values, *fault)
    return table


def _others(replayed: Replayed) -> Printed:
    kept = [candidate for candidate in replayed.candidates if standing(candidate) != "cannot be judged"]
    names = list(dict.fromkeys(name for candidate in kept for name in candidate.others))
    table = _table("reward by other estimators", *(escape(printable(name)) for name in names))
    for candidate in kept if names else ():
        said = (candidate.others.get(name) for name in names)
        table.add_row(escape(printable(candidate.name)), *("" if one is None else cell(one) for one in said))
    return table


def _pairs(replayed: Replayed) -> Printed:
    table = _table("one candidate against another", "difference")
    for pair in replayed.pairs:
        table.add_row(escape(f"{printable(pair.first)} - {printable(pair.second)}"), cell(pair.difference, sign="+"))
    return table


def _segments(replayed: Replayed) -> Iterator[Printed]:
    """A table per field that was asked for."""
    for name in dict.fromkeys(name for candidate in judged(replayed) for name in candidate.segments):
        table = _table(
            f"by {escape(printable(name))}", "candidate", "rows", "effective rows", "baseline", "reward", "difference"
        )
        for candidate in judged(replayed):
            for segment in candidate.segments.get(name, ()):
                table.add_row(escape(printable(segment.name)), escape(printable(candidate.name)), *_segment(segment))
        yield table


def _segment(segment: Segment) -> Sequence[str]:
    return (
        count(segment.rows),
        count(segment.effective_rows),
        number(Measured(value=segment.baseline)),
        cell(segment.value),
        cell(segment.difference, sign="+"),
    )


def _table(first: str, *others: str) -> Printed:
    table = Printed(first, *others)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def interval(measured: Measured, *, sign: str = "") -> tuple[str, str] | None:
    """Both ends, None where no finite interval is known."""
    ends = _ends(measured)
    return ends and (_decimal(measured, ends[0], sign=sign), _decimal(measured, ends[1], sign=sign))


def cell(measured: Measured, *, sign: str = "") -> str:
    """The number with its interval and the mark of a bias: `0.512 (0.498 to 0.526)*`."""
    ends = interval(measured, sign=sign)
    return number(measured, sign=sign) + (f" ({ends[0]} to {ends[1]})" if ends else "") + "*" * measured.biased


def number(measured: Measured, *, sign: str = "") -> str:
    """The number alone: three decimals, more where they would hide the interval, fewer for large numbers."""
    return _decimal(measured, measured.value, sign=sign)


def _decimal(measured: Measured, value: float, *, sign: str) -> str:
    if not math.isfinite(value):
        return "not known"
    return f"{round(value, _digits(measured)) + 0.0:{sign},.{_digits(measured)}f}"  # no "-0.000"


def _digits(measured: Measured) -> int:
    size = abs(measured.value)
    if size >= 100.0:
        return 1 if size < 1000.0 else 0
    low, high = _ends(measured) or (0.0, 0.0)
    # An end of +0.0004 shown as +0.000 would hide the verdict.
    seen = [size for size in (abs(low), abs(high), (high - low) / 10.0) if size > 10.0**-_DIGITS]
    digits = 3
    while digits < _DIGITS and any(round(each, digits) == 0.0 for each in seen):
        digits += 1
    return digits


def _ends(measured: Measured) -> tuple[float, float] | None:
    low, high = measured.low, measured.high
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    return low, high


def weight_of(value: float) -> str:
    """An importance weight, three digits."""
    if not math.isfinite(value):
        return "not known"
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def count(value: float) -> str:
    """A number of rows."""
    return f"{value:,.0f}" if math.isfinite(value) else "not known"


def percent(share: float) -> str:
    """A share in three digits: `12 %`, `0.0412 %`."""
    return f"{100.0 * share:.3g} %"


def printable(text: str) -> str:
    """The text on one line, without characters that would steer a terminal or that XML refuses."""
    refused = ("Cc", "Cs", "Cn")  # controls, halves of pairs, what is no character
    return "".join("\N{REPLACEMENT CHARACTER}" if category(one) in refused else one for one in text)


def _rounded(value: int) -> int:
    """Two digits of it: nobody knows more."""
    return round(value, 1 - math.floor(math.log10(value)))


def _listed(title: str, rows: Mapping[str, int]) -> str:
    return f"{title}: " + "; ".join(f"{count(n)} {printable(name)}" for name, n in rows.items()) if rows else ""


def moment(seconds: float | None) -> datetime | None:
    """When that is, in UTC; None where it is no date: a log from elsewhere may count as it likes."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _day(seconds: float) -> str:
    when = moment(seconds)
    return f"{when:%Y-%m-%d %H:%M} UTC" if when else f"{seconds:g} s"
