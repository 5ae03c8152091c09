"""What a long history costs, on SQLite and PostgreSQL: status, router start, and a new label beside a writer.

ROWS decisions (the environment variable HISTORY_ROWS; 100,000 by default, which takes about two minutes a tree): 90 %
are learned, 3 % closed, the rest waits; one snapshot row for every twenty updates has params of before.
HISTORY_DATABASES names what is measured, "SQLite PostgreSQL" by default.
"""

import hashlib
import importlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sqlalchemy import Table

from ragbandit.router.learning.status import status
from ragbandit.router.policies.draw import choose, seed_of
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers.inheritance import register_policy
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import decision_row, feedback_row
from ragbandit.router.storage.rows.outcome_rows import outcome_row
from ragbandit.router.storage.sql.counters import ClosingRule
from ragbandit.router.storage.sql.database import Database, migrate
from ragbandit.shared.types import (
    ArmName,
    Cost,
    Decision,
    DecisionId,
    Feedback,
    FeedbackId,
    Outcome,
    PolicyLabel,
    Query,
)

tables = importlib.import_module("ragbandit.router.storage.sql.tables")  # as the earlier revision names it

ROWS = int(os.environ.get("HISTORY_ROWS", "100000"))
BATCH = 5000
BEGAN = 1_700_000_000.0
ARMS, PMF = ("no_retrieval", "single_step", "multi_step"), (0.5, 0.25, 0.25)
MAIN, SECOND = PolicyLabel("main"), PolicyLabel("second")
POLICY = {"algorithm": "uniform", "params": "{}", "encoder_hash": ""}


def a_decision(key: str, *, made_at: float) -> Decision:
    """A decision without features: they change none of these figures."""
    seed = seed_of(key)
    drawn = choose(PMF, seed=seed)
    return Decision(
        id=DecisionId(key),
        query=Query(id=DecisionId(key), text="Who wrote the first novel about a vampire in Ireland?"),
        arm=ArmName(ARMS[drawn]),
        arms=tuple(map(ArmName, ARMS)),
        pmf=PMF,
        propensity=PMF[drawn],
        scores=(0.1, 0.2, 0.3),
        policy=MAIN,
        version="main-0-none",
        encoder_hash="e" * 64,
        seed=seed,
        floor=0.02,
        explored=drawn != 0,
        fault=None,
        facts={},
        run_by="worker",
        features=None,
        made_at=made_at,
    )


def measure() -> dict[str, float]:
    """Milliseconds; of processor time but for the writer, who waits. By database."""
    wanted, found = os.environ.get("HISTORY_DATABASES", "SQLite PostgreSQL").split(), dict[str, float]()
    if "SQLite" in wanted:
        with tempfile.TemporaryDirectory(prefix="ragbandit-history-") as folder:
            found |= _measured(f"sqlite:///{folder}/ragbandit.db", name="SQLite")
    if "PostgreSQL" in wanted:
        server = importlib.import_module("tests.conftest").PostgresServer()
        server.start()
        try:
            server.execute("CREATE DATABASE history")
            found |= _measured(server.url("history"), name="PostgreSQL")
        finally:
            server.stop()
    return found


def _measured(url: str, *, name: str) -> dict[str, float]:
    database = Database(url)
    try:
        migrate(database)
        register_policy(database, label=MAIN, now=BEGAN, **POLICY)
        _fill(database)
        ledger, rule = Ledger(database, label=MAIN), ClosingRule(wait_s=0.0, expire_s=1e9)
        _inherit(database, label=MAIN)
        found = {
            f"status of {ROWS:,} decisions [ms of CPU]": _cpu(
                lambda: status(ledger, serving=None, rule=rule, now=time.time())
            ),
            "register a known label [ms of CPU]": _cpu(
                lambda: register_policy(database, label=MAIN, now=BEGAN, **POLICY)
            ),
        }
        found |= _new_label(database)
    finally:
        database.close()
    return {f"{name}: {figure}": value for figure, value in found.items()}


def _fill(database: Database) -> None:
    began = time.time()
    made = a_decision("template", made_at=BEGAN)
    done = Outcome(
        decision_id=made.id,
        status="answered",
        answer="Bram Stoker",
        trace=(),
        cost=Cost(),
        steps=1.0,
        stop_reason="answer",
        error=None,
        run_by="worker",
        made_by={},
        made_at=BEGAN,
    )
    note = Feedback(
        id=FeedbackId("template"),
        decision_id=made.id,
        kind="label",
        value=("Dracula",),
        source="human",
        received_at=BEGAN,
    )
    for start in range(0, ROWS, BATCH):
        batches: dict[Table, list[dict[str, Any]]] = {}
        for number in range(start, min(start + BATCH, ROWS)):
            for table, row in _rows(number, decision_row(made), outcome_row(done), feedback_row(note)):
                batches.setdefault(table, []).append(row)
        with database.write() as connection:
            for table, rows in batches.items():
                names = list(rows[0])
                marks = ",".join(["?" if connection.dialect.name == "sqlite" else "%s"] * len(names))
                connection.exec_driver_sql(
                    f"INSERT INTO {table.name} ({','.join(names)}) VALUES ({marks})",
                    [tuple(row.values()) for row in rows],
                )
    try:
        from ragbandit.router.storage.sql.counters import recount
    except ImportError:  # before there were counters
        pass
    else:
        with database.write() as connection:
            recount(connection)
    print(f"filled in {time.time() - began:.0f} s", file=sys.stderr)


