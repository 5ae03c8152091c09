"""Writers of turns lock rows in one order, which prevents deadlocks on PostgreSQL."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy import delete

from ragbandit.router.storage.decisions.continuing import task_key
from ragbandit.router.storage.decisions.outcome_writes import LOCK_DECISIONS, LOCK_OUTCOMES
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.rows import waiting
from ragbandit.router.storage.rows.waiting import LOCK_ORDER
from ragbandit.router.storage.sql import tables
from ragbandit.router.storage.sql.bulk_insert import run_statement
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import TooManyRequests
from ragbandit.shared.types import Feedback, SpendLimit, TaskTurn
from tests.support.waiting import until

from .test_turns import decision, outcome

NOW = time.time()
LOCK = "SELECT 1 FROM {} FOR UPDATE NOWAIT"
SPENT = SpendLimit(kind="tenant", name="default", period="day", most=0.0, refusal=TooManyRequests("spent"))
_BLOCKED = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def turn(key, *, first=None, number=1, limits=()):
    """A turn of the task in the session `s-FIRST`. From the second on it brings results of the first one's calls."""
    made = decision(key, first=first, turn=number if first else 0, said=f"said {key}", at=NOW)
    query = replace(made.query, limits=limits, session=f"s-{first or key}")
    fact = TaskTurn(unit=task_key(query), turn=number, until=NOW + 3600.0)
    return replace(made, facts={TaskTurn.key: fact.stored}, query=query)


def further_turn(key, *, number):
    """A turn of the task of "a" that brings no results."""
    made = turn(key, first="a", number=number)
    return replace(made, query=replace(made.query, continues=decision(key).query.continues))


@pytest.fixture
def store(postgres_url):
    """Two tasks, "a" and "b", whose first turns have called tools; "a" has a second turn without an outcome."""
    database = Database(postgres_url)
    made = DecisionStore(database, label="main")
    for key in ("a", "b"):
        made.add_decisions([turn(key)])
        made.add_outcome(outcome(key, f"call {key}"))
    made.add_decisions([further_turn("a2", number=2)])
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


def outcome_with_successor(store):
    """The second turn fails, and another arm answers it."""
    failed = replace(outcome("a2"), status="failed", error="HTTP 503")
    assert store.add_outcome(failed, successor=further_turn("a4", number=3))


def end_of_session(store):
    assert store.end_session("s-a", tenant="default", now=NOW) == 1


def rating(store):
    feedback = Feedback(id="f1", decision_id="a", kind="rating", value=1.0, source="human", received_at=NOW)
    (receipt,) = store.add_feedback([feedback])
    assert not receipt.late


def erasure(store):
    assert erase(store.database, Selection(decision="a"), features=False, actor="cli:ann", now=NOW).decisions


def erasure_of_closed(store):
    """A closed decision has no row in `waiting`; a person has rated it, and its answer waits for a label."""
    rating(store)
    with store.database.write() as connection:
        connection.execute(delete(tables.waiting))
    erasure(store)


@pytest.mark.parametrize(
    ("write", "held", "free"),
    [
        (new_turn, "units WHERE first = 'a'", "outcomes WHERE decision_id = 'a'"),
        (new_turn, "outcomes WHERE decision_id = 'a'", "waiting WHERE decision_id = 'a'"),
        (refused_turn, "outcomes WHERE decision_id = 'b'", "waiting WHERE decision_id = 'a'"),
        (outcome_of_turn, "outcomes WHERE decision_id = 'a'", "waiting WHERE decision_id = 'a'"),
        (outcomes_of_both, "waiting WHERE decision_id = 'a'", "waiting WHERE decision_id = 'c'"),
        (outcome_with_successor, "decisions WHERE id = 'a'", "units WHERE first = 'a'"),
        (outcome_with_successor, "units WHERE first = 'a'", "outcomes WHERE decision_id = 'a'"),
        (end_of_session, "units WHERE first = 'a'", "waiting WHERE decision_id = 'a'"),
        (erasure, "outcomes WHERE decision_id = 'a'", "waiting WHERE decision_id = 'a'"),
    ],
)
def test_a_writer_that_waits_for_a_row_holds_no_later_row(store, write, held, free):
    """While another transaction holds a row, the writer waits for it, and the other one gets the later row, too."""
    with ThreadPoolExecutor(1) as pool:
        with store.database.write() as connection:
            run_statement(connection, LOCK.format(held))
            written = pool.submit(write, store)
            with store.database.connection() as other:
                until(lambda: run_statement(other, _BLOCKED)[0]["n"] or written.done())
            assert not written.done(), written.exception()
            run_statement(connection, LOCK.format(free))
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
        (outcome_of_turn, ["decisions", "outcomes", "waiting", "jobs"]),
        (outcomes_of_both, ["decisions", "outcomes", "waiting", "jobs"]),
        (outcome_with_successor, ["decisions", "units", "outcomes", "waiting", "jobs"]),
        (end_of_session, ["units", "waiting"]),
        (rating, ["waiting"]),
        (erasure, ["decisions", "units", "outcomes", "waiting", "feedback", "jobs"]),
        (erasure_of_closed, ["decisions", "units", "outcomes", "waiting", "feedback", "jobs"]),
    ],
)
def test_statements_lock_in_the_order_that_is_written_down(store, monkeypatch, write, expected):
    """The statements that PostgreSQL gets lock stored rows in LOCK_ORDER, and rows of counters last."""
    sent = []
    for name in ("execute", "executemany"):
        monkeypatch.setattr(psycopg.Cursor, name, recording(getattr(psycopg.Cursor, name), sent))
    write(store)
    begins = [place for place, statement in enumerate(sent) if statement == "BEGIN"]
    transactions = [sent[begin:end] for begin, end in zip(begins, [*begins[1:], len(sent)], strict=True)]
    locked = [tables for tables in map(locks, transactions) if tables]
    assert locked == [sorted(tables, key=LOCK_ORDER.index) for tables in locked]
    assert [table for table in locked[-1] if table != "counters"] == expected


def recording(method, sent):
    def recorded(cursor, statement, *more, **options):
        sent.append(str(statement))
        return method(cursor, statement, *more, **options)

    return recorded


@pytest.mark.parametrize("statement", [LOCK_DECISIONS, LOCK_OUTCOMES, waiting.LOCK_WAITING_WITH_FIRSTS])
def test_rows_of_outcomes_are_found_by_indexes(store, statement):
    """An outcome does not read all rows of a table to find its decision, and that of a turn."""
    values = ["a"] * (statement.count("?") - 2)
    with store.database.write() as connection:
        run_statement(connection, "SET LOCAL enable_seqscan = off")  # the planner prefers to scan a small table
        plan = run_statement(connection, f"EXPLAIN {statement}", *values, ["a2"], ["a2"])
    assert not [row for row in plan if "Filter" in row["QUERY PLAN"]]
