"""Who chose the arm of a decision that the policy did not draw: it is stored, and decides what is learned."""

import random

import pytest
from sqlalchemy import select, update

from ragbandit.router.replies.decisions import record_json
from ragbandit.router.serving.deciding.steps.breaker import Breaker
from ragbandit.router.storage.policy_versions import set_switch
from ragbandit.router.storage.rows.queried_facts import QueriedFacts
from ragbandit.router.storage.sql.tables import closures, decisions, updates
from ragbandit.router.storage.totals import TotalsExtender
from ragbandit.shared.types import MOST_FACTOR, ONE_ARM_LEFT, Continues, Loop, Query, Sent, Terms
from tests.conftest import on_sqlite
from tests.support.stored_facts import UNFILLED

#: turns that a session may have
BEFORE = 6
#: how a release with schema 1006 stored that a limit of the session was reached
BEYOND = {"turn_limits": [{"of": "session", "unit": "turns", "most": 6, "used": 6}]}
SETTINGS = {
    "conversation": {"units": {"route": "turn"}, "session_limit": {"turns": 6}, "at_limit": "cheapest"},
    "context": {"region": {"type": "category", "values": ["eu", "us"]}},
    "rules": [{"name": "local", "when": {"context.region": "eu"}, "arms": ["no_retrieval"]}],
}


def asked(world, text="q", **query):
    return world.router.submit(Query(text=text, **query), run_by="caller").result(30)


def reach_limit(world):
    """Ask as many turns of the session "long" as its limit permits."""
    for _ in range(BEFORE):
        asked(world, session="long", arms=("no_retrieval", "single_step"))


def asked_beyond_limit(world):
    """The seventh turn of a session, with what a former release would have stored with it."""
    reach_limit(world)
    return asked(world, session="long", sent=Sent(others=BEYOND))


def stored(world, decision):
    """The column of the decision's row, and what would be read if a former release had inserted the row."""
    mine = decisions.c.id == decision.id
    with world.database.read() as connection:
        row = dict(connection.execute(select(decisions).where(mine)).mappings().one())
    return row["arm_by"], QueriedFacts.of_unfilled(row | UNFILLED).arm_by


@pytest.fixture
def world(make_world, database_url):
    return make_world(database_url=database_url, **SETTINGS)


def made_by_each(world):
    """arm_by -> a decision whose arm it chose, with the decisions that these belong to as None."""
    first = asked(world, session="task", unit="task")
    world.outcome(first)  # with calls of tools
    results = Continues(loop=Loop(first=first.id, previous=first.id, turn=2))
    made = {
        None: first,
        "caller": asked(world, arms=("single_step",), arm_by="caller"),
        "calls": asked(world, arms=(first.arm,), arm_by="calls", continues=results),
        "task": asked(world, session="task", unit="task"),
        "limit": asked_beyond_limit(world),
        "rule": asked(world, context={"region": "eu"}),
    }
    with world.database.write() as connection:
        switch = {"killed": "arm", "arm": "single_step", "actor": "cli:ann", "reason": "test", "now": world.now}
        set_switch(connection, base=world.store.label, **switch)
    world.router.refresh()
    made["kill switch"] = asked(world)
    return made


def test_each_chooser_is_stored(world):
    """The column names who chose the arm. The row of a former release is read alike, but not why one arm was left."""
    for by, decision in made_by_each(world).items():
        column, of_json = stored(world, decision)
        assert (by, column, decision.arm_by) == (by, by, by)
        assert of_json == ("only arm" if by in ONE_ARM_LEFT else by)
        assert world.router.decision(decision.id).decision.arm_by == by
        world.write(update(decisions).where(decisions.c.id == decision.id).values(UNFILLED))
        assert world.router.decision(decision.id).decision.arm_by == of_json


def test_an_arm_that_is_alone_in_a_list_is_the_callers_choice(world):
    """A question that allows one of several arms is stored and closed as one that names its arm."""
    decision = asked(world, arms=("multi_step",))
    world.outcome(decision)
    world.feedback(decision, rating=True)
    world.learn()
    record = world.router.decision(decision.id)
    assert (stored(world, decision)[0], record.decision.arm_by, record.decision.query.arm_by) == (*["caller"] * 2, None)
    assert (record.state, record.reason) == ("closed", "the caller chose the arm")
    assert record_json(record)["forced"]
    assert asked(world, arms=("multi_step",), id=decision.id).id == decision.id


def test_the_only_arm_of_a_request_is_the_callers_beyond_a_limit(world):
    """A question that allows one arm gets it beyond a limit, too, and the choice stays the caller's."""
    reach_limit(world)
    decision = asked(world, session="long", arms=("multi_step",))
    assert (decision.arm, decision.arm_by) == ("multi_step", "caller")


def test_the_only_arm_of_a_turn_is_the_callers(world):
    """A later turn of a task that allows one arm is the caller's choice, also if the task has this arm."""
    first = asked(world, session="task", unit="task")
    turn = asked(world, session="task", unit="task", arms=(first.arm,))
    assert (turn.turn_of, turn.arm, turn.arm_by) == (first.id, first.arm, "caller")


def test_the_only_arm_of_a_service_is_learned(make_world):
    """Where nobody has a choice, answers are learned, so that a second arm meets one that is known."""
    world = make_world(arms={"one": {"run_by": "caller"}})
    decision = asked(world, arms=("one",))
    world.outcome(decision)
    world.feedback(decision, rating=True)
    assert (decision.arm_by, world.learn()) == ("only arm", 1)


