"""A board of worlds: rewards of policies on tables that they were not tuned on, with many labels and with few.

    python -m benchmarks.worlds                                              # or: make boards
    python -m benchmarks.worlds --policies mba,linucb --modes cold --labelled 1 --seeds 2

A world is a table in --tables (routing/*.jsonl and worlds/*.jsonl; default: the folder next to the checkout), the
handbook's table, a simulated one (benchmarks/worlds/made.py), or one truth of a grid of arms (grids.py: --worlds grids
--policies mba:apart,mba; the suffix `:apart` hides the arms' facts from a policy). A pass asks at most --questions, and
at most 80 % of a table, one by one; the greedy choice after it is evaluated on the rest. The cost weight is .05, or
.015 for Llama tables. If --questions is above the default, tables of rewards by thousands are added. Long made worlds
(--worlds long) repeat their questions: a pass has as many as --questions, for example 100,000.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from rich.console import Console

from benchmarks.figures import machine
from benchmarks.worlds.board import board, gathered, installed_policies
from benchmarks.worlds.made import LONG, WORLDS
from benchmarks.worlds.passes import MODES, QUESTIONS, Conditions
from benchmarks.worlds.report import print_board
from ragbandit.router.cli.progress import show_progress
from ragbandit.shared.processes.this_process import cores

ROOT = Path(__file__).parents[2]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _shares(text: str) -> tuple[float, ...]:
    shares = tuple(float(word) for word in _words(text))
    if not shares or not all(0.0 < share <= 1.0 for share in shares):
        raise argparse.ArgumentTypeError("shares are above 0 and at most 1")
    return shares


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.worlds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--policies", type=_words, default=("mba", "linucb", "vw"), metavar="NAME[,NAME...]")
    options.add_argument("--tables", type=Path, default=ROOT.parent / "shared" / "data", help="folder of tables")
    options.add_argument("--worlds", type=_words, default=(), help="only these; groups: 'made', 'long', 'grids'")
    options.add_argument("--modes", type=_words, default=MODES, help=f"of {', '.join(MODES)}")
    options.add_argument("--labelled", type=_shares, default=(1.0, 0.3, 0.05), help="shares of answers, X[,X...]")
    options.add_argument("--questions", type=int, default=QUESTIONS, help="of a pass at most, warm ones included")
    options.add_argument("--seeds", type=int, default=4)
    options.add_argument("--first-seed", type=int, default=0, help="seeds from this one on: others than were tuned on")
    options.add_argument("--wrong", type=float, default=0.0, help="share of the ratings that are inverted, such as .05")
    options.add_argument("--warm", type=int, default=0, help="questions learned before with the outcomes of all arms")
    options.add_argument("--late", type=int, default=0, help="decisions that are made before a label comes")
    options.add_argument("--encoder", help="another than the default, such as hashing")
    options.add_argument("--jobs", type=int, default=cores())
    return options


def main(arguments: list[str]) -> None:
    """Run the requested passes and print the board."""
    options = parser()
    asked = options.parse_args(arguments)
    if unknown := sorted(set(asked.modes) - set(MODES)):
        options.error(f"unknown mode {unknown[0]!r}; known: {', '.join(MODES)}")
    console = Console()
    conditions = Conditions(questions=asked.questions, warm=asked.warm, wrong=asked.wrong, late=asked.late)
    with show_progress(Console(stderr=True)) as progress:
        worlds = gathered(asked.tables, names=asked.worlds, encoder=asked.encoder, progress=progress)
        if not worlds:
            options.error(f"no such world; made: {', '.join((*WORLDS, *LONG))}")
        result = board(
            worlds,
            policies=installed_policies(asked.policies),
            modes=asked.modes,
            labelled=asked.labelled,
            seeds=asked.seeds,
            first_seed=asked.first_seed,
            conditions=conditions,
            jobs=asked.jobs,
            progress=progress,
        )
    print_board(result, console=console)
    console.print(machine())


if __name__ == "__main__":
    main(sys.argv[1:])
