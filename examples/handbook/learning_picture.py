"""The learning curve as a picture: reward per question so far, with the band, always one arm, and the oracle."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ragbandit.router.offline.charts import check_png
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ragbandit.examples.handbook.learning_curve import Curve, Point

_COLOURS: Final = ("#0072B2", "#D55E00")
_GREY, _INK = "#777777", "#333333"
_SIZE, _DPI = (9.0, 4.6), 150
#: questions before which a mean says little: not drawn, so that its noise does not set the scale
_FIRST: Final = 20


def draw(curves: "Sequence[Curve]", *, path: Path) -> None:
    """Write the picture of curves over one table as a PNG. Raises what check_png raises."""
    check_png(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # No pyplot: it would choose a window system and keep every figure for ever.
    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for curve, colour, side in zip(curves, itertools.cycle(_COLOURS), itertools.cycle((1, -1)), strict=False):
        _draw_curve(axes, curve, colour=colour, side=side)
    first = curves[0]
    begin, end = 0, first.questions
    for (arm, reward), dashes in zip(first.always.items(), itertools.cycle(("--", "-.", ":")), strict=False):
        axes.plot([begin, end], [reward, reward], color=_GREY, linewidth=1.2, linestyle=dashes)
        _name(axes, f"always {arm}", at=end, height=reward, colour=_GREY)
    axes.plot([begin, end], [first.oracle, first.oracle], color=_INK, linewidth=1.2)
    _name(axes, "best arm of each question", at=end, height=first.oracle, colour=_INK)
    axes.set_xlim(begin, end)
    axes.set_xlabel("questions asked, each once")
    axes.set_ylabel("reward per question so far")
    axes.set_title(f"Learning included: mean of {first.seeds} orders, band of nine in ten", loc="left", size=11)
    axes.grid(color="#e5e5e5", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    try:
        with whole_file(path, durable=False) as beside:
            figure.savefig(beside, format="png")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}", field="plot", remedy="give another path") from error


def _points(curve: "Curve") -> "list[Point]":
    return [point for point in curve.points if point.questions >= _FIRST] or list(curve.points)


def _draw_curve(axes: "Axes", curve: "Curve", *, colour: str, side: int) -> None:
    """The mean with its band, and a mark at the break-even. side: 1 names them above, -1 below."""
    points = _points(curve)
    at = [point.questions for point in points]
    axes.plot(at, [point.reward for point in points], color=colour, linewidth=2)
    axes.fill_between(at, [p.low for p in points], [p.high for p in points], color=colour, alpha=0.18, linewidth=0)
    _name(axes, curve.name, at=at[-1], height=points[-1].reward, colour=colour, up=3 * side)
    if curve.break_even is not None:
        height = curve.always[curve.incumbent]
        axes.plot(curve.break_even, height, "D", color=colour, markersize=7, zorder=5)
        axes.annotate(
            f"break-even: {curve.break_even}",
            (curve.break_even, height),
            xytext=(7, 5 if side > 0 else -13),
            textcoords="offset points",
            color=colour,
            size=9,
        )


def _name(axes: "Axes", said: str, *, at: float, height: float, colour: str, up: float = 0.0) -> None:
    """Write the name of a line at its end, `up` points higher."""
    axes.annotate(said, (at, height), xytext=(6, up), textcoords="offset points", va="center", color=colour, size=9)
