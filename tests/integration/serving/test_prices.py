"""Questions at a price of their own: what is served, stored, learned and verified."""

import pytest
from sqlalchemy import select

from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import Query

PRICES = {"cost_weights": {"economy": 0.2, "quality": 0.0}, "reward": {"weight": 0.05}}


def asked(world, wanted, *, key=None, text="who?"):
    return world.router.submit(Query(text=text, id=key, cost_weight=wanted), run_by="caller").result(30)


def judged(world, wanted, *, text="who?"):
    decision = asked(world, wanted, text=text)
    steps = {"no_retrieval": 0.0, "single_step": 1.0}.get(decision.arm, 4.0)
    world.store.add_outcome(make_outcome(decision_id=decision.id, now=world.now, status="answered", steps=steps))
    world.feedback(decision, rating=1.0)
    return decision


def test_from_question_to_ledger(make_world):
    """The weight stands in the row, the reward is made at it, the pmf is made again at it; the service's is none."""
    world = make_world(**PRICES)
    wanted = {None: 0.05, "economy": 0.2, "quality": 0.0, 0.5: 0.5}
    rounds = [judged(world, one, text=f"question {at}?") for at, one in enumerate([*wanted] * 8)]
    assert world.learn() == len(rounds)
    later = [asked(world, one) for one in wanted]
    assert [one.cost_weight for one in later] == [None, 0.2, 0.0, 0.5]
    assert [one.facts["weight"] for one in later] == [0.05, 0.2, 0.0, 0.5]
    assert len({one.pmf for one in later}) > 1
    for row, weight in zip(world.updates(), [*wanted.values()] * 8, strict=True):
        assert (row["weight"], row["value"]) == (weight, pytest.approx(1.0 - weight * row["cost"]))
    with world.database.read() as connection:
        stored = connection.execute(select(decisions.c.cost_weight, decisions.c.price).distinct()).all()
    assert set(stored) == {(None, None), (0.2, "economy"), (0.0, "quality"), (0.5, "0.5")}
    assert [world.store.record(one.id).decision.query.cost_weight for one in later] == [*wanted]
    assert world.sha256(world.replayed()) == world.sha256(world.router.service.serving.policy)
    verified = world.router.verify(deep=True)
    assert (verified.ok, verified.deep_decisions) == (True, len(rounds) + 4), verified.notes


def test_a_price_is_part_of_the_request(make_world):
    """The same id with another price is a conflict; with the same price it returns the same decision."""
    world = make_world(**PRICES)
    first = asked(world, "economy", key="once")
    assert asked(world, "economy", key="once").pmf == first.pmf
    for other in (None, 0.2, "quality"):
        with pytest.raises(Conflict):
            asked(world, other, key="once")
