"""Tasks: what comes at the same time, what is stored together, and sessions with many other decisions."""

import pytest
from sqlalchemy import select

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.explanations.explain import explain
from ragbandit.router.storage.decisions import decision_writes
from ragbandit.router.storage.decisions.tasks import end_tasks
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.sql.tables import outcomes, units
from ragbandit.shared.errors import StoreError, TooManyRequests
from ragbandit.shared.types import MOST_FACTOR, NO_TERMS, Continues, Loop, MovedTurn, Query, Sent, Terms
from tests.conftest import on_sqlite
from tests.integration.serving.test_tasks import TASKS, cost_of, place, turn


@on_sqlite
@pytest.mark.parametrize("step", [1, -1])
def test_outcomes_of_one_transaction_count_once(make_world, database_url, step):
    """The outcomes of a decision and of its turns may be stored by one transaction, in any order."""
    world = make_world(database_url=database_url, **TASKS)
    turns = [turn(world) for _ in range(3)]
    group = [
        make_outcome(decision_id=one.id, now=world.now, status="answered", answer="a", cost={"dollars": 0.1})
        for one in turns[::step]
    ]
    assert world.store.add_outcomes(group) == [True] * 3
    assert cost_of(world, turns[0]).dollars == pytest.approx(0.3)
    assert cost_of(world, turns[0]).turns == 2


@on_sqlite
def test_a_task_is_found_among_many_small_requests(make_world, database_url):
    """205 single turns of a session, such as an agent's titles, do not hide its task from a judgement and an end."""
    world = make_world(database_url=database_url, **TASKS)
    first = turn(world)
    for _ in range(205):
        turn(world, unit="turn")
    assert turn(world).turn_of == first.id
    assert world.store.decision_of_session("chat-1", tenant="default") == (first.id, None)
    assert world.store.end_session("chat-1", tenant="default", now=world.now) == 1


@on_sqlite
def test_a_task_is_found_among_many_of_sub_agents(make_world, database_url):
    """205 tasks of sub-agents do not hide the main agent's task from a judgement, and all of them end with it."""
    world = make_world(database_url=database_url, **TASKS)
    first = turn(world)
    for number in range(205):
        turn(world, sent=Sent(agent=f"sub-{number}"))
    assert world.store.decision_of_session("chat-1", tenant="default") == (first.id, None)
    assert world.store.end_session("chat-1", tenant="default", now=world.now) == 206


def ended_meanwhile(world, first, *, ahead=0.0):
    """Let the task end between the decision and the storing of the next turn."""
    service = world.router.service
    original = service.store.add_decisions

    def add_decisions(group, **more):
        service.store.add_decisions = original
        with world.database.write() as connection:
            assert end_tasks(connection, [first.id], now=world.now + ahead) == [first.id]
        assert world.learn() == (1 if not ahead else 0)
        return original(group, **more)

    service.store.add_decisions = add_decisions


@on_sqlite
@pytest.mark.parametrize("ahead", [0.0, 0.5])
def test_a_turn_in_flight_does_not_open_a_task_again(make_world, database_url, ahead):
    """A turn that was decided before the end and is stored after it begins a new task."""
    world = make_world(database_url=database_url, **TASKS)
    first = turn(world)
    world.outcome(first)
    world.feedback(first, rating=1.0)
    ended_meanwhile(world, first, ahead=ahead)
    second = turn(world)
    assert place(second) == (1, None)
    assert place(turn(world)) == (2, second.id)


def test_results_in_flight_belong_to_the_ended_task(make_world, database_url):
    """Results of tools that are stored after the end of the task belong to its decision, and do not open it again."""
    world = make_world(database_url=database_url, **TASKS)
    first = turn(world)
    world.outcome(first)
    world.feedback(first, rating=1.0)
    ended_meanwhile(world, first)
    loop = Loop(first=first.id, previous=first.id, turn=2)
    results = turn(world, arm_by="calls", arms=(first.arm,), continues=Continues(loop=loop))
    assert (results.turn_of, place(results)) == (first.id, None)
    with world.database.read() as connection:
        taken = select(outcomes.c.taken_by).where(outcomes.c.decision_id == first.id)
        assert connection.execute(taken).scalar() == results.id
    assert place(turn(world)) == (1, None)


