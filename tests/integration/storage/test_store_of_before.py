"""Stores of earlier releases: schema 0001, 40 decisions of an earlier `mba`, 24 of them learned, its snapshots."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import select, update

from ragbandit.router.config.loading import load
from ragbandit.router.encoders.base import HalfPrecisionEncoder, HashingEncoder
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.rows.conversion import features_bytes
from ragbandit.router.storage.sql.database import Database, check_schema, migrate
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION, decisions, metadata, policies, updates
from ragbandit.shared.errors import Conflict, StoreError
from ragbandit.shared.types import Query
from tests.support.command import run
from tests.support.tar_files import unpack

DATA = Path(__file__).parents[2] / "data"
STORE = DATA / "store_0001.tar.xz"
#: schema 0002, whose policy is held back to single_step: 40 decisions, 24 of them learned
STORE_0002 = DATA / "store_0002.tar.xz"
#: schema 0003, with an incumbent and a holdback, at three prices: 40 decisions, 24 of them learned
STORE_0003 = DATA / "store_0003.tar.xz"
#: schema 0004, the last before features left: 40 decisions at prices, 24 of them learned; rows in tables that left
STORE_0004 = DATA / "store_0004.tar.xz"
#: that store, migrated to schema 0005 by the first release without those features, which decided six more questions
STORE_0005 = DATA / "store_0005.tar.xz"
#: tables with rows in both that no feature uses any more
_DROPPED = {"calibration_pairs", "decision_links", "held_feedback"}
CONFIG_0002 = """{data_dir: store, encoder: {model: hashing, dimension: 8},
  policy: {incumbent: single_step, harm: 0.5}, learning: {snapshot_interval_s: 0}}"""
CONFIG_0003 = """{data_dir: store, encoder: {model: hashing, dimension: 8}, cost_weights: {economy: 0.2, quality: 0.0},
  policy: {incumbent: single_step, harm: 0.5, holdback: {arm: single_step, share: 0.1}},
  arms: {no_retrieval: {run_by: caller}, single_step: {run_by: caller}, multi_step: {run_by: caller}},
  learning: {snapshot_interval_s: 0}}"""


@pytest.fixture
def before(tmp_path):
    """Its data folder, unpacked."""
    folder = tmp_path / "before"
    folder.mkdir()
    unpack(STORE, folder)
    return folder


@pytest.fixture
def migrated(tmp_path, monkeypatch):
    """A function that unpacks a store into the working folder, changes it, and migrates it; gives its settings."""
    monkeypatch.chdir(tmp_path)

    def make(store, *, config=CONFIG_0003, change=lambda connection: None):
        unpack(store, tmp_path / "store")
        Path("config.yaml").write_text(config)
        with sqlite3.connect(tmp_path / "store" / "ragbandit.db") as connection:
            change(connection)
        run("migrate", code=0)
        return load("config.yaml").settings

    return make


def learned_on(router, **asked):
    """The verdict on a store in which one more question was decided, judged and learned."""
    decision = router.route(Query(text="who?", **asked))
    router.outcome(decision.id, answer="x", steps=1)
    router.feedback(decision.id, rating=True)
    assert router.learn() == 1
    return router.verify(deep=True)


@pytest.fixture
def same_encoder(before, monkeypatch):
    """Let the encoder of now call itself that of then: the ledger's features are vectors of its length all the same."""
    with sqlite3.connect(before / "ragbandit.db") as connection:
        ((then,),) = connection.execute("SELECT DISTINCT encoder_hash FROM decisions").fetchall()
    made = HashingEncoder.__init__

    def as_then(self, *given, **more):
        made(self, *given, **more)
        self.hash = then

    monkeypatch.setattr(HashingEncoder, "__init__", as_then)


def test_another_encoder_is_refused(before, make_world):
    """Where the encoder changed too, the start is refused with the remedy; under a new label it starts and verifies."""
    database = Database(f"sqlite:///{before / 'ragbandit.db'}")
    migrate(database)
    database.close()
    with pytest.raises(Conflict, match="was learned with encoder") as caught:
        make_world(data_dir=str(before))
    assert "begin another policy.label" in caught.value.remedy
    world = make_world(data_dir=str(before), policy={"label": "next"})
    world.judged(3)
    assert world.learn() >= 3
    assert len(world.updates()) == 3
    assert world.router.verify(deep=True).ok


