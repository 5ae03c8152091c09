"""Charts by matplotlib: figures as inline SVG for pages, in the colours of the page, or as PNG files."""

import importlib.util
import io
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree

from ragbandit.shared.errors import ConfigError, InvalidInput, missing_package
from ragbandit.shared.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's palette, told apart by nearly everybody, without its yellow (too pale for lines) and black
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
BLUE, RED, GREEN = COLOURS[:3]
GREY: Final = "#808080"
#: in an SVG they stand for the colours of the page: its text, its fine lines, its ground, light or dark
INK, FINE, PAPER = "#222223", "#e5e5e6", "#fffffe"
_OF_THE_PAGE: Final = {INK: "currentColor", FINE: "var(--fine)", PAPER: "var(--paper)"}
_DPI: Final = 150
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


def finish(axes: "Axes", *, grid: str = "both") -> None:
    """Fine lines behind the data, no frame. grid: "x", "y" or "both"."""
    axes.grid(axis=grid, color=FINE, linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def check_png(path: str | Path) -> None:
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


def png(path: str | Path, *, size: tuple[float, float], draw: Callable[["Figure"], None]) -> None:
    """Write the figure to this file, whole or not at all. size: width and height in inches. Raises as check_png."""
    check_png(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # No pyplot: it would choose a window system and keep every figure for ever.
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    try:
        with whole_file(Path(path), durable=False) as beside:
            figure.savefig(beside, format="png")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}", field="plot", remedy="give another path") from error


def svg(name: str, *, label: str, size: tuple[float, float], draw: Callable[["Figure"], None]) -> str:
    """The figure as an <svg> element: the same text for the same numbers, its ids its own.

    size: width and height in inches. label: what it shows, for those who cannot see it.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_package("matplotlib", extra="plots", field="report") from error
    looks: dict[Any, Any] = {
        "svg.fonttype": "none",  # letters stay letters, in the font of the page
        "svg.hashsalt": name,
        "text.parse_math": False,  # a dollar in a name is a dollar
        "font.size": 11.0,
        **dict.fromkeys(("axes.titlesize", "figure.labelsize"), 11.0),
        "axes.titlelocation": "left",
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 10.0),
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    }
    file = io.StringIO()
    with matplotlib.rc_context(looks), warnings.catch_warnings():
        # The browser draws the letters, with fonts that matplotlib does not know.
        warnings.filterwarnings("ignore", message="Glyph|Matplotlib currently does not support", category=UserWarning)
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        figure.savefig(file, format="svg", transparent=True)
    return _inside(file.getvalue(), label=label)


def _inside(drawing: str, *, label: str) -> str:
    """The file of matplotlib as an element of a page: no prologue, no ids that clash, colours of the page."""
    root = ElementTree.fromstring(drawing)  # noqa: S314 - written by matplotlib just now
    used = " ".join(value for element in root.iter() for key, value in element.items() if key != "id")
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
        if f"#{parent.get('id')}" not in used:
            parent.attrib.pop("id", None)  # figure_1, axes_1: in every figure
        for key, value in parent.items():
            for stand_in, colour in _OF_THE_PAGE.items():
                value = value.replace(stand_in, colour)
            parent.set(key, value)
    del root.attrib["width"], root.attrib["height"]
    for key, value in (("role", "img"), ("aria-label", label), ("stroke-linejoin", "round")):
        root.set(key, value)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _LINK)
    return ElementTree.tostring(root, encoding="unicode")
