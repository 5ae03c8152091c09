"""Writers of turns lock rows in one order, which prevents deadlocks on PostgreSQL."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ragbandit.router.storage.decisions import store as store_module
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.rows import waiting
from ragbandit.router.storage.sql.bulk_insert import run
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import TooManyRequests
from ragbandit.shared.types import SpendLimit, TaskTurn
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


@pytest.mark.parametrize(
    "statement", [store_module._DECISIONS_OF_OUTCOMES, store_module._OUTCOMES, waiting._LOCKED_WITH_FIRSTS]
)
def test_rows_of_outcomes_are_found_by_indexes(store, statement):
    """An outcome does not read all rows of a table to find its decision, and that of a turn."""
    values = ["a"] * (statement.count("?") - 2)
    with store.database.write() as connection:
        run(connection, "SET LOCAL enable_seqscan = off")  # the planner prefers to scan a small table
        plan = run(connection, f"EXPLAIN {statement}", *values, ["a2"], ["a2"])
    assert not [row for row in plan if "Filter" in row["QUERY PLAN"]]
