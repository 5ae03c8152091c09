"""Simulation results as tables for the terminal and curves for the figure."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as Printed

from ragbandit.router.offline.simulation.frontier import STEPS_READ, Line, Point
from ragbandit.router.offline.simulation.frontier_plot import Curve, plot_frontier
from ragbandit.router.offline.simulation.results import Simulated

__all__ = ["draw_plot", "print_training"]


def print_training(rows: Sequence[Simulated], *, console: Console, by_dataset: bool) -> None:
    """All tables, wide enough to be whole in a file or a pipe."""
    tables = [main_table(rows), frontier_table(rows), dataset_table(rows) if by_dataset else None]
    for table in tables:
        if table is not None:
            wide = Measurement.get(console, console.options.update(width=1000), table).maximum
            Console(file=console.file, width=max(wide, console.width), emoji=False).print(table)
    for note in footnotes(rows):
        console.print(escape(note), soft_wrap=True, highlight=False)


def main_table(rows: Sequence[Simulated]) -> Printed:
    """A line per row."""
    table = Printed(
        "policy", "lambda", "EM", "steps", "above line", "of oracle", "arms %", "reward", "regret", "ms/dec.", "ms/upd."
    )
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(
            escape(row.policy) + ("*" if row.full_information else ""),
            "" if row.weight is None else f"{row.weight:g}",
            _pair(row.em, error=row.em_se),
            f"{row.steps:.2f}",
            _pair(row.above_line, error=row.above_line_se, sign="+"),
            "" if row.oracle_share is None else f"{100 * row.oracle_share:.0f}%",
            "/".join(f"{100 * share:.0f}" for share in row.arms.values()),
            _number(row.online_reward, digits=3),
            _number(row.online_regret, digits=3),
            _number(_milliseconds(row, "decision"), digits=2),
            _number(_milliseconds(row, "update"), digits=2),
        )
    return table


def frontier_table(rows: Sequence[Simulated]) -> Printed | None:
    """EM above the line along the frontiers, read at common steps; None if no frontier reaches any of them."""
    kept = [row for row in rows if row.policy != "line" and any(v is not None for v in row.above_line_at.values())]
    if not kept:
        return None
    table = Printed("EM above the line at", *(f"{steps:g} steps" for steps in STEPS_READ))
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    for row in {(row.policy, row.frontier): row for row in kept}.values():  # rows of one frontier are one
        alone = len({other.frontier for other in kept if other.policy == row.policy}) == 1
        name = row.policy if alone else f"{row.policy}, lambda {row.weight:g}"
        read = [
            "" if value is None else _pair(value, error=row.above_line_at_se[key], sign="+")
            for key, value in row.above_line_at.items()
        ]
        table.add_row(escape(name) + ("*" if row.full_information else ""), *read)
    return table


def dataset_table(rows: Sequence[Simulated]) -> Printed:
    """EM and steps on the questions of each dataset."""
    names = sorted({name for row in rows for name in row.by_dataset})
    table = Printed("policy", "lambda", *(f"{escape(name)} ({rows[0].by_dataset[name].n})" for name in names))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        cells = (f"{row.by_dataset[name].em:.1f} at {row.by_dataset[name].steps:.2f}" for name in names)
        table.add_row(escape(row.policy), "" if row.weight is None else f"{row.weight:g}", *cells)
    return table


def footnotes(rows: Sequence[Simulated]) -> list[str]:
    """Notes below the tables."""
    first, seeds = rows[0], max(row.seeds for row in rows)
    em = f"EM in % of {first.total} questions, {first.n} of them judged; mean and standard error over {seeds} seeds"
    notes = [em, f"arms %: {' / '.join(first.arms)}. reward, regret, ms: while learning"]
    if any(row.full_information for row in rows):
        notes.append("* fitted to the outcomes of all arms, which no live policy sees")
    return notes + [
        f"{row.policy}: {row.faults} decisions by the fallback, {row.refused} updates refused: {row.reason}"
        for row in rows
        if row.faults or row.refused
    ]


def line_between(rows: Sequence[Simulated]) -> Line:
    """The mixture line that the rows were measured by."""
    (row,) = [row for row in rows if row.policy == "line"]
    cheap, dear = (Point(em=end.em, steps=end.steps) for end in row.frontier)
    assert row.between is not None
    return Line(cheap=cheap, dear=dear, arms=row.between)


def draw_plot(rows: Sequence[Simulated], *, path: str | Path) -> None:
    """Write the figure."""
    learned = [row for row in rows if row.seeds]
    oracles = [row for row in rows if row.policy == "oracle-by-reward"]
    plot_frontier(
        [_curve([row for row in learned if row.policy == name]) for name in dict.fromkeys(r.policy for r in learned)],
        plain=[(r.policy, _point(r)) for r in rows if not r.seeds and r.policy not in ("line", "oracle-by-reward")],
        # Below 0 it would pay for steps that bring nothing.
        oracle=[Point(em=step.em, steps=step.steps) for step in oracles[0].frontier if (step.weight or 0.0) >= 0.0],
        line=line_between(rows),
        path=path,
    )


def _curve(rows: Sequence[Simulated]) -> Curve:
    return Curve(
        name=rows[0].policy,
        stands=[_point(row) for row in rows],
        errors=[row.em_se for row in rows],
        above_errors=[row.above_line_se for row in rows],
        frontiers=[
            [Point(em=step.em, steps=step.steps) for step in frontier]
            for frontier in dict.fromkeys(row.frontier for row in rows)
        ],
        full_information=rows[0].full_information,
    )


def _point(row: Simulated) -> Point:
    return Point(em=row.em, steps=row.steps)


def _milliseconds(row: Simulated, kind: str) -> float | None:
    seconds: float | None = None if row.seconds is None else getattr(row.seconds, kind)
    return None if seconds is None else 1000.0 * seconds


def _number(value: float | None, *, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _pair(value: float, *, error: float | None, sign: str = "") -> str:
    value = round(value, 2) + 0.0  # no "-0.00"
    return f"{value:{sign}.2f}" + ("" if error is None else f" ± {error:.2f}")
