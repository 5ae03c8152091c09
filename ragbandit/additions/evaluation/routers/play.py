"""Plays policies on tables: they learn training questions and predict test questions, in folds or on a second table.

A policy that learns online makes one pass over the training questions and learns only the outcome of the drawn arm. A
classifier is trained on the outcomes of all arms of the training questions. Then each predicts the test questions.
"""

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, Field

from ragbandit.additions.evaluation.routers.routing_table import RoutingTable
from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.offline.estimation import Progress
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.tables import table_query
from ragbandit.router.offline.passes import Learning, greedy_shares
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, TableTrained
from ragbandit.router.policies.settings_check import check_arms
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, Indices, Json, Matrix, Query, Sent, TableRow

#: largest difference between 1 and a sum of shares
_ROUNDING: Final = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """The inputs that all plays share. Every process receives them once."""

    #: outcomes to learn from, and outcomes to predict; the same object if folds of one table are predicted
    train: RoutingTable
    test: RoutingTable
    #: number of folds, each predicted after the other folds were learned; 1 if `train` is another table, or a stream
    folds: int
    policy: PolicySettings
    #: policy -> its params, completed with values of other settings
    policies: Mapping[str, Mapping[str, Json]]
    #: question -> pick of a language model, for policies that need "pick"; and the mean seconds of a pick
    picks: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    pick_seconds: float = 0.0
    #: whether all questions of the table make one pass, and none is predicted afterwards
    is_stream: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PlayTask:
    policy: str
    seed: int
    fold: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PolicyPlay:
    """The choices of a policy. `test` has indices in `Setup.test`, `order` in `Setup.train`."""

    test: Indices
    #: shape (tests, arms): what the policy chooses without exploration
    shares: Matrix
    #: questions of the pass and arms drawn in it; empty for a policy without a pass
    order: Indices
    drawn: Indices
    #: seconds that the policy takes to choose for a question
    seconds: float
    #: first reason why the fallback decided or an outcome was not learned; None without a fault
    fault: str | None = None

    def as_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("test", "shares", "order", "drawn", "seconds", "fault")}
        return {name: one.tolist() if isinstance(one, np.ndarray) else one for name, one in values.items()}


_Place = Annotated[int, Field(ge=0, lt=2**31)]
_Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


class _Written(BaseModel, strict=True):
    """The form that `PolicyPlay.as_json` writes."""

    test: list[_Place]
    shares: list[list[_Share]]
    order: list[_Place]
    drawn: list[_Place]
    seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    fault: str | None


def read_play(values: Any, *, task: PlayTask, setup: Setup) -> PolicyPlay:
    """Read the result of `PolicyPlay.as_json` for this task. Raises ValueError for wrong values."""
    written = _Written.model_validate(values)
    learned, tested = split_questions(setup, seed=task.seed, fold=task.fold)
    count = len(setup.test.arms)
    if written.test != tested.tolist():
        raise ValueError("test: these are not the questions of the fold")
    if len(written.shares) != len(tested) or any(len(row) != count for row in written.shares):
        raise ValueError(f"shares: needs {count} shares for each of {len(tested)} questions")
    if any(abs(math.fsum(row) - 1.0) > _ROUNDING for row in written.shares):
        raise ValueError("shares: the shares of a question do not add up to 1")
    if written.order not in ([], learned.tolist()):
        raise ValueError("order: these are not the questions of the pass")
    if len(written.drawn) != len(written.order) or any(arm >= len(setup.train.arms) for arm in written.drawn):
        raise ValueError("drawn: needs an arm for each question of the pass")
    places = {name: np.array(getattr(written, name), dtype=np.intp) for name in ("test", "order", "drawn")}
    shares = np.array(written.shares, dtype=np.float64).reshape(len(tested), count)
    return PolicyPlay(shares=shares, seconds=written.seconds, fault=written.fault, **places)


def split_questions(setup: Setup, *, seed: int, fold: int) -> tuple[Indices, Indices]:
    """Returns (places of the questions to learn, in the order of the pass; to predict), the same for every policy."""
    order = np.random.default_rng(seed).permutation(len(setup.train.table.rows))
    if setup.folds == 1:
        return order, np.arange(0 if setup.is_stream else len(setup.test.table.rows))
    mine = np.arange(len(order)) % setup.folds == fold
    return order[~mine], order[mine]


def check_folds(folds: int, *, rows: int) -> None:
    if not 1 <= folds <= rows:
        remedy = "use at most one per question, or give --train"
        raise InvalidInput(f"{rows} questions cannot be split into {folds} folds", field="folds", remedy=remedy)


def make_policies(policies: Mapping[str, Mapping[str, Json]], *, arms: Sequence[ArmName]) -> dict[str, Policy]:
    """An instance of each policy. Raises ConfigError for wrong params, unknown arms, and training with other arms."""
    made = {name: make_policy(name, params=params) for name, params in policies.items()}
    for name, policy in made.items():
        if not is_fitted_here(policy):
            check_arms(policy, arms=arms, where=name)
    return made


def is_fitted_here(policy: Policy) -> bool:
    """Whether the policy is trained on the training questions. A policy that was trained before is judged unchanged."""
    return isinstance(policy, TableTrained) and not policy.trained_arms


def make_tasks(setup: Setup, *, policies: Mapping[str, Policy], seeds: int) -> list[PlayTask]:
    """The tasks of each policy. A policy that learns nothing here is played with one seed, since no seed changes it."""
    return [
        PlayTask(policy=name, seed=seed, fold=fold)
        for name, policy in policies.items()
        for seed in range(seeds if is_fitted_here(policy) or learns_online(policy) else 1)
        for fold in range(setup.folds)
    ]