@pytest.mark.usefixtures("same_encoder")
def test_it_is_migrated_and_learned_again(before, make_world, caplog):
    """It asks for its migration; the ledger is learned once by the new policy, which is said; old rows stay true."""
    database = Database(f"sqlite:///{before / 'ragbandit.db'}")
    with pytest.raises(StoreError, match=f"schema 0001, this version needs .*{SCHEMA_REVISION}") as caught:
        check_schema(database)
    assert "ragbandit migrate" in caught.value.remedy
    assert migrate(database) == SCHEMA_REVISION
    with database.read() as connection:
        logged = connection.execute(select(decisions.c.id, decisions.c.pmf, decisions.c.propensity)).all()
        assert connection.execute(select(updates.c.decided).distinct()).all() == [(None,)]
    database.close()
    world = make_world(data_dir=str(before))
    assert world.router.service.serving.rebuilding
    assert "another one decides until it is learned again" in caplog.text
    meanwhile = world.route(key="meanwhile")
    assert meanwhile.facts["rebuilding"] is True
    assert world.learn() == 0
    assert caplog.text.count("the policy is rebuilt from the ledger") == 1
    serving = world.router.service.serving
    assert (serving.rebuilding, serving.last_seq, sum(serving.policy.seen.values())) == (False, 24, 24)
    assert world.sha256(world.replayed()) == world.sha256(serving.policy)
    world.feedback(meanwhile, reward=0.5)
    world.judged(3)
    assert world.learn() == 4
    assert caplog.text.count("the policy is rebuilt from the ledger") == 1
    assert [row["decided"] for row in world.updates()][24:] == [44] * 4
    verified = world.router.verify(deep=True)
    assert verified.ok, verified.notes
    assert (verified.decisions, verified.propensity_mismatches, verified.deep_mismatches) == (44, 0, 0)
    assert (verified.deep_decisions, verified.not_checkable) == (44, 40)
    assert any("40 decisions are not made again: mba had other params" in note for note in verified.notes)
    with world.database.read() as connection:
        rows = connection.execute(select(decisions.c.id, decisions.c.pmf, decisions.c.propensity)).all()
    assert set(logged) < set(rows)


@pytest.mark.parametrize(
    ("store", "config", "price"), [(STORE_0002, CONFIG_0002, 0.3), (STORE_0003, CONFIG_0003, "economy")]
)
def test_a_policy_that_is_held_back(migrated, store, config, price):
    """Migrated, its ledger is learned again once, and verifies; what its own release decided stays as logged."""
    with Router.open(migrated(store, config=config), jobs=MemoryJobs()) as router:
        assert router.service.serving.rebuilding
        assert router.learn() == 0
        router.refresh()
        serving = router.service.serving
        assert (serving.rebuilding, sum(serving.policy.seen.values())) == (False, 24)
        verdict = learned_on(router, cost_weight=price)
    assert (verdict.ok, verdict.deep_decisions, verdict.not_checkable) == (True, 41, 40), verdict.notes
    assert any("conservative had other params" in note for note in verdict.notes)


def test_features_made_again_by_an_earlier_release(make_world):
    """Where its `data encode` gave the ledger another encoder, the ledger is learned again, and it all verifies.

    What had no text then has features of the former encoder: it is read without.
    """
    world = make_world()
    asked = world.judged(4)
    world.learn()
    theirs, encoder = world.router.encoder.hash, HalfPrecisionEncoder(HashingEncoder(dimension=16))
    world.router.close()
    for one in asked[1:]:
        made = {"features": features_bytes(encoder.encode([one.query.text])[0]), "encoder_hash": encoder.hash}
        world.write(update(decisions).where(decisions.c.id == one.id).values(**made))
    world.write(update(policies).values(encoder_hash=encoder.hash, encoder=None))
    with world.database.write() as connection:
        record(connection, actor="cli:a@b", action="features.encode", target="store", facts={"replaced": [theirs]})
    after = make_world(encoder={"dimension": 16}, now=world.now + 1)
    verdict = after.router.verify(deep=True)
    assert (verdict.ok, verdict.live_version, verdict.not_checkable) == (True, "", 4), verdict.notes
    after.judged(1)
    assert after.learn() == 1
    assert sum(after.router.service.serving.policy.seen.values()) == 4
    verdict = after.router.verify(deep=True)
    assert (verdict.ok, verdict.refused, verdict.not_checkable) == (True, 1, 4), verdict.notes


