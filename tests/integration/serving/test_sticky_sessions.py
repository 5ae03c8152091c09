"""Sticky sessions: which turns stay, what their rows say, and what learning, verify and replay make of them."""

import itertools
import json
from uuid import UUID

import pytest

from ragbandit.router.offline.logs import write_rows
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.offline.replay import open_log, replay
from ragbandit.router.offline.replay.plan import Plan
from ragbandit.router.serving.checks.reports import made_outcome
from ragbandit.router.serving.deciding.steps.cached_prefixes import CachedPrefix, CachedPrefixes
from ragbandit.router.serving.deciding.steps.needs import TOKENS
from ragbandit.router.storage.decisions.tool_turns import TOOL_TURN
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.types import DERIVED, Conversation, DecisionId, Query, StickyTurn

STICKY_3 = {"conversation": {"sticky_turns": 3}}
ids = (DecisionId(str(UUID(int=number))) for number in itertools.count(1))


def turn(world, session="chat-1", **more):
    """The next turn of a session, a second after the previous one."""
    world.now += 1.0
    text = more.pop("text", f"turn at {world.now}")
    return world.router.route(Query(text=text, session=session, id=next(ids), **more))


def stayed(decision):
    """(place since the draw, the decision that drew) of a turn that stayed, else None."""
    facts = decision.facts.get(StickyTurn.key)
    return None if facts is None else (facts["turn"], facts["first"])


def test_a_session_stays_for_so_many_turns(make_world):
    """The first turn is drawn, the next two stay on its arm with probability 1; then the policy draws again."""
    world = make_world(**STICKY_3)
    turns = [turn(world) for _ in range(7)]
    firsts = [turns[0].id, turns[3].id, turns[6].id]
    assert [stayed(one) for one in turns] == [
        None, (2, firsts[0]), (3, firsts[0]), None, (2, firsts[1]), (3, firsts[1]), None
    ]  # fmt: skip
    assert len({one.arm for one in turns[:3]}) == len({one.arm for one in turns[3:6]}) == 1
    for one in (turns[1], turns[2], turns[4]):
        assert (one.arms, one.pmf, one.propensity, one.explored) == ((one.arm,), (1.0,), 1.0, False)
    assert all(len(one.pmf) == 3 and one.propensity < 1.0 for one in (turns[0], turns[3], turns[6]))
    assert world.router.decision(turns[1].id).decision.facts == turns[1].facts


def test_sessions_are_apart(make_world):
    """Another session, the same id of another tenant, and questions without one are drawn for themselves."""
    world = make_world(**STICKY_3)
    turn(world)
    assert stayed(turn(world, session="chat-2")) is None
    assert stayed(turn(world, tenant="acme")) is None
    assert stayed(turn(world, session=None)) is None
    assert stayed(turn(world)) is not None


def test_an_arm_that_is_gone_ends_the_stay(make_world):
    """Taken out of the offer, not allowed by the question, or failing: the turn is drawn among what there is."""
    world = make_world(health={"failures": 2, "cool_down_s": 60.0}, **STICKY_3)
    first = turn(world)
    others = tuple(arm for arm in first.arms if arm != first.arm)
    limited = turn(world, arms=others)
    assert stayed(limited) is None
    assert limited.arm in others
    arms = {name: {} for name in first.arms if name != limited.arm}
    world.restart(arms=arms)
    moved = turn(world)
    assert stayed(moved) is None
    assert moved.arm != limited.arm
    for _ in range(2):
        made = turn(world, session=None, arms=(moved.arm,))
        world.store.add_outcome(made_outcome(decision_id=made.id, now=world.now, status="failed", stop_reason="error"))
    world.router.service.refresh_steps()
    again = turn(world)
    assert stayed(again) is None
    assert again.arm != moved.arm


def test_with_an_incumbent_every_turn_is_drawn(make_world):
    """What an incumbent promises holds for draws: a question that asks to stay is drawn all the same."""
    world = make_world(policy={"incumbent": "single_step"})
    assert [stayed(turn(world, sticky_turns=3)) for _ in range(3)] == [None] * 3


def talked(world, *, sessions=30, turns=3):
    """Sessions that are judged and learned; returns the decisions."""
    made = [[turn(world, session=f"chat-{number}") for _ in range(turns)] for number in range(sessions)]
    for talk in made:
        for one in talk:
            world.feedback(one, reward=0.9 if one.arm == "single_step" else 0.2)
    world.learn()
    return [one for talk in made for one in talk]


