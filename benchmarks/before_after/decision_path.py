"""The way of a decision, from a checked question to a committed row: processor time by size of the group.

The encoder is left out: its features are made ahead. The policy is mba after 600 updates; SQLite commits to the disk
of the temporary folder, PostgreSQL (the wheel of the tests) runs without fsync. The time is that of all threads of
this process; what the database's own process uses is not in it.
"""

import importlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ragbandit.router.config.loading import load
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.linear.mba import MbaRag
from ragbandit.router.serving.deciding.live import Serving
from ragbandit.router.serving.deciding.service import RouteService
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers.inheritance import register_policy
from ragbandit.router.storage.sql.database import Database, migrate
from ragbandit.shared.types import ArmName, DecisionId, PolicyLabel, Query, Reward, Update

ARMS = tuple(map(ArmName, ("no_retrieval", "single_step", "multi_step")))
DIMENSION = 256
#: size of a group -> groups in one measurement
GROUPS = {1: 200, 32: 40, 512: 6}
#: measurements of each, of which the least is told
REPEATS = 3


class _Ready:
    """An encoder whose features are there already."""

    dimension = DIMENSION
    hash = "ready"
    source = "made by the benchmark"

    def __init__(self) -> None:
        self._rows = np.random.default_rng(0).standard_normal((512, DIMENSION)).astype(np.float32)

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return self._rows[: len(texts)]


def measure() -> dict[str, float]:
    """Microseconds of processor time per decision, by database and size of the group."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        settings = load(environ={"RAGBANDIT_DATA_DIR": folder}).settings
        policy = _taught()
        server = importlib.import_module("tests.conftest").PostgresServer()  # a real one, from the wheel of the tests
        server.start()
        try:
            server.execute("CREATE DATABASE decision_path")
            urls = {"SQLite": f"sqlite:///{Path(folder) / 'path.db'}", "PostgreSQL": server.url("decision_path")}
            for name, url in urls.items():
                database = Database(url)
                migrate(database)
                store = DecisionStore(database, label=PolicyLabel("main"))
                register_policy(database, label=store.label, algorithm="mba", params="{}", encoder_hash="", now=1.0)
                for size, groups in GROUPS.items():
                    least = min(_cost(store, settings, policy, size=size, groups=groups) for _ in range(REPEATS))
                    found[f"{name}, group of {size}, per decision [us of CPU]"] = least
                database.close()
        finally:
            server.stop()
    return found


def _taught() -> MbaRag:
    """The policy after 600 updates."""
    policy, chance = MbaRag(block=1), np.random.default_rng(0)
    for seq in range(1, 601):
        quality, cost = float(chance.random() < 0.5), float(seq % 3)
        reward = Reward(
            value=quality - 0.05 * cost,
            quality=quality,
            cost=cost,
            weight=0.05,
            minimum=-1.0,
            maximum=1.0,
            terms={"steps": 1.0},
            preset="f1",
            source="explicit",
        )
        policy.learn(
            Update(
                policy=PolicyLabel("main"),
                seq=seq,
                decision_id=DecisionId(str(seq)),
                query=Query(text="x"),
                arm=ARMS[seq % 3],
                arms=ARMS,
                pmf=(1 / 3,) * 3,
                scores=None,
                propensity=1 / 3,
                reward=reward,
                feedback_ids=(),
                features=chance.standard_normal(DIMENSION).astype(np.float32),
                made_at=0.0,
            )
        )
    return policy


def _cost(store: DecisionStore, settings: Settings, policy: MbaRag, *, size: int, groups: int) -> float:
    """Microseconds per decision. All questions are handed in before the thread starts, so every group is full."""
    encoder = settings.encoder.model_copy(update={"max_batch": size})
    # All questions may wait; the revision before has no max_wait_s, and no limit in the service.
    server = settings.server.model_copy(update={"max_waiting": 10**6, "max_wait_s": 1e6})
    service = RouteService(
        store,
        encoder=_Ready(),
        settings=settings.model_copy(update={"encoder": encoder, "server": server}),
        serving=Serving(policy=policy, version="main-600-0123456789ab", last_seq=600),
    )
    count = size * groups
    began = time.process_time()
    futures = [service.submit(Query(text=f"Who wrote book number {at}?"), run_by="caller") for at in range(count)]
    service.start()
    for future in futures:
        future.result(60)
    spent = time.process_time() - began
    service.close()
    return spent / count * 1e6
