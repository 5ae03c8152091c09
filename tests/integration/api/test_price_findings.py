"""Findings about arms without a price, while dollars are charged or limited."""

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.operation.findings import of_prices
from ragbandit.router.serving.setup.estimates import unpriced_arms
from ragbandit.shared.types import Query

PRICED = {"input": 1.0, "output": 2.0}
CHARGED = {"reward": {"cost": {"dollars": 1.0}, "weight": 5.0}}
CASCADE = {"class": "cascade", "empty": True, "first": "a", "then": {"class": "model", "generator": "large"}}


def server(prices=None):
    made = {"name": "openai", "model": "m", "openai": {"base_url": "http://127.0.0.1:9/v1"}}
    return made if prices is None else made | {"token_prices": prices}


def made(**given):
    arms = {"a": {"class": "model"}, "b": {"class": "model", "generator": "large"}}
    tree = {"arms": arms, "generator": server(PRICED), "generators": {"large": server()}}
    return Settings.model_validate(tree | given)


def lines(settings, **more):
    return [finding.line for finding in of_prices(settings, **more)]


@pytest.mark.parametrize(
    "dollars",
    [
        CHARGED,
        {"reward": {"cost": {"seconds_total": 1.0}}, "tenants": {"acme": {"dollars_per_day": 3.0}}},
        {"reward": {"cost": {"seconds_total": 1.0}}, "budget": {"dollars": 0.1}},
        {"reward": {"cost": {"seconds_total": 1.0}}, "conversation": {"session_limit": {"dollars": 1.0}}},
    ],
    ids=["reward", "tenant", "answer", "session"],
)
def test_an_arm_without_a_price_is_named_where_dollars_count(dollars):
    """The finding names the generator and its arms, and the arms that have a price."""
    (line,) = lines(made(**dollars))
    assert line.startswith("generators.large: the calls of b have no price: beside a it looks free to the policy")
    assert "set generators.large.token_prices" in line


@pytest.mark.parametrize(
    "given",
    [
        {"reward": {"cost": {"dollars": 1.0}, "weight": 0.0}},
        {"reward": {"cost": {"seconds_total": 1.0}}},
        CHARGED | {"generators": {"large": server({"input": 0.0, "output": 0.0})}},
        CHARGED | {"generators": {"large": {"name": "scripted"}}},
        CHARGED | {"arms": {"a": {"class": "model"}, "b": {"run_by": "caller"}}},
        CHARGED | {"arms": {"a": {"class": "model"}, "b": {"class": "http", "url": "http://127.0.0.1:9"}}},
    ],
    ids=["weight 0", "no dollars", "a price of 0", "in this process", "caller", "http"],
)
def test_what_needs_no_price(given):
    """Nothing is found if dollars do not count, and for arms that cost nothing or report their own dollars."""
    assert lines(made(**given)) == []


def test_without_any_price_dollars_decide_nothing():
    """If no arm has a price, one finding names them all."""
    (line,) = lines(
        made(**CHARGED, generator=server(), generators={}, arms={"a": {"class": "model"}, "single_step": {}})
    )
    assert "the calls of a, single_step have no price: dollars decide nothing" in line


def test_a_cascade_asks_the_generators_of_its_parts():
    """A cascade has no price if a part has none, and the default generator is none of its own."""
    arms = {"a": {"class": "model", "generator": "small"}, "both": CASCADE}
    given = made(arms=arms, generators={"small": server(PRICED), "large": server()}, generator=server())
    assert unpriced_arms(given) == {"generators.large": ["both"]}


def test_a_server_that_tells_its_price_has_one(make_world):
    """Once an answer of the arm had dollars, `status` no longer names it."""
    world, settings = make_world(arms={name: {"class": "no_retrieval"} for name in "ab"}), made(**CHARGED)
    assert len(lines(settings, database=world.database)) == 1
    decision = world.router.submit(Query(text="q", arms=("b",)), run_by="worker").result(30)
    world.outcome(decision, cost={"dollars": 0.02}, by_worker=True)
    assert lines(settings, database=world.database) == []


@pytest.mark.parametrize(
    ("arms", "found"), [({"a": {"class": "model"}, "model": {}}, 1), ({"a": {"class": "model"}}, 0)]
)
def test_a_reward_of_steps_over_arms_that_take_none(arms, found):
    """Arms of the class model take no step, so the default reward makes them cost the same."""
    assert len([line for line in lines(made(arms=arms)) if line.startswith("reward.cost: only steps")]) == found


def test_a_reward_of_steps_over_arms_that_take_steps():
    """An arm that searches takes steps, so its cost differs from that of the others."""
    assert lines(made(arms={"a": {"class": "model"}, "single_step": {}})) == []