def test_turns_that_stay_are_learned_and_verified(make_world, database_url):
    """They are rows of the ledger like others, counted, replayed bit for bit, and verify draws all of them again."""
    world = make_world(database_url=database_url, **STICKY_3)
    made = talked(world)
    assert world.counters().learned == len(made) == 90
    assert sum(stayed(one) is not None for one in made) == 60
    assert world.sha256(world.replayed()) == world.sha256(world.router.service.serving.policy)
    verified = world.router.verify(deep=True)
    assert verified.ok
    assert verified.deep_decisions == 90


def test_a_stay_that_did_not_happen_is_found(make_world):
    """A row that says that it stayed, on another arm than the draw that it names, is a mismatch."""
    world = make_world(**STICKY_3)
    decision = talked(world, sessions=3)
    assert world.router.verify().ok
    last = decision[-1]
    other = next(arm for arm in decision[-3].arms if arm != last.arm)
    world.write(decisions.update().where(decisions.c.id == last.id).values(arm=other, arms=json.dumps([other])))
    assert world.router.verify().propensity_mismatches == 1


def test_replay_leaves_them_out(make_world, tmp_path):
    """No candidate could have moved them: estimates from store and file are those of the drawn turns alone."""
    world = make_world(**STICKY_3)
    talked(world)
    candidates = ["fixed:single_step", "uniform"]
    replayed = replay(open_log(config=world.settings), candidates=candidates, plan=Plan(baseline="logged"))
    assert replayed.rows == 30
    assert any("60 decisions are left out" in note for note in replayed.notes)
    read = replay(open_log(config=world.settings), candidates=[*candidates, "linucb"], settings=world.settings)
    assert read.rows == 30
    assert any("60 decisions are left out: their arm was not drawn" in note for note in read.notes)
    for name in ("log.jsonl", "log.parquet"):
        file = exported(world, tmp_path / name)
        of_file = replay(open_log(file, config=world.settings), candidates=candidates)
        assert of_file.rows == 30
        for mine, theirs in zip(replayed.candidates, of_file.candidates, strict=True):
            assert mine.reward.estimate == pytest.approx(theirs.reward.estimate, abs=1e-12)


def exported(world, path):
    """The ledger in a file."""
    write_rows(path, ledger_rows(world.ledger))
    return path


PRICED = {
    "conversation": {"sticky_prefix": True},
    "generator": {"name": "scripted", "token_prices": {"input": 2.0, "output": 2.0, "cached_input": 0.5}},
    "reward": {"cost": {"dollars": 1.0}, "weight": 10.0},
}


@pytest.mark.parametrize(("tokens", "stays"), [(100_000, True), (0, False)])
def test_a_cached_prompt_that_is_dearer_than_the_gain(make_world, tokens, stays):
    """The turn stays on the arm that has the prompt, and says why; without prompt or session it is drawn."""
    world = make_world(**PRICED)
    first = turn(world)
    cost = {"prompt_tokens": tokens, "dollars": 0.2}
    world.store.add_outcome(made_outcome(decision_id=first.id, now=world.now, status="answered", cost=cost))
    damaged = turn(world, session="chat-2")
    world.store.add_outcome(made_outcome(decision_id=damaged.id, now=world.now, status="answered"))
    world.write(outcomes.update().where(outcomes.c.decision_id == damaged.id).values(cost="torn"))
    assert stayed(turn(world, session="chat-2")) is None
    second = turn(world)
    assert stayed(turn(world, session=None)) is None
    if not stays:
        assert stayed(second) is None
        return
    prefix = CachedPrefix.of(second.facts)
    assert (second.arm, second.arms, second.propensity) == (first.arm, (first.arm,), 1.0)
    assert stayed(second) == (2, first.id)
    assert prefix.saves == pytest.approx(10.0 * tokens * 1.5 / 1e6)
    assert 0.0 <= prefix.gain <= prefix.saves
    assert "quality" not in second.facts
    verdict = world.router.verify()
    assert verdict.propensity_mismatches == 0


def test_a_stay_for_a_prompt_is_no_draw_of_an_incumbent(make_world):
    """What an incumbent promises holds for turns that are drawn: both together are refused."""
    with pytest.raises(ValueError, match="sticky_prefix: false"):
        make_world(policy={"incumbent": "single_step"}, conversation={"sticky_prefix": True})


