"""Aims on the frontier of a policy: which weight each is solved to, and what cannot be aimed at."""

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.frontier import Frontier
from ragbandit.router.policies import make_policy
from ragbandit.router.serving.prices import served_weight
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Query, Terms
from tests.support.cases import every_case

FRONTIER = Frontier(weights=(0.0, 0.1, 0.2, 0.4), quality=(0.9, 0.9, 0.8, 0.3), cost=(3.0, 2.0, 2.2, 1.0), best=0.85)
MBA = make_policy("mba", params={})


def served(aim, *, frontier=FRONTIER, policy=MBA, factor=1.0, among=None, **reward):
    settings = Settings.model_validate({"reward": {"cost": {"steps": 1.0}, **reward}})
    terms = Terms(budget_factor=factor, cost_weights=among and tuple(among))
    query = Query(text="q", aim=aim, terms=terms)
    return served_weight(query, reward=settings.reward, named=settings.cost_weights, policy=policy, frontier=frontier)


def test_an_aim_is_a_weight():
    """Between two points by interpolation; at a plateau the highest weight; beyond the ends, the ends."""
    cases = (
        ({"quality": 0.8 / 0.85}, 0.2),
        ({"quality": 1.0}, 0.15),
        ({"quality": 0.55 / 0.85}, 0.3),
        ({"quality": 0.1}, 0.4),
        ({"steps": 2.5}, 0.05),
        ({"steps": 2.0}, 0.2),
        ({"steps": 1.5}, 0.3),
        ({"steps": 0.5}, 0.4),
        ({"steps": 9.0}, 0.0),
    )
    with every_case() as case:
        for aim, weight in cases:
            with case(aim):
                assert served(aim) == pytest.approx(weight)
    assert served({"dollars": 0.015}, cost={"dollars": 100.0, "steps": 0.0}) == pytest.approx(0.3)
    assert served({"steps": 1.5}, factor=3.0) == pytest.approx(0.9)
    assert served({"steps": 9.0}, among=[0.05, 0.2]) == pytest.approx(0.05)  # a key's range holds for aims too


def test_an_aim_without_a_frontier():
    """Until there is a frontier the weight of the reward setting serves; a budget raises it."""
    assert served({"quality": 0.9}, frontier=None) is None
    assert served({"quality": 0.9}, frontier=None, factor=2.0) == pytest.approx(0.1)


def test_what_cannot_be_aimed_at():
    """Each is refused with the reason, also while there is no frontier."""
    cases = (
        ({"dollars": 0.1}, {}, "only if reward.cost prices dollars and nothing else"),
        ({"steps": 1.8}, {"cost": {"steps": 1.0, "dollars": 1.0}}, "only if reward.cost prices steps and nothing else"),
        ({"quality": 0.9}, {"policy": make_policy("uniform", params={})}, "one weight of cost for all questions"),
    )
    with every_case() as case:
        for aim, more, words in cases:
            with case(aim, words), pytest.raises(InvalidInput, match=words) as error:
                served(aim, frontier=None, **more)
            assert error.value.field.startswith("aim")
