"""Times of a policy: a decision without the encoder, an update after few and after many rows, a snapshot.

A decision here is all that follows the encoder but the log: pmf, gate, floors, draw. Baselines, measured in the same
run: Vowpal Wabbit behind the same steps, and solving the arm's ridge regression again from all its rows.
"""

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, print_figures, timed
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.snapshots import pack
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import Policy, apply, pmf_of_one
from ragbandit.router.policies.draw import cold_start_floors, draw, seed_of
from ragbandit.shared.types import ArmName, DecisionId, FeatureRows, Json, PolicyLabel, Query, Reward, Update

#: registry name -> params, of the policies that decide without a transformer or a language model
DECIDING: Mapping[str, Mapping[str, Json]] = {
    "mba": {},
    "linucb": {},
    "uniform": {},
    "vw": {},
}
#: what the encoder gives by default
SIZE = Settings().encoder.dimension
ROWS = (1_000, 10_000, 100_000)
LABEL = PolicyLabel("main")
#: questions in store: the stream goes round, since a hundred thousand would fill the memory and change no time
STORE = 2_000
#: a figure is the least of this many means, of this many updates each
REPEATS, BATCH = 7, 100


def main() -> None:
    """Print the tables. (This module with a number of rows behind it prints the seconds of the baseline.)"""
    features = _features()
    _print_decisions(features)
    _print_updates(features)


def _features() -> FeatureRows:
    return np.random.default_rng(11).standard_normal((STORE, SIZE)).astype(np.float32)


def _print_decisions(features: FeatureRows) -> None:
    arms, costs = _arms(3), {}
    for name, params in DECIDING.items():
        policy = make_policy(name, params=params)
        for update in _updates(features, arms=arms, count=600):
            apply(policy, update)
        costs[name] = _microseconds(_decides(policy, features=features, arms=arms), count=500)
    print_figures(
        f"a decision without the encoder: pmf, gate, floors, draw; {len(arms)} arms, {SIZE} features",
        [
            Figure(name=name, unit="µs", ours=cost, baseline=costs["vw"], against="vw")
            for name, cost in costs.items()
            if name != "vw"
        ],
    )


def _decides(policy: Policy, *, features: FeatureRows, arms: tuple[ArmName, ...]) -> Callable[[int], object]:
    """Work of one decision, given its number; as in router/serving/deciding/service.py, with the default settings."""
    settings = Settings().policy
    queries = [Query(text=f"question {number}", id=DecisionId(f"decision-{number}")) for number in range(STORE)]

    def decide(number: int) -> object:
        query = queries[number % STORE]
        assert query.id is not None
        raised = cold_start_floors(
            policy.seen, arms=arms, share=settings.cold_start_floor, outcomes=settings.cold_start_outcomes
        )
        output = pmf_of_one(policy, query, features=features[number % STORE], arms=arms)
        return draw(
            output,
            arms=arms,
            floor=settings.floor_of(len(arms)),
            fallback=settings.fallback,
            seed=seed_of(query.id),
            raised=raised,
        )

    return decide


def _print_updates(features: FeatureRows) -> None:
    figures = []
    for count, marks in ((3, ROWS[:2]), (10, ROWS)):
        policy, arms, done = make_policy("mba", params={}), _arms(count), 0
        stream = _updates(features, arms=arms)
        for rows in marks:
            for update in itertools.islice(stream, rows - done):
                policy.learn(update)
            timed_rows = tuple(itertools.islice(stream, REPEATS * BATCH))
            done = rows + len(timed_rows)
            figures.append(
                Figure(
                    name=f"update of mba after {rows:,} rows, {count} arms",
                    unit="ms",
                    ours=1e-3 * _microseconds(_learns(policy, timed_rows), count=BATCH),
                    baseline=1e3 * _solved_alone(rows // count),
                    against=f"solving again from the arm's {rows // count:,} rows",
                )
            )
        figures += _snapshot(policy, count=count)
    print_figures(f"learning one row, {SIZE} features", figures)


def _learns(policy: Policy, updates: Sequence[Update]) -> Callable[[int], object]:
    return lambda number: policy.learn(updates[number])


def _solved_again(rows: int) -> float:
    """Seconds to make an arm's two heads from all its rows, with BLAS."""
    z = np.ones((rows, SIZE + 1))
    z[:, 1:] = _features()[np.arange(rows) % STORE] / np.sqrt(SIZE)
    y = np.random.default_rng(12).random((rows, 2))
    prior = 5.0 * np.eye(SIZE + 1)
    return min(timed(lambda: np.linalg.solve(z.T @ z + prior, z.T @ y)) for _ in range(REPEATS))


def _solved_alone(rows: int) -> float:
    """The same by a process with one thread, as the updates have: two threads of BLAS get in each other's way here."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "benchmarks.policy_speed", str(rows)]
    folder = Path(__file__).parents[1]
    done = subprocess.run(command, env=os.environ | threads, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def _snapshot(policy: Policy, *, count: int) -> list[Figure]:
    """Its time, which the learner pays once per snapshot_interval_s and not once per update, and its size."""
    tensors = pack(policy, label=LABEL, last_seq=1, encoder_hash="e" * 64, now=0.0)[1]
    seconds = statistics.median(
        timed(lambda: pack(policy, label=LABEL, last_seq=1, encoder_hash="e" * 64, now=0.0)) for _ in range(REPEATS)
    )
    return [
        Figure(name=f"snapshot packed, {count} arms", unit="ms", ours=1000 * seconds),
        Figure(name=f"snapshot size, {count} arms", unit="MB", ours=len(tensors) / 1e6),
    ]


def _microseconds(work: Callable[[int], object], *, count: int) -> float:
    """The least of REPEATS means over `count` calls, each with its number: what else the machine does only adds."""
    means = []
    for repeat in range(REPEATS):
        began = time.perf_counter()
        for number in range(repeat * count, (repeat + 1) * count):
            work(number)
        means.append((time.perf_counter() - began) / count)
    return min(means) * 1e6


def _arms(count: int) -> tuple[ArmName, ...]:
    return tuple(ArmName(f"arm_{number}") for number in range(count))


def _updates(features: FeatureRows, *, arms: tuple[ArmName, ...], count: int | None = None) -> Iterator[Update]:
    """Ledger rows, arms drawn alike; without end if no count is given."""
    random = np.random.default_rng(13)
    settings = Settings().reward
    seq = 0
    while count is None or seq < count:
        seq += 1
        place, quality = int(random.integers(len(arms))), float(random.integers(2))
        yield Update(
            policy=LABEL,
            seq=seq,
            decision_id=DecisionId(f"decision-{seq}"),
            arm=arms[place],
            query=Query(text=f"question {seq}"),
            arms=arms,
            pmf=(1.0 / len(arms),) * len(arms),
            scores=None,
            propensity=1.0 / len(arms),
            reward=Reward(
                value=quality - settings.weight * place,
                quality=quality,
                cost=float(place),
                weight=settings.weight,
                minimum=settings.minimum,
                maximum=settings.maximum,
                terms=settings.cost,
                preset="rating",
                source="explicit",
            ),
            feedback_ids=(),
            features=features[seq % STORE],
            made_at=float(seq),
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(_solved_again(int(sys.argv[1])))
    else:
        main()
