"""Bytes per decision that was answered by a worker, judged and learned.

Of SQLite the file after VACUUM, of PostgreSQL (the wheel of the tests) all tables and indexes after VACUUM FULL.

ROWS decisions with 256 features, a pmf of three arms, a trace of two to four calls as the embedded model leaves it, and
a label. The id and version have the lengths of real ones.
"""

import importlib
import random
import sqlite3
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
from sqlalchemy import create_engine, delete, insert

from ragbandit.router.policies.draw import choose, seed_of
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers.inheritance import register_policy
from ragbandit.router.storage.rows.conversion import update_row
from ragbandit.router.storage.sql.database import Database, migrate
from ragbandit.router.storage.sql.tables import updates, waiting
from ragbandit.shared.types import (
    ArmName,
    Cost,
    Decision,
    DecisionId,
    FeatureRows,
    Feedback,
    FeedbackId,
    Generated,
    Outcome,
    PolicyLabel,
    Query,
    Retrieved,
    Reward,
    Round,
    TraceEvent,
    Update,
)

ROWS = 2000
MAIN = PolicyLabel("main")
ARMS = tuple(map(ArmName, ("no_retrieval", "single_step", "multi_step")))
WORDS = ("who", "wrote", "the", "first", "novel", "about", "a", "vampire", "that", "was", "set", "in", "Ireland")


def _made_by_the_encoder(features: FeatureRows) -> FeatureRows:
    """Features as the encoder of this revision makes them: rounded to float16 since then."""
    try:
        rounded = importlib.import_module("ragbandit.router.encoders.feature_cache").rounded
    except ImportError:
        return features
    made: FeatureRows = rounded(features)
    return made


def measure() -> dict[str, float]:
    """Bytes, by database."""
    with tempfile.TemporaryDirectory(prefix="ragbandit-bytes-") as folder:
        file = Path(folder) / "ragbandit.db"
        fill(f"sqlite:///{file}")
        raw = sqlite3.connect(file)
        raw.execute("VACUUM")
        raw.close()
        in_file = file.stat().st_size
    server = importlib.import_module("tests.conftest").PostgresServer()
    server.start()
    try:
        server.execute("CREATE DATABASE bytes")
        fill(server.url("bytes"))
        in_tables = _of_tables(server.url("bytes"))
    finally:
        server.stop()
    return {"SQLite, per decision [B]": in_file / ROWS, "PostgreSQL, per decision [B]": in_tables / ROWS}


def _of_tables(url: str) -> int:
    """Bytes of all tables, with their indexes."""
    query = "SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables"
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("VACUUM FULL")
        found = int(connection.exec_driver_sql(query).scalar_one())
    engine.dispose()
    return found


def fill(url: str, *, count: int = ROWS) -> None:
    """Decisions with all that comes of them, the same in every database."""
    chance, numbers = random.Random(7), np.random.default_rng(7)
    database = Database(url)
    migrate(database)
    register_policy(database, label=MAIN, algorithm="mba", params="{}", encoder_hash="e" * 64, now=1.7e9)
    store = DecisionStore(database, label=MAIN)
    made = [_decision(number, chance=chance, numbers=numbers) for number in range(count)]
    for start in range(0, count, 100):
        group = made[start : start + 100]
        store.add_decisions(group)
        store.add_outcomes([_outcome(one, chance=chance) for one in group])
        notes = [_note(one) for one in group]
        store.add_feedback(notes)
        rows = [
            update_row(_update(start + i + 1, one, note), feedback_at=1.7e9)
            for i, (one, note) in enumerate(zip(group, notes, strict=True))
        ]
        with database.write() as connection:
            connection.execute(insert(updates), rows)
            connection.execute(delete(waiting))
    database.close()


def _decision(number: int, *, chance: random.Random, numbers: np.random.Generator) -> Decision:
    key = DecisionId(str(uuid.UUID(int=chance.getrandbits(128), version=4)))
    pmf = numbers.dirichlet((1.5, 1.5, 1.5)) * 0.94 + 0.02
    shares = tuple(float(one) for one in pmf / pmf.sum())
    drawn = choose(shares, seed=seed_of(key))
    return Decision(
        id=key,
        query=Query(id=key, text=_text(chance, 12)),
        arm=ARMS[drawn],
        arms=ARMS,
        pmf=shares,
        propensity=shares[drawn],
        scores=tuple(float(one) for one in numbers.standard_normal(3)),
        policy=MAIN,
        version=f"main-{number // 20 * 20}-0123456789ab",
        encoder_hash="e" * 64,
        seed=seed_of(key),
        floor=0.02,
        explored=bool(shares[drawn] < max(shares)),
        fault=None,
        facts={},
        run_by="worker",
        features=_made_by_the_encoder(numbers.standard_normal((1, 256)).astype(np.float32))[0],
        made_at=1.7e9 + number,
    )


def _outcome(decision: Decision, *, chance: random.Random) -> Outcome:
    trace: list[TraceEvent] = []
    for number in range(ARMS.index(decision.arm)):
        ids = tuple(f"wiki-{chance.randrange(10**7)}" for _ in range(5))
        scores = tuple(chance.random() * 20 for _ in ids)
        trace += [
            Round(number=number + 1),
            Retrieved(query=_text(chance, 10), ids=ids, scores=scores, seconds=chance.random() / 100),
        ]
    written = Generated(
        purpose="answer", text=_text(chance, 30), prompt_tokens=412, completion_tokens=38, seconds=chance.random()
    )
    return Outcome(
        decision_id=decision.id,
        status="answered",
        answer=written.text,
        trace=(*trace, written),
        cost=Cost(retriever_calls=1, passages=5, llm_calls=1, prompt_tokens=412, completion_tokens=38),
        steps=1.0,
        stop_reason="answer",
        error=None,
        run_by="worker",
        made_by={"arm": {"name": decision.arm, "params": {"k": 5}}, "generator": "smollm2", "retriever": "bm25"},
        made_at=decision.made_at + 2.0,
    )


def _note(decision: Decision) -> Feedback:
    key = FeedbackId(decision.id[::-1])
    label = ("Bram Stoker",)
    return Feedback(id=key, decision_id=decision.id, kind="label", value=label, source="human", received_at=1.7e9)


def _update(seq: int, decision: Decision, note: Feedback) -> Update:
    reward = Reward(
        value=0.95, quality=1.0, cost=1.0, weight=0.05, minimum=-1.0, maximum=1.0, terms={"steps": 1.0}, preset="f1",
        source="explicit",
    )  # fmt: skip
    return Update(
        policy=MAIN,
        seq=seq,
        decision_id=decision.id,
        query=replace(decision.query),
        arm=decision.arm,
        arms=decision.arms,
        pmf=decision.pmf,
        scores=decision.scores,
        propensity=decision.propensity,
        reward=reward,
        feedback_ids=(note.id,),
        features=decision.features,
        made_at=1.7e9,
    )


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))
