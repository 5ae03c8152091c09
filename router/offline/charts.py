"""Results as tables of the terminal, as charts by matplotlib (PNG), and what the terminal shows as HTML."""

import importlib.util
import io
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

#: Okabe and Ito's palette, told apart by nearly everybody, without its yellow (too pale for lines) and black
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY: Final = "#808080"
INK: Final = "#222223"
_DPI: Final = 150


def number_table(first: str, *others: str) -> Table:
    """Names to the left, numbers to the right, nothing folded."""
    table = Table(first, *others)
    for number, column in enumerate(table.columns):
        column.no_wrap, column.justify = True, "right" if number else "left"
    return table


def print_whole(table: Table, *, console: Console) -> None:
    """Print a table that has rows, wide enough to be whole in a file or a pipe."""
    if table.row_count:
        width, wide = console.width, Measurement.get(console, console.options.update(width=1000), table).maximum
        console.width = max(wide, width)
        console.print(table)
        console.width = width


def finish(axes: "Axes") -> None:
    """Fine lines behind the data, no frame."""
    axes.grid(color="#e5e5e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def check_png(path: str | Path) -> None:
    """Check that a figure can be written there, before the hours of work that it shows.

    Raises ConfigError where matplotlib is missing, InvalidInput where the path is no PNG that can be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_package("matplotlib", extra="plots", field="plot")
    _check_file(path, suffix=".png", field="plot")


def check_page(path: str | Path) -> None:
    """Raises InvalidInput where the path is no HTML page that can be written."""
    _check_file(path, suffix=".html", field="report")


def _check_file(path: str | Path, *, suffix: str, field: str) -> None:
    file = Path(path)
    if file.suffix.lower() != suffix or file.is_dir() or not os.access(file.absolute().parent, os.W_OK):
        remedy = f"name a {suffix} in a folder that exists and is yours"
        raise InvalidInput(f"{file} cannot be written", field=field, remedy=remedy)


def write_page(path: str | Path, *, show: Callable[[Console], None]) -> None:
    """Write what `show` prints to this file, as HTML without scripts or network requests. Raises as check_page."""
    check_page(path)
    console = Console(record=True, file=io.StringIO(), width=120, emoji=False)
    show(console)
    _write(path, lambda beside: beside.write_text(console.export_html(), encoding="utf-8"), field="report")


def _write(path: str | Path, write: Callable[[Path], object], *, field: str) -> None:
    try:
        with whole_file(Path(path), durable=False) as beside:
            write(beside)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}", field=field, remedy="give another path") from error


def png(path: str | Path, *, size: tuple[float, float], draw: Callable[["Figure"], None]) -> None:
    """Write the figure to this file, whole or not at all. size: width and height in inches. Raises as check_png."""
    check_png(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # No pyplot: it would choose a window system and keep every figure for ever.
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    _write(path, lambda beside: figure.savefig(beside, format="png"), field="plot")
