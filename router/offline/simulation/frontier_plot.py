"""The quality-cost figure: EM against mean steps, and what of it is above the mixture line."""

import importlib.util
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ragbandit.router.errors import ConfigError, InvalidInput, missing_package
from ragbandit.router.offline.simulation.frontier import Line, Point
from ragbandit.router.storage.files.atomic import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curve", "check_plot", "plot_frontier"]

#: Okabe and Ito's palette, told apart by nearly everybody, without its yellow (too pale for lines) and black
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", "-.", ":")
_MARKS = "osD^vPX*"
_GREY, _INK = "#777777", "#222222"
#: EM below the line from which on a policy is left out of the picture of what is above
_DEEPEST = -2.0
_SIZE, _DPI = (12.0, 5.6), 150


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One policy: where it stands at each weight it learned with, and its frontiers in the order of weights."""

    name: str
    stands: Sequence[Point]
    #: standard errors of the EM of each stand, and of what is above the line; None where not known
    errors: Sequence[float | None]
    above_errors: Sequence[float | None]
    #: one for all of its learners, or one of each
    frontiers: Sequence[Sequence[Point]]
    #: fitted to all outcomes: drawn hollow, no rival of what learns online
    full_information: bool = False


def check_plot(path: str | Path) -> None:
    """Check that a figure can be written there, before the hours of work that it shows.

    Raises ConfigError where matplotlib is missing, InvalidInput where the path is no PNG that can be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_package("matplotlib", extra="plots", field="plot")
    file = Path(path)
    if file.suffix.lower() != ".png" or file.is_dir() or not os.access(file.absolute().parent, os.W_OK):
        raise InvalidInput(
            f"{file} cannot be written", field="plot", remedy="name a .png in a folder that exists and is yours"
        )


def plot_frontier(
    curves: Sequence[Curve],
    *,
    plain: Sequence[tuple[str, Point]],
    oracle: Sequence[Point],
    line: Line,
    path: str | Path,
) -> None:
    """Write the figure as a PNG.

    plain: named points of the baselines. oracle: the frontier of the oracle by reward.
    Raises what check_plot raises.
    """
    check_plot(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # No pyplot: it would choose a window system and keep every figure for ever.
    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    whole, above = figure.subplots(1, 2)
    _draw_whole(whole, curves, plain=plain, oracle=oracle, line=line)
    _draw_above(above, curves, line=line)
    _finish(figure, whole)
    try:
        with whole_file(Path(path), durable=False) as beside:
            figure.savefig(beside, format="png")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}", field="plot", remedy="give another path") from error


def _draw_whole(
    axes: "Axes", curves: Sequence[Curve], *, plain: Sequence[tuple[str, Point]], oracle: Sequence[Point], line: Line
) -> None:
    """EM against steps, with everything on it."""
    ends = (line.cheap, line.dear)
    name = f"mixing {line.arms[0]} and {line.arms[1]}"
    axes.plot([p.steps for p in ends], [p.em for p in ends], color=_GREY, linewidth=1.2, label=name)
    steps, em = [p.steps for p in oracle], [p.em for p in oracle]
    axes.plot(steps, em, color=_INK, linewidth=1, linestyle=":", label="oracle by reward")
    middle = sum(axes.get_xlim()) / 2
    for name, point in plain:
        star = name == "oracle"
        axes.plot(point.steps, point.em, "*" if star else "o", color=_INK, markersize=11 if star else 5, zorder=4)
        right = point.steps > middle  # a name at the far end would run out of the picture
        axes.annotate(
            name,
            (point.steps, point.em),
            xytext=(-7, 9) if right else (7, -11),
            textcoords="offset points",
            ha="right" if right else "left",
            color=_INK,
            size=9,
        )
    for curve, look in zip(curves, _looks(), strict=False):
        _draw_curve(axes, curve, look=look, height=lambda point: point.em, errors=curve.errors)
    axes.set_ylabel("EM (%)")
    axes.set_title("Quality and cost", loc="left")


def _draw_above(axes: "Axes", curves: Sequence[Curve], *, line: Line) -> None:
    """The same less the line: what routing is worth."""
    axes.axhline(0.0, color=_GREY, linewidth=1.2)
    named = []
    for curve, look in zip(curves, _looks(), strict=False):
        _draw_curve(axes, curve, look=look, height=line.above, errors=curve.above_errors)
        named.append((curve, look[0], line.above(curve.stands[0])))
    axes.set_ylabel("EM above the line")
    axes.set_title("What routing adds", loc="left")
    if not curves:
        return
    # What is far below the line stands in the other picture; here it would flatten the rest.
    values = [value for _, _, value in named] + [line.above(p) for curve in curves for p in curve.stands]
    low, high = min([0.0, *(v for v in values if v > _DEEPEST)]), max([0.0, *values])
    axes.set_ylim(low - 0.15 * (high - low) - 0.3, high + 0.15 * (high - low) + 0.3)
    steps = [point.steps for curve in curves for point in curve.stands]
    axes.set_xlim(max(0.0, min(line.cheap.steps, *steps) - 0.1), max(line.dear.steps, *steps) + 0.1)
    _name(axes, [one for one in named if one[2] > _DEEPEST])


def _name(axes: "Axes", named: Sequence[tuple[Curve, str, float]]) -> None:
    """Names beside the picture, from above in the order of the curves, each led to the place where it stands."""
    bottom, top = axes.get_ylim()
    gap = 0.045
    ordered = sorted(named, key=lambda one: one[2])
    heights: list[float] = []
    for _, _, value in ordered:
        heights.append(max((value - bottom) / (top - bottom), heights[-1] + gap if heights else 0.0))
    down = max(0.0, heights[-1] - 1.0) if heights else 0.0
    for (curve, colour, value), height in zip(ordered, heights, strict=True):
        axes.annotate(
            _title(curve),
            (curve.stands[0].steps, value),
            xytext=(1.02, height - down),
            textcoords="axes fraction",
            va="center",
            color=colour,
            size=9,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.5},
        )


Look = tuple[str, str, str]


def _looks() -> "itertools.chain[Look]":
    """(colour, dashes, marker), each pair of the first two once before any comes again."""
    every = [(c, d, m) for (d, m) in zip(_DASHES, _MARKS, strict=False) for c in _COLOURS]
    return itertools.chain.from_iterable(itertools.repeat(every))


def _draw_curve(
    axes: "Axes",
    curve: Curve,
    *,
    look: Look,
    height: Callable[[Point], float],
    errors: Sequence[float | None],
) -> None:
    """One policy, its points at the heights that this picture gives them."""
    colour, dashes, mark = look
    for points in curve.frontiers:
        if len(points) > 1:
            at = [p.steps for p in points]
            axes.plot(at, [height(p) for p in points], color=colour, linestyle=dashes, linewidth=1.4, alpha=0.85)
    axes.errorbar(
        [p.steps for p in curve.stands],
        [height(p) for p in curve.stands],
        yerr=[error or 0.0 for error in errors],
        fmt=mark,
        color=colour,
        markerfacecolor="white" if curve.full_information else colour,
        markersize=6.5,
        capsize=2,
        zorder=5,
        label=_title(curve),
    )


def _title(curve: Curve) -> str:
    return f"{curve.name} *" if curve.full_information else curve.name


def _finish(figure: "Figure", first: "Axes") -> None:
    for axes in figure.axes:
        axes.set_xlabel("mean steps per question")
        axes.grid(color="#e5e5e5", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)), frameon=False, fontsize=9)
