"""Candidates by name are judged as they would be served, and a policy is never better than itself."""

from dataclasses import replace
from functools import cache

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.replay import Plan, parse_candidates, replay
from ragbandit.router.offline.replay.report import headline
from ragbandit.shared.errors import InvalidInput
from tests.support.cases import every_case
from tests.support.logs.replay_logs import judged, lived_rows
from tests.support.logs.served_policy import Shape, lived

POLICIES = {
    "mba": {"name": "mba"},
    "mba with an incumbent": {"name": "mba", "incumbent": "single_step", "harm": 0.3},
    "linucb": {"name": "linucb", "floor": 0.05, "cold_start_outcomes": 60},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Makes the settings of a service and the log that it wrote, once of each kind."""

    @cache
    def make(named, seed=0, late=3, warm=0):
        folder = tmp_path_factory.mktemp("world")
        settings = Settings(policy=POLICIES[named], data_dir=str(folder))
        return settings, lived(settings, seed=seed, shape=Shape(questions=50, late=late, warm=warm)).log

    return make


def against_itself(made, **plan):
    """The replay of a policy on the log that it wrote."""
    settings, served = made
    name = settings.policy.name
    candidates = parse_candidates([name], params={name: settings.policy.params})
    return replay(replace(served, settings=settings), candidates=candidates, plan=Plan(**plan))


def test_a_policy_is_the_same_as_itself(world):
    """The served policy compared with itself shows no difference: cold, warm, and with an incumbent."""
    with every_case() as case:
        for named, warm in (("mba", 40), ("mba with an incumbent", 0), ("linucb", 0)):
            with case(named, warm):
                found = against_itself(world(named, warm=warm))
                candidate, gap = found.candidates[0], found.candidates[0].comparison.reward
                assert (candidate.comparison.verdict, candidate.same_policy) == ("as good", True)
                assert (gap.estimate, gap.low, gap.high) == (0.0, 0.0, 0.0)
                assert headline(found)[0].endswith("are the same policy")
                # Rows of a warm start are apart, and rows before the first exploration are left out.
                assert found.rows == 200 if "incumbent" not in named else 100 < found.rows < 200


def test_what_is_compared_is_said(world):
    """The line names both sides: the policy that learned the log, and the serving policy as it is now."""
    settings, served = world("mba")
    log = replace(served, settings=settings)
    with every_case() as case:
        for plan, said in (
            ({}, ("linucb (learned from this log)", "mba as it is now")),
            ({"baseline": "current"}, ("linucb (learned from this log)", "mba as it is now")),
        ):
            with case(plan):
                replayed = replay(log, candidates=["linucb"], plan=Plan(**plan))
                compared = replayed.candidates[0].comparison
                assert (compared.first, compared.second) == said
    fixed = replay(log, candidates=["fixed:multi_step"])
    assert fixed.baseline == "the logged policy", "a file of which nobody reads questions is judged in one pass"


def test_other_params_are_another_policy(world):
    """A policy of the same name with other params is another policy."""
    settings, log = world("mba")
    candidates = parse_candidates(["mba"], params={"mba": {"explore": 0.0}})
    assert not replay(replace(log, settings=settings), candidates=candidates).candidates[0].same_policy


def test_a_policy_is_not_compared_with_the_draws_of_its_service(world):
    """The service was learning while it served, so the log is no baseline for a policy that has learned it."""
    with pytest.raises(InvalidInput, match="is ahead of it") as caught:
        against_itself(world("mba"), baseline="logged")
    assert "use current" in caught.value.remedy


def test_all_at_one_price():
    """Rewards are read at the price, and policies asked at it: the arm that is worth it changes, on the same rows."""
    arms = {}
    for price in (0.0, 0.5):
        replayed = judged(lived_rows(300), "mba", "linucb", "fixed:slow", weight=price)
        arms[price] = [max(one.shares, key=one.shares.get) for one in replayed.candidates[:2]]
        assert replayed.candidates[2].reward.estimate == pytest.approx(0.8 - price * 4, abs=0.15)
    assert arms == {0.0: ["slow", "slow"], 0.5: ["fast", "fast"]}


def test_a_price_that_a_budget_had_raised():
    """Policies are asked, and learn, at the weight at which rewards are read, whatever a budget had made of it then."""
    rows = lived_rows(300)
    raised = [
        replace(
            row,
            decision=replace(row.decision, query=replace(row.decision.query, cost_weight=5.0), cost_weight=5.0),
            reward=row.reward.at(5.0),
        )
        for row in rows
    ]
    weight = rows[0].reward.weight
    settings = Settings(reward={"weight": weight})
    usual, dear = (judged(each, "mba", settings=settings).candidates[0] for each in (rows, raised))
    assert dear.shares == pytest.approx(usual.shares)
    assert dear.reward.estimate == pytest.approx(usual.reward.estimate)
