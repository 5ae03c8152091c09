"""The learning figure: what policies earn while they learn, against always one arm and against the best arm of each
question.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ragbandit.router.errors import ConfigError
from ragbandit.router.offline.simulation.first_pass import FirstPass
from ragbandit.router.offline.simulation.frontier_plot import check_plot
from ragbandit.router.storage.files.atomic import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_learning"]

#: Okabe and Ito's palette without its yellow and black
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_GREY = "#777777"
_SIZE, _DPI = (12.0, 5.4), 150


def plot_learning(curves: Sequence[tuple[str, FirstPass]], *, path: str | Path) -> None:
    """Write the figure as a PNG: a curve and a band per name; all have one incumbent.

    Raises what check_plot raises.
    """
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # No pyplot: it would choose a window system and keep every figure for ever.
    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    ahead, regret = figure.subplots(1, 2)
    _draw_ahead(ahead, curves)
    _draw_regret(regret, curves)
    for axes in (ahead, regret):
        axes.set_xlabel("questions learned")
        axes.grid(color="#e5e5e5", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = ahead.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), frameon=False, fontsize=9)
    try:
        with whole_file(Path(path), durable=False) as beside:
            figure.savefig(beside, format="png")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}", field="plot", remedy="give another path") from error


def _draw_ahead(axes: "Axes", curves: Sequence[tuple[str, FirstPass]]) -> None:
    """Sum of rewards minus the incumbent's; a mark where the mean passes it for good."""
    first = curves[0][1]
    axes.axhline(0.0, color=_GREY, linewidth=1.4, label=f"always {first.incumbent} (incumbent)")
    for place, (name, one) in enumerate(curves):
        colour = _COLOURS[place % len(_COLOURS)]
        at = [0, *(stretch.questions for stretch in one.curve)]
        axes.plot(at, [0.0, *(s.ahead for s in one.curve)], color=colour, label=f"{name}, 10th to 90th percentile")
        low, high = ([0.0, *values] for values in zip(*((s.ahead_low, s.ahead_high) for s in one.curve), strict=True))
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
        even = one.break_even.of_mean
        if even is not None and even > 1:
            axes.plot(even, 0.0, "D", color=colour, markersize=7, zorder=5)
            axes.annotate(
                f"break-even: {even}", (even, 0.0), xytext=(5, -13), textcoords="offset points", color=colour, size=9
            )
    dashes = itertools.cycle(("--", "-.", ":"))
    for arm in first.always:
        if arm != first.incumbent:
            slope = first.always[arm] - first.always[first.incumbent]
            _straight(axes, first, slope=slope, dashes=next(dashes), name=f"always {arm}")
    axes.set_ylabel("sum of rewards minus the incumbent's")
    axes.set_title(f"Against always {first.incumbent}", loc="left")
    _keep_near(axes, [value for _, one in curves for s in one.curve for value in (s.ahead_low, s.ahead_high)])


def _draw_regret(axes: "Axes", curves: Sequence[tuple[str, FirstPass]]) -> None:
    """Sum of what the best arm of each question would have earned more."""
    first = curves[0][1]
    for place, (_, one) in enumerate(curves):
        colour = _COLOURS[place % len(_COLOURS)]
        at = [0, *(stretch.questions for stretch in one.curve)]
        axes.plot(at, [0.0, *(s.regret for s in one.curve)], color=colour)
        low, high = ([0.0, *v] for v in zip(*((s.regret_low, s.regret_high) for s in one.curve), strict=True))
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    slope = first.oracle - first.always[first.best_fixed]
    _straight(axes, first, slope=slope, dashes="-", name=f"always {first.best_fixed} (best fixed arm)")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    axes.set_ylabel("regret, sum")
    axes.set_title("Against the best arm of each question", loc="left")
    axes.set_ylim(bottom=0.0)


def _straight(axes: "Axes", first: FirstPass, *, slope: float, dashes: str, name: str) -> None:
    """The line of always one arm."""
    end = first.questions
    axes.plot([0, end], [0.0, slope * end], color=_GREY, linewidth=1.1, linestyle=dashes, label=name)


def _keep_near(axes: "Axes", values: Sequence[float]) -> None:
    """What runs far away, an arm that nobody would take, must not flatten the rest."""
    low, high = min([0.0, *values]), max([0.0, *values])
    room = 0.15 * (high - low) + 0.5
    axes.set_ylim(low - room, high + room)
