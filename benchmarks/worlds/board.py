"""All passes of a board: the worlds, the processes, and the figures of each world."""

import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.worlds.grids import GRIDS, TRUTHS, grid_world
from benchmarks.worlds.made import LONG, WORLDS, long_questions, long_world, made_world
from benchmarks.worlds.measures import Measured, measured, possible_gain
from benchmarks.worlds.passes import Conditions, Judged, Task, World, passed
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.sections import EncoderSettings
from ragbandit.router.encoders.feature_cache import embed_texts
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.offline.logs.tables import LabelledTable, read_table
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.types import FeatureRows, TableRow

HANDBOOK: Final = Path(__file__).parents[2] / "examples" / "handbook" / "table.jsonl"
#: cost weight (lambda) of the other worlds, in reward per step
DEFAULT_WEIGHT: Final = RewardSettings().weight
#: weight of cost where most questions are answered by no arm
_LLAMA_WEIGHT: Final = 0.015

#: in a process of the pool
_worlds: dict[str, World] = {}


@dataclass(frozen=True, kw_only=True)
class Board:
    """The requested passes and their results."""

    worlds: Sequence[World]
    #: what full information could gain over the best fixed arm, by world
    possible: dict[str, float]
    rows: Sequence[Measured]
    policies: Sequence[str]
    seeds: int
    conditions: Conditions


def installed_policies(names: Sequence[str]) -> tuple[str, ...]:
    """These, without `vw` where its package is not installed."""
    there = importlib.util.find_spec("vowpal_wabbit_next") is not None
    return tuple(name for name in dict.fromkeys(names) if name != "vw" or there)


def gathered(folder: Path, *, names: Sequence[str], encoder: str | None, progress: Progress) -> list[World]:
    """The worlds of these names, of none all but the grids and the long ones, with their features.

    names: "made" stands for all made ones, "long" for all long ones, "grids" for all truths of all grids, a grid's name
    for all of its truths.
    """
    worlds = [make() for name, groups, make in _all(folder) if {name, *groups} & set(names or [""])]
    if not worlds:
        return []
    settings = EncoderSettings() if encoder is None else EncoderSettings(model=encoder)
    loaded = make_encoder(settings)
    texts = [row.question for world in worlds for row in world.table.rows]
    features = embed_texts(texts, encoder=loaded, progress=progress)
    cuts = np.cumsum([len(world.table.rows) for world in worlds])[:-1]
    return [
        _with_features(world, features=rows, encoder_hash=loaded.hash)
        for world, rows in zip(worlds, np.split(features, cuts), strict=True)
    ]


def _with_features(world: World, *, features: FeatureRows, encoder_hash: str) -> World:
    world = replace(world, features=features, encoder_hash=encoder_hash)
    if not world.repeats:
        return world
    table = long_world(world.name, features=features)
    return replace(world, table=table, chances=table.correct)


def _all(folder: Path) -> Iterator[tuple[str, tuple[str, ...], Callable[[], World]]]:
    """(name, its groups, function that makes it); "" is the default group."""
    for name in WORLDS:
        yield name, ("", "made"), partial(_made, name)
    for name in LONG:
        yield name, ("long",), partial(_long, name)
    for name in GRIDS:
        for truth in range(TRUTHS):
            yield f"{name} #{truth}", ("grids", name), partial(_grid, name, truth=truth)
    files = [*sorted(folder.glob("routing/*.jsonl")), *sorted(folder.glob("worlds/*.jsonl")), HANDBOOK]
    for file in files:
        yield ("handbook" if file == HANDBOOK else file.stem), ("",), partial(_read, file)


def _read(file: Path) -> World:
    weight = _LLAMA_WEIGHT if "llama" in file.stem.lower() else DEFAULT_WEIGHT
    name = "handbook" if file == HANDBOOK else file.stem
    return World(name=name, table=read_table(file), weight=weight)


def _made(name: str) -> World:
    table, chances = made_world(name)
    return World(name=name, table=table, weight=DEFAULT_WEIGHT, context=WORLDS[name].context, chances=chances)


def _long(name: str) -> World:
    """Its questions: the chances need the features."""
    rows = (TableRow(id=text, question=text, correct={}, steps={}) for text in long_questions())
    return World(name=name, table=LabelledTable(rows=tuple(rows), arms=()), weight=DEFAULT_WEIGHT, repeats=True)


def _grid(name: str, *, truth: int) -> World:
    table, chances, facts = grid_world(name, truth=truth)
    return World(name=f"{name} #{truth}", table=table, weight=DEFAULT_WEIGHT, facts=facts, chances=chances)


def board(
    worlds: Sequence[World],
    *,
    policies: Sequence[str],
    modes: Sequence[str],
    labelled: Sequence[float],
    seeds: int,
    first_seed: int,
    conditions: Conditions,
    jobs: int,
    progress: Progress,
) -> Board:
    """Every policy in every world, in each way to begin and with each share of labels."""
    tasks = [
        Task(world=world.name, policy=policy, mode=mode, seed=seed, conditions=replace(conditions, labelled=share))
        for world in worlds
        for mode in modes
        if world.has(mode)
        for share in labelled
        for policy in policies
        for seed in range(first_seed, first_seed + seeds)
    ]
    possible, played = _played(worlds, tasks=tasks, jobs=jobs, progress=progress)
    groups: dict[Task, list[Judged]] = {}
    for task in tasks:
        groups.setdefault(replace(task, seed=first_seed), []).append(played[task])
    by_name = {world.name: world for world in worlds}
    rows = [
        measured(by_name[task.world], task=task, passes=passes, possible=possible[task.world])
        for task, passes in groups.items()
    ]
    return Board(worlds=worlds, possible=possible, rows=rows, policies=policies, seeds=seeds, conditions=conditions)


def _played(
    worlds: Sequence[World], *, tasks: Sequence[Task], jobs: int, progress: Progress
) -> tuple[dict[str, float], dict[Task, Judged]]:
    """By processes that all have the worlds; what comes out does not depend on how many there are."""
    possible: dict[str, float] = {}
    results: dict[Task, Judged] = {}
    count = len(worlds) + len(tasks)
    given = ({world.name: world for world in worlds},)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # the processes share the cores already
    # Not forked, since a child could deadlock: the parent may have threads of torch.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=given) as pool:
        work: list[Task | str] = [*(world.name for world in worlds), *tasks]
        asked = {pool.submit(_work, one): one for one in work}
        for done, future in enumerate(as_completed(asked), start=1):
            one, result = asked[future], future.result()
            if isinstance(one, Task):
                assert isinstance(result, Judged)
                results[one] = result
            else:
                assert isinstance(result, float)
                possible[one] = result
            progress("passes", done, count)
    return possible, results


def _begin(worlds: dict[str, World]) -> None:
    _worlds.update(worlds)


def _work(one: Task | str) -> Judged | float:
    """A pass, or, of a world's name, what full information could gain there."""
    return passed(one, world=_worlds[one.world]) if isinstance(one, Task) else possible_gain(_worlds[one])
