"""A store of schema revision 0011, from before API keys, conversations and the audit log, goes on as it was."""

import time
from contextlib import closing

import httpx
import pytest
from sqlalchemy import select

from ragbandit import Query
from ragbandit.router.config.loading import load
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.access.audit_log import check_entries, entries
from ragbandit.router.storage.sql.database import Database, migrate
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION, decisions, feedback, outcomes
from tests.support.older_stores import (
    LEDGERS,
    URL,
    check_policies,
    check_refused,
    check_waiting_is_learned,
    opened,
    unpacked_store,
)
from tests.support.servers.http_service import Service

#: made with the code of commit c07a5fc, by make.py in it; the sha256 of its policies stand in facts.json
ARCHIVE = "store_0_3_before_keys.tar.gz"


@pytest.fixture
def unpacked(tmp_path, monkeypatch):
    """A folder as revision 0011 left it; it is the current folder."""
    monkeypatch.chdir(tmp_path)
    return unpacked_store(ARCHIVE, tmp_path)


@pytest.fixture
def old(unpacked):
    """The same with its schema brought up."""
    with closing(Database(URL)) as database:
        assert migrate(database) == SCHEMA_REVISION
    return unpacked


def test_it_is_refused_before_it_is_migrated(unpacked):
    """Without `ragbandit migrate` it is refused with the command, and nothing of it is changed."""
    check_refused("0011")


@pytest.mark.parametrize("label", LEDGERS)
def test_policies_have_the_sha256_of_before(old, label):
    """Its ledgers replay to the same policies, whose snapshots are served, and the counters fit."""
    check_policies(old, label)


def test_what_waited_is_learned_on_top(old):
    """Feedback of before that waited is learned, and the ledger verifies from its beginning."""
    check_waiting_is_learned(old, waiting=3)


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
