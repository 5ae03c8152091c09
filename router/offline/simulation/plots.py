"""Figures of a simulation: quality against cost, and what policies earn while they learn."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ragbandit.router.offline.charts import COLOURS, GREY, INK, finish, png
from ragbandit.router.offline.simulation.first_pass import FirstPass, Stretch
from ragbandit.router.offline.simulation.frontier import FrontierPoint, MixtureLine
from ragbandit.router.offline.simulation.results import Simulated, passes_of
from ragbandit.shared.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES = ("-", "--", "-.", ":")
_MARKS = "osD^vPX*"
#: EM below the line from which on a policy is left out of the picture of what is above
_DEEPEST = -2.0
#: inches
_FRONTIER, _LEARNING = (12.0, 5.6), (12.0, 5.4)


def plot_frontier(rows: Sequence[Simulated], *, path: str | Path) -> None:
    """Write EM against mean steps, and what of it is above the mixture line, as a PNG. Raises as check_png."""
    png(path, size=_FRONTIER, draw=lambda figure: _draw_frontier(figure, rows))


def plot_learning(rows: Sequence[Simulated], *, path: str | Path) -> None:
    """Write what was earned while learning, against always one arm and the best arm of each question, as a PNG.

    Of several weights the first. Raises InvalidInput where nothing learned question by question, and as check_png.
    """
    passes = passes_of(rows)
    if not passes:
        raise InvalidInput("no policy learned question by question", field="plot-learning", remedy="name one that does")
    curves = [(row.policy, one) for row, one in passes if row.weight == passes[0][0].weight]
    png(path, size=_LEARNING, draw=lambda figure: _draw_learning(figure, curves))


def line_between(rows: Sequence[Simulated]) -> MixtureLine:
    """The mixture line that the rows were measured by."""
    (row,) = [row for row in rows if row.policy == "line"]
    cheap, dear = (FrontierPoint(em=end.em, steps=end.steps) for end in row.frontier)
    assert row.between is not None
    return MixtureLine(cheap=cheap, dear=dear, arms=row.between)


def _draw_frontier(figure: "Figure", rows: Sequence[Simulated]) -> None:
    whole, above = figure.subplots(1, 2)
    line, learned = line_between(rows), [row for row in rows if row.seeds]
    _draw_whole(whole, rows, line=line)
    for row in learned:
        _draw_policy(whole, learned, row=row, height=lambda one: one.em, error=lambda one: one.em_se)
    above.axhline(0.0, color=GREY, linewidth=1.2)
    for row in learned:
        _draw_policy(above, learned, row=row, height=line.above, error=lambda one: one.above_line_se)
    above.set_ylabel("EM above the line")
    above.set_title("What routing adds", loc="left")
    if learned:
        _frame_above(above, learned, line=line)
    _finish(figure, label="mean steps per question", columns=6)


def _draw_whole(axes: "Axes", rows: Sequence[Simulated], *, line: MixtureLine) -> None:
    """The line, the baselines and the oracle."""
    ends = (line.cheap, line.dear)
    name = f"mixing {line.arms[0]} and {line.arms[1]}"
    axes.plot([p.steps for p in ends], [p.em for p in ends], color=GREY, linewidth=1.2, label=name)
    (swept, *_) = [row for row in rows if row.policy == "oracle-by-reward"]
    # Below 0 it would pay for steps that bring nothing.
    oracle = [step for step in swept.frontier if (step.weight or 0.0) >= 0.0]
    steps, em = [step.steps for step in oracle], [step.em for step in oracle]
    axes.plot(steps, em, color=INK, linewidth=1, linestyle=":", label="oracle by reward")
    middle = sum(axes.get_xlim()) / 2
    for row in rows:
        if row.seeds or row.policy in ("line", "oracle-by-reward"):
            continue
        star = row.policy == "oracle"
        axes.plot(row.steps, row.em, "*" if star else "o", color=INK, markersize=11 if star else 5, zorder=4)
        right = row.steps > middle  # a name at the far end would run out of the picture
        axes.annotate(
            row.policy,
            (row.steps, row.em),
            xytext=(-7, 9) if right else (7, -11),
            textcoords="offset points",
            ha="right" if right else "left",
            color=INK,
            size=9,
        )
    axes.set_ylabel("EM (%)")
    axes.set_title("Quality and cost", loc="left")


def _draw_policy(
    axes: "Axes",
    learned: Sequence[Simulated],
    *,
    row: Simulated,
    height: Callable[..., float],
    error: Callable[[Simulated], float | None],
) -> None:
    """A policy at all of its weights, where `row` is the first of them: its frontiers, and where it stands itself.

    height: of a row and of a step of a frontier, which both have em and steps.
    """
    mine = [one for one in learned if one.policy == row.policy]
    if row is not mine[0]:
        return
    colour, dashes, mark = _look(learned, policy=row.policy)
    for frontier in dict.fromkeys(one.frontier for one in mine):
        if len(frontier) > 1:
            at, heights = [step.steps for step in frontier], [height(step) for step in frontier]
            axes.plot(at, heights, color=colour, linestyle=dashes, linewidth=1.4, alpha=0.85)
    axes.errorbar(
        [one.steps for one in mine],
        [height(one) for one in mine],
        yerr=[error(one) or 0.0 for one in mine],
        fmt=mark,
        color=colour,
        markerfacecolor="white" if row.full_information else colour,  # no rival of what learns online
        markersize=6.5,
        capsize=2,
        zorder=5,
        label=_title(row),
    )


def _frame_above(axes: "Axes", learned: Sequence[Simulated], *, line: MixtureLine) -> None:
    """What is far below the line stands in the other picture; here it would flatten the rest."""
    heights = [line.above(row) for row in learned]
    low, high = min([0.0, *(value for value in heights if value > _DEEPEST)]), max([0.0, *heights])
    axes.set_ylim(low - 0.15 * (high - low) - 0.3, high + 0.15 * (high - low) + 0.3)
    steps = [row.steps for row in learned]
    axes.set_xlim(max(0.0, min(line.cheap.steps, *steps) - 0.1), max(line.dear.steps, *steps) + 0.1)


def _look(learned: Sequence[Simulated], *, policy: str) -> tuple[str, str, str]:
    """(colour, dashes, marker) of a policy, each pair of the first two once before any comes again."""
    number = list(dict.fromkeys(row.policy for row in learned)).index(policy)
    turn, colour = divmod(number, len(COLOURS))
    return COLOURS[colour], _DASHES[turn % len(_DASHES)], _MARKS[turn % len(_DASHES)]


def _title(row: Simulated) -> str:
    return f"{row.policy} *" if row.full_information else row.policy


Curves = Sequence[tuple[str, FirstPass]]


def _draw_learning(figure: "Figure", curves: Curves) -> None:
    ahead, regret = figure.subplots(1, 2)
    first = curves[0][1]
    ahead.axhline(0.0, color=GREY, linewidth=1.4, label=f"always {first.incumbent} (incumbent)")
    for (name, one), colour in zip(curves, itertools.cycle(COLOURS), strict=False):
        label = f"{name}, 10th to 90th percentile"
        _draw_band(ahead, one, colour=colour, band=lambda s: (s.ahead_low, s.ahead, s.ahead_high), label=label)
        even = one.break_even.of_mean
        if even is not None and even > 1:
            ahead.plot(even, 0.0, "D", color=colour, markersize=7, zorder=5)
            text = f"break-even: {even}"
            ahead.annotate(text, (even, 0.0), xytext=(5, -13), textcoords="offset points", color=colour, size=9)
        _draw_band(regret, one, colour=colour, band=lambda s: (s.regret_low, s.regret, s.regret_high))
    others = [arm for arm in first.always if arm != first.incumbent]
    for arm, dashes in zip(others, itertools.cycle(_DASHES[1:]), strict=False):
        slope = first.always[arm] - first.always[first.incumbent]
        _draw_straight(ahead, first, slope=slope, dashes=dashes, name=f"always {arm}")
    ahead.set_ylabel("sum of rewards minus the incumbent's")
    ahead.set_title(f"Against always {first.incumbent}", loc="left")
    # What runs far away, an arm that nobody would take, must not flatten the rest.
    values = [value for _, one in curves for s in one.curve for value in (0.0, s.ahead_low, s.ahead_high)]
    room = 0.15 * (max(values) - min(values)) + 0.5
    ahead.set_ylim(min(values) - room, max(values) + room)
    slope = first.oracle - first.always[first.best_fixed]
    _draw_straight(regret, first, slope=slope, dashes="-", name=f"always {first.best_fixed} (best fixed arm)")
    regret.legend(frameon=False, fontsize=9, loc="upper left")
    regret.set_ylabel("regret, sum")
    regret.set_title("Against the best arm of each question", loc="left")
    regret.set_ylim(bottom=0.0)
    _finish(figure, label="questions learned", columns=5)


def _draw_band(
    axes: "Axes",
    one: FirstPass,
    *,
    colour: str,
    band: Callable[[Stretch], tuple[float, float, float]],
    label: str | None = None,
) -> None:
    """A sum over the questions, from 0, with its band: low, mean, high."""
    at = [0, *(stretch.questions for stretch in one.curve)]
    low, mean, high = ([0.0, *values] for values in zip(*map(band, one.curve), strict=True))
    axes.plot(at, mean, color=colour, label=label)
    axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


def _draw_straight(axes: "Axes", first: FirstPass, *, slope: float, dashes: str, name: str) -> None:
    """The line of always one arm."""
    end = first.questions
    axes.plot([0, end], [0.0, slope * end], color=GREY, linewidth=1.1, linestyle=dashes, label=name)


def _finish(figure: "Figure", *, label: str, columns: int) -> None:
    """The same axis below both pictures, and one legend, of the first."""
    for axes in figure.axes:
        axes.set_xlabel(label)
        finish(axes)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False, fontsize=9
    )