def _rows(
    number: int, decision: dict[str, Any], outcome: dict[str, Any], note: dict[str, Any]
) -> Iterator[tuple[Table, dict[str, Any]]]:
    key, at, kind = f"d-{number:012}", BEGAN + number * 0.01, number % 100
    yield tables.decisions, decision | {"id": key, "made_at": at}
    yield tables.outcomes, outcome | {"decision_id": key, "made_at": at}
    if kind < 90:
        seq = number // 100 * 90 + kind + 1
        yield tables.feedback, note | {"id": f"f-{number}", "decision_id": key, "received_at": at}
        yield (
            tables.updates,
            {
                "policy": "main",
                "seq": seq,
                "decision_id": key,
                "arm": decision["arm"],
                "propensity": decision["propensity"],
                "value": 0.5,
                "quality": 0.5,
                "cost": 0.0,
                "weight": 0.05,
                "sample_weight": 1.0,
                "minimum": -1.0,
                "maximum": 1.0,
                "terms": "{}",
                "preset": "f1",
                "source": "explicit",
                "feedback_ids": f'["f-{number}"]',
                "feedback_at": at,
                "made_at": at,
            },
        )
        if seq % 20 == 0:
            row = {
                "version": f"main-{seq}",
                "policy": "main",
                "algorithm": "uniform",
                "params": '{"former":1}',
                "last_seq": seq,
                "sha256": "0" * 64,
                "encoder_hash": "",
                "made_at": at,
            }
            if "params_sha256" in tables.snapshots.c:
                length = tables.snapshots.c.params_sha256.type.length  # of base64 or of hexadecimal digits
                row["params_sha256"] = hashlib.sha256(b'{"former":1}').hexdigest()[:length]
            yield tables.snapshots, row
    elif kind < 93:
        yield (
            tables.closures,
            {
                "policy": "main",
                "decision_id": key,
                "state": "closed",
                "field": None,
                "reason": "no feedback in time",
                "made_at": at,
            },
        )
    else:
        yield (
            tables.waiting,
            {
                "policy": "main",
                "decision_id": key,
                "decided_at": at,
                "run_by": "worker",
                "has_outcome": True,
                "has_feedback": False,
                "has_reward": False,
            },
        )


def _inherit(database: Database, *, label: PolicyLabel) -> None:
    """What the learner of a new label does, with its pauses."""
    module: Any = importlib.import_module("ragbandit.router.storage.ledgers.inheritance")
    ledger = Ledger(database, label=label)
    ledger.acquire(holder="benchmark", lease_s=1e6)
    if not hasattr(module, "Pace"):
        while module.inherit(ledger, holder="benchmark") != "done":
            pass
        return
    pace = module.Pace()  # of the revision before
    while (step := module.inherit(ledger, holder="benchmark", pace=pace)) != "done":
        pace.rest(step)


def _new_label(database: Database) -> dict[str, float]:
    store, stop = DecisionStore(database, label=MAIN), threading.Event()
    taken: list[float] = []

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            made = a_decision(f"e-{number:012}", made_at=time.time())
            began = time.monotonic()
            store.add_decisions([replace(made, query=replace(made.query, id=made.id))])
            taken.append(1000 * (time.monotonic() - began))
            time.sleep(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(3.0)
    alone = max(taken)
    taken.clear()
    began = time.monotonic()
    register_policy(database, label=SECOND, now=BEGAN, **POLICY)
    registered = time.monotonic() - began
    _inherit(database, label=SECOND)
    whole = time.monotonic() - began
    stop.set()
    writer.join()
    with database.read() as connection:
        waits = connection.exec_driver_sql("SELECT COUNT(*) FROM waiting WHERE policy = 'second'").scalar_one()
        decided = connection.exec_driver_sql("SELECT COUNT(*) FROM decisions").scalar_one()
    assert waits == decided, (waits, decided)
    ordered = sorted(taken)
    return {
        "register a new label [ms]": 1000 * registered,
        "until it has every decision [ms]": 1000 * whole,
        "worst insert with nothing beside it, 3 s [ms]": alone,
        "worst insert meanwhile [ms]": ordered[-1],
        "99th percentile of the inserts meanwhile [ms]": ordered[int(0.99 * (len(ordered) - 1))],
    }


def _cpu(work: Callable[[], object], *, times: int = 11) -> float:
    took = []
    for _ in range(times):
        began = time.process_time()
        work()
        took.append(1000 * (time.process_time() - began))
    return statistics.median(took)


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name}: {value:,.2f}")
