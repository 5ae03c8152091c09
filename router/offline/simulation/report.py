"""Simulation results as tables for the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as Printed

from ragbandit.router.learning.monitoring.price import implied, proposal
from ragbandit.router.offline.simulation.first_pass import LEAST_PREFIX
from ragbandit.router.offline.simulation.frontier import STEPS_READ
from ragbandit.router.offline.simulation.results import Simulated, passes_of
from ragbandit.shared.formats import decimal

#: places at which the curves are printed
_STRETCHES = 5


def print_training(rows: Sequence[Simulated], *, console: Console, by_dataset: bool) -> None:
    """All tables, wide enough to be whole in a file or a pipe."""
    learning = [first_pass_table(rows), *stretch_tables(rows)]
    tables = [main_table(rows), frontier_table(rows), *learning, dataset_table(rows) if by_dataset else None]
    for table in tables:
        if table is not None:
            wide = Measurement.get(console, console.options.update(width=1000), table).maximum
            Console(file=console.file, width=max(wide, console.width), emoji=False).print(table)
    for note in footnotes(rows):
        console.print(escape(note), soft_wrap=True, highlight=False)


def main_table(rows: Sequence[Simulated]) -> Printed:
    """A line per row."""
    table = _table(
        "policy", "lambda", "EM", "steps", "above line", "of oracle", "arms %", "reward", "regret", "ms/dec.", "ms/upd."
    )
    for row in rows:
        table.add_row(
            escape(row.policy) + ("*" if row.full_information else ""),
            "" if row.weight is None else f"{row.weight:g}",
            _pair(row.em, error=row.em_se),
            f"{row.steps:.2f}",
            _pair(row.above_line, error=row.above_line_se, sign="+"),
            "" if row.oracle_share is None else f"{100 * row.oracle_share:.0f}%",
            "/".join(f"{100 * share:.0f}" for share in row.arms.values()),
            decimal(row.online_reward, digits=3),
            decimal(row.online_regret, digits=3),
            decimal(_milliseconds(row, "decision"), digits=2),
            decimal(_milliseconds(row, "update"), digits=2),
        )
    return table


def frontier_table(rows: Sequence[Simulated]) -> Printed | None:
    """EM above the line along the frontiers, read at common steps; None if no frontier reaches any of them."""
    shown_rows = [
        row for row in rows if row.policy != "line" and any(v is not None for v in row.above_line_at.values())
    ]
    if not shown_rows:
        return None
    table = _table("EM above the line at", *(f"{steps:g} steps" for steps in STEPS_READ))
    for row in {(row.policy, row.frontier): row for row in shown_rows}.values():  # rows of one frontier are one
        alone = len({other.frontier for other in shown_rows if other.policy == row.policy}) == 1
        name = row.policy if alone else f"{row.policy}, lambda {row.weight:g}"
        read = [
            "" if value is None else _pair(value, error=row.above_line_at_se[key], sign="+")
            for key, value in row.above_line_at.items()
        ]
        table.add_row(escape(name) + ("*" if row.full_information else ""), *read)
    return table


def first_pass_table(rows: Sequence[Simulated]) -> Printed | None:
    """What was earned while learning, and what always one arm would have earned on the same questions."""
    passes = passes_of(rows)
    if not passes:
        return None
    table = _table("while learning", "lambda", "reward", "break-even", "passes", "worst prefix", "after", "harmed")
    for row, one in passes:
        even, worst = one.break_even, one.worst_prefix
        table.add_row(
            escape(row.policy),
            f"{row.weight:g}",
            decimal(one.reward, digits=3) + ("" if one.reward_se is None else f" ± {one.reward_se:.3f}"),
            "never" if even.question is None else str(even.question),
            f"{100 * even.share:.0f}%",
            f"{worst.difference:+.1f}" if worst.ratio is None else f"{worst.ratio:.3f}",
            str(worst.questions),
            f"{100 * worst.harmed:.0f}%",
        )
    for weight, one in {row.weight: one for row, one in reversed(passes)}.items():
        for arm, reward in one.always.items():
            roles = [
                what for what, is_it in (("incumbent", one.incumbent), ("best fixed", one.best_fixed)) if is_it == arm
            ]
            name = f"always-{arm}" + (f" ({', '.join(roles)})" if roles else "")
            table.add_row(escape(name), f"{weight:g}", f"{reward:.3f}")
        table.add_row("best arm of each question", f"{weight:g}", f"{one.oracle:.3f}")
    return table


def stretch_tables(rows: Sequence[Simulated]) -> list[Printed]:
    """After so many questions, with the band: sum of rewards minus the incumbent's, and regret."""
    passes = passes_of(rows)
    if not passes:
        return []
    first = passes[0][1]
    places = sorted({round(len(first.curve) * part / _STRETCHES) - 1 for part in range(1, _STRETCHES + 1)} - {-1})
    questions = [str(first.curve[index].questions) for index in places]
    ahead = _table(escape(f"ahead of always {first.incumbent} after"), "lambda", *questions)
    regret = _table("regret after", "lambda", *questions)
    for row, one in passes:
        shown = [one.curve[index] for index in places]
        name = escape(row.policy), f"{row.weight:g}"
        ahead.add_row(*name, *(f"{s.ahead:+.1f} ({s.ahead_low:+.1f} to {s.ahead_high:+.1f})" for s in shown))
        regret.add_row(*name, *(f"{s.regret:.1f} ({s.regret_low:.1f} to {s.regret_high:.1f})" for s in shown))
    return [ahead, regret]


