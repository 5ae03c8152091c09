"""The cost of a task: the part that is learned, and the part that comes after learning."""

import json

import pytest

from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import report
from ragbandit.shared.types import Continues, Loop, Query
from tests.conftest import EPOCH, on_sqlite

TASKS = {"conversation": {"unit": "task"}, "reward": {"cost": {"dollars": 1.0}}}


def turn(world, *, by_worker, **more):
    """The next turn of a session, a second after the previous one."""
    world.now += 1.0
    query = Query(text=f"turn at {world.now}", session="chat-1", **more)
    return world.router.submit(query, run_by="worker" if by_worker else "caller").result(30)


def ended(world, decision, dollars, *, by_worker=True):
    assert world.outcome(decision, cost={"dollars": dollars}, by_worker=by_worker)


@on_sqlite
@pytest.mark.parametrize("wait_s", [0.0, 3600.0])
def test_a_task_waits_for_a_turn_that_a_worker_answers(make_world, database_url, wait_s):
    """A task that is ended while a worker answers a turn of it is learned after that turn, with the cost of both."""
    world = make_world(database_url=database_url, learning={"wait_s": wait_s}, **TASKS)
    first = turn(world, by_worker=True)
    ended(world, first, 0.01)
    second = turn(world, by_worker=True)
    world.feedback(first, rating=1.0)
    assert world.store.end_session("chat-1", tenant="default", now=world.now) == 1
    world.now += wait_s + 1.0
    assert world.learn() == 0
    assert world.router.decision(first.id).reason == "waiting for a worker's answer to a later turn"
    ended(world, second, 1.0)
    assert world.learn() == 1
    (update,) = world.updates()
    assert update["cost"] == pytest.approx(1.01)
    assert world.router.verify(deep=True).ok


@on_sqlite
def test_a_loop_of_tools_is_learned_whole(make_world, database_url):
    """Results of tools that a worker reads are waited for too where the unit is one turn."""
    world = make_world(database_url=database_url, reward=TASKS["reward"])
    first = turn(world, by_worker=True)
    ended(world, first, 0.01)
    loop = Loop(first=first.id, previous=first.id, turn=2)
    second = turn(world, by_worker=True, arm_by="calls", arms=(first.arm,), continues=Continues(loop=loop))
    world.feedback(first, rating=1.0)
    assert world.learn() == 0
    ended(world, second, 1.0)
    assert world.learn() == 1
    (update,) = world.updates()
    assert update["cost"] == pytest.approx(1.01)


@on_sqlite
def test_a_turn_that_nobody_answers_does_not_keep_a_task(make_world, database_url):
    """A task with an unanswered turn expires as a decision without an outcome does, and is then learned as it is."""
    world = make_world(learning={"expire_s": 100.0}, **TASKS)
    first = turn(world, by_worker=True)
    ended(world, first, 0.01)
    turn(world, by_worker=True)
    world.feedback(first, rating=1.0)
    world.store.end_session("chat-1", tenant="default", now=world.now)
    world.now += 90.0
    assert world.learn() == 0
    world.now += 20.0
    assert world.learn() == 1
    assert world.updates()[0]["cost"] == pytest.approx(0.01)


def late_task(world, session):
    """A task whose turn of a dollar is reported after it was learned with the cent of its first turn."""
    world.now += 1.0
    turns = [world.router.route(Query(text=f"{text} of {session}", session=session)) for text in ("first", "second")]
    world.outcome(turns[0], cost={"dollars": 0.01, "seconds_total": 1.0})
    world.feedback(turns[0], rating=1.0)
    world.store.end_session(session, tenant="default", now=world.now)
    assert world.learn() == 1
    world.outcome(turns[1], cost={"dollars": 1.0, "seconds_total": 8.0})
    return turns[0]


@on_sqlite
def test_a_report_counts_what_comes_after_learning(make_world, database_url):
    """Dollars of a turn that its caller reports after the task was learned are spent, and a note has them by arm."""
    world = make_world(database_url=database_url, **TASKS)
    firsts = [late_task(world, f"s{number}") for number in range(3)]
    scope = ReportScope(label=world.store.label, since=EPOCH, until=world.now + 1.0)
    made = report(world.database, scope, policy=world.settings.policy)
    assert made.total.cost.first * made.total.questions == pytest.approx(3.03)
    (note,) = [note for note in made.notes if "after the decision was closed" in note]
    assert note.startswith("of what was spent, $3.00 came after")
    for arm in {first.arm for first in firsts}:
        count = sum(first.arm == arm for first in firsts)
        assert f"{arm} ${count:.2f} of ${1.01 * count:.2f}" in note
    assert world.updates()[0]["cost"] == pytest.approx(0.01)
    assert world.router.verify(deep=True).ok


@on_sqlite
def test_steps_that_come_after_learning_are_spent(make_world, database_url):
    """Where no outcome reports dollars, the steps of such turns are counted in the same way."""
    world = make_world(conversation={"unit": "task"})
    for number, steps in enumerate((1.0, 2.0)):
        turns = [world.router.route(Query(text=f"{text}{number}", session=f"s{number}")) for text in "ab"]
        world.outcome(turns[0])
        world.feedback(turns[0], rating=1.0)
        world.store.end_session(f"s{number}", tenant="default", now=world.now)
        assert world.learn() == 1
        world.router.outcome(turns[1].id, answer="late", steps=4.0 * steps)
    scope = ReportScope(label=world.store.label, since=EPOCH, until=world.now + 1.0)
    made = report(world.database, scope, policy=world.settings.policy)
    assert made.unit == "steps"
    assert made.total.cost.first * 2 == pytest.approx(14.0)
    assert any("of what was spent, 12 steps came after" in note for note in made.notes)
    record = world.router.decision(turns[0].id)
    assert json.loads(json.dumps(record.outcome.steps)) == 1.0


@on_sqlite
def test_a_task_lasts_as_long_as_its_turn_may(make_world, database_url):
    """Where a worker may answer for longer than `idle_s`, the task does not end in the middle of a turn."""
    world = make_world(budget={"seconds": 60.0}, conversation={"unit": "task", "idle_s": 10.0}, reward=TASKS["reward"])
    first = turn(world, by_worker=True)
    ended(world, first, 0.01)
    second = turn(world, by_worker=True)
    world.feedback(first, rating=1.0)
    world.now += 50.0
    assert world.learn() == 0
    ended(world, second, 1.0)
    third = turn(world, by_worker=True)
    assert (second.turn_of, third.turn_of) == (first.id, first.id)
    ended(world, third, 1.0)
    world.now += 59.0
    assert world.learn() == 0
    world.now += 2.0
    assert world.learn() == 1
    assert world.updates()[0]["cost"] == pytest.approx(2.01)
    own = turn(world, by_worker=False)
    world.now += 10.0
    assert turn(world, by_worker=False).turn_of is None
    assert own.turn_of is None
