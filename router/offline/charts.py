"""Output of results: tables for the terminal, and charts by matplotlib as PNG."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from ragbandit.shared.errors import ConfigError, InvalidInput, missing_package
from ragbandit.shared.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: palette of Okabe and Ito, safe for colour-blind readers, without black and the pale yellow
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY: Final = "#808080"
INK: Final = "#222223"


def number_table(first: str, *others: str) -> Table:
    table = Table(first, *others)
    for number, column in enumerate(table.columns):
        column.no_wrap = True
        column.justify = "right" if number else "left"
    return table


def print_whole(table: Table, *, console: Console) -> None:
    """Print a table in its full width, also to a file or a pipe. A table without rows is not printed."""
    if table.row_count:
        width = console.width
        console.width = max(width, Measurement.get(console, console.options.update(width=1000), table).maximum)
        console.print(table)
        console.width = width


def finish(axes: "Axes") -> None:
    axes.grid(color="#e5e5e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def check_png(path: str | Path) -> None:
    """Raise InvalidInput if no PNG file can be written to the path, ConfigError if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_package("matplotlib", extra="plots", field="plot")
    file = Path(path)
    if file.suffix.lower() != ".png" or file.is_dir() or not os.access(file.absolute().parent, os.W_OK):
        remedy = "name a .png in a folder that exists and is yours"
        raise InvalidInput(f"{file} cannot be written", field="plot", remedy=remedy)


def png(path: str | Path, *, size: tuple[float, float], draw: Callable[["Figure"], None]) -> None:
    """Write a figure of this width and height in inches. Raises like `check_png`, and then leaves `path` unchanged."""
    check_png(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # pyplot is not used: it would choose a window system and keep every figure in memory.
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    try:
        with whole_file(Path(path), durable=False) as beside:
            figure.savefig(beside, format="png")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}", field="plot", remedy="give another path") from error
