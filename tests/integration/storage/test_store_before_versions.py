"""A store of schema revision 0012, from before versions of policies and hourly totals, goes on as it was."""

from contextlib import closing

import pytest

from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.access.audit_log import check_entries, entries
from ragbandit.router.storage.policy_versions import control_of
from ragbandit.router.storage.sql.database import Database, migrate
from ragbandit.router.storage.sql.tables import SCHEMA_REVISION
from tests.support.older_stores import (
    LEDGERS,
    URL,
    check_policies,
    check_refused,
    check_waiting_is_learned,
    opened,
    unpacked_store,
)

#: made with the code of commit acf4072, by make.py in it; the sha256 of its policies stand in facts.json
ARCHIVE = "store_0_3_before_versions.tar.gz"


@pytest.fixture
def unpacked(tmp_path, monkeypatch):
    """A folder as revision 0012 left it; it is the current folder."""
    monkeypatch.chdir(tmp_path)
    return unpacked_store(ARCHIVE, tmp_path)


@pytest.fixture
def old(unpacked):
    """The same with its schema brought up, as before a rolling upgrade."""
    with closing(Database(URL)) as database:
        assert migrate(database, pre=True) == SCHEMA_REVISION
    return unpacked


def test_it_is_refused_before_it_is_migrated(unpacked):
    """Without `ragbandit migrate` it is refused with the command, and nothing of it is changed."""
    check_refused("0012")


@pytest.mark.parametrize("label", LEDGERS)
def test_policies_have_the_sha256_of_before(old, label):
    """Its ledgers replay to the same policies, whose snapshots are served, and the counters fit."""
    check_policies(old, label)


def test_what_waited_is_learned_on_top(old):
    """Feedback of before that waited is learned, and the ledger verifies from its beginning."""
    check_waiting_is_learned(old, waiting=3)


def test_conversations_and_sources_are_read(old):
    """What schema 0012 brought is there: sessions, rewritten questions, requests, sources of an answer."""
    with opened("main") as router:
        said = router.decision("rewritten").decision.query
        assert (said.asked, [message.text for message in said.messages]) == ("and where?", ["Who?"])
        assert said.request == {"temperature": 0}
        record = router.decision("globex-worker-ours-0")
    assert record.decision.query.session == "s-globex-0"
    assert [source.id for source in record.outcome.sources] == ["p1"]


def test_keys_and_their_log_hold(old):
    """Its keys are in force or rotated as they were, and the chain of the audit log goes on unbroken."""
    with opened("main") as router:
        listed = KeyStore(router.database).listed()
        assert [key.name for key in listed] == ["acme", "acme"]
        assert sum(key.replaced_by is not None for key in listed) == 1
        actions = [entry.action for entry in entries(router.database)]
        assert {"key.create", "key.rotate"} <= set(actions)
        assert check_entries(router.database).fault is None


def test_no_version_and_no_switch_is_there(old):
    """The configuration alone decides until a version is made."""
    with opened("main") as router, router.database.read() as connection:
        control = control_of(connection, base="main")
    assert (control.revision, control.killed) == (0, None)