def learns_online(policy: Policy) -> bool:
    """Whether the policy learns from outcomes of drawn arms. A language model's picks are not learned."""
    return not isinstance(policy, TableTrained) and "pick" not in policy.needs


def check_stream(policies: Mapping[str, Policy]) -> None:
    """Raise InvalidInput for policies that learn nothing in a pass, since a stream has no training questions."""
    others = [name for name, policy in policies.items() if not learns_online(policy)]
    if others:
        message = f"with one fold every question is decided once, in a pass, and {', '.join(others)} makes none"
        raise InvalidInput(message, field="folds", remedy="use at least 2 folds, or give --train")


def play(
    task: PlayTask, *, setup: Setup, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> PolicyPlay:
    """Play a task: learn, then predict. progress: receives (steps of the training done, total)."""
    train, test = split_questions(setup, seed=task.seed, fold=task.fold)
    known = setup.train
    policy = _new_policy(task, setup=setup)
    order = drawn = np.empty(0, dtype=np.intp)
    fault: str | None = None
    if is_fitted_here(policy):
        # A policy must not learn from the data set's name, which serves reports only; an id might contain this name.
        rows = [replace(known.table.rows[place], id="", dataset=None) for place in train]
        policy.fit(rows, progress=progress)  # type: ignore[attr-defined] # it is a TableTrained
    elif learns_online(policy):
        settings = play_settings(policy, settings=setup.policy)
        rewarded = _rows_to_learn(policy, setup=setup)
        learning = Learning(policy, rows=rewarded, settings=settings, seed=task.seed * setup.folds + task.fold)
        for done, place in enumerate(train, start=1):
            learning.step(int(place))
            progress(done, len(train))
        passed = learning.played()
        order, drawn, fault = passed.order, passed.drawn, passed.fault
    queries = [_query_with_pick(setup.test.table.rows[place], setup=setup) for place in test]
    needed = setup.test.features if "features" in policy.needs else None
    began = time.perf_counter()
    features = None if needed is None else needed[test]
    shares, other = greedy_shares(policy, queries, features=features, arms=setup.test.arms)
    seconds = (time.perf_counter() - began) / max(1, len(test))
    seconds += setup.pick_seconds if "pick" in policy.needs else 0.0
    return PolicyPlay(test=test, shares=shares, order=order, drawn=drawn, seconds=seconds, fault=fault or other)


def _query_with_pick(row: TableRow, *, setup: Setup) -> Query:
    query = table_query(row)
    pick = setup.picks.get(row.question)
    return query if pick is None else replace(query, sent=Sent(pick=dict(pick)))


def _new_policy(task: PlayTask, *, setup: Setup) -> Policy:
    """A new policy, with the task's seed for its initial weights unless its params name one."""
    params = setup.policies[task.policy]
    policy = make_policy(task.policy, params=params)
    if "seed" in policy.params and "seed" not in params:
        policy = make_policy(task.policy, params={**params, "seed": task.seed})
    return policy


def play_settings(policy: Policy, *, settings: PolicySettings) -> PolicySettings:
    """Settings of the draw in a pass: no safe start, no holdback, and no floors for a policy whose paper has none."""
    changes: dict[str, Any] = {"incumbent": None, "holdback": None}
    if getattr(policy, "without_floors", False):
        changes |= {"floor": 0.0, "cold_start_floor": 0.0}
    return settings.model_copy(update=changes)


def _rows_to_learn(policy: Policy, *, setup: Setup) -> Sequence[Logged]:
    """The rows that a pass learns, with the rewards of the policy's paper if it has a method `table_reward`."""
    known, of_table = setup.train, getattr(policy, "table_reward", None)
    if of_table is None:
        return known.rows
    rows = []
    for number, row in enumerate(known.rows):
        of_row = known.table.rows[number // len(known.arms)]
        rows.append(replace(row, reward=of_table(of_row, arm=row.decision.arm, reward=row.reward)))
    return rows


#: the setup that a process of the pool has received; empty in other processes
_setup: list[Setup] = []


def play_all(
    tasks: Sequence[PlayTask], *, setup: Setup, here: frozenset[str], jobs: int, progress: Progress
) -> Iterator[tuple[PlayTask, PolicyPlay]]:
    """Yield each task with its play, in the order in which plays end. No play depends on the number of processes.

    here: policies that are played in this process, since a model uses all cores. jobs: number of processes.
    """
    away = [task for task in tasks if task.policy not in here] if jobs > 1 else []
    done = 0
    progress("routers played", 0, len(tasks))
    if away:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, "1")  # the processes share the cores already
        # Not forked, since a child could deadlock: the parent may have threads of torch.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_receive_setup, initargs=(setup,)) as pool:
            asked = {pool.submit(_play_task, task): task for task in away}
            for future in as_completed(asked):
                done += 1
                progress("routers played", done, len(tasks))
                yield asked[future], future.result()
    for task in tasks:
        if task not in away:
            name = f"{task.policy}, seed {task.seed}, fold {task.fold}: steps"
            played = play(task, setup=setup, progress=partial(progress, name))
            done += 1
            progress("routers played", done, len(tasks))
            yield task, played


def _receive_setup(setup: Setup) -> None:
    _setup.append(setup)


def _play_task(task: PlayTask) -> PolicyPlay:
    return play(task, setup=_setup[0])
