"""The table of the measured cells, in Markdown and as JSON."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from benchmarks.chat_sizes.measures import Measured

COLUMNS: Final = (
    *("cell", "gateway", "processor ms a chat", "ratio", "lowest to highest", "added ms", "first piece ms"),
    "later pieces ms, p50, p99",
)
HEAD: Final = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
#: head of the table of instructions
COUNTED_HEAD: Final = "| cell | gateway | million instructions a chat |\n|---|---|---|"


def row(line: Measured) -> str:
    """A line of the table."""
    if line.instructions is not None:
        return _row([str(line.cell), line.gateway, f"{line.instructions:.2f}"])
    return _row(
        [
            str(line.cell),
            line.gateway,
            f"{statistics.median(line.rounds):.2f}",
            f"{statistics.median(line.ratios):.2f}",
            f"{min(line.ratios):.2f} to {max(line.ratios):.2f}",
            f"{statistics.median(line.block.walls) - line.own_ms:.1f}",
            _percentiles(line.block.first, 50),
            _percentiles(line.block.later, 50, 99),
        ]
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _percentiles(values: Sequence[float], *asked: int) -> str:
    return ", ".join(f"{value:.1f}" for value in np.percentile(values, asked)) if values else ""


def as_json(line: Measured) -> dict[str, Any]:
    """All numbers of a line."""
    return asdict(line) | {"cell": str(line.cell)}