@on_sqlite
def test_results_do_not_move_a_task_back(make_world, database_url):
    """A task that has left an arm keeps its new one, although results of an earlier call go to the old one."""
    world = make_world(**TASKS)
    first = turn(world)
    world.outcome(first)
    other = next(arm for arm in first.arms if arm != first.arm)
    assert turn(world, arms=(other,)).arm == other
    loop = Loop(first=first.id, previous=first.id, turn=2)
    results = turn(world, arm_by="calls", arms=(first.arm,), continues=Continues(loop=loop))
    assert (results.arm, results.turn_of) == (first.arm, first.id)
    assert turn(world).arm == other


@on_sqlite
def test_an_erased_task_has_no_more_turns(make_world, database_url):
    """What comes in an erased session begins a new task, since nobody learns an erased decision."""
    world = make_world(database_url=database_url, **TASKS)
    turn(world)
    erase(world.database, Selection(session="chat-1"), features=True, actor="cli:test", now=world.now)
    with world.database.read() as connection:
        assert connection.execute(select(units)).all() == []
    assert place(turn(world)) == (1, None)


@on_sqlite
def test_a_ledger_inherits_the_end_of_a_task(make_world, database_url):
    """A ledger that inherits a task of 2 hours learns its judgement, although another task of the session follows."""
    more = {"learning": {"wait_s": 3600.0}, "database_url": database_url, **TASKS}
    world = make_world(**more)
    turns = []
    for _ in range(30):
        turns.append(turn(world))
        world.outcome(turns[-1])
        world.now += 250.0
    world.feedback(turns[-1], rating=1.0)
    world.now += 301.0
    turn(world)
    world.now += 3601.0
    assert world.learn() == 1
    other = make_world(now=world.now, policy={"label": "second"}, **more)
    other.learn()
    (update,) = other.updates()
    assert (update["decision_id"], update["quality"], update["source"]) == (turns[0].id, 1.0, "explicit")


@on_sqlite
def test_a_budget_stops_all_turns_of_a_group(make_world, database_url, monkeypatch):
    """A turn that is stored together with a refused turn of its task belongs to it; the next turn begins a new task."""
    world = make_world(database_url=database_url, **TASKS)
    first = turn(world)
    decided, store = [], world.store
    original = store.add_decisions
    for _ in range(2):
        store.add_decisions = lambda group, **_more: decided.extend(group) or list(group)
        turn(world)
    store.add_decisions = original
    spent = TooManyRequests("spent", field="budget")
    with monkeypatch.context() as patched:
        patched.setattr(decision_writes, "reserve_answers", lambda _connection, group, **_more: {group[0].id: spent})
        refused, other = store.add_decisions(decided)
    assert (refused.field, other.turn_of) == ("budget", first.id)
    assert world.router.decision(first.id).state == "closed"
    assert place(turn(world)) == (1, None)


def test_the_error_of_a_block_is_raised(make_world, monkeypatch):
    """If the task cannot be ended either, the caller still gets the error of its own block."""
    world = make_world(**TASKS)

    def fail(*_given, **_more):
        raise StoreError("the database is down")

    monkeypatch.setattr(world.router, "end_session", fail)
    with pytest.raises(ZeroDivisionError), world.router.task():
        raise ZeroDivisionError
    with pytest.raises(StoreError), world.router.task():
        pass


@pytest.fixture
def priced(make_world):
    """A world that has learned that `premium` costs a dollar, and `cheap` a cent, for equal answers."""
    costs = {"premium": 1.0, "cheap": 0.01}
    more = {"policy": {"name": "mba"}, "reward": {"cost": {"dollars": 1.0}, "weight": 0.05}}
    world = make_world(arms={name: {"run_by": "caller"} for name in costs}, **more, **TASKS)
    for number in range(40):
        decision = turn(world, session=f"drawn{number}")
        world.outcome(decision, cost={"dollars": costs[decision.arm]})
        world.feedback(decision, rating=1.0)
        world.store.end_session(f"drawn{number}", tenant="default", now=world.now)
    assert world.learn() == 40
    return world


