"""`python -m benchmarks.before_after NAME... [--before REVISION] [--runs N]`: one measurement in two revisions.

The earlier revision is checked out into a folder of its own for the time of the run. NAME.py beside this file is run
in both trees, by this interpreter, alternating, and the median of every figure is printed with the ratio. Such a file
has `measure()`, which returns {"figure [unit]": value}; it uses only what both revisions have. A figure per second
("[/s]") is better when it is higher, every other one when it is lower. NAME left out: all of them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.before_after._moved import MOVED
from benchmarks.figures import machine

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
#: the revision before "One way to say and do each thing"
BEFORE = "6c2e9cf"
#: longest single run, seconds
LIMIT_S = 1800
#: the working folder comes first on the path, so the tree that is measured is the one that is imported
_RUN = """
import importlib, json, runpy, sys
import benchmarks
benchmarks.__path__.append(sys.argv[3])  # what the measurements share and an earlier revision does not have
text = open(sys.argv[1], encoding="utf-8").read()
for here, there in json.loads(sys.argv[2]).items():
    if here in text:
        try:
            importlib.import_module(here)
        except ImportError:
            sys.modules[here] = importlib.import_module(there)
found = runpy.run_path(sys.argv[1], run_name="measurement")["measure"]()
print("\\nFIGURES " + json.dumps(found))
"""


def names() -> list[str]:
    """The measurements that are here."""
    return sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A folder with this revision, removed at the end. Raises CalledProcessError for one that is not in the clone."""
    with tempfile.TemporaryDirectory(prefix="ragbandit-before-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def run_in(tree: Path, name: str) -> dict[str, float]:
    """The figures of one run of a measurement in this tree. Raises RuntimeError with its last lines if it failed."""
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(HERE / f"{name}.py"), json.dumps(MOVED), str(HERE.parent)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1", "GOMP_SPINCOUNT": "1000"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    marked = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
    if done.returncode or not marked:
        raise RuntimeError(f"{name} in {tree} ended with {done.returncode}: {done.stderr[-2000:]}")
    return {figure: float(value) for figure, value in json.loads(marked[-1].removeprefix("FIGURES ")).items()}


def ratio_of(figure: str, *, before: float, after: float) -> float | None:
    """Factor by which `after` is better; None where one of them is 0."""
    if not before or not after:
        return None
    return after / before if figure.endswith("/s]") else before / after


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def compare(name: str, *, before: Path, runs: int) -> Table:
    """The table of one measurement."""
    found: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    for _ in range(runs):
        found["before"].append(run_in(before, name))
        found["after"].append(run_in(ROOT, name))
    table = Table("figure", "before", "after", "times better", title=f"{name}, median of {runs}")
    for figure in dict.fromkeys(key for run in found["before"] + found["after"] for key in run):
        old, new = (
            statistics.median(run[figure] for run in found[side]) if all(figure in run for run in found[side]) else None
            for side in ("before", "after")
        )
        ratio = None if old is None or new is None else ratio_of(figure, before=old, after=new)
        table.add_row(escape(figure), _shown(old), _shown(new), "" if ratio is None else f"{ratio:.1f}x")
    return table


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before_after", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names()))
    parser.add_argument("--before", default=BEFORE, metavar="REVISION")
    parser.add_argument("--runs", type=int, default=1, help="runs in each tree, alternating")
    given = parser.parse_args(argv)
    unknown = sorted(set(given.names) - set(names()))
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(names())}")
    console = Console(width=130)
    with checked_out(given.before) as tree:
        for name in given.names or names():
            console.print(compare(name, before=tree, runs=given.runs))
            console.print(f"before: {given.before}; {machine()}")


if __name__ == "__main__":
    main()