WRITTEN = {"input": 2.0, "output": 2.0, "cached_input": 0.5, "cache_write": 2.5}


def talk(world, *, idle_s, chat=None, **cost):
    """The second turn of a session, `idle_s` after the first, whose prompt had 100,000 tokens."""
    first = turn(world, conversation=Conversation(fields=chat or {}))
    cost = {"prompt_tokens": 100_000, "dollars": 0.2, **cost}
    world.store.add_outcome(made_outcome(decision_id=first.id, now=world.now, status="answered", cost=cost))
    world.now += idle_s - 1.0
    return turn(world)


@pytest.mark.parametrize(
    ("idle_s", "chat", "stays"),
    [
        (299.0, {}, True),
        (301.0, {}, False),
        (301.0, {"tools": [{"cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, True),
        (301.0, {"messages": [{"content": [{"cache_control": {"ttl": "5m"}}, None]}, 17]}, False),
        (3601.0, {"cache_control": {"ttl": "1h"}}, False),
        (80_000.0, {"prompt_cache_retention": "24h", "messages": None}, True),
        (301.0, {"prompt_cache_retention": None, "cache_control": "1h", "tools": {"cache_control": {"ttl": 1}}}, False),
    ],
)
def test_a_saving_lasts_as_long_as_the_cache(make_world, idle_s, chat, stays):
    """An arm is kept within the generator's `cache_ttl_s`, or the longer time that the previous request asked for."""
    second = talk(make_world(**PRICED), idle_s=idle_s, chat=chat)
    assert (stayed(second) is not None) == stays
    assert (CachedPrefix.of(second.facts).expired_s is None) == stays
    assert any("has expired" in sentence for sentence in CachedPrefixes.explain(second)) != stays


@pytest.mark.parametrize(("cost", "saved"), [({}, 0), ({"cache_write_tokens": 40_000, "cached_tokens": 2_000}, 42_000)])
def test_tokens_that_a_provider_writes_to_its_cache_are_measured(make_world, cost, saved):
    """If writes to the cache have a price of their own, only tokens that were reported as written or read are saved."""
    world = make_world(**{**PRICED, "generator": {"name": "scripted", "token_prices": WRITTEN}})
    prefix = CachedPrefix.of(talk(world, idle_s=60.0, **cost).facts)
    assert (0.0 if prefix is None else prefix.saves) == pytest.approx(10.0 * saved * 1.5 / 1e6)


def test_a_cache_that_is_never_read_keeps_no_arm(make_world):
    """After a turn that kept its arm and read no cached token, the next turn is drawn."""
    world = make_world(**PRICED)
    second = talk(world, idle_s=60.0)
    cost = {"prompt_tokens": 100_000, "dollars": 0.2}
    world.store.add_outcome(made_outcome(decision_id=second.id, now=world.now, status="answered", cost=cost))
    assert stayed(second) is not None
    assert stayed(turn(world)) is None


def test_the_last_turn_of_a_tool_loop_has_the_prompt(make_world):
    """After a long tool loop the arm is kept for the tokens and by the time of the loop's last request."""
    world = make_world(**PRICED)
    first = last = turn(world)
    for number in range(2, 9):
        cost = {"prompt_tokens": 10_000 * number, "cached_tokens": 9_000, "dollars": 0.1}
        world.store.add_outcome(made_outcome(decision_id=last.id, now=world.now, status="answered", cost=cost))
        world.now += 200.0
        if number < 8:
            facts = {TOOL_TURN: {"first": first.id, "previous": last.id, "turn": number}}
            last = turn(world, arms=(first.arm,), forced=True, request=facts)
    decision = turn(world)
    assert stayed(decision) == (2, first.id)
    assert CachedPrefix.of(decision.facts).saves == pytest.approx(10.0 * 80_000 * 1.5 / 1e6)


def test_a_derived_session_saves_at_most_this_prompt(make_world):
    """If a longer conversation began alike, only as many tokens count as the new prompt has."""
    world = make_world(**PRICED)
    session = f"{DERIVED}4711"
    first = turn(world, session=session)
    cost = {"prompt_tokens": 100_000, "dollars": 0.2}
    world.store.add_outcome(made_outcome(decision_id=first.id, now=world.now, status="answered", cost=cost))
    second = turn(world, session=session, request={TOKENS: 50_000})
    assert CachedPrefix.of(second.facts).saves == pytest.approx(10.0 * 50_000 * 1.5 / 1e6)
