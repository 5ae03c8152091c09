"""Decisions by turn and by task: dollars, solved tasks, rewards, and whether reports and replays are true.

    python -m benchmarks.tasks                                # 100 worlds of 1,500 tasks
    python -m benchmarks.tasks --worlds 5 --tasks 500
    python -m benchmarks.tasks --worlds 30 --kinds turn       # each turn has a kind of its own
    python -m benchmarks.tasks --worlds 30 --same-weight      # only `conversation.unit` differs

Two arms with the prices and the prompt cache of two models of Anthropic (benchmarks/tasks/worlds.py). The kind of a
task shows in its first question, and with `--kinds task` in all later ones, from which the unit `turn` decides. The
outcome of 30 % of the tasks is reported, once. Each world has its own chances of the arms, and a solved task is worth 2
to 20 dollars. The unit `turn` learns a task's outcome for each of its turns (benchmarks/tasks/passes.py). An answered
turn is worth a solved task divided by the mean number of turns, so that both units weigh dollars alike; with
--same-weight it is worth a task. The first --served tasks of world 0 are also served by a service on SQLite, and
compared with the simulated pass.
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes share the cores already
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.figures import machine
from benchmarks.tasks.claims import EVERY
from benchmarks.tasks.measures import LATER, UNITS, Measured, measured, served_alike
from benchmarks.tasks.served import Agreement
from benchmarks.tasks.worlds import ARMS
from ragbandit.shared.processes.this_process import cores
from ragbandit.shared.texts.formats import decimal
from ragbandit.shared.types import DecisionUnit


def main(arguments: Sequence[str]) -> None:
    """Play the worlds, and print what they show."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tasks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--turn-worlds", type=int, default=12, help="worlds that are played with unit turn too")
    parser.add_argument("--tasks", type=int, default=1_500, help="tasks of each world")
    parser.add_argument("--kinds", choices=UNITS, default="task", help="whether a task or each turn has its kind")
    parser.add_argument("--same-weight", action="store_true", help="`reward.weight` of unit turn is that of unit task")
    parser.add_argument("--served", type=int, default=100, help="number of tasks that a service serves too, or 0")
    parser.add_argument("--encoder", help="another than the default, such as hashing")
    parser.add_argument("--jobs", type=int, default=cores())
    asked = parser.parse_args(list(arguments))
    common = {"one_kind": asked.kinds == "task", "same_weight": asked.same_weight, "encoder": asked.encoder}
    with (
        ProcessPoolExecutor(asked.jobs, mp_context=multiprocessing.get_context("spawn")) as pool,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        jobs = [
            pool.submit(
                measured, seed, tasks=asked.tasks, units=UNITS if seed < asked.turn_worlds else UNITS[:1], **common
            )
            for seed in range(asked.worlds)
        ]
        served = pool.submit(served_alike, tasks=asked.served, **common) if asked.served else None
        worlds = [job.result() for job in progress.track(jobs, description="worlds")]
        same = None if served is None else served.result()
    console = Console(width=150)
    both = worlds[: asked.turn_worlds]
    if len(both) < len(worlds):
        console.print(_means_table(worlds, units=UNITS[:1]))
    if both:
        console.print(_means_table(both, units=UNITS))
    console.print(_claims_table(worlds))
    for sentence in _sentences(worlds, same=same, tasks=asked.tasks):
        console.print(sentence, highlight=False)


def _means_table(worlds: Sequence[Measured], *, units: Sequence[DecisionUnit]) -> Table:
    later = f"from task {LATER}"
    columns = ("dollars per 1,000 tasks", "solved", "reward", f"first {LATER}", later, "worst world", "changes of arm")
    table = Table("unit", *columns, box=box.SIMPLE, title=f"{len(worlds)} worlds")
    for name in (*units, *(f"always {arm}" for arm in ARMS)):
        means = [world.means[name] for world in worlds]
        table.add_row(
            name,
            f"{1000 * np.mean([one.dollars for one in means]):.0f}",
            f"{np.mean([one.solved for one in means]):.3f}",
            f"{np.mean([one.reward for one in means]):.3f}",
            _thousandths([one.first for one in means]),
            _thousandths([one.later for one in means]),
            ", ".join(
                decimal(1000 * worst, 0, sign="+")
                for worst in (min(one.first for one in means), min(one.later for one in means))
            ),
            f"{np.mean([one.changes for one in means]):.0%}" if name in UNITS else "",
        )
    return table


def _thousandths(values: Sequence[float]) -> str:
    return f"{decimal(1000 * float(np.mean(values)), 1, sign='+')} ± {1000 * _error(values):.1f}"


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def _claims_table(worlds: Sequence[Measured]) -> Table:
    table = Table(
        "unit", "comparison", "worlds", "verdict at the end", "false", "intervals", "missed", "width", box=box.SIMPLE
    )
    for unit in UNITS:
        played = [world.claims[unit] for world in worlds if unit in world.claims]
        for name in sorted({name for claims in played for name in claims}):
            found = [claims[name] for claims in played if name in claims]
            widths = [one.width for one in found if one.width is not None]
            table.add_row(
                unit,
                name,
                str(len(played)),
                str(sum(one.has_verdict for one in found)),
                str(sum(one.is_false for one in found)),
                str(len(widths)),
                str(sum(one.is_missed for one in found)),
                f"{np.mean(widths):.2f}" if widths else "",
            )
    return table


def _sentences(worlds: Sequence[Measured], *, same: Agreement | None, tasks: int) -> Iterator[str]:
    both = [world for world in worlds if "turn" in world.means]
    if both:
        yield from _ratios(both)
    yield (
        f"Worlds of {tasks:,} tasks; ±: standard error over worlds. First {LATER}, from task {LATER}: thousandths of a "
        "reward per task above the world's best fixed arm. False, missed: worlds in which any report, made after every "
        f"{EVERY} tasks, or the replay has a false verdict, or an interval without the truth."
    )
    if same is not None:
        yield (
            f"A service on SQLite served {same.tasks} tasks of world 0 with {same.turns:,} turns: {same.same_arm} got "
            f"the same arm as in the simulated pass, {same.same_outcome} have the same outcome in a report; "
            f"probabilities differ by at most {same.pmf:.1g}, dollars of a task by {same.dollars:.1g}."
        )
    yield machine()


def _ratios(worlds: Sequence[Measured]) -> Iterator[str]:
    pairs = [(world.means["task"], world.means["turn"]) for world in worlds]
    ratio = sum(task.dollars for task, _ in pairs) / sum(turn.dollars for _, turn in pairs)
    solved = [task.solved - turn.solved for task, turn in pairs]
    gained = [task.reward - turn.reward for task, turn in pairs]
    cheaper = sum(task.dollars < turn.dollars for task, turn in pairs)
    yield (
        f"Unit task against unit turn: {ratio:.3f} of the dollars (less in {cheaper} of {len(pairs)} worlds), solved "
        f"{_thousandths(solved)} thousandths, reward {_thousandths(gained)} thousandths per task."
    )
    yield _at_equal_quality(worlds)
    false = {unit: sum(any(one.is_false for one in world.claims[unit].values()) for world in worlds) for unit in UNITS}
    yield (
        f"Of these {len(pairs)} worlds, {false['task']} have a false verdict in any line with unit task, "
        f"{false['turn']} with unit turn."
    )


def _at_equal_quality(worlds: Sequence[Measured]) -> str:
    """Dollars of a random mixture of unit task with one arm, which solves as many tasks as unit turn."""
    solved = {name: np.mean([world.means[name].solved for world in worlds]) for name in worlds[0].means}
    dollars = {name: np.mean([world.means[name].dollars for world in worlds]) for name in worlds[0].means}
    other = f"always {ARMS[0] if solved['task'] > solved['turn'] else ARMS[1]}"
    share = (solved["turn"] - solved[other]) / (solved["task"] - solved[other])
    spent = share * dollars["task"] + (1.0 - share) * dollars[other]
    return (
        f"A mixture of {share:.0%} unit task and {1 - share:.0%} {other} solves as many tasks as unit turn for "
        f"{spent / dollars['turn']:.3f} of its dollars."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
