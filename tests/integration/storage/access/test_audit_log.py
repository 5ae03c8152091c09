"""The audit log on SQLite and PostgreSQL: who did what, in order."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from sqlalchemy import delete, update

from ragbandit.router.storage.access.audit_log import entries, record
from ragbandit.router.storage.sql.tables import audit_log
from ragbandit.shared.errors import StoreError


def note(database, *targets):
    for target in targets:
        with database.write() as connection:
            record(connection, actor="cli:ann@host", action="key.create", target=target, facts={"ü": [1, 0.1]}, now=7.5)


def test_entries_come_in_order(database):
    """An entry contains the recorded facts, and numbers have no gap."""
    note(database, "a", "b")
    first, _ = entries(database)
    assert (first.number, first.actor, first.action, first.target) == (1, "cli:ann@host", "key.create", "a")
    assert (first.tenant, first.facts, first.made_at) == (None, {"ü": [1, 0.1]}, 7.5)
    assert [entry.target for entry in entries(database, after=1)] == ["b"]


@pytest.mark.parametrize(
    "statement", [update(audit_log).values(actor="cli:eve@host"), delete(audit_log)], ids=["update", "delete"]
)
def test_rows_are_not_changed(database, statement):
    """The database refuses to change and to delete entries."""
    note(database, "a")
    with pytest.raises(StoreError, match="append-only"), database.write() as connection:
        connection.execute(statement)
    assert [entry.actor for entry in entries(database)] == ["cli:ann@host"]


def test_entries_of_many_writers_have_no_gaps(database):
    """Entries that many threads write at once have numbers without gaps."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: note(database, f"t{number}"), range(24)))
    kept = list(entries(database))
    assert sorted(entry.target for entry in kept) == sorted(f"t{number}" for number in range(24))
    assert all(one.number + 1 == two.number for one, two in pairwise(kept))
