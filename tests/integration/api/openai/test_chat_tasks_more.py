"""Tasks over HTTP: results of tools in chats without an id, and keys."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.access.reservations import no_reservation, settle
from ragbandit.router.storage.access.spending import spenders_of
from ragbandit.shared.types import MovedTurn, Query
from tests.integration.api.openai.test_chat_tasks import CALLS, FIRST, RESULT, TOOLS, chats, number
from tests.support.additions import marked

__all__ = ["chats"]
CALL = {"role": "assistant", "content": None, "tool_calls": CALLS}


def said(text):
    return [{"role": "user", "content": text}]


def test_a_question_behind_results_stays_in_the_task(chats):
    """A chat without an id may send a question behind the results, or in place of them, but not both."""
    world = chats(calls=True)
    question = said("Go on, please.")
    for begin, results in ((FIRST, [RESULT]), (said("And tomorrow?"), [])):
        first = world.post(begin, tools=TOOLS)
        assert world.post([*begin, CALL, *results, *question], tools=TOOLS).turn_of == first.id
    assert world.post([*FIRST, CALL, *question], tools=TOOLS).turn_of is None
    assert world.post([*FIRST, {**CALL, "tool_calls": [{**CALLS[0], "id": "call_9"}]}, *question]).turn_of is None


def test_a_task_goes_on_after_its_longest_loop(chats):
    """After `tool_turns` requests of a loop, the task of a chat without an id goes on, as that of one with an id."""
    world = chats(calls=True, tool_turns=2)
    first = world.post(FIRST, tools=TOOLS)
    assert world.post([*FIRST, CALL, RESULT], tools=TOOLS).turn_of == first.id
    third = world.post([*FIRST, CALL, RESULT, CALL, RESULT], tools=TOOLS)
    assert (third.turn_of, number(third)) == (first.id, 3)


def test_a_key_of_tasks_may_name_an_arm(chats):
    """A chat that names its arm is no part of a task, so it needs no id of a conversation."""
    world = chats()
    key = KeyStore(world.router.database).create(
        name="a", role="app", now=time.time(), actor="cli:test", scopes={"unit": "task"}
    )
    world.service.app.state.gate.ring.known = None
    world.keys.append(key.text)
    for more in ({"key": 1}, {"x-ragbandit-unit": "task"}):
        reply = world.send("/v1/chat/completions", {"model": "arm/small", "messages": FIRST}, **more)
        assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("key", [0, 1])
def test_a_key_ends_its_own_session(chats, key):
    """Two keys of a tenant may use the same id: each one ends and judges its own task."""
    world = chats(keys=2)
    headers = {"x-ragbandit-session-id": "1"}
    firsts = [world.post(FIRST, headers=headers, key=one) for one in (0, 1)]
    ended = world.send("/v1/sessions/1/end", {"feedback": {"rating": True, "source": "code"}}, key=key).json()
    assert (ended["decision_id"], ended["ended"]) == (firsts[key].id, 1)
    assert world.post(FIRST, headers=headers, key=1 - key).turn_of == firsts[1 - key].id


@pytest.mark.parametrize("unit", ["task", "turn"])
def test_a_spent_budget_moves_loops_and_turns(chats, unit):
    """When the budget is spent, results of tools and further questions leave an expensive arm. A loop and a task
    stay one decision.
    """
    sections = {
        "policy": {"name": "mba"},
        "reward": {"cost": {"dollars": 1.0}},
        "tenants": {"acme": {"dollars_per_day": 1.0, "cost_weight": 0.0}},
    }
    world = chats(calls=True, unit=unit, sections=sections)
    router = world.router
    for count in range(40):
        decision = router.route(Query(text=f"question {count}"))
        dollars = {"large": 1.0, "small": 0.01}[decision.arm]
        router.outcome(decision.id, answer="x", steps=1, cost={"dollars": dollars})
        router.feedback(decision.id, rating=True)
    router.learn()
    key = KeyStore(router.database).create(
        name="a", role="app", now=time.time(), actor="cli:test", tenant="acme", scopes={}
    )
    world.service.app.state.gate.ring.known = None
    world.keys[0] = key.text
    firsts = (world.post(FIRST, tools=TOOLS, headers={"x-ragbandit-session-id": f"s{count}"}) for count in range(100))
    first = next(decision for decision in firsts if decision.arm == "large")
    headers = {"x-ragbandit-session-id": first.query.session}
    messages = [*FIRST, CALL, RESULT]
    before = world.post(messages, tools=TOOLS, headers=headers)
    assert (before.turn_of, before.arm) == (first.id, "large")
    settle(router.database, no_reservation(spenders_of("acme", key=None), at=time.time()), dollars=2.0)
    world.service.app.state.budgets._cached.clear()
    messages += [CALL, RESULT]
    moved, again = (
        world.post(messages, tools=TOOLS, headers=headers),
        world.post([*messages, CALL, RESULT], tools=TOOLS, headers=headers),
    )
    assert [(one.turn_of, one.arm) for one in (moved, again)] == [(first.id, "small")] * 2
    assert (MovedTurn.of(moved.facts) is not None, MovedTurn.of(again.facts)) == (True, None)
    question = world.post([*FIRST, {"role": "user", "content": "And low tide?"}], headers=headers)
    assert question.pmf[question.arms.index("small")] > 0.95
    assert question.arm == "small" or unit == "turn"  # in a draw, the other arm has its floor
    assert question.turn_of == (first.id if unit == "task" else None)
    assert router.verify().ok


def after_hi(text):
    """The chat of a user who said hi, got the greeting, and says this."""
    return [*said("hi"), {"role": "assistant", "content": "At noon."}, *said(text)]


@pytest.mark.parametrize("door", marked(["/v1/chat/completions", "/v1/messages"]))
def test_chats_that_begin_alike_are_apart(chats, door):
    """Users who say the same, get the same answer, and then ask different things have a task each, which goes on."""
    world = chats()

    def post(messages):
        reply = world.send(door, {"model": "auto", "max_tokens": 9, "messages": messages})
        assert reply.status_code == 200, reply.text
        return world.router.decision(reply.headers["x-ragbandit-decision-id"]).decision

    firsts = [post(said("hi")) for _ in range(5)]
    seconds = [post(after_hi(f"I am user {number}")) for number in range(5)]
    assert [one.turn_of for one in (*firsts, *seconds)] == [None] * 10
    assert len({one.query.session for one in (*firsts, *seconds)}) == 10
    third = [*after_hi("I am user 3"), {"role": "assistant", "content": "At noon."}, *said("And you?")]
    assert post(third).turn_of == seconds[3].id


def test_an_answer_continues_one_chat(chats):
    """The first request that continues an answer stays in its task; the same chat again, as a retry or to get another
    answer, stays there too, and another continuation begins a new task.
    """
    world = chats()
    first, second = world.post(said("hi")), world.post(after_hi("a"))
    assert second.turn_of == first.id
    other = world.post(after_hi("b"))
    assert (other.turn_of, other.query.session == first.query.session) == (None, False)
    assert world.post(after_hi("a")).turn_of == first.id
    again = [*after_hi("a"), {"role": "assistant", "content": "At noon."}, *said("c")]
    assert world.post(again).turn_of == first.id
    assert world.post([*after_hi("b"), {"role": "assistant", "content": "At noon."}, *said("c")]).turn_of == other.id


def test_a_retry_with_its_key_is_the_same_turn(chats):
    """A request with an idempotency key that comes again gets its stored turn, although it has taken the answer."""
    world = chats()
    first = world.post(said("hi"))
    key = {"idempotency-key": "retry-1"}
    second, again = world.post(after_hi("a"), headers=key), world.post(after_hi("a"), headers=key)
    assert (second.turn_of, again.id) == (first.id, second.id)
    begun = world.post(after_hi("b"), headers={"idempotency-key": "retry-2"})
    assert world.post(after_hi("b"), headers={"idempotency-key": "retry-2"}).id == begun.id


def test_continuations_at_once(chats, postgres_url):
    """If several requests continue one answer at once, one stays in the task, and the others begin their own tasks."""
    world = chats(sections={"database_url": postgres_url})
    first = world.post(said("hi"))
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: world.post(after_hi(f"user {number}")), range(8)))
        same = list(pool.map(lambda _: world.post(after_hi("user 0")), range(4)))
    assert [one.turn_of for one in made if one.turn_of is not None] == [first.id]
    assert len({one.query.session for one in made}) == 8
    stays = first.id if made[0].turn_of is not None else None
    assert {one.turn_of for one in same} == ({stays} if stays else {None})
    assert world.router.verify().ok


def test_a_preview_ends_no_task(chats):
    """A budget that stops refuses a preview, and leaves the open task as it is; a question that it refuses ends it."""
    world = chats(sections={"tenants": {"acme": {"dollars_per_day": 1.0, "budget_stop": True}}})
    router = world.router
    key = KeyStore(router.database).create(name="a", role="app", now=time.time(), actor="cli:test", tenant="acme")
    world.service.app.state.gate.ring.known = None
    world.keys[0] = key.text
    headers = {"x-ragbandit-session-id": "s"}
    first = world.post(FIRST, headers=headers)
    settle(router.database, no_reservation(spenders_of("acme", key=None), at=time.time()), dollars=2.0)
    world.service.app.state.budgets._cached.clear()
    states = []
    for more in ({"x-ragbandit-preview": "true"}, {}):
        reply = world.send("/v1/chat/completions", {"model": "auto", "messages": FIRST}, **headers, **more)
        assert reply.status_code == 429, reply.text
        states.append(router.decision(first.id).state)
    assert states == ["waiting", "closed"]