def test_updates_that_an_earlier_release_archived(migrated, tmp_path):
    """The store goes on, exports what it has, and learns again where it must; verify says how much it cannot check."""

    def archive(connection):
        gone = "(SELECT decision_id FROM updates WHERE policy = 'main' AND seq <= 5)"
        for table in ("outcomes", "feedback", "closures", "cancellations"):
            connection.execute(f"DELETE FROM {table} WHERE decision_id IN {gone}")
        connection.execute(f"CREATE TABLE moved AS SELECT decision_id FROM {gone}")
        connection.execute("DELETE FROM updates WHERE seq <= 5")
        connection.execute("DELETE FROM decisions WHERE id IN moved")
        connection.execute("DROP TABLE moved")
        spans = (("[1, 3]", 1), ("[4, 5]", 2))
        for span, number in spans:
            segment = (number, "r", "0" * 64, "0" * 64, 3, f'{{"main": {span}}}', "[]", 1.0, 1.0, True)
            connection.execute(f"INSERT INTO archive_segments VALUES ({', '.join('?' * 10)})", segment)

    settings = migrated(STORE_0004, change=archive)
    run("verify", "--recount", code=0)
    assert len(Path("store/dropped_tables/archive_segments.jsonl").read_text().splitlines()) == 2
    for lost in (False, True):
        if lost:
            shutil.rmtree("store/snapshots")
        with Router.open(settings, jobs=MemoryJobs()) as router:
            assert router.service.serving.rebuilding  # made by another release, or lost
            verdict = learned_on(router)
        assert (verdict.ok, verdict.archived) == (True, 5), verdict.notes
        assert any("5 updates left the store" in note for note in verdict.notes)
    assert json.loads(run("data", "export", "log.jsonl", "--json").stdout)["rows"] == 21
    with sqlite3.connect(tmp_path / "store" / "ragbandit.db") as connection:
        connection.execute("DELETE FROM updates WHERE seq = 9")
    run("verify", code=1)


@pytest.mark.parametrize(
    ("store", "dropped", "decisions_updates"),
    [
        (STORE_0004, _DROPPED | {"calibration_due", "chains", "checkpoints", "webhook_deliveries"}, (41, 25)),
        (STORE_0005, _DROPPED, (47, 28)),
    ],
    ids=["0004", "0005"],
)
def test_dropped_tables_are_exported(store, dropped, decisions_updates, migrated, tmp_path, caplog):
    """The rows of tables without a feature are written beside the store, in words of the log; the store goes on."""
    settings = migrated(store)
    run("report", code=0)  # before a learner has learned the ledger again
    with sqlite3.connect(tmp_path / "store" / "ragbandit.db") as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == set(metadata.tables) | {"alembic_version"}
    exported = Path("store/dropped_tables")
    assert {path.stem for path in exported.glob("*.jsonl")} == dropped
    for name in dropped:
        assert json.loads((exported / f"{name}.jsonl").read_text().splitlines()[0])
        assert f"dropped the table {name}, which no feature uses any more: its " in caplog.text
    with Router.open(settings, jobs=MemoryJobs()) as router:
        assert router.service.serving.rebuilding
        verdict = learned_on(router)
    assert (verdict.ok, verdict.decisions, verdict.updates) == (True, *decisions_updates), verdict.notes


def test_exports_of_dropped_tables_are_kept(migrated, tmp_path):
    """A later export of a table of the same name gets a file of its own; the same rows again need no second file."""
    exported = tmp_path / "store" / "dropped_tables"
    exported.mkdir(parents=True)
    (exported / "held_feedback.jsonl").write_text("rows of another database\n")
    for _ in range(2):
        (tmp_path / "store" / "ragbandit.db").unlink(missing_ok=True)
        migrated(STORE_0005)
    assert (exported / "held_feedback.jsonl").read_text() == "rows of another database\n"
    assert json.loads((exported / "held_feedback-2.jsonl").read_text().splitlines()[0])
    assert {path.name for path in exported.iterdir()} == {
        "held_feedback.jsonl",
        *(f"{name}.jsonl" for name in _DROPPED - {"held_feedback"}),
        "held_feedback-2.jsonl",
    }


def test_what_waits_for_the_judge_and_a_check_moves(migrated, tmp_path):
    """Rows of the former tables `judge_due` and `check_due` are rows of `jobs` after the migration."""
    keys = []

    def fill(connection):
        ((key,),) = connection.execute("SELECT id FROM decisions LIMIT 1").fetchall()
        keys.append(key)
        for name, row in (("judge_due", (key, 5.0, 4.0, 0.25, 1, 2)), ("check_due", (key, 7.0, 6.0, 1))):
            connection.execute(f"DELETE FROM {name}")
            connection.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)

    migrated(STORE_0005, change=fill)
    with sqlite3.connect(tmp_path / "store" / "ragbandit.db") as connection:
        rows = connection.execute(
            "SELECT kind, decision_id, made_at, due_at, tries, facts FROM jobs ORDER BY kind"
        ).fetchall()
        counted = connection.execute("SELECT value FROM counters WHERE name = 'check_due'").fetchall()
    check, judge = ((*row[:5], json.loads(row[5])) for row in rows)
    assert check == ("check", keys[0], 6.0, 7.0, 1, {})
    assert counted == [(1,)]
    assert judge == ("judge", keys[0], 4.0, 5.0, 1, {"share": 0.25, "failures": 2})