def dataset_table(rows: Sequence[Simulated]) -> Printed:
    """EM and steps on the questions of each dataset."""
    names = sorted({name for row in rows for name in row.by_dataset})
    table = _table("policy", "lambda", *(f"{escape(name)} ({rows[0].by_dataset[name].n})" for name in names))
    for row in rows:
        cells = (f"{row.by_dataset[name].em:.1f} at {row.by_dataset[name].steps:.2f}" for name in names)
        table.add_row(escape(row.policy), "" if row.weight is None else f"{row.weight:g}", *cells)
    return table


def footnotes(rows: Sequence[Simulated]) -> list[str]:
    """Notes below the tables."""
    first, seeds = rows[0], max(row.seeds for row in rows)
    notes = [
        f"EM in % of {first.total} questions, {first.n} of them judged; mean and standard error over {seeds} seeds",
        f"arms %: {' / '.join(first.arms)}. reward, regret, ms: while learning",
    ]
    for _, one in passes_of(rows)[:1]:
        even = (
            "reward: mean per question while learning. break-even: the question from which on the sum of rewards is "
            f"never again below that of always {one.incumbent}, in the middle one of {one.passes} passes; passes: the "
            "share that gets there"
        )
        worst = (
            f"worst prefix: least sum of rewards over the incumbent's, of the first {LEAST_PREFIX} questions or more "
            f"of any pass; harmed: passes that fall below {1 - one.worst_prefix.harm:g}. In brackets: 10th to 90th "
            "percentile of the passes. regret: against the best arm of each question"
        )
        notes += [even, worst]
    labels = {row.policy: one.labels for row, one in passes_of(rows)}
    if labels:
        notes.append("labels learned a pass: " + ", ".join(f"{name} {count:,.1f}" for name, count in labels.items()))
    notes += [what(row.price) for row in rows if row.price is not None for what in (implied, proposal)]
    if any(row.full_information for row in rows):
        notes.append("* fitted to the outcomes of all arms, which no live policy sees")
    return notes + [
        f"{row.policy}: {row.faults} decisions by the fallback, {row.refused} updates refused: {row.reason}"
        for row in rows
        if row.faults or row.refused
    ]


def _milliseconds(row: Simulated, kind: str) -> float | None:
    seconds: float | None = None if row.seconds is None else getattr(row.seconds, kind)
    return None if seconds is None else 1000.0 * seconds


def _pair(value: float, *, error: float | None, sign: str = "") -> str:
    value = round(value, 2) + 0.0  # no "-0.00"
    return f"{value:{sign}.2f}" + ("" if error is None else f" ± {error:.2f}")


def _table(first: str, *others: str) -> Printed:
    """Names to the left, numbers to the right, nothing folded."""
    table = Printed(first, *others)
    for number, column in enumerate(table.columns):
        column.no_wrap, column.justify = True, "right" if number else "left"
    return table
