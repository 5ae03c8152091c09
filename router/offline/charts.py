"""Tables of numbers for the terminal."""

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


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