def test_an_arm_that_is_left_over_says_why(make_world):
    """The breaker is named if it has left one arm, and nobody if it has left several; a list of one is the caller's."""
    world = make_world(health={"failures": 1})
    poller = world.router.service.step(Breaker).poller
    healthy = {"no_retrieval": True, "single_step": False, "multi_step": False}
    poller.breaker.healthy = lambda wanted, **_: [tuple(arm for arm in arms if healthy[arm]) for arms in wanted]
    assert (asked(world).arm_by, asked(world, arms=("no_retrieval",)).arm_by) == ("breaker", "caller")
    assert asked(world, arms=("single_step", "multi_step")).arm_by is None
    healthy["multi_step"] = True
    assert asked(world).arm_by is None


def test_what_others_chose_is_closed_with_its_reason(world):
    """Decisions that a caller or a limit decided teach nothing. Those of rules and of the kill switch do."""
    made = made_by_each(world)
    for by in ("caller", "limit", "rule", "kill switch"):
        world.outcome(made[by])
        world.feedback(made[by], rating=True)
    world.learn()
    with world.database.read() as connection:
        learned = set(connection.execute(select(updates.c.decision_id)).scalars())
        reasons = dict(connection.execute(select(closures.c.decision_id, closures.c.reason)).all())
    assert learned == {made[by].id for by in ("rule", "kill switch")}
    assert reasons[made["limit"].id] == "a limit of its session or task chose the arm"
    assert reasons[made["caller"].id] == "the caller chose the arm"


def test_a_store_without_texts_knows_a_spent_budget(make_world):
    """Where texts are not stored, nothing is learned from a question whose budget was spent either."""
    arms = {name: {"run_by": "caller"} for name in ("one", "two")}
    world = make_world(arms=arms, log={"text": "none"})
    decision = asked(world, terms=Terms(budget_factor=MOST_FACTOR))
    world.outcome(decision)
    world.feedback(decision, rating=True)
    world.learn()
    record = world.router.decision(decision.id)
    assert (record.state, record.reason) == ("closed", "a spent budget chose the arm")


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_policy_has_not_decided_what_others_chose(world, is_counted):
    """`Update.decided` has no decision of the kill switch, a caller or a limit, once the totals have counted them."""
    made = made_by_each(world)
    limit, caller, pinned = made["limit"], made["caller"], made["kill switch"]
    world.now += 3600.0
    if is_counted:
        extender = TotalsExtender(world.database, holder="totals", weight=0.05, clock=world.clock)
        while extender.extend():
            pass
        extender.release()
    for by in ("rule", "kill switch"):
        world.outcome(made[by])
        world.feedback(made[by], rating=True)
    world.learn()
    decided = {row["decision_id"]: row["decided"] for row in world.updates()}
    counted = len(made) + BEFORE - 2  # two are turns of the first one
    drawn = counted - len([limit, caller, pinned]) * is_counted
    assert decided == {made["rule"].id: drawn, pinned.id: None}
    assert world.ledger.count_decided() == drawn
    assert world.router.verify(deep=True).ok


def probabilities(world, *, secret, others):
    """The probabilities of 30 questions. others: who chooses the arm of a badly rated question after each of them."""
    world.router.service.secret, made = secret, []
    reach_limit(world)
    for number in range(30):
        made.append(asked(world, f"question {number}", id=f"q{number}"))
        rated = [(made[-1], number % 3 > 0)]
        for by in others[number : number + 1]:
            query = {"session": f"s{number}", "id": f"{by}{number}".replace(" ", "-"), **BY_OTHERS[by]}
            rated.append((asked(world, f"another question {number}", **query), False))
        for decision, rating in rated:
            world.outcome(decision, cost={"dollars": 0.25})
            world.feedback(decision, rating=rating)
        world.now += 1.0
        if number % 5 == 4:
            world.learn()
    return [(one.arm, one.pmf) for one in made]


#: what chooses the arm of a question by its session, its caller or what is left of a budget -> facts of the query
BY_OTHERS = {
    "limit": {"session": "long"},
    "spent budget": {"terms": Terms(budget_factor=MOST_FACTOR)},
    "caller": {"arms": ("multi_step",), "arm_by": "caller"},
    "list of one": {"arms": ("multi_step",)},
}


@on_sqlite
@pytest.mark.parametrize("seed", range(3))
def test_what_selects_questions_changes_no_draw_of_others(make_world, tmp_path, database_url, seed):
    """Questions whose arm a limit, a spent budget or a caller chooses leave the draws of all others as they are."""
    settings = SETTINGS | {"policy": {"name": "mba"}, "learning": {"wait_s": 0.0}}
    chance, drawn = random.Random(seed), []
    for number, others in enumerate(([], chance.choices([*BY_OTHERS], k=30))):
        world = make_world(data_dir=str(tmp_path / f"{number}"), **settings)
        drawn.append(probabilities(world, secret=b"0" * 32, others=others))
        assert world.counters().learned == 30
    assert drawn[0] == drawn[1]
    assert len({pmf for _, pmf in drawn[0]}) > 1


@on_sqlite
def test_a_waiting_row_of_a_former_release_is_closed(world):
    """A decision that a limit decided before the upgrade waits, and is closed when its rating comes."""
    decision = asked_beyond_limit(world)
    world.write(update(decisions).where(decisions.c.id == decision.id).values(UNFILLED))
    world.outcome(decision)
    world.feedback(decision, rating=True)
    world.learn()
    assert (world.counters().closed, world.counters().learned) == (1, 0)
