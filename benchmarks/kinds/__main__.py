"""Kinds of questions in made worlds: is the rule in their names, and is there none without a rule?

    python -m benchmarks.kinds                     # 9 worlds with a rule and 3 without, 10 seeds each: ten minutes
    python -m benchmarks.kinds --seeds 1 --labelled 0.3

In a pass the policy decides 1,000 questions and learns from those that are labelled; the newest 1,000 are mapped. Kinds
are named by what the policy does or by what rewards show. Worlds: benchmarks/kinds/worlds.py.
"""

import argparse
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# the processes share the cores already
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from benchmarks.figures import machine
from benchmarks.kinds.passes import mapped, passes
from benchmarks.kinds.worlds import WORLDS, World, is_named
from ragbandit.router.serving.explanations.policy_map import PolicyMap
from ragbandit.shared.processes.this_process import cores


def main(arguments: Sequence[str]) -> None:
    """Print for each world how often kinds are named, and how often the rule is in the names."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kinds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--decisions", type=int, default=1_000)
    parser.add_argument("--policy", default="mba")
    parser.add_argument("--labelled", type=float, default=1.0, help="share of the decisions that are learned")
    parser.add_argument("--encoder", help="another than the default, such as hashing")
    parser.add_argument("--jobs", type=int, default=cores())
    asked = parser.parse_args(list(arguments))
    given = {name: getattr(asked, name) for name in ("decisions", "policy", "labelled", "encoder")}
    all_passes = passes(seeds=range(asked.seeds), **given)
    found: dict[World, list[tuple[PolicyMap, bool]]] = {world: [] for world in WORLDS}
    with (
        ProcessPoolExecutor(asked.jobs, mp_context=multiprocessing.get_context("spawn")) as pool,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        jobs = [(one.world, pool.submit(mapped, one)) for one in all_passes]
        for world, job in progress.track(jobs, description="passes"):
            found[world].append(job.result())
    console = Console(width=170)
    console.print(_table(found))
    console.print(machine())


def _table(found: Mapping[World, Sequence[tuple[PolicyMap, bool]]]) -> Table:
    titles = ("passes", "choices follow the rule", "named", "by rewards", "rule in the names", "explained")
    table = Table(Column("world", no_wrap=True), *(Column(title, justify="right") for title in titles), "first names")
    whole = {True: np.zeros(5, dtype=int), False: np.zeros(5, dtype=int)}
    for world, maps in found.items():
        shown = [[kind.name for kind in one.kinds] if one.is_named else [] for one, _ in maps]
        right = [is_named(world, names) for names in shown]
        by_rewards = sum(one.by_rewards for one, _ in maps)
        counts = [len(maps), sum(follows for _, follows in maps), sum(map(bool, shown)), by_rewards, sum(right)]
        explained = f"{100 * float(np.median([one.explained for one, _ in maps])):.0f} %"
        table.add_row(world.name, *map(str, counts), explained, "; ".join(shown[0]))
        whole[bool(world.rule)] += np.array(counts)
    table.add_section()
    for has_rule, sums in whole.items():
        table.add_row(f"all {'with' if has_rule else 'without'} a rule", *map(str, sums))
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
