"""`make bench-publish`: put the output of the benchmarks into docs/benchmarks.md, six of the figures at its top."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "benchmarks.md"
#: page of the benchmarks on simulated services
WORLDS_PAGE: Final = ROOT / "docs" / "simulated-worlds.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A figure at the top of the page: its words there, and the printed table and row that it is taken from."""

    words: str
    #: how the title of the printed table begins
    title: str
    #: the row's first cell
    row: str


FIGURES: Final = (
    Shown(
        words="One `route()` call, median, encoder and durable log included",
        title="route() with distilbert/",
        row="alone p50",
    ),
    Shown(words="Durable decisions, 16 callers", title="route() with distilbert/", row="durable decisions"),
    Shown(
        words="Feedback accepted over HTTP, in batches of 500",
        title="feedback and outcomes accepted",
        row="POST /v1/feedback/batch of 500",
    ),
    Shown(words="From feedback to the live policy, median", title="feedback to live policy", row="p50"),
    Shown(
        words="Learning one row, after 10,000 rows",
        title="learning one row",
        row="update of mba after 10,000 rows, 3 arms",
    ),
    Shown(words="Replay of a log of ten million rows", title="10,000,000 rows from Parquet", row="seconds"),
)


def main() -> None:
    """Replace the blocks."""
    printed = subprocess.run([sys.executable, "-m", "benchmarks"], check=True, capture_output=True, text=True).stdout
    put("bench", fenced(printed), file=PAGE)
    put("figures", figures_table(printed), file=PAGE)


def put(name: str, block: str, *, file: Path) -> None:
    """Replace what stands between the marks `<name>:begin` and `<name>:end` of the file.

    Raises SystemExit where the marks are missing.
    """
    text = file.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    new = f"{begin}\n{block}\n{end}"
    text, count = re.subn(f"{re.escape(begin)}.*{re.escape(end)}", lambda _: new, text, flags=re.S)
    if count != 1:
        raise SystemExit(f"{file} has the marks of {name!r} {count} times")
    file.write_text(text, encoding="utf-8")


def fenced(printed: str) -> str:
    """A block of text in Markdown of what was printed."""
    lines = (line.rstrip() for line in printed.strip("\n").splitlines())
    return "\n".join(["```text", *lines, "```"])


def figures_table(printed: str) -> str:
    """The figures as a Markdown table, from the output of the benchmarks.

    Raises SystemExit for a figure that was not printed.
    """
    rows = [
        f"| {shown.words} | {ours} | {baseline} |" for shown in FIGURES for ours, baseline in [_cells(shown, printed)]
    ]
    return "\n".join(["| | RagBandit | baseline, measured in the same run |", "|---|---|---|", *rows])


def _cells(shown: Shown, printed: str) -> tuple[str, str]:
    """Returns (our figure, the baseline's figure and description)."""
    inside = False
    for line in printed.splitlines():
        if not line.startswith(("│", "┃", "┏", "┡", "└")):
            inside = line.strip().startswith(shown.title) or (inside and not line.strip())
        elif inside and line.startswith(f"│ {shown.row} "):
            _, ours, baseline, _, against = (cell.strip() for cell in line.strip("│").split("│"))
            return ours, f"{baseline}: {against}"
    raise SystemExit(f"no row {shown.row!r} under a title that begins with {shown.title!r} was printed")


if __name__ == "__main__":
    main()
