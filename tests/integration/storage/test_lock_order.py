"""Writers of turns lock rows in one order, which prevents deadlocks on PostgreSQL."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from ragbandit.router.storage.decisions.outcome_writes import LOCK_DECISIONS, LOCK_OUTCOMES
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.rows import waiting
from ragbandit.router.storage.rows.waiting import LOCK_ORDER
from ragbandit.router.storage.sql.bulk_insert import run
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import TooManyRequests
from ragbandit.shared.types import Feedback, SpendLimit, TaskTurn
from tests.support.waiting import until

from .test_turns import decision, outcome

NOW = time.time()
LOCK = "SELECT 1 FROM {} FOR UPDATE NOWAIT"
SPENT = SpendLimit(kind="tenant", name="default", period="day", dollars=0.0, refusal=TooManyRequests("spent"))
_BLOCKED = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def turn(key, *, first=None, number=1, limits=()):
    """A turn of the task `u-FIRST`. From the second on it brings results of the first one's calls."""
    made = decision(key, first=first, turn=number if first else 0, said=f"said {key}", at=NOW)
    fact = TaskTurn(unit=f"u-{first or key}", turn=number, until=NOW + 3600.0)
    return replace(made, facts={TaskTurn.key: fact.stored}, query=replace(made.query, limits=limits))


@pytest.fixture
def store(postgres_url):
    """Two tasks, "a" and "b", whose first turns have called tools; "a" has a second turn without an outcome."""
    database = Database(postgres_url)
    made = DecisionStore(database, label="main")
    for key in ("a", "b"):
        made.add_decisions([turn(key)])
        made.add_outcome(outcome(key, f"call {key}"))
    second = replace(turn("a2", first="a", number=2), query=decision("a2").query)
    made.add_decisions([second])
    yield made
    database.close()


def new_turn(store):
    (result,) = store.add_decisions([turn("a3", first="a", number=3)])
    assert result.id == "a3"


def refused_turn(store):
    refused, result = store.add_decisions([turn("a3", first="a", number=3, limits=(SPENT,)), turn("b2", first="b")])
    assert (refused.code, result.id) == ("TOO_MANY_REQUESTS", "b2")


def outcome_of_turn(store):
    assert store.add_outcome(outcome("a2", answer="sun"))


def outcomes_of_both(store):
    store.add_decisions([turn("c")])
    assert store.add_outcomes([outcome("a2", answer="sun"), outcome("c")]) == [True, True]


def rating(store):
    feedback = Feedback(id="f1", decision_id="a", kind="rating", value=1.0, source="human", received_at=NOW)
    (receipt,) = store.add_feedback([feedback])
    assert not receipt.late


def erasure(store):
    assert erase(store.database, Selection(decision="a"), features=False, actor="cli:ann", now=NOW).decisions


@pytest.mark.parametrize(
    ("write", "held", "free"),
    [
        (new_turn, "units WHERE first = 'a'", "outcomes WHERE decision_id = 'a'"),
        (new_turn, "outcomes WHERE decision_id = 'a'", "waiting WHERE decision_id = 'a'"),
        (refused_turn, "outcomes WHERE decision_id = 'b'", "waiting WHERE decision_id = 'a'"),
        (outcome_of_turn, "outcomes WHERE decision_id = 'a'", "waiting WHERE decision_id = 'a'"),
        (outcomes_of_both, "waiting WHERE decision_id = 'a'", "waiting WHERE decision_id = 'c'"),
        (erasure, "outcomes WHERE decision_id = 'a'", "waiting WHERE decision_id = 'a'"),
    ],
)
def test_a_writer_that_waits_for_a_row_holds_no_later_row(store, write, held, free):
    """While another transaction holds a row, the writer waits for it, and the other one gets the later row, too."""
    with ThreadPoolExecutor(1) as pool:
        with store.database.write() as connection:
            run(connection, LOCK.format(held))
            written = pool.submit(write, store)
            with store.database.look() as other:
                until(lambda: run(other, _BLOCKED)[0]["n"] or written.done())
            assert not written.done(), written.exception()
            run(connection, LOCK.format(free))
        written.result(20)


#: a statement that locks stored rows: its table is in one of the groups
_LOCKS = re.compile(r"(?:UPDATE|DELETE FROM) (\w+)|SELECT .*?FROM (\w+).* FOR (?:NO KEY )?UPDATE", re.S)


def locks(statements):
    """The tables whose stored rows these statements lock, in the order in which they are locked first."""
    matches = filter(None, (_LOCKS.match(statement.strip()) for statement in statements))
    return [*dict.fromkeys(table for match in matches if (table := match[1] or match[2]) in LOCK_ORDER)]


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (new_turn, ["units", "outcomes", "waiting"]),
        (outcome_of_turn, ["decisions", "outcomes", "waiting"]),
        (outcomes_of_both, ["decisions", "outcomes", "waiting"]),
        (rating, ["waiting"]),
    ],
)
def test_statements_lock_in_the_order_that_is_written_down(store, monkeypatch, write, expected):
    """The statements that PostgreSQL gets lock stored rows in LOCK_ORDER, and rows of counters last."""
    sent, execute = [], psycopg.Cursor.execute

    def recorded(cursor, statement, *more, **options):
        sent.append(str(statement))
        return execute(cursor, statement, *more, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", recorded)
    write(store)
    locked = locks(sent[sent.index("BEGIN", 1) :] if sent.count("BEGIN") > 1 else sent)  # only the last transaction
    assert locked == sorted(locked, key=LOCK_ORDER.index)
    assert [table for table in locked if table not in ("jobs", "counters")] == expected


@pytest.mark.parametrize("statement", [LOCK_DECISIONS, LOCK_OUTCOMES, waiting._LOCKED_WITH_FIRSTS])
def test_rows_of_outcomes_are_found_by_indexes(store, statement):
    """An outcome does not read all rows of a table to find its decision, and that of a turn."""
    values = ["a"] * (statement.count("?") - 2)
    with store.database.write() as connection:
        run(connection, "SET LOCAL enable_seqscan = off")  # the planner prefers to scan a small table
        plan = run(connection, f"EXPLAIN {statement}", *values, ["a2"], ["a2"])
    assert not [row for row in plan if "Filter" in row["QUERY PLAN"]]
