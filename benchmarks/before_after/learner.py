"""Rebuild of a policy from its ledger, `verify`, and pmfs over many arms."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ragbandit import Router
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.checks.reports import made_feedback
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.shared.types import ArmName, DecisionId, Query
from ragbandit.testing.policy_examples import made_features, made_query, made_updates

#: decisions of the store, each of them learned
ROWS = int(os.environ.get("LEARNER_ROWS", "10000"))
DIMENSION = 256


def measure() -> dict[str, float]:
    """CPU time of this process; SQLite, hashing encoder, 256 features."""
    with tempfile.TemporaryDirectory() as folder:
        return _store(folder) | _pmfs()


def _store(folder: str) -> dict[str, float]:
    settings = Settings.model_validate(
        {
            "data_dir": folder,
            "encoder": {"model": "hashing", "dimension": DIMENSION, "max_batch": 512},
            "learning": {"batch": 1000},
            "server": {"max_waiting": 10**6},
        }
    )
    with Router.open(settings, jobs=MemoryJobs()) as router:
        _fill(router)
        found: dict[str, float] = {}
        found[f"verify of {ROWS:,} decisions [s CPU]"] = _cpu(lambda: _verified(router))
        shutil.rmtree(Path(folder) / "snapshots")
        found["rebuild from nothing [us CPU a row]"] = 1e6 * _cpu(lambda: _rebuilt(router)) / ROWS
    return found


def _fill(router: Router) -> None:
    rng = np.random.default_rng(0)
    for start in range(0, ROWS, 500):
        asked = [
            router.submit(Query(text=f"who wrote the book number {n}?", id=DecisionId(f"d{n:08}")))
            for n in range(start, min(start + 500, ROWS))
        ]
        notes = [
            router.submit_feedback(
                made_feedback(
                    decision_id=future.result(60).id,
                    reward=float(rng.uniform()),
                    settings=router.settings,
                    now=time.time(),
                )
            )
            for future in asked
        ]
        for note in notes:
            note.result(60)
        while router.learn():
            pass


def _verified(router: Router) -> None:
    assert router.verify().ok


def _rebuilt(router: Router) -> None:
    learner = make_learner(router.settings, database=router.database, jobs=router.jobs)
    learner.catch_up()
    assert learner.last_seq == ROWS


def _pmfs() -> dict[str, float]:
    found = {}
    for name in ("linucb", "mba"):
        for count in (3, 20, 100):
            arms = tuple(ArmName(f"arm_{number:03}") for number in range(count))
            policy = make_policy(name, params={})
            for update in made_updates(5 * count, arms=arms, size=DIMENSION):
                policy.learn(update)
            query, features = made_query(1), made_features(1, size=DIMENSION)
            pmf_of_one(policy, query, features=features, arms=arms)
            times = 20
            seconds = _cpu(
                lambda: [pmf_of_one(policy, query, features=features, arms=arms) for _ in range(times)]  # noqa: B023
            )
            found[f"pmf of {name}, {count} arms [ms CPU]"] = 1e3 * seconds / times
    return found


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
