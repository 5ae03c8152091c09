"""A store of schema revision 0011, from before API keys, conversations and the audit log, goes on as it was."""

import json
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from ragbandit import Query, Router
from ragbandit.router.config.loading import load
from ragbandit.router.errors import StoreError
from ragbandit.router.jobs.memory_jobs import MemoryJobs
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.access.audit_log import check_entries, entries
from ragbandit.router.storage.sql.database import Database, check_schema, migrate
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION, decisions, feedback, outcomes
from tests.support.servers.http_service import Service
from tests.support.tar_files import unpack

#: made with the code of commit c07a5fc, by make.py in it; the sha256 of its policies stand in facts.json
ARCHIVE = Path(__file__).parents[3] / "tests" / "data" / "store_0_3_before_keys.tar.gz"
LEDGERS = {"main": "mba", "ucb": "linucb", "grad": "softmax"}
URL = "sqlite:///store/ragbandit.db"


@pytest.fixture
def unpacked(tmp_path, monkeypatch):
    """A folder as revision 0011 left it; it is the current folder."""
    unpack(ARCHIVE, tmp_path)
    monkeypatch.chdir(tmp_path)
    return json.loads((tmp_path / "facts.json").read_text())


@pytest.fixture
def old(unpacked):
    """The same with its schema brought up."""
    with closing(Database(URL)) as database:
        assert migrate(database) == SCHEMA_REVISION
    return unpacked


def opened(label):
    tree = load("config.yaml", environ={}).settings
    chosen = tree.policy.model_copy(update={"name": LEDGERS[label], "label": label})
    return Router.open(tree.model_copy(update={"policy": chosen}), jobs=MemoryJobs())


def test_it_is_refused_before_it_is_migrated(unpacked):
    """Without `ragbandit migrate` it is refused with the command, and nothing of it is changed."""
    with closing(Database(URL)) as database, pytest.raises(StoreError, match="0011") as caught:
        check_schema(database)
    assert caught.value.remedy == "run: ragbandit migrate"


@pytest.mark.parametrize("label", LEDGERS)
def test_policies_have_the_sha256_of_before(old, label):
    """Its ledgers replay to the same policies, whose snapshots are served, and the counters fit."""
    facts = old[label]
    with opened(label) as router:
        verdict = router.verify(deep=True)
        counters = router.status().counters
    assert (verdict.ok, verdict.notes) == (True, [])
    assert (verdict.live_sha256, verdict.replay_sha256) == (facts["sha256"], facts["sha256"])
    assert (counters.learned, counters.waiting) == (facts["updates"], facts["waiting"])
    assert (counters.decided, counters.feedback) == (facts["decided"], facts["feedback"])
    assert counters.balanced


def test_what_waited_is_learned_on_top(old):
    """Feedback of before that waited is learned, and the ledger verifies from its beginning."""
    with opened("main") as router:
        assert router.learn() == 3
        verdict = router.verify(deep=True)
        counters = router.status().counters
    assert (verdict.ok, verdict.updates) == (True, old["main"]["updates"] + 3)
    assert counters.balanced


def test_rows_of_before_came_without_keys(old):
    """Every decision, feedback and outcome of before is read, without key, conversation and sources."""
    with opened("main") as router:
        with router.database.read() as connection:
            ids = list(connection.execute(select(decisions.c.id)).scalars())
            assert set(connection.execute(select(feedback.c.api_key)).scalars()) == {None}
            assert set(connection.execute(select(outcomes.c.sources)).scalars()) == {None}
        records = [router.decision(key) for key in ids]
    assert len(records) == old["main"]["decided"]
    assert {record.decision.query.tenant for record in records} == {"acme", "globex"}
    for record in records:
        query = record.decision.query
        assert (query.api_key, query.session, query.messages, query.asked, query.forced) == (
            None,
            None,
            (),
            None,
            False,
        )
        assert all(item.api_key is None for item in record.feedback)


def test_what_came_before_is_a_duplicate(old):
    """The same request, outcome and feedback sent again are the ones that are stored: their hashes are as ever."""
    query = Query(text="question number 1?", id="acme-caller-question-1", tenant="acme", context={"n": 1})
    with opened("main") as router:
        standing, repeated = router.decision(query.id).decision, router.route(query)
        assert (repeated.arm, repeated.pmf, repeated.made_at) == (standing.arm, standing.pmf, standing.made_at)
        assert router.outcome(query.id, answer="Paris", steps=1.0) is False
        assert router.feedback(query.id, feedback_id="f-1", rating=0.75, source="judge").duplicate


def test_keys_of_tenants_meet_decisions_of_before(old):
    """With the first keys, a tenant reads and judges its decisions of before, and no other's; the log begins."""
    service = Service(load("config.yaml", environ={}).settings)
    try:
        keys = KeyStore(service.router.database)
        new = keys.create(name="acme", role="app", tenant="acme", now=time.time(), actor="cli:test")
        service.app.state.gate.ring.known = None
        with httpx.Client(base_url=service.url, headers={"authorization": f"Bearer {new.text}"}) as http:
            assert http.get("/v1/decisions/acme-caller-question-1").json()["tenant"] == "acme"
            assert http.get("/v1/decisions/globex-caller-question-3").status_code == 404
            body = {"decision_id": "acme-caller-waiting-2", "rating": True}
            assert http.post("/v1/feedback", json=body).status_code == 202
        kept = service.router.decision("acme-caller-waiting-2").feedback
        assert [item.api_key for item in kept] == [new.key.public_id]
        actions = [entry.action for entry in entries(service.router.database)]
        assert actions == ["config.use", "key.create"]
        assert check_entries(service.router.database).fault is None
    finally:
        service.close()
