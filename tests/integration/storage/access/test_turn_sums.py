"""Sums of sessions and tasks on SQLite and PostgreSQL: what is reserved, settled, forgotten and counted again."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import select

from ragbandit.router.learning.repricing import reprice
from ragbandit.router.serving.checks.reports import unrun_outcome
from ragbandit.router.storage.access.corrections import Correction, add_correction, hold_corrections
from ragbandit.router.storage.access.expected_dollars import ExpectedDollars
from ragbandit.router.storage.access.spending import Spender
from ragbandit.router.storage.access.turn_sums import (
    forget_all_sums,
    session_spender,
    stored_sums,
    turn_difference,
    turn_sum_labels,
)
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.jobs.answers import AnswerQueue
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.counters import WriteTransaction
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import counters
from ragbandit.shared.errors import LimitReached
from ragbandit.shared.processes.this_process import this_process
from ragbandit.shared.types import Cost, DecisionId, SpendLimit
from tests.support.arms.answer_jobs import decision_for

SESSION = session_spender("acme", key="k1", session="s")
DOLLAR = 1_000_000_000


def limit(*, spender=SESSION, unit="turns", most=5, **more):
    return SpendLimit(kind=spender.kind, name=spender.name, unit=unit, most=most, **more)


def question(key, *, limits=None, turn_of=None, run_by="worker"):
    made = decision_for("single_step")
    limits = (limit(),) if limits is None else limits
    query = replace(made.query, id=key, tenant="acme", api_key="k1", session="s", limits=limits)
    return replace(made, id=DecisionId(key), query=query, turn_of=turn_of, run_by=run_by)


def outcome(key, *, dollars=0.0, status="answered", **more):
    made = unrun_outcome(DecisionId(key), now=0.0, stop_reason="x", error=None if status == "answered" else "x")
    return replace(made, status=status, answer="x", cost=Cost(dollars=dollars), **more)


@pytest.fixture
def stores(make_world, database_url):
    """Two stores of one database, as two gateways have them; an answer is estimated at one dollar."""
    database = make_world(database_url=database_url).database
    other, expected = Database(database.url), ExpectedDollars(prices={"single_step": (0.0, 1000.0)})
    yield [DecisionStore(one, label="main", expected=expected) for one in (database, other)]
    other.close()


def summed(store, spender=SESSION):
    """(turns, dollars) of a stored sum, which must be that of its decisions; None if none is stored."""
    with store.database.read() as connection:
        found = stored_sums(connection, [spender]).get(spender)
        assert turn_difference(connection, spender) is None
    return None if found is None else (found.turns, found.units / DOLLAR)


def test_turns_at_once_never_pass_a_limit(stores):
    """Two gateways get 60 turns of a session at once: exactly as many as its limit are stored."""

    def ask(number):
        (result,) = stores[number % 2].add_decisions([question(f"q{number:02}")])
        return result

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(ask, range(60)))
    refused = [result for result in results if isinstance(result, LimitReached)]
    assert len(refused) == 55
    assert str(refused[0].message) == "the session has had 5 turns, and its limit is 5"
    assert summed(stores[0]) == (5, 5.0)


def test_dollars_at_once_pass_a_limit_by_no_more_than_one_estimate(stores):
    """Two gateways store turns while what is spent and reserved is below the limit."""
    dollars = (limit(unit="dollars", most=4.5),)
    with ThreadPoolExecutor(8) as pool:
        results = [
            *pool.map(lambda n: stores[n % 2].add_decisions([question(f"q{n:02}", limits=dollars)])[0], range(40))
        ]
    assert sum(not isinstance(result, LimitReached) for result in results) == 5
    for number in range(40):
        if not isinstance(results[number], LimitReached):
            stores[0].add_outcome(outcome(f"q{number:02}", dollars=0.5))
    assert summed(stores[1]) == (5, 2.5)


def test_a_group_is_admitted_in_order(stores):
    """A group of 400 turns of one session, as a batch has, is stored up to the limit."""
    results = stores[0].add_decisions([question(f"q{number:03}", run_by="caller") for number in range(400)])
    assert [isinstance(result, LimitReached) for result in results] == [False] * 5 + [True] * 395
    assert summed(stores[0]) == (5, 0.0)


def test_a_repeated_turn_is_not_refused_and_not_counted(stores):
    """A turn that is sent again gets its decision, though the limit is reached."""
    stores[0].add_decisions([question(f"q{number}") for number in range(5)])
    again, new = stores[1].add_decisions([question("q0"), question("new")])
    assert (again.id, isinstance(new, LimitReached)) == ("q0", True)
    assert summed(stores[0]) == (5, 5.0)


def test_an_outcome_settles_its_turn(stores):
    """The cost replaces the estimate. A failure for which no model was asked is no turn; one that cost something is."""
    stores[0].add_decisions([question(f"q{number}") for number in range(5)])
    assert summed(stores[0]) == (5, 5.0)
    stores[1].add_outcome(outcome("q0", dollars=0.25))
    stores[1].add_outcome(outcome("q1", status="failed"))
    stores[1].add_outcome(outcome("q2", status="failed", dollars=0.125))
    stores[1].add_outcome(outcome("q2", status="failed", dollars=0.5))  # a second run is paid, too
    assert summed(stores[0]) == (4, 2.875)
    results = stores[0].add_decisions([question("new"), question("beyond")])
    assert [isinstance(result, LimitReached) for result in results] == [False, True]


def test_a_sum_that_is_missing_is_counted_from_the_rows(stores):
    """A session that is older than its limit, or that an older release has served, counts with all its turns."""
    old = [
        replace(question(f"q{number}"), query=replace(question("x").query, id=f"q{number}", limits=()))
        for number in range(4)
    ]
    stores[0].add_decisions(old)
    stores[0].add_outcome(outcome("q0", dollars=0.25))
    stores[0].add_outcome(outcome("q1", status="failed"))
    assert summed(stores[0]) is None
    results = stores[1].add_decisions([question("new"), question("last"), question("beyond")])
    assert [isinstance(result, LimitReached) for result in results] == [False, False, True]
    assert summed(stores[0]) == (5, 4.25)


def test_an_outcome_that_is_stored_meanwhile_is_in_the_sum(stores):
    """A question that counts a missing sum waits for an outcome whose transaction has begun: nothing is lost."""
    if stores[0].database.is_sqlite:
        return  # it has one writer
    stores[0].add_decisions([replace(question("q0"), query=replace(question("q0").query, limits=()))])
    with ThreadPoolExecutor(1) as pool:
        with WriteTransaction(stores[0].database) as (connection, _moves):
            connection.exec_driver_sql("SELECT id FROM decisions WHERE id = 'q0' FOR NO KEY UPDATE")
            asked = pool.submit(stores[1].add_decisions, [question("new")])
            with pytest.raises(TimeoutError):
                asked.result(0.5)
        assert asked.result(30)[0].id == "new"
    stores[0].add_outcome(outcome("q0", dollars=0.5))
    assert summed(stores[0]) == (2, 1.5)


def test_a_sum_is_forgotten_with_its_decisions(stores):
    """Erasure forgets the sums of what it erases; `migrate` forgets all; the next question counts again."""
    stores[0].add_decisions([question(f"q{number}") for number in range(5)])
    with stores[0].database.write() as connection:
        forget_all_sums(connection)
    assert summed(stores[0]) is None
    assert isinstance(stores[1].add_decisions([question("beyond")])[0], LimitReached)
    assert summed(stores[0]) == (5, 5.0)
    erase(stores[0].database, Selection(decision="q0"), features=False, actor="cli:me", now=9.0)
    assert summed(stores[0]) is None
    assert stores[0].add_decisions([question("new")])[0].id == "new"
    erase(stores[0].database, Selection(session="s"), features=False, actor="cli:me", now=9.0)
    with stores[0].database.read() as connection:
        assert turn_sum_labels(connection) == set()


def test_a_task_has_no_row_before_its_second_turn(stores):
    """The first turn of a task needs no sum; the second one counts both."""
    store, task = stores[0], Spender("task", "q0")
    store.add_decisions([question("q0", limits=(limit(spender=task, most=2),))])
    with store.database.read() as connection:
        assert turn_sum_labels(connection) == set()
    turns = [question(f"t{n}", turn_of="q0", limits=(limit(spender=task, most=2),)) for n in range(2)]
    assert [isinstance(result, LimitReached) for result in store.add_decisions(turns)] == [False, True]
    store.add_outcome(outcome("q0", dollars=0.25))
    assert summed(store, task) == (2, 1.25)


def test_the_estimate_of_a_process_that_died_is_charged(stores):
    """A run whose process ended may have been paid: its estimate counts, and so does the estimate of the next run."""
    dead = replace(this_process(), pid=2**22 - 1, started="1")
    stores[0].add_decisions([question("q0")], claims={DecisionId("q0"): dead.key})
    assert AnswerQueue(stores[0].database).free_lost(held=[]) == ["q0"]
    assert summed(stores[0]) == (1, 2.0)
    stores[0].add_outcome(outcome("q0", dollars=0.25))
    assert summed(stores[0]) == (1, 1.25)


def test_a_sum_that_is_counted_anew_has_what_killed_runs_may_have_cost(stores):
    """After `migrate`, and for a task whose first turn has lost a run, the charged estimates still count."""
    dead, task = replace(this_process(), pid=2**22 - 1, started="1"), Spender("task", "q0")
    limits = (limit(unit="dollars", most=3.0), limit(spender=task, unit="dollars", most=3.0))
    stores[0].add_decisions([question("q0", limits=limits)], claims={DecisionId("q0"): dead.key})
    assert AnswerQueue(stores[1].database).free_lost(held=[]) == ["q0"]
    stores[0].add_outcome(outcome("q0", dollars=0.25))
    stores[0].add_outcome(outcome("q0", dollars=0.5, error="another run"))  # a second run is paid, too
    with stores[0].database.write() as connection:
        forget_all_sums(connection)
    (result,) = stores[1].add_decisions([question("t1", turn_of="q0", limits=limits)])
    assert result.id == "t1"
    assert summed(stores[0]) == summed(stores[0], task) == (2, 2.75)


def test_what_killed_runs_cost_leaves_with_their_decisions(stores):
    """A session whose decisions were erased begins again at 0, although the charge of a day is kept."""
    dead = replace(this_process(), pid=2**22 - 1, started="1")
    stores[0].add_decisions([question("q0")], claims={DecisionId("q0"): dead.key})
    AnswerQueue(stores[0].database).free_lost(held=[])
    erase(stores[0].database, Selection(session="s"), features=False, actor="cli:me", now=9.0)
    late = replace(question("q1"), made_at=stores[0].database.clock.now() + 2 * 86_400)
    stores[0].add_decisions([late])
    assert summed(stores[0]) == (1, 1.0)


def test_a_limit_that_moves_is_no_refusal_once_it_is_known(stores):
    """With the cheapest arm, a question whose limit is reached meanwhile is decided again, and then stored."""
    stores[0].add_decisions([question(f"q{number}") for number in range(5)])
    (result,) = stores[1].add_decisions([question("new", limits=(limit(moves=True, used=4.0),))])
    assert (type(result), result.field) == (LimitReached, "limit")
    (known,) = stores[1].add_decisions([question("new", limits=(limit(moves=True, used=5.0),))])
    assert known.id == "new"
    assert summed(stores[0]) == (6, 6.0)


def test_a_wrong_sum_is_named(stores):
    """A sum that differs from its decisions, as after turns of an older release, is found by `verify --deep`."""
    stores[0].add_decisions([question("q0")])
    with stores[0].database.write() as connection:
        connection.execute(counters.update().where(counters.c.name == "turns").values(value=3))
    with stores[0].database.read() as connection:
        assert turn_difference(connection, SESSION) == "3 turns are counted, its decisions have 1"


def test_without_limits_no_row_is_written(make_world, database_url):
    """A question without limits makes no sum, though its store would settle one."""
    store = DecisionStore(make_world(database_url=database_url).database, label="main")
    store.add_decisions([question("q0", limits=())])
    store.add_outcome(outcome("q0", dollars=0.25))
    with store.database.read() as connection:
        names = set(connection.execute(select(counters.c.name)).scalars())
    assert not names & {"dollars", "turns"}


def test_a_corrected_price_corrects_the_sums(stores):
    """After `data reprice` a session's limit in dollars counts the right dollars, as its decisions give them."""
    dollars = (limit(unit="dollars", most=4.0),)
    store, other = stores
    store.add_decisions([question(f"q{number}", limits=dollars) for number in range(4)])
    for number in range(4):
        store.add_outcome(outcome(f"q{number}", dollars=2.0))
    (refused,) = store.add_decisions([question("early", limits=dollars)])
    correction = Correction(arm="single_step", factor=0.25)
    given = {"learn": None, "dry_run": False, "reason": "", "actor": "me", "now": 1.0}
    done = reprice(Ledger(store.database, label="main"), correction, **given)
    assert (done["outcomes"], isinstance(refused, LimitReached), summed(store)) == (4, True, None)
    (admitted,) = other.add_decisions([question("later", limits=dollars, run_by="caller")])
    assert (admitted.id, summed(store)) == ("later", (5, 2.0))


def test_a_sum_is_not_counted_while_prices_are_corrected(postgres_url):
    """A transaction that counts sums keeps corrections out until it ends, so none stores a sum of former prices."""
    databases = [Database(postgres_url) for _ in range(2)]
    facts = {"actor": "me", "reason": "", "facts": {}, "now": 1.0}

    def correct():
        with databases[1].write() as connection:
            return add_correction(connection, Correction(factor=2.0), **facts).number

    with ThreadPoolExecutor(1) as pool:
        with databases[0].write() as connection:
            hold_corrections(connection)
            stored = pool.submit(correct)
            with pytest.raises(TimeoutError):
                stored.result(timeout=0.5)
        assert stored.result(timeout=10.0) > 0
    for database in databases:
        database.close()
