"""Simulation results as tables for the terminal, and as a figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as Printed

from ragbandit.router.offline.charts import COLOURS, GREY, INK, finish, png
from ragbandit.router.offline.simulation import Simulated
from ragbandit.router.offline.simulation.measure import LEAST_PREFIX
from ragbandit.shared.formats import decimal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def print_training(rows: Sequence[Simulated], *, console: Console) -> None:
    """All tables, wide enough to be whole in a file or a pipe."""
    for table in (_main_table(rows), _first_pass_table(rows)):
        if table.row_count:
            wide = Measurement.get(console, console.options.update(width=1000), table).maximum
            Console(file=console.file, width=max(wide, console.width), emoji=False).print(table)
    for note in footnotes(rows):
        console.print(escape(note), soft_wrap=True, highlight=False)


def _main_table(rows: Sequence[Simulated]) -> Printed:
    """A line per row."""
    table = _table("policy", "lambda", "EM", "steps", "above line", "of oracle", "arms %")
    for row in rows:
        table.add_row(
            _name(row),
            "" if row.weight is None else f"{row.weight:g}",
            _pair(row.em, error=row.em_se),
            f"{row.steps:.2f}",
            _pair(row.above_line, error=row.above_line_se, sign="+"),
            "" if row.oracle_share is None else f"{100 * row.oracle_share:.0f}%",
            "/".join(f"{100 * share:.0f}" for share in row.arms.values()),
        )
    return table


def _first_pass_table(rows: Sequence[Simulated]) -> Printed:
    """What was earned while learning, and what always one arm would have earned on the same questions."""
    table = _table("while learning", "lambda", "reward", "break-even", "passes", "worst prefix", "after", "harmed")
    passes = [(row, row.first_pass) for row in rows if row.first_pass is not None]
    for row, one in passes:
        table.add_row(
            escape(row.policy),
            f"{row.weight:g}",
            decimal(one.reward, digits=3) + ("" if one.reward_se is None else f" ± {one.reward_se:.3f}"),
            "never" if one.break_even is None else str(one.break_even),
            f"{100 * one.break_even_share:.0f}%",
            decimal(one.worst_prefix, digits=3),
            "" if one.worst_after is None else str(one.worst_after),
            f"{100 * one.harmed:.0f}%",
        )
    for weight, one in {row.weight: one for row, one in reversed(passes)}.items():
        roles = {one.best_fixed: "best fixed"} | {
            one.incumbent: "incumbent, best fixed" if one.incumbent == one.best_fixed else "incumbent"
        }
        for arm, reward in one.always.items():
            name = f"always-{arm}" + (f" ({roles[arm]})" if arm in roles else "")
            table.add_row(escape(name), f"{weight:g}", f"{reward:.3f}")
        table.add_row("best arm of each question", f"{weight:g}", f"{one.oracle:.3f}")
    return table


def footnotes(rows: Sequence[Simulated]) -> list[str]:
    """Notes below the tables."""
    first, seeds = rows[0], max(row.seeds for row in rows)
    notes = [
        f"EM in % of {first.total} questions, {first.n} of them judged; mean and standard error over {seeds} seeds",
        f"arms %: {' / '.join(first.arms)}",
    ]
    passes = {row.policy: row.first_pass for row in rows if row.first_pass is not None}
    for one in list(passes.values())[:1]:
        even = (
            "reward: mean per question while learning. break-even: the question from which on the sum of rewards is "
            f"never again below that of always {one.incumbent}, in the middle one of {one.passes} passes; passes: the "
            "share that gets there"
        )
        worst = (
            f"worst prefix: least sum of rewards over the incumbent's, of the first {LEAST_PREFIX} questions or more "
            "of any pass; harmed: passes that fall below 1 - policy.harm of it"
        )
        labels = ", ".join(f"{name} {each.labels:,.1f}" for name, each in passes.items())
        notes += [even, worst, f"labels learned a pass: {labels}"]
    if any(row.full_information for row in rows):
        notes.append("* fitted to the outcomes of all arms, which no live policy sees")
    return notes + [
        f"{row.policy}: {row.faults} decisions by the fallback, {row.refused} updates refused: {row.reason}"
        for row in rows
        if row.faults or row.refused
    ]


def _name(row: Simulated) -> str:
    return escape(row.policy) + ("*" if row.full_information else "")


def _pair(value: float, *, error: float | None, sign: str = "") -> str:
    value = round(value, 2) + 0.0  # no "-0.00"
    return f"{value:{sign}.2f}" + ("" if error is None else f" ± {error:.2f}")


def _table(first: str, *others: str) -> Printed:
    """Names to the left, numbers to the right, nothing folded."""
    table = Printed(first, *others)
    for number, column in enumerate(table.columns):
        column.no_wrap, column.justify = True, "right" if number else "left"
    return table


def plot_frontier(rows: Sequence[Simulated], *, path: str | Path) -> None:
    """Write EM against mean steps as a PNG. Raises as check_png."""
    png(path, size=(8.0, 5.6), draw=lambda figure: _draw_frontier(figure, rows))


def _draw_frontier(figure: "Figure", rows: Sequence[Simulated]) -> None:
    """Each policy at its weights, the baselines, and the oracle by reward."""
    axes = figure.subplots()
    learned = list(dict.fromkeys(row.policy for row in rows if row.seeds))
    for name in dict.fromkeys(row.policy for row in rows):
        mine = sorted((row for row in rows if row.policy == name), key=lambda row: row.steps)
        colour = COLOURS[learned.index(name) % len(COLOURS)] if name in learned else INK
        steps, em = [row.steps for row in mine], [row.em for row in mine]
        axes.errorbar(steps, em, yerr=[row.em_se or 0.0 for row in mine], fmt="o-", color=colour, capsize=2)
        axes.annotate(name, (steps[-1], em[-1]), xytext=(7, -11), textcoords="offset points", color=colour, size=9)
    always = [row for row in rows if row.policy.startswith("always-")]
    axes.plot([row.steps for row in always], [row.em for row in always], color=GREY, linewidth=0.8, zorder=0)
    axes.margins(x=0.15)
    axes.set(xlabel="mean steps per question", ylabel="EM (%)")
    finish(axes)
