"""Features that are made again: stores of a former release go on, and nothing mixes features of two encoders."""

import json
import logging
from pathlib import Path

import pytest
from sqlalchemy import select, update
from typer.testing import CliRunner

from ragbandit.router.config.loading import load
from ragbandit.router.learning.audit.verify import verify
from ragbandit.router.learning.interim import needs_rebuild
from ragbandit.router.learning.lessons import lessons, policy_of
from ragbandit.router.queue.memory_jobs import MemoryJobs
from ragbandit.router.queue.presence import card_of, say
from ragbandit.router.retention import encoding
from ragbandit.router.retention.archiving import archive
from ragbandit.router.retention.encoding import encodable, encode
from ragbandit.router.retention.erasure import Selection, erase
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.router.storage.access.audit_log import check_entries, entries
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.errors import Conflict, NotReady
from ragbandit.shared.types import Query
from ragbandit.workers.cli import app
from tests.conftest import on_sqlite
from tests.support.tar_files import unpack

#: 40 decisions, 24 of them learned by the `mba` of then from the 8 features of the `hashing` of then
OLD_STORE = Path(__file__).parents[2] / "data" / "store_0001.tar.xz"
#: its configuration
OLD_CONFIG = "{data_dir: store, encoder: {model: hashing, dimension: 8}, learning: {snapshot_interval_s: 0}}"


def run(*arguments: str):
    return CliRunner().invoke(app, [*arguments])


