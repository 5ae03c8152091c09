"""Tasks: which turns belong to a decision, what their rows say, and what learning, verify and reports make of them."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest
from sqlalchemy import select

from ragbandit.router.learning.exclusions import learn_new_ledger
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.reporting.reading import ReportScope, read_log
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.decisions.tasks import end_tasks
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.retention import Retention
from ragbandit.router.storage.rows.waiting import STOPPED
from ragbandit.router.storage.sql.counters import row_counts, stored_counts
from ragbandit.router.storage.sql.tables import closures, decisions, feedback, outcomes, units, updates, waiting
from ragbandit.shared.types import Continues, Conversation, DecisionId, FailedArm, MovedTurn, Query, Sent, TaskTurn
from tests.conftest import EPOCH, on_sqlite

TASKS = {"conversation": {"unit": "task"}}
ids = (DecisionId(str(UUID(int=number))) for number in itertools.count(1))


def turn(world, session="chat-1", **more):
    """The next turn of a session, a second after the previous one."""
    world.now += 1.0
    return world.router.route(Query(text=more.pop("text", f"turn at {world.now}"), session=session, **more))


def place(decision):
    """(number of the turn, the decision that it belongs to)."""
    task = TaskTurn.of(decision.facts)
    return None if task is None else (task.turn, decision.turn_of)


def cost_of(world, decision):
    record = world.router.decision(decision.id)
    return record.outcome.cost


@on_sqlite
def test_later_turns_belong_to_the_first(make_world, database_url):
    """The first turn is drawn, all later ones get its arm without a draw, until the conversation rests for idle_s."""
    world = make_world(database_url=database_url, **TASKS)
    turns = [turn(world) for _ in range(4)]
    first = turns[0]
    assert [place(one) for one in turns] == [(1, None), (2, first.id), (3, first.id), (4, first.id)]
    assert {one.arm for one in turns} == {first.arm}
    assert len(first.pmf) == 3
    for one in turns[1:]:
        assert (one.arms, one.pmf, one.propensity, one.explored) == ((first.arm,), (1.0,), 1.0, False)
        assert one.features is None
        assert world.router.decision(one.id).decision.turn_of == first.id
    assert (world.counters().decided, world.counters().waiting) == (1, 1)
    world.now += 301.0
    assert place(turn(world)) == (1, None)
    assert world.router.verify(deep=True).ok


@on_sqlite
def test_conversations_are_apart(make_world, database_url):
    """Another session, tenant, key, agent or model has tasks of its own; a question without a session is one turn."""
    world = make_world(**TASKS)
    turn(world)
    others = [
        {"session": "chat-2"},
        {"tenant": "acme"},
        {"api_key": "k1"},
        {"sent": Sent(agent="sub-1")},
        {"sent": Sent(asked_model="auto:cheap")},
    ]
    assert [place(turn(world, **other)) for other in others] == [(1, None)] * 5
    assert place(turn(world, session=None)) is None
    assert place(turn(world)) is not None
    assert place(turn(world))[0] == 3


@on_sqlite
def test_who_chooses_the_unit(make_world, database_url):
    """The default is one turn; the interface or the request may have another unit."""
    world = make_world()
    assert [place(turn(world)) for _ in range(2)] == [None, None]
    assert [place(turn(world, unit="task"))[0] for _ in range(2)] == [1, 2]
    assert place(turn(world, unit="turn")) is None
    by_interface = make_world(conversation={"units": {"openai": "task"}}, data_dir=str(world.settings.data_dir) + "2")
    assert place(turn(by_interface)) is None
    assert place(turn(by_interface, sent=Sent(surface="openai")))[0] == 1


@pytest.mark.parametrize(
    ("idle_s", "chat", "goes_on"),
    [
        (299.0, {}, True),
        (301.0, {}, False),
        (301.0, {"tools": [{"cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, True),
        (301.0, {"messages": [{"content": [{"cache_control": {"ttl": "5m"}}, None]}, 17]}, False),
        (3602.0, {"cache_control": {"ttl": "1h"}}, False),
        (80_000.0, {"prompt_cache_retention": "24h", "messages": None}, True),
        (301.0, {"tools": [{"parameters": {"cache_control": {"ttl": "1h"}, "prompt_cache_retention": "24h"}}]}, False),
        (301.0, {"prompt_cache_retention": None, "cache_control": "1h", "tools": {"cache_control": {"ttl": 1}}}, False),
    ],
)
@on_sqlite
def test_a_task_lasts_as_long_as_the_cache(make_world, database_url, idle_s, chat, goes_on):
    """A task stays open for `idle_s`, or for the longer time for which its newest request keeps its prompt cached."""
    world = make_world(**TASKS)
    first = turn(world, conversation=Conversation(fields=chat))
    world.now += idle_s - 1.0
    assert place(turn(world)) == ((2, first.id) if goes_on else (1, None))


@on_sqlite
def test_a_task_has_at_most_so_many_turns(make_world, database_url):
    """The turn after `turns_most` begins another task."""
    world = make_world(conversation={"unit": "task", "turns_most": 2})
    assert [place(turn(world))[0] for _ in range(5)] == [1, 2, 1, 2, 1]


@on_sqlite
def test_it_is_learned_once_after_its_end(make_world, database_url):
    """Feedback on any turn counts for the decision, and is learned after the end, with the cost of all turns."""
    world = make_world(
        database_url=database_url,
        reward={"cost": {"dollars": 1.0, "turns": 0.01}, "weight": 1.0},
        learning={"aggregate": "mean", "wait_s": 0.0},
        **TASKS,
    )
    turns = [turn(world) for _ in range(3)]
    for number, one in enumerate(turns):
        world.outcome(one, answer=f"answer {number}", cost={"dollars": 0.1 * (number + 1)})
    assert [world.router.decision(one.id).outcome.answer for one in turns] == ["answer 0", "answer 1", "answer 2"]
    world.feedback(turns[1], rating=1.0)
    world.feedback(turns[2], rating=0.5)
    assert world.learn() == 0
    assert cost_of(world, turns[0]).dollars == pytest.approx(0.6)
    assert cost_of(world, turns[0]).turns == 2
    assert cost_of(world, turns[2]).dollars == pytest.approx(0.3)
    world.now += 301.0
    assert world.learn() == 1
    (update,) = world.updates()
    assert (update["decision_id"], update["quality"]) == (turns[0].id, pytest.approx(0.75))
    assert update["cost"] == pytest.approx(0.6 + 2 * 0.01)
    counters = world.counters()
    assert (counters.decided, counters.learned, counters.waiting, counters.closed) == (1, 1, 0, 0)
    assert world.router.verify(deep=True).ok


def test_turns_after_its_end_cost_apart(make_world, database_url):
    """The outcome of a turn that comes after the decision was learned does not change what was learned."""
    world = make_world(database_url=database_url, **TASKS)
    first, second = turn(world), turn(world)
    world.outcome(first, cost={"dollars": 0.1})
    world.feedback(first, rating=1.0)
    with world.database.write() as connection:
        assert end_tasks(connection, [first.id], now=world.now) == [first.id]
        assert end_tasks(connection, [first.id], now=world.now) == []
    assert world.learn() == 1
    world.outcome(second, cost={"dollars": 0.4})
    assert cost_of(world, first).dollars == pytest.approx(0.1)
    with world.database.read() as connection:
        stored = connection.execute(select(outcomes.c.cost).where(outcomes.c.decision_id == first.id)).scalar()
    assert json.loads(stored)["late"]["dollars"] == pytest.approx(0.4)
    assert place(turn(world)) == (1, None)
    assert world.router.verify(deep=True).ok


@on_sqlite
def test_an_outcome_that_is_faster_than_the_first(make_world, database_url):
    """The outcome of a later turn may come before that of the decision: no cost is lost."""
    world = make_world(database_url=database_url, **TASKS)
    turns = [turn(world) for _ in range(3)]
    for one in (turns[2], turns[0], turns[1]):
        world.outcome(one, cost={"dollars": 0.1})
    assert cost_of(world, turns[0]).dollars == pytest.approx(0.3)


@on_sqlite
def test_a_task_leaves_an_arm_that_cannot_answer(make_world, database_url):
    """Not allowed, taken out of the offer, or failing: the turn gets another arm, which the next turns keep. It is no
    draw, and belongs to the first decision.
    """
    world = make_world(database_url=database_url, health={"failures": 2, "cool_down_s": 60.0}, **TASKS)
    first = turn(world)
    others = tuple(arm for arm in first.arms if arm != first.arm)
    moved = turn(world, arms=others)
    assert (place(moved), moved.arm in others, moved.pmf) == ((2, first.id), True, (1.0,))
    assert MovedTurn.of(moved.facts)
    stays = turn(world)
    assert (place(stays), stays.arm, MovedTurn.of(stays.facts)) == ((3, first.id), moved.arm, None)
    for _ in range(2):
        failing = turn(world, session=None, arms=(moved.arm,))
        world.store.add_outcome(
            make_outcome(decision_id=failing.id, now=world.now, status="failed", stop_reason="error")
        )
    world.router.service.refresh_steps()
    again = turn(world)
    assert (place(again), again.arm != moved.arm) == ((4, first.id), True)
    assert "fails" in MovedTurn.of(again.facts).reason
    assert world.router.verify(deep=True).ok


@on_sqlite
def test_a_wrong_arm_is_found(make_world, database_url):
    """A turn with an arm that neither the decision nor a moved turn has is a mismatch."""
    world = make_world(**TASKS)
    first, second = turn(world), turn(world)
    assert world.router.verify().ok
    other = next(arm for arm in first.arms if arm != second.arm)
    world.write(decisions.update().where(decisions.c.id == second.id).values(arm=other, arms=json.dumps([other])))
    assert world.router.verify().propensity_mismatches == 1


def test_first_turns_at_once(make_world, settings, database_url):
    """32 first turns reach two routers: one becomes the decision, and the others become turns of it."""
    world = make_world(database_url=database_url, **TASKS)
    other = Router.open(world.settings, jobs=MemoryJobs())
    try:
        other.service.clock = world.clock
        routers = [world.router, other] * 16
        queries = [Query(text=f"question {number}", session="storm") for number in range(len(routers))]
        with ThreadPoolExecutor(len(routers)) as pool:
            made = list(pool.map(lambda router, query: router.route(query, timeout_s=60.0), routers, queries))
    finally:
        other.close()
    (first,) = [one for one in made if one.turn_of is None]
    assert {one.turn_of for one in made if one is not first} == {first.id}
    assert {one.arm for one in made} == {first.arm}
    assert len({one.id for one in made}) == len(made)
    assert world.counters().decided == 1
    with world.database.read() as connection:
        (row,) = connection.execute(select(units)).mappings()
        assert (row["first"], row["turns"]) == (first.id, len(made))
        assert len(connection.execute(select(waiting)).all()) == 1


@on_sqlite
def test_a_repeated_id_is_one_turn(make_world, database_url):
    """The same request again gets the stored turn, and no second one."""
    world = make_world(**TASKS)
    first = turn(world, id=next(ids), text="one")
    again = turn(world, id=first.id, text="one")
    second = turn(world, id=next(ids), text="two")
    assert again.id == first.id
    assert turn(world, id=second.id, text="two").id == second.id
    assert place(turn(world))[0] == 3


@on_sqlite
def test_reports_count_tasks(make_world, database_url):
    """A report reads decisions: a task is one row with the cost of its turns."""
    world = make_world(reward={"cost": {"dollars": 1.0}}, **TASKS)
    for number in range(4):
        turns = [turn(world, session=f"s{number}") for _ in range(3)]
        for one in turns:
            world.outcome(one, cost={"dollars": 0.1})
        world.feedback(turns[2], rating=1.0)
    world.now += 400.0
    assert world.learn() == 4
    rows = read_log(world.database, ReportScope(label=world.store.label, since=EPOCH, until=world.now))
    assert len(rows.arm) == 4
    assert rows.costs["dollars"] == pytest.approx([0.3] * 4)
    assert rows.left_out == {}
    turn(world, session="another")
    rows = read_log(world.database, ReportScope(label=world.store.label, since=EPOCH, until=world.now + 1.0))
    assert rows.left_out == {"a task that has not ended": 1}


@on_sqlite
def test_to_erase_a_session_erases_all_turns(make_world, database_url):
    """Also a turn that has no session of its own, and the decision of a turn."""
    world = make_world(**TASKS)
    first, second = turn(world), turn(world)
    world.write(decisions.update().where(decisions.c.id == second.id).values(session=None))
    done = erase(world.database, Selection(session="chat-1"), features=False, actor="me", now=world.now)
    assert done.decisions == 2
    with world.database.read() as connection:
        assert set(connection.execute(select(decisions.c.text)).scalars()) == {""}
        assert list(connection.execute(select(closures.c.decision_id)).scalars()) == [first.id]
    assert world.router.verify().ok


def test_old_tasks_are_deleted_and_counted(make_world, database_url):
    """Retention deletes turns with their decisions, and the counters stay right."""
    world = make_world(database_url=database_url, **TASKS)
    for number in range(3):
        turns = [turn(world, session=f"s{number}") for _ in range(3)]
        for one in turns:
            world.outcome(one)
        world.feedback(turns[0], rating=1.0)
    world.now += 400.0
    assert world.learn() == 3
    world.write(updates.update().values(made_at=EPOCH))
    assert world.router.verify().ok
    retention = Retention(world.database, holder="me", days=0.0, clock=lambda: world.now + 1e6)
    retention.update_bounds = lambda _connection: None
    retention._made_before = retention._ended_before = world.now + 1e6
    retention._last_seqs = {world.store.label: 3}
    while retention.step() is not None:
        pass
    with world.database.read() as connection:
        assert [connection.execute(select(table)).all() for table in (decisions, units, outcomes, feedback)] == [[]] * 4
    assert world.counters().decided == 3


@on_sqlite
def test_an_arm_that_answers_in_place_of_another_belongs_to_the_task(make_world, database_url):
    """The decision that replaces a failed first turn is a turn of it, so its cost and its feedback count there."""
    world = make_world(**TASKS)
    first = turn(world)
    other = next(arm for arm in first.arms if arm != first.arm)
    continues = Continues(failed=FailedArm(first=first.id, attempt=2, arm=first.arm, reason="timeout"))
    query = replace(first.query, id=next(ids), arm_by="failover", arms=(other,), continues=continues)
    instead = replace(first, id=query.id, query=query, arm=other, arms=(other,), pmf=(1.0,), propensity=1.0, facts={})
    failed = make_outcome(
        decision_id=first.id, now=world.now, status="failed", stop_reason="error", cost={"dollars": 0.1}
    )
    assert world.store.add_outcome(failed, successor=replace(instead, turn_of=first.id))
    world.outcome(instead, cost={"dollars": 0.3})
    world.feedback(instead, rating=1.0)
    assert cost_of(world, first).dollars == pytest.approx(0.4)
    world.now += 400.0
    assert world.learn() == 1
    assert world.updates()[0]["decision_id"] == first.id


@on_sqlite
def test_a_budget_that_refuses_a_turn_ends_the_task(make_world, database_url):
    """No other arm goes on with it, and the decision is closed without a quality."""
    world = make_world(database_url=database_url, **TASKS)
    first, second = turn(world), turn(world)
    world.outcome(first)
    world.feedback(first, rating=1.0)
    world.store.stop_task(second.query, now=world.now)
    world.store.stop_task(second.query, now=world.now)
    record = world.router.decision(first.id)
    assert (record.state, record.reason) == ("closed", "a budget stopped the task")
    counters = world.counters()
    assert (counters.decided, counters.closed, counters.waiting) == (1, 1, 0)
    assert world.learn() == 0
    assert place(turn(world)) == (1, None)
    assert world.router.verify().ok
    rows = read_log(world.database, ReportScope(label=world.store.label, since=EPOCH, until=world.now + 400.0))
    assert [rows.arms[place] for place in rows.arm[rows.stopped]] == [first.arm]


@on_sqlite
def test_no_later_ledger_learns_a_task_that_a_budget_stopped(make_world, database_url):
    """A ledger that is learned from the whole store closes what a budget stopped, and learns the other tasks."""
    world = make_world(database_url=database_url, **TASKS)
    ended, first = turn(world, session="ended"), turn(world)
    for decision in (ended, first):
        world.outcome(decision)
        world.feedback(decision, rating=0.0)
    world.store.stop_task(turn(world).query, now=world.now)
    world.store.end_session("ended", tenant="default", now=world.now)
    assert world.learn() == 1
    learn = {"make_learner": partial(make_learner, world.settings), "now": world.now, "progress": lambda _: None}
    learn_new_ledger(world.ledger, label="second", **learn)
    with world.database.read() as connection:
        learned = connection.execute(select(updates.c.decision_id).where(updates.c.policy == "second")).scalars().all()
        closed = connection.execute(select(closures.c["decision_id", "reason"]).where(closures.c.policy == "second"))
        assert (learned, closed.all()) == ([ended.id], [(first.id, STOPPED)])
        assert stored_counts(connection, label="second") == row_counts(connection, label="second")
