"""Reservations on SQLite and PostgreSQL: answers that run count in budgets until their outcome is stored."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ragbandit.router.serving.checks.reports import unrun_outcome
from ragbandit.router.storage.access import reservations
from ragbandit.router.storage.access.expected_dollars import ExpectedDollars
from ragbandit.router.storage.access.spending import Spender, lock, read_spending
from ragbandit.router.storage.decisions.decision_writes import OUTDATED
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs.answers import AnswerQueue
from ragbandit.router.storage.policy_versions import set_switch
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import Conflict, TooManyRequests
from ragbandit.shared.processes.this_process import this_process
from ragbandit.shared.types import Cost, DecisionId, SpendLimit
from tests.support.arms.answer_jobs import decision_for

ACME, KEY = Spender("tenant", "acme"), Spender("key", "k1")
REFUSED = TooManyRequests("spent", remedy="wait")


def limit(*, kind="tenant", name="acme", dollars=5.0, period="day"):
    return SpendLimit(kind=kind, name=name, period=period, most=dollars, refusal=REFUSED)


def question(key, *, limits=None, text="who?"):
    limits = (limit(),) if limits is None else limits
    made = decision_for("single_step")
    query = replace(made.query, id=key, text=text, tenant="acme", api_key="k1", limits=limits)
    return replace(made, id=DecisionId(key), query=query)


def outcome_of(key, *, dollars):
    return replace(unrun_outcome(DecisionId(key), now=0.0, stop_reason="x", error="x"), cost=Cost(dollars=dollars))


@pytest.fixture
def stores(make_world, database_url):
    """Two stores of one database, as two gateways have them; an answer is estimated at one dollar."""
    database = make_world(database_url=database_url).database
    other, expected = Database(database.url), ExpectedDollars(prices={"single_step": (0.0, 1000.0)})
    yield [DecisionStore(one, label="main", expected=expected) for one in (database, other)]
    other.close()


def sums(store, *, without=None):
    with store.database.read() as connection:
        read = read_spending(connection, [ACME, KEY], now=question("x").made_at, excluded=without)
    return [(round(read[one].day, 6), round(read[one].reserved, 6)) for one in (ACME, KEY)]


def test_questions_at_once_pass_a_budget_by_no_more_than_one_estimate(stores):
    """Two gateways get 60 questions at once: they store as many as the budget pays for, and refuse the others."""

    def ask(number):
        (result,) = stores[number % 2].add_decisions([question(f"q{number:02}")])
        return result

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(ask, range(60)))
    assert results.count(REFUSED) == 55
    assert sums(stores[0]) == [(0.0, 5.0), (0.0, 5.0)]
    assert len(stores[0].decisions_by_id([f"q{number:02}" for number in range(60)])) == 5


def test_a_group_is_admitted_in_order(stores):
    """Within one transaction the first questions are admitted; spenders without a limit are never refused."""
    group = [question(f"q{number}") for number in range(8)]
    group[6] = question("q6", limits=())
    results = stores[0].add_decisions(group)
    assert [result is REFUSED for result in results] == [False] * 5 + [True, False, True]
    assert [result.id for result in results if result is not REFUSED] == ["q0", "q1", "q2", "q3", "q4", "q6"]


def test_a_repeated_question_gets_its_decision_though_the_budget_is_spent(stores):
    """A request that is sent again is not refused, since it costs nothing."""
    stores[0].add_decisions([question(f"q{number}") for number in range(5)])
    again, other, new = stores[1].add_decisions([question("q0"), question("q1", text="another"), question("new")])
    assert (again.id, isinstance(other, Conflict), new) == ("q0", True, REFUSED)


def test_a_question_that_is_sent_twice_at_once_is_admitted_once(stores):
    """The second of two equal ids in one group gets the decision of the first, and one estimate is reserved."""
    stores[0].add_decisions([question(f"q{number}") for number in range(4)])
    results = stores[1].add_decisions([question("twice"), question("twice"), question("new")])
    assert [result if result is REFUSED else result.id for result in results] == ["twice", "twice", REFUSED]
    assert sums(stores[0])[0] == (0.0, 5.0)


def test_an_outcome_ends_its_reservation(stores):
    """With the outcome the cost replaces the estimate, and the next question is admitted again."""
    stores[0].add_decisions([question(f"q{number}") for number in range(5)])
    stores[1].add_outcome(outcome_of("q0", dollars=0.25))
    assert sums(stores[0]) == [(0.25, 4.0), (0.25, 4.0)]
    assert sums(stores[0], without="q1") == [(0.25, 3.0), (0.25, 3.0)]
    assert stores[1].add_decisions([question("new")])[0] is not REFUSED


def test_the_mean_of_newest_answers_is_reserved_if_it_is_larger(stores):
    """Where answers cost more than prices and limits suggest, their mean counts: then fewer are admitted at once."""
    stores[0].add_decisions([question("first", limits=())])
    stores[0].add_outcome(replace(outcome_of("first", dollars=3.0), status="answered", answer="x", error=None))
    admitted = stores[1].add_decisions([question(f"q{number}") for number in range(4)])
    assert [result is REFUSED for result in admitted] == [False, True, True, True]
    assert sums(stores[0])[0] == (3.0, 3.0)


def test_answers_above_their_estimates_are_the_only_excess(stores):
    """What is spent passes a budget by at most one estimate plus what the answers that ran cost above theirs."""
    admitted = [f"a{n}" for n in range(9) if stores[n % 2].add_decisions([question(f"a{n}")])[0] is not REFUSED]
    stores[0].add_outcome(outcome_of(admitted[0], dollars=0.5))
    admitted += [f"b{n}" for n in range(9) if stores[n % 2].add_decisions([question(f"b{n}")])[0] is not REFUSED]
    for key in admitted[1:]:
        stores[1].add_outcome(outcome_of(key, dollars=3.0))
        assert stores[0].add_decisions([question(f"after-{key}")]) == [REFUSED]
    (spent_dollars, reserved), above = sums(stores[0])[0], 2.0 * len(admitted[1:])
    assert (len(admitted), reserved) == (6, 0.0)
    assert 5.0 < spent_dollars == 15.5 <= 5.0 + 1.0 + above


def test_the_estimate_of_a_process_that_died_is_charged(stores):
    """A run whose process ended is charged once by its estimate; the next run has its own reservation."""
    store = stores[0]
    dead = replace(this_process(), pid=2**22 - 1, started="1")
    store.add_decisions([question("q0")], claims={DecisionId("q0"): dead.key})
    queue = AnswerQueue(store.database)
    assert queue.free_lost(held=[]) == ["q0"]
    assert queue.free_lost(held=[]) == []
    with store.database.read() as connection:
        now = read_spending(connection, [ACME], now=time.time())[ACME]
    assert (now.day, now.reserved) == (1.0, 1.0)


def test_a_second_run_is_charged_and_not_stored(stores):
    """The outcome of a second run is not stored, but its dollars were paid; the same outcome again counts once."""
    store = stores[0]
    store.add_decisions([question("q0")])
    first, second = (outcome_of("q0", dollars=dollars) for dollars in (0.25, 0.5))
    results = [store.add_outcomes([one])[0] for one in (first, first, second)]
    assert results == [True, False, False]
    assert sums(store)[0] == (0.75, 0.0)


def test_a_switch_that_is_set_during_the_wait_for_a_budget_counts(make_world, postgres_url, monkeypatch):
    """A decision is outdated if the kill switch is set while its transaction waits for the lock of a budget."""
    database = make_world(database_url=postgres_url).database
    store = DecisionStore(database, label="main")

    def locked(connection, spenders):
        lock(connection, spenders)
        with database.write() as other:
            set_switch(other, base=store.label, killed="champion", arm=None, actor="cli:ann", reason="", now=1.0)

    monkeypatch.setattr(reservations, "lock", locked)
    (result,) = store.add_decisions([question("q1")], revision=0)
    assert result.field == OUTDATED
