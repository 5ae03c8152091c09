"""The audit log on SQLite and PostgreSQL: who did what, in order, and nothing of it can be changed unseen."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from sqlalchemy import delete, text, update

from ragbandit.router.storage.access.audit_log import check_entries, entries, record
from ragbandit.router.storage.sql.tables import audit_log
from ragbandit.shared.errors import StoreError


def note(database, *targets):
    for target in targets:
        with database.write() as connection:
            record(connection, actor="cli:ann@host", action="key.create", target=target, facts={"ü": [1, 0.1]}, now=7.5)


def changed_behind_the_triggers(database, statement):
    """An attack by a user who may change the schema."""
    with database.write() as connection:
        if database.is_sqlite:
            for name in ("audit_log_no_update", "audit_log_no_delete"):
                connection.execute(text(f"DROP TRIGGER {name}"))
        else:
            connection.execute(text("DROP TRIGGER audit_log_append_only ON audit_log"))
        connection.execute(statement)


def test_entries_come_in_order(database):
    """An entry contains the recorded facts, numbers have no gap, and the chain is valid."""
    note(database, "a", "b")
    first, second = entries(database)
    assert (first.number, first.actor, first.action, first.target) == (1, "cli:ann@host", "key.create", "a")
    assert (first.tenant, first.facts, first.made_at) == (None, {"ü": [1, 0.1]}, 7.5)
    assert [entry.target for entry in entries(database, after=1)] == ["b"]
    verdict = check_entries(database)
    assert (verdict.entries, verdict.last_number, verdict.last_sha256) == (2, 2, second.sha256)
    assert verdict.fault is None


@pytest.mark.parametrize(
    "statement", [update(audit_log).values(actor="cli:eve@host"), delete(audit_log)], ids=["update", "delete"]
)
def test_rows_are_not_changed(database, statement):
    """The database refuses to change and to delete entries."""
    note(database, "a")
    with pytest.raises(StoreError, match="append-only"), database.write() as connection:
        connection.execute(statement)
    assert check_entries(database).entries == 1


@pytest.mark.parametrize(
    ("statement", "number"),
    [
        (update(audit_log).where(audit_log.c.number == 2).values(actor="cli:eve@host"), 2),
        (update(audit_log).where(audit_log.c.number == 2).values(facts="{"), 2),
        (update(audit_log).where(audit_log.c.number == 2).values(sha256="0" * 64), 2),
        (delete(audit_log).where(audit_log.c.number == 2), 2),
        (delete(audit_log).where(audit_log.c.number == 1), 1),
    ],
    ids=["actor", "facts", "sha256", "middle", "first"],
)
def test_a_change_is_found(database, statement, number):
    """Entries that were changed or removed behind the triggers are found, with their number."""
    note(database, "a", "b", "c")
    changed_behind_the_triggers(database, statement)
    fault = check_entries(database).fault
    assert fault is not None
    assert fault.number == number


def test_an_end_that_was_cut_off_is_found_by_what_was_noted(database):
    """A missing end of the chain is found only with a number and sha256 that were noted elsewhere."""
    note(database, "a", "b", "c")
    noted = check_entries(database)
    known = noted.last_number, noted.last_sha256
    note(database, "d")
    assert check_entries(database, known=known).fault is None
    changed_behind_the_triggers(database, delete(audit_log).where(audit_log.c.number >= 3))
    assert check_entries(database).fault is None
    fault = check_entries(database, known=known).fault
    assert fault is not None
    assert fault.number == 3


def test_many_writers_make_one_chain(database):
    """Entries that many threads write at once have numbers without gaps, and one chain."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: note(database, f"t{number}"), range(24)))
    kept = list(entries(database))
    assert sorted(entry.target for entry in kept) == sorted(f"t{number}" for number in range(24))
    assert all(one.number + 1 == two.number for one, two in pairwise(kept))
    assert check_entries(database).fault is None