def expensive_task(world, session="s"):
    """The first turn of a task that has the expensive arm."""
    first = turn(world, session=session, arms=("premium",))
    assert first.arm == "premium"
    return first


SPENT = Terms(budget_factor=MOST_FACTOR)


def test_a_spent_budget_moves_the_next_turn(priced):
    """A turn of an open task leaves an expensive arm when the budget is spent, and the next ones keep the cheap arm."""
    first = expensive_task(priced)
    assert turn(priced, session="s").arm == "premium"
    assert turn(priced, session="s", terms=Terms(budget_factor=MOST_FACTOR / 2)).arm == "premium"
    moved = turn(priced, session="s", terms=SPENT)
    assert (moved.arm, moved.turn_of, moved.arms, moved.pmf) == ("cheap", first.id, ("cheap",), (1.0,))
    reasons = explain(priced.store, moved.id, rule=closing_rule(priced.settings.learning)).reasons
    assert any("a dollar budget is spent" in reason for reason in reasons), reasons
    stays = [turn(priced, session="s", terms=terms) for terms in (SPENT, SPENT, NO_TERMS)]
    assert [(one.arm, one.turn_of, MovedTurn.of(one.facts)) for one in stays] == [("cheap", first.id, None)] * 3
    for one in (first, moved):
        priced.outcome(one, cost={"dollars": 1.0 if one.arm == "premium" else 0.01})
    assert cost_of(priced, first).dollars == pytest.approx(1.01)
    assert priced.router.verify(deep=True).ok


def test_tasks_that_were_opened_before_do_not_escape(priced):
    """Each further turn is asked about, also of many agents and of tasks that were opened while the price was low."""
    opened = [expensive_task(priced, session=session) for session in "stu"]
    agents = [turn(priced, session="s", arms=("premium",), sent=Sent(agent=f"a{number}")) for number in range(10)]
    later = [turn(priced, session=session, terms=SPENT) for session in "stu"]
    later += [turn(priced, session="s", sent=Sent(agent=f"a{number}"), terms=SPENT) for number in range(10)]
    assert {one.arm for one in later} == {"cheap"}
    assert [one.turn_of for one in later] == [one.id for one in opened] + [one.id for one in agents]


@pytest.mark.parametrize("unit", ["task", "turn"])
def test_a_spent_budget_moves_results_of_tools(priced, unit):
    """Results that need not go to the arm of their calls go to the cheap one, and the loop stays one decision."""
    first = expensive_task(priced)
    priced.outcome(first)
    loop = Loop(first=first.id, previous=first.id, turn=2, called_by="premium")
    results = turn(priced, session="s", unit=unit, continues=Continues(loop=loop), terms=SPENT)
    assert (results.arm, results.turn_of) == ("cheap", first.id)
    assert MovedTurn.of(results.facts)
    assert priced.router.verify(deep=True).ok


def test_a_turn_moves_only_to_a_permitted_arm(priced):
    """A spent budget does not move a turn to an arm that the caller does not permit."""
    first = expensive_task(priced)
    only = turn(priced, session="s", arms=("premium",), terms=SPENT)
    assert (only.arm, only.turn_of, MovedTurn.of(only.facts)) == ("premium", first.id, None)


def test_a_preview_shows_the_move(priced):
    """A preview of such a turn has the cheap arm, and moves nothing."""
    first = expensive_task(priced)
    query = Query(text="and now?", session="s", terms=SPENT)
    shown = priced.router.preview(query).result(30)
    assert (shown.turn_of, shown.arm, shown.arms) == (first.id, "cheap", ("cheap",))
    assert turn(priced, session="s").arm == "premium"