def test_store_of_schema_0001(tmp_path, monkeypatch, caplog):
    """Migrated and encoded again it starts, is learned again once, and says so; it verifies, and takes new decisions.

    Without `data encode` it is refused, by a message that names it.
    """
    unpack(OLD_STORE, tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(OLD_CONFIG)
    assert run("migrate").exit_code == 0
    settings = load("config.yaml").settings
    with pytest.raises(Conflict, match="ragbandit data encode"):
        Router.open(settings, jobs=MemoryJobs())
    done = run("data", "encode", "--json")
    assert done.exit_code == 0, done.output
    counts = json.loads(done.stdout)
    assert (counts["encoded"], counts["decisions"], counts["without_text"], counts["archived"]) == (True, 40, 0, 0)
    assert json.loads(run("data", "encode", "--json").stdout)["decisions"] == 0
    assert run("verify").exit_code == 0
    with Router.open(settings, jobs=MemoryJobs()) as router:
        assert (router.encoder.hash, router.service.serving.rebuilding) == (counts["encoder"], True)
        with caplog.at_level(logging.WARNING, logger="ragbandit.learner"):
            router.learn()
            router.learn()
        assert [record.message for record in caplog.records if record.name == "ragbandit.learner"] == [
            "no snapshot can be used: the policy is rebuilt from the ledger"
        ]
        router.refresh()
        assert (sum(router.service.serving.policy.seen.values()), router.service.serving.rebuilding) == (24, False)
        for number in range(5):
            decision = router.route(Query(text=f"How old is river {number}?"))
            router.outcome(decision.id, answer="Paris", steps=1)
            router.feedback(decision.id, rating=True)
        router.learn()
        router.refresh()
        assert sum(router.service.serving.policy.seen.values()) == 29
        verdict = router.verify(deep=True)
    assert (verdict.ok, verdict.deep_mismatches, verdict.refused) == (True, 0, 0), verdict.notes
    assert (verdict.deep_decisions, verdict.not_checkable) == (45, 40)
    assert any("40 decisions are not made again: the features" in note for note in verdict.notes)
    assert run("verify", "--whole").exit_code == 0


def test_another_encoder(make_world, database_url, monkeypatch):
    """Cut off and run again, the ledger is learned by the new encoder; without a text an update is refused alone."""
    monkeypatch.setattr(encoding, "BATCH", 4)
    world = make_world(database_url=database_url)
    asked = world.judged(9)
    running, asleep = world.learner(), world.learner()
    assert (running.drain(), asleep.drain()) == (9, 0)
    erase(world.database, Selection(decision=asked[3].id), features=False, now=world.now)
    waits = world.judged(1)[0]
    theirs = world.router.encoder.hash
    world.router.close()
    new = world.settings.model_copy(update={"encoder": world.settings.encoder.model_copy(update={"dimension": 16})})
    encoder = make_encoder(new.encoder)
    left = {"decisions": 9, "without_text": 1, "archived": 0}
    assert encodable(world.database, encoder_hash=encoder.hash) == left

    def cut_off(_done: int) -> None:
        raise KeyboardInterrupt

    by = {"actor": "cli:test@example", "now": world.now}
    with pytest.raises(KeyboardInterrupt):
        encode(world.database, encoder=encoder, progress=cut_off, **by)
    for settings in (new, world.settings):
        with pytest.raises(Conflict, match="are being made again"):
            Router.open(settings, jobs=MemoryJobs())
    with pytest.raises(NotReady, match="are being made again"):
        running.drain()
    assert encodable(world.database, encoder_hash=encoder.hash)["decisions"] == 5
    encode(world.database, encoder=encoder, **by)
    assert [entry.action for entry in entries(world.database)][-3:] == [
        "features.encode",
        "features.encode",
        "features.encode.end",
    ]
    assert check_entries(world.database).fault is None
    assert needs_rebuild(world.ledger, files=world.files, policy=policy_of(world.settings))
    verdict = verify(world.ledger, files=world.files, serving=policy_of(world.settings), deep=True)
    assert (verdict.ok, verdict.live_version, verdict.not_checkable) == (True, "", 10), verdict.notes
    # A learner that was there all the time forgets what it learned from the former features.
    assert asleep.drain() == 1
    assert (asleep.refused, sum(asleep.policy.seen.values()), asleep.last_seq) == (1, 9, 10)
    assert world.sha256(asleep.policy) == world.sha256(world.replayed())
    features = [update.features for update in lessons(world.ledger, policy=asleep.policy, after=0)]
    assert [None if row is None else row.size for row in features] == [16, 16, 16, None, *[16] * 6]
    with world.database.read() as connection:
        rows = {row.id: row for row in connection.execute(select(decisions))}
    assert {key for key, row in rows.items() if row.encoder_hash == theirs} == {asked[3].id}
    assert (rows[asked[0].id].pmf, rows[asked[0].id].propensity) == (
        json.dumps(list(asked[0].pmf), separators=(",", ":")),
        asked[0].propensity,
    )
    after = make_world(database_url=database_url, encoder={"dimension": 16}, now=world.now + 1)
    assert after.router.service.serving.last_seq == 10
    after.judged(2)
    assert after.learn() == 2
    verdict = after.router.verify(deep=True)
    assert (verdict.ok, verdict.refused, verdict.not_checkable) == (True, 1, 10), verdict.notes
    assert rows[waits.id].encoder_hash == encoder.hash
    # Features that are missing without a reason are still a difference.
    after.write(update(decisions).where(decisions.c.id == asked[0].id).values(features=None))
    assert not after.router.verify().ok


@on_sqlite
def test_archived_updates(make_world, database_url, tmp_path):
    """The features of archived decisions are left as they are: their updates are read without, and verify agrees."""
    pytest.importorskip("pyarrow")
    world = make_world(database_url=database_url)
    world.judged(3)
    world.learn()
    world.now += 100
    world.judged(2)
    world.learn()
    archive(world.database, root=str(tmp_path / "archive"), before=world.now - 50, now=world.now)
    world.router.close()
    encoder = make_encoder(world.settings.encoder.model_copy(update={"dimension": 16}))
    left = {"decisions": 2, "without_text": 0, "archived": 3}
    assert encodable(world.database, encoder_hash=encoder.hash) == left
    encode(world.database, encoder=encoder, actor="cli:test@example", now=world.now)
    policy = policy_of(world.settings)
    for read in (world.ledger.read(after=0), lessons(world.ledger, policy=policy, after=0)):
        assert [None if one.features is None else one.features.size for one in read] == [None, None, None, 16, 16]
    after = make_world(database_url=database_url, encoder={"dimension": 16}, now=world.now)
    after.learn()
    assert sum(after.router.service.serving.policy.seen.values()) == 2
    verdict = after.router.verify(deep=True)
    assert (verdict.ok, verdict.refused, verdict.archived, verdict.not_checkable) == (True, 3, 3, 5), verdict.notes


def test_nobody_else_may_run(make_world, monkeypatch, redis_server, redis_client, tmp_path):
    """While a process of the store is listed, or a learner works, nothing is changed; a dry run changes nothing."""
    world = make_world()
    world.judged(2)
    world.learn()
    world.write(update(decisions).values(text=""))
    world.router.close()
    given = {"DATA_DIR": world.settings.data_dir, "ENCODER__DIMENSION": 16, "ENCODER__MODEL": "hashing"}
    for name, value in (given | {"REDIS_URL": redis_server}).items():
        monkeypatch.setenv(f"RAGBANDIT_{name}", str(value))
    monkeypatch.chdir(tmp_path)
    say(redis_client, card_of(role="service"))
    refused = run("data", "encode")
    assert (refused.exit_code, "are running: service" in refused.stderr) == (2, True), refused.output
    redis_client.flushall()
    assert world.ledger.acquire(holder="another", lease_s=10.0)
    refused = run("data", "encode")
    assert (refused.exit_code, "a learner is at work" in refused.stderr) == (2, True), refused.output
    world.expire_leases()
    counted = json.loads(run("data", "encode", "--dry-run", "--json").stdout)
    assert world.ledger.encoder_hash() == world.router.encoder.hash
    done = json.loads(run("data", "encode", "--json").stdout)
    assert done == counted | {"encoded": True}
    assert (done["decisions"], done["without_text"], done["encoder"]) == (0, 2, world.ledger.encoder_hash())
    assert world.router.encoder.hash != done["encoder"]
