"""Replay from the store: processor time and peak memory for a whole ledger of 256 features and 3 arms.

The rows are made by direct inserts. RAGBANDIT_REPLAY_ROWS says how many (900000 takes minutes in the earlier revision).
RAGBANDIT_REPLAY_STORE names a folder that keeps the store for the next run, RAGBANDIT_REPLAY_URL another database.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROWS = int(os.environ.get("RAGBANDIT_REPLAY_ROWS", "30000"))
ARMS = ("no_retrieval", "single_step", "multi_step")
FEATURES = 256
PAGE = 5000

_REPLAY = """
import sys
from ragbandit import open_log, replay
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.replay import Plan
result = replay(
    open_log(config=Settings(data_dir=sys.argv[1], database_url=sys.argv[2] or None)),
    candidates=["fixed:single_step", "uniform"],
    plan=Plan(baseline="logged"),
)
print(result.rows, result.candidates[0].reward.value)
"""


def fill(url: str, *, rows: int) -> None:
    """A store with this many learned decisions. Nothing but `decisions` and `updates` is written."""
    from sqlalchemy import insert

    from ragbandit.router.storage.sql.database import Database, migrate
    from ragbandit.router.storage.sql.tables import decisions, policies, updates

    database = Database(url)
    migrate(database)
    with database.write() as connection:
        if database.is_sqlite:
            connection.exec_driver_sql("PRAGMA cache_size=-200000")
        policy = {"label": "main", "algorithm": "mba", "params": "{}", "encoder_hash": "e", "made_at": 1.7e9}
        connection.execute(insert(policies), [policy])
        for made, learned in _pages(rows):
            connection.execute(insert(decisions), made)
            connection.execute(insert(updates), learned)
    if not database.is_sqlite:
        with database.engine.connect() as connection:
            connection.exec_driver_sql("ANALYZE")
    database.close()


def _pages(rows: int) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    random = np.random.default_rng(1)
    for start in range(0, rows, PAGE):
        count = min(PAGE, rows - start)
        features = random.standard_normal((count, FEATURES)).astype("<f4")
        pmfs = random.dirichlet((1.5, 1.5, 1.5), size=count) * 0.94 + 0.02
        pmfs /= pmfs.sum(axis=1, keepdims=True)
        drawn = (random.random(count)[:, None] > pmfs.cumsum(axis=1)).sum(axis=1).clip(0, 2)
        judged = random.random(count)
        made, learned = [], []
        for row in range(count):
            key, arm, pmf = f"0192{start + row:08x}-bench", int(drawn[row]), pmfs[row].tolist()
            quality, cost = float(judged[row] < 0.3 + 0.15 * arm), (0.0, 1.0, 3.0)[arm]
            made.append(_decision(key, arm=arm, pmf=pmf, features=features[row].tobytes(), made_at=1.7e9 + start + row))
            learned.append(_update(key, seq=start + row + 1, arm=arm, propensity=pmf[arm], quality=quality, cost=cost))
        yield made, learned


def _decision(key: str, *, arm: int, pmf: list[float], features: bytes, made_at: float) -> dict[str, Any]:
    return {
        "id": key,
        "tenant": f"tenant-{int(made_at) % 50}",
        "text": f"which of the {key} questions is this, and how long is it?",
        "context": "{}",
        "budget": "{}",
        "allowed": None,
        "body_hash": key.rjust(64, "0"),
        "arms": json.dumps(ARMS),
        "pmf": json.dumps(pmf),
        "scores": json.dumps(pmf),
        "arm": ARMS[arm],
        "propensity": pmf[arm],
        "policy": "main",
        "version": f"main-{int(made_at) // 20}-0123456789ab",
        "encoder_hash": "e",
        "seed": "1",
        "floor": 0.02,
        "explored": False,
        "fault": None,
        "facts": "{}",
        "run_by": "worker",
        "features": features,
        "made_at": made_at,
    }


def _update(key: str, *, seq: int, arm: int, propensity: float, quality: float, cost: float) -> dict[str, Any]:
    return {
        "policy": "main",
        "seq": seq,
        "decision_id": key,
        "arm": ARMS[arm],
        "propensity": propensity,
        "value": min(max(quality - 0.05 * cost, -1.0), 1.0),
        "quality": quality,
        "cost": cost,
        "weight": 0.05,
        "sample_weight": 1.0,
        "minimum": -1.0,
        "maximum": 1.0,
        "terms": '{"retriever_calls":1.0}',
        "preset": "f1",
        "source": "explicit",
        "feedback_ids": "[]",
        "feedback_at": None,
        "made_at": 1.7e9 + seq,
    }


def spent(folder: Path, url: str = "") -> dict[str, float]:
    """Processor time, wall and peak memory of one replay in a process of its own."""
    began = time.perf_counter()
    # Threads of BLAS that wait for each other on a busy machine spend processor time too.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _REPLAY, str(folder), url]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the replay ended with {process.returncode}")
    return {
        f"{ROWS:,} rows [s of CPU]": usage.ru_utime + usage.ru_stime,
        f"{ROWS:,} rows [s]": time.perf_counter() - began,
        f"{ROWS:,} rows, peak memory [GiB]": usage.ru_maxrss / 1024**2,
    }


def measure() -> dict[str, float]:
    """A store is made, and replayed once."""
    url = os.environ.get("RAGBANDIT_REPLAY_URL", "")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(os.environ.get("RAGBANDIT_REPLAY_STORE", made))
        if url and not os.environ.get("RAGBANDIT_REPLAY_STORE"):
            fill(url, rows=ROWS)
        elif not url and not (folder / "ragbandit.db").exists():
            fill(f"sqlite:///{folder / 'ragbandit.db'}", rows=ROWS)
        return spent(folder, url)


if __name__ == "__main__":
    print(measure())
