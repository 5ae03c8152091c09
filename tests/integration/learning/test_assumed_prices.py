"""Calls without a price: rewards and limits count an assumed price, and sums of dollars do not count them."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import select

from ragbandit.router.config.sections import GeneratorSettings, assumed_prices
from ragbandit.router.config.settings import BudgetSettings, Settings
from ragbandit.router.learning.repricing import reprice
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import report
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.failover import replacement_decision
from ragbandit.router.storage.access.corrections import Correction
from ragbandit.router.storage.access.spending import UNIT, Spender, read_spending
from ragbandit.router.storage.access.turn_sums import ensure_sums, session_spender
from ragbandit.router.storage.sql.tables import updates
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import NO_CONVERSATION, Budget, PolicyLabel, Query
from ragbandit.strategies.base import Prompt, Request
from ragbandit.testing.openai_server import Reply, ScriptedServer
from ragbandit.workers.setup.generators import worker_arms
from ragbandit.workers.setup.loading import ArmLoader
from tests.support.examples import made_decision

CHARGED = {"reward": {"cost": {"dollars": 1.0}, "weight": 1.0}}
SMALL, LARGE, FREE = {"input": 1.0, "output": 2.0}, {"input": 10.0, "output": 1.0}, {"input": 0.0, "output": 0.0}
TOKENS = {"llm_calls": 1, "prompt_tokens": 3000, "completion_tokens": 100}


def priced(model, prices):
    return GeneratorSettings(name="openai", model=model, token_prices=prices)


@pytest.mark.parametrize(
    ("listed", "assumed"),
    [([SMALL, LARGE, None], (10.0, 1.0)), ([FREE, None], (0.0, 0.0)), ([None], ())],
    ids=["the dearest", "a list of 0", "no list"],
)
def test_the_dearest_listed_price_of_a_usual_call(listed, assumed):
    """What counts is the whole of a usual call, and not the largest number of a list."""
    generators = {str(place): priced(f"m{place}", prices) for place, prices in enumerate(listed)}
    assert tuple(assumed_prices(generators)) == assumed


@pytest.mark.parametrize(
    ("usage", "listed", "amounts"),
    [({}, None, (0.0, 0.0031)), ({}, FREE, (0.0, 0.0)), ({"cost": 0.5}, None, (0.5, 0.0))],
    ids=["no price", "a price of 0", "a price that the server tells"],
)
def test_only_a_call_without_a_price_gets_an_assumed_one(usage, listed, amounts):
    """The tokens of a call without a price are counted at the most expensive list."""
    counts = {"prompt_tokens": 300, "completion_tokens": 100, "total_tokens": 400}

    async def answer(settings):
        (arm,) = ArmLoader(settings).load({"b": worker_arms(settings)["b"]}).values()
        try:
            request = Request(prompt=Prompt(instructions="", body="Where?"), max_tokens=8)
            return await arm.generator.complete(request)
        finally:
            await arm.generator.close()

    with ScriptedServer([Reply(text="Paris", changes={"usage": counts | usage})]) as server:
        unpriced = {"name": "openai", "model": "gpt", "openai": {"base_url": server.url}, "token_prices": listed}
        known = {"name": "openai", "model": "dear", "token_prices": LARGE}
        arms = {"a": {"class": "model", "generator": "dear"}, "b": {"class": "model"}}
        settings = Settings.model_validate({"generator": unpriced, "generators": {"dear": known}, "arms": arms})
        done = asyncio.run(asyncio.wait_for(answer(settings), 20))
    assert (done.dollars, done.assumed_dollars) == pytest.approx(amounts)


def answer(world, decision, *, dollars=0.0, assumed=0.0):
    made = make_outcome(decision_id=decision.id, now=world.now, status="answered", answer="Paris", cost=TOKENS)
    cost = replace(made.cost, dollars=dollars, assumed_dollars=assumed)
    made_by = {"arm": decision.arm, "generator": "m", "params": {}}
    world.store.add_outcome(replace(made, run_by="worker", made_by=made_by, cost=cost))


def filled(make_world, **options):
    """A world with 12 rated answers of one session, and the arm whose answers have no price."""
    world = make_world(**CHARGED, **options)
    decisions = []
    for number in range(12):
        query = Query(text=f"question {number}?", session="s")
        decisions.append(world.router.submit(query, run_by="worker").result(30))
    unpriced = decisions[0].arm
    for decision in decisions:
        world.now += 1
        is_unpriced = decision.arm == unpriced
        answer(world, decision, dollars=0.0 if is_unpriced else 0.001, assumed=0.25 if is_unpriced else 0.0)
        world.feedback(decision, rating=True)
    assert world.learn() == 12
    return world, unpriced, [decision for decision in decisions if decision.arm == unpriced]


def reported(world):
    settings = world.settings
    scope = ReportScope(
        label=PolicyLabel(settings.policy.label), since=0.0, until=world.now + 10.0, reward=settings.reward
    )
    return report(world.database, scope, policy=settings.policy)


def test_rewards_and_limits_count_it_and_sums_do_not(make_world, database_url):
    """The reward and the session's limit have the assumed dollars; the tenant's sum and the report do not, and the
    report says how many answers have no price and compares no dollars.
    """
    world, arm, unpriced = filled(make_world, database_url=database_url)
    with world.database.write() as connection:
        costs = dict(connection.execute(select(updates.c.decision_id, updates.c.cost)).all())
        spender = session_spender("default", key=None, session="s")
        counted = ensure_sums(connection, [spender])[spender]
        booked = read_spending(connection, [Spender("tenant", "default")], now=world.now)
    assert {costs[one.id] for one in unpriced} == {0.25}
    others = 0.001 * (12 - len(unpriced))
    assert counted.units * UNIT == pytest.approx(others + 0.25 * len(unpriced))
    assert [sums.day for sums in booked.values()] == pytest.approx([others])
    shown = reported(world)
    assert shown.unpriced == {arm: len(unpriced)}
    assert shown.spent == pytest.approx(others)
    assert f"{len(unpriced)} answers without a price" in shown.sentence
    assert any(f"{len(unpriced)} answers of {arm} have no price" in note for note in shown.notes)
    assert {one.cost.estimate for one in shown.arms} == {None}
    assert world.router.verify(deep=True).ok


@pytest.mark.parametrize(("assumed", "left"), [(0.06, 0.04), (0.2, None)])
def test_a_failed_attempt_without_a_price_uses_up_the_limit_of_its_answer(assumed, left):
    """Another arm gets what is left of the limit in dollars, and none answers if nothing is left."""
    decision = made_decision(arm="a", query=Query(text="q?", budget=Budget(dollars=0.1)))
    made = make_outcome(decision_id=decision.id, now=1.0, status="failed", error="gone", cost=TOKENS)
    made_by = {"failure": {"kind": "failed", "status": 502}}
    failed = replace(made, made_by=made_by, cost=replace(made.cost, assumed_dollars=assumed))
    more = {"unhealthy": (), "conversation": NO_CONVERSATION, "limits": BudgetSettings(), "passing": {}}
    replaced = replacement_decision(decision, failed, arms=["b"], worker_arms={"a": {}, "b": {}}, secret=b"s", **more)
    assert (None if replaced is None else replaced.query.budget.dollars) == (left and pytest.approx(left))


def test_a_correction_gives_it_a_price(make_world):
    """`data reprice` replaces the assumed price, a price of 0 too, and a factor leaves it as it is."""
    world, arm, unpriced = filled(make_world)
    given = {"learn": None, "dry_run": False, "reason": "a test", "actor": "me", "now": world.now}
    with pytest.raises(InvalidInput, match="have no price"):
        reprice(world.ledger, Correction(arm=arm, factor=2.0), **given)
    done = reprice(world.ledger, Correction(arm=arm, prices={arm: {"m": [0.0, 0.0]}}), **given)
    assert (done["outcomes"], done["dollars_after"]) == (len(unpriced), 0.0)
    assert reported(world).unpriced == {}
    reprice(world.ledger, Correction(arm=arm, prices={arm: {"m": [1000.0, 0.0]}}), **given)
    assert reported(world).spent == pytest.approx(0.001 * (12 - len(unpriced)) + 3.0 * len(unpriced))
