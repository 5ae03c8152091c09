"""The pacer: what it does with the price, and that it holds the mean cost it was told to."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ragbandit.router.config.settings import PolicySettings
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.policies import POLICIES, make_policy
from ragbandit.router.policies.base import PolicyOutput, epsilon_greedy, pmf_of_one
from ragbandit.router.policies.draw import choose, gate, seed_of, with_floor
from ragbandit.router.policies.kinds.budget import BEND, MEMORY, TEMPERATURE, BudgetPolicy
from ragbandit.shared.errors import ConfigError, PolicyFault
from ragbandit.shared.types import ArmName, Query
from ragbandit.testing.policies import POLICY_CHECKS, sha_of, taught
from ragbandit.testing.policy_examples import ARMS, made_features, made_query, made_reward, made_updates
from tests.support.cases import every_case

TABLE = Path(__file__).parents[6] / "shared" / "data" / "routing" / "flan_t5_xl_dev.jsonl"
#: the policies that are wrapped here; "told" is registered by the fixture below
PLAIN = ("mba", "uniform")


class Told:
    """Says what it was told, whatever it learns: an inner policy whose every number is known."""

    algorithm = "told"
    needs = frozenset()

    def __init__(self, *, output: PolicyOutput, deterministic: bool = True) -> None:
        self.output, self.deterministic = output, deterministic
        self.params = {}
        self.seen = {}

    def pmf(self, queries, *, features, arms):
        assert all(len(offered) <= len(self.output.pmf) for offered in arms)
        return [self._of(len(offered)) for offered in arms]

    def _of(self, count):
        cut = self.output.facts | {
            key: self.output.facts[key][:count] for key in ("quality", "cost") if key in self.output.facts
        }
        scores = None if self.output.scores is None else self.output.scores[:count]
        total = sum(self.output.pmf[:count])
        return PolicyOutput(pmf=tuple(p / total for p in self.output.pmf[:count]), scores=scores, facts=cut)

    def learn(self, update):
        self.seen[update.arm] = self.seen.get(update.arm, 0) + 1


def wrapping(output, *, deterministic=True, **params):
    """A budget around a policy that says this."""
    budget = BudgetPolicy(policy="uniform", **{"target": 2.0, **params})
    budget.inner = Told(output=output, deterministic=deterministic)
    return budget


def heads(quality, cost, *, epsilon=0.3):
    scores = tuple(q - 0.05 * c for q, c in zip(quality, cost, strict=True))
    facts = {"quality": list(quality), "cost": list(cost), "weight": 0.05, "epsilon": epsilon}
    return PolicyOutput(pmf=(1 / len(scores),) * len(scores), scores=scores, facts=facts)


def word_of(budget, arms=ARMS):
    return pmf_of_one(budget, made_query(7), features=made_features(7), arms=arms)


def lesson(*, arm=ARMS[0], cost=1.0, quality=0.5, seq=1):
    update = made_updates(1, first=seq)[0]
    return replace(update, arm=arm, reward=made_reward(quality, cost=cost))


# What the price does to the inner policy's word.


def test_price_replaces_the_weight():
    """With heads apart the scores are quality - price * cost; the weight in the reward is out of it."""
    budget = wrapping(heads((0.2, 0.5, 0.9), (0.0, 1.0, 4.0)))
    budget._dual = 0.3
    output = word_of(budget)
    price = 0.3 / budget.scale
    assert output.scores == pytest.approx((0.2, 0.5 - price, 0.9 - 4 * price), abs=1e-15)
    assert output.facts["weight"] == output.facts["price"] == price


@pytest.mark.parametrize(("price", "best"), [(0.0, 2), (0.1, 2), (0.2, 1), (0.35, 0)])
def test_price_chooses_along_the_frontier(price, best):
    """The greedy arm is the one with the most quality - price * cost; epsilon is spread as the inner policy does."""
    budget = wrapping(heads((0.2, 0.5, 0.9), (0.0, 1.0, 4.0)))
    budget._dual = price * budget.scale
    pmf = word_of(budget).pmf
    assert pmf == pytest.approx([0.1 + (0.7 if i == best else 0.0) for i in range(3)], abs=1e-15)


def test_cost_of_arms_without_heads_is_their_mean():
    """Where the inner policy has one score, the cost is the arm's mean, and the reward's weight of it is taken out."""
    budget = wrapping(PolicyOutput(pmf=(0.2, 0.2, 0.6), scores=(0.1, 0.2, 0.3), facts={"epsilon": 0.5}))
    for arm, cost in ((ARMS[0], 1.0), (ARMS[0], 2.0), (ARMS[1], 6.0)):
        budget.learn(lesson(arm=arm, cost=cost))  # made_reward weighs cost with .1
    budget._dual = 0.0
    output = word_of(budget)
    assert output.facts["cost"] == [1.5, 6.0, 3.0]  # the third arm is unknown: the mean decision
    assert output.scores == pytest.approx((0.1 + 0.15, 0.2 + 0.6, 0.3 + 0.3), abs=1e-12)


@pytest.mark.parametrize("preset", ["reward", "default"])
def test_reward_that_carries_no_weight_leaves_it(preset):
    """A raw or default reward is learned and leaves the weight, and so the quality, as the last judged row made it."""
    inner = PolicyOutput(pmf=(0.2, 0.2, 0.6), scores=(0.1, 0.2, 0.3))
    budget = wrapping(inner)
    budget.learn(lesson(cost=2.0))  # made_reward weighs cost with .1
    raw = lesson(cost=2.0, seq=2)
    budget.learn(replace(raw, reward=replace(raw.reward, weight=0.0, preset=preset)))
    assert budget.seen == {ARMS[0]: 2}
    assert word_of(budget).facts["quality"] == pytest.approx([0.1 + 0.2, 0.2 + 0.2, 0.3 + 0.2], abs=1e-12)


@pytest.mark.parametrize(
    ("pmf", "scores", "epsilon"),
    [
        ((0.9, 0.05, 0.05), (1.0, 0.5, 0.0), 0.15),  # epsilon-greedy with epsilon .15
        ((0.4, 0.4, 0.2), (1.0, 1.0, 0.0), 0.6),  # two best arms
        ((1.0, 0.0, 0.0), (1.0, 0.5, 0.0), 0.0),
        ((1 / 3, 1 / 3, 1 / 3), (0.0, 0.0, 0.0), 1.0),  # nothing known: all of it is exploration
        ((0.1, 0.2, 0.7), (1.0, 0.5, 0.0), 1.0),  # more outside than a uniform draw has
    ],
)
def test_exploration_of_an_inner_policy_that_logs_no_epsilon(pmf, scores, epsilon):
    """What the inner policy spreads beyond its best arms is spread evenly around the new best arm."""
    budget = wrapping(PolicyOutput(pmf=pmf, scores=scores))
    output = word_of(budget)
    assert output.facts["epsilon"] == pytest.approx(epsilon, abs=1e-12)
    assert min(output.pmf) == pytest.approx(epsilon / 3, abs=1e-12)


def test_optimism_of_linucb_is_no_exploration():
    """Around linucb epsilon is linucb's own, also where the highest bound is not the highest mean."""
    budget = taught(
        lambda: BudgetPolicy(target=2.0, policy="linucb", params={"alpha": 4.0, "epsilon": 0.06}), made_updates(90)
    )
    arms = (*ARMS, ArmName("newcomer"))
    inner = pmf_of_one(budget.inner, made_query(7), features=made_features(7), arms=arms)
    assert inner.pmf.index(max(inner.pmf)) == 3 != inner.scores.index(max(inner.scores))
    output = word_of(budget, arms)
    assert output.facts["epsilon"] == 0.06
    assert output.pmf == epsilon_greedy(output.scores, epsilon=0.06)


def test_policy_without_scores_is_tilted():
    """Without scores the odds of two arms change by exp(-price * difference in cost / TEMPERATURE)."""
    budget = wrapping(PolicyOutput(pmf=(0.5, 0.5, 0.0), facts={"why": "told"}))
    budget.learn(lesson(arm=ARMS[0], cost=1.0))
    budget.learn(lesson(arm=ARMS[1], cost=4.0))
    budget._dual = 0.1
    output = word_of(budget)
    assert output.pmf[0] / output.pmf[1] == pytest.approx(math.exp(budget.price * 3.0 / TEMPERATURE))
    assert output.pmf[2] == 0.0
    assert output.scores is None
    assert output.facts["why"] == "told"


# How the price moves.


def test_dual_step_is_the_expected_overspending():
    """One lesson moves the dual variable by step * (expected cost now - target + bend) / scale."""
    budget = wrapping(heads((0.5, 0.5, 0.5), (0.0, 1.0, 5.0), epsilon=1.0), target=2.0, step=0.05, horizon=10)
    budget._dual = 0.4
    budget.seen, budget._paid, budget._cost = *(dict.fromkeys(ARMS, 1) for _ in range(2)), dict.fromkeys(ARMS, 2.0)
    budget.inner.seen = dict.fromkeys(ARMS, 1)
    budget.learn(lesson(cost=7.0))
    scale = math.sqrt((2.0**2 + 5.0**2) / (1 + 4))
    assert budget.scale == pytest.approx(scale)
    assert budget._debt == 5.0
    # Uniform over the three arms: 2.0 per decision. A tenth of the debt is asked back.
    assert budget._dual == pytest.approx(0.4 + 0.05 * (2.0 - 2.0 + 0.5) / scale, abs=1e-15)


def test_expected_cost_leaves_out_arms_that_nobody_knows():
    """Arms that were offered but never learned have no cost to speak of: they do not move the price."""
    pair, crowd = ARMS[:1], (ARMS[0], ArmName("other"), ArmName("another"))
    few, many = (wrapping(heads((0.5,) * 3, (3.0, 9.0, 9.0), epsilon=1.0)) for _ in range(2))
    few.learn(replace(lesson(cost=3.0), arms=pair))
    many.learn(replace(lesson(cost=3.0), arms=crowd))
    assert few._dual == many._dual > 0.0


def test_an_llm_is_not_asked_again():
    """Where the inner policy does not repeat itself, the real cost is the step: learning asks it nothing."""
    budget = wrapping(heads((0.5,) * 3, (9.0,) * 3), deterministic=False, step=0.05, horizon=10)
    budget.inner.pmf = None
    budget.learn(lesson(cost=5.0))
    assert budget._dual == pytest.approx(0.05 * (5.0 - 2.0 + 0.3) / budget.scale)


def test_target_bends_by_half_at_most_and_old_debts_are_forgotten():
    """A huge debt bends the target by BEND, and not more than MEMORY decisions' worth of it is kept."""
    budget = wrapping(heads((0.5,) * 3, (0.0,) * 3, epsilon=1.0), target=2.0, step=0.05)
    budget._dual = 0.5
    budget.learn(lesson(cost=1e6))
    assert budget._debt == MEMORY * 2.0
    assert budget._dual == pytest.approx(0.5 + 0.05 * (0.0 - 2.0 + BEND * 2.0) / budget.scale)


@pytest.mark.parametrize(("target", "price_is"), [(1e-3, "capped"), (1e3, "zero")])
def test_targets_out_of_reach_leave_the_price_at_its_bound(target, price_is):
    """No price spends less than the cheapest arm or more than the best one: the price stays bounded and is logged."""
    budget = taught(lambda: BudgetPolicy(target=target, price_max=0.7), made_updates(300))
    facts = word_of(budget).facts
    assert budget._dual == (0.7 if price_is == "capped" else 0.0)
    assert facts["price"] == budget._dual / budget.scale
    assert facts["target"] == target
    assert facts["spent"] == pytest.approx(np.mean([u.reward.cost for u in made_updates(300)]))


@pytest.mark.parametrize("policy", PLAIN)
@pytest.mark.parametrize("target", [1e-12, 1e12])
def test_every_target_that_is_taken_gives_a_pmf(policy, target):
    """At the ends of what params may be, cheap and dear answers leave a pmf and finite numbers."""
    extremes = {"step": 1e12, "horizon": 1e12, "price_max": 1e12}
    budget = BudgetPolicy(target=target, policy=policy, **extremes)
    for row, cost in zip(made_updates(6), (0.0, 1e-9, 1e9, 1e150, 0.0, 1.0), strict=True):
        output = word_of(budget)
        gate(output, arms=ARMS)
        json.dumps(dict(output.facts), allow_nan=False)
        budget.learn(replace(row, reward=made_reward(0.5, cost=cost)))


@pytest.mark.parametrize("unit", [1e-3, 60.0, 1024.0])
def test_unit_of_cost_does_not_matter(unit):
    """Costs in other units, with the target in them, teach the same pmf; the price is per unit."""
    updates = made_updates(200)
    scaled = [
        replace(u, reward=made_reward(u.reward.quality, cost=u.reward.cost * unit, weight=0.1 / unit)) for u in updates
    ]
    plain, other = (
        taught(lambda: BudgetPolicy(target=1.7), updates),
        taught(lambda: BudgetPolicy(target=1.7 * unit), scaled),
    )
    assert other._dual == pytest.approx(plain._dual, rel=1e-6)
    assert other.price * unit == pytest.approx(plain.price, rel=1e-6)
    assert word_of(other).pmf == pytest.approx(word_of(plain).pmf, abs=1e-9)


# Holding a target.


def hold(budget, *, features, quality, cost, late=0, floor=0.0):
    """Mean cost of one pass; each answer is learned `late` decisions after it was given. floor: of the draw."""
    waiting, spent = [], 0.0
    template = made_updates(1, size=1)[0]
    for i, row in enumerate(features):
        output = pmf_of_one(budget, Query(text="?"), features=row, arms=ARMS)
        drawn = choose(with_floor(output.pmf, floor=floor), seed=seed_of(f"d{i}"))
        spent += cost[i, drawn]
        reward = made_reward(quality[i, drawn], cost=cost[i, drawn], weight=0.03)
        waiting.append(replace(template, seq=i + 1, arm=ARMS[drawn], features=row, pmf=output.pmf, reward=reward))
        if len(waiting) > late:
            budget.learn(waiting.pop(0))
    return spent / len(features)


def made_world(count=1500, *, seed=5, size=8):
    """Questions of which some need the dear arm: features, quality (n, 3), cost (n, 3)."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((count, size)).astype(np.float32)
    hard = 1.0 / (1.0 + np.exp(-2.0 * features[:, 0].astype(np.float64)))
    chance = np.stack([0.6 - 0.5 * hard, 0.9 - 0.5 * hard, np.full(count, 0.9)], axis=1)
    quality = (rng.random((count, 3)) < chance).astype(float)
    cost = np.stack([np.zeros(count), np.ones(count), 3.0 + rng.integers(0, 4, count)], axis=1)
    return features, quality, cost


@pytest.mark.parametrize(
    ("policy", "target"),
    [
        *(("mba", 0.9), ("mba", 1.6), ("mba", 2.6)),
        *(("uniform", 0.5), ("uniform", 0.9), ("uniform", 1.5)),
        *(("linucb", 1.6), ("lints", 1.6), ("softmax", 1.6)),
    ],
)
@pytest.mark.parametrize("late", [0, 60])
@pytest.mark.slow
def test_holds_the_target_in_a_made_world(policy, target, late):
    """Over 1,500 decisions the mean cost is the target to 3 %, around a policy with scores and one without.

    Also if feedback comes 60 decisions late. Unpaced, neither comes within 10 % of any of these targets.
    """
    features, quality, cost = made_world()
    spent = hold(BudgetPolicy(target=target, policy=policy), features=features, quality=quality, cost=cost, late=late)
    assert spent == pytest.approx(target, rel=0.04)
    free = hold(make_policy(policy, params={}), features=features, quality=quality, cost=cost, late=late)
    assert free != pytest.approx(target, rel=0.1)


def test_costs_that_rise_are_met_by_a_higher_price():
    """When the dear arm becomes twice as dear in mid-stream, the mean of the second half is held too."""
    features, quality, cost = made_world(2400)
    cost[1200:, 2] *= 2.0
    budget = BudgetPolicy(target=1.5)
    hold(budget, features=features[:1200], quality=quality[:1200], cost=cost[:1200])
    price = budget.price
    spent = hold(budget, features=features[1200:], quality=quality[1200:], cost=cost[1200:])
    assert spent == pytest.approx(1.5, rel=0.05)
    assert budget.price != price


@pytest.mark.skipif(not TABLE.exists(), reason=f"{TABLE} is not here")
@pytest.mark.parametrize(
    "target",
    [
        *(1.3, 1.85),
        2.8,
    ],
)
def test_holds_the_target_on_the_routing_table(target):
    """One pass over the 1,292 questions of the routing table, in any order, spends the target to 2 %, as it is served.

    That is with the floors: an arm that the policy gave up too early has no other way back.
    """
    floor = PolicySettings().floor_of(len(ARMS))
    rows = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
    features = HashingEncoder(64).encode([row["question"] for row in rows])
    quality = np.array([[row["correct"][arm] for arm in ARMS] for row in rows], dtype=float)
    cost = np.array([[row["steps"][arm] for arm in ARMS] for row in rows], dtype=float)
    order = np.random.default_rng(1).permutation(len(rows))
    shuffled = {"features": features[order], "quality": quality[order], "cost": cost[order]}
    spent = hold(BudgetPolicy(target=target), **shuffled, floor=floor)
    assert spent == pytest.approx(target, rel=0.02)
    # As the file has them, one data set after the other, the world moves, and mba's alarm rings for one arm.
    spent = hold(BudgetPolicy(target=target), features=features, quality=quality, cost=cost, floor=floor)
    assert spent == pytest.approx(target, rel=0.04)


# State and params.


@pytest.mark.parametrize("policy", PLAIN)
def test_contract_holds_around_other_policies(policy):
    """Around a policy with scores and one without it keeps the whole contract."""
    with every_case() as case:
        for check in POLICY_CHECKS:
            with case(check.__name__):
                check(lambda: BudgetPolicy(policy=policy, target=1.2))


@pytest.mark.parametrize("policy", sorted(set(POLICIES) & {"linucb", "lints", "softmax", "mba", "vw"}))
def test_every_policy_that_learns_online_can_be_paced(policy):
    """Around every such policy the pmf is a pmf, the target is logged and a snapshot gives the same state."""

    def make():
        return BudgetPolicy(policy=policy, target=1.2)

    budget = taught(make, made_updates(60))
    output = word_of(budget)
    assert sum(output.pmf) == pytest.approx(1.0)
    assert output.facts["target"] == 1.2
    back = make()
    back.restore(*budget.state())
    assert sha_of(back) == sha_of(budget)


def test_a_row_that_the_inner_policy_refuses_changes_nothing():
    """Neither does one whose cost is no number, or too large to be squared."""
    budget = taught(lambda: BudgetPolicy(target=1.2), made_updates(20))
    before = sha_of(budget)
    good = made_updates(1, first=21)[0]
    dear = [replace(good, reward=replace(good.reward, cost=cost)) for cost in (math.nan, math.inf, 1e200)]
    for row in (replace(good, features=None), *dear):
        with pytest.raises(PolicyFault):
            budget.learn(row)
        assert sha_of(budget) == before


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"target": 1.0, "policy": "oracle"}, "policy"),
        ({"target": 1.0, "policy": "budget", "params": {"target": 1.0}}, "policy"),
        ({"target": 1.0, "params": {"ridge": -1.0}}, "params.ridge"),
        ({"target": 1.0, "params": {"colour": 1.0}}, "params.colour"),
        ({"target": 1.0, "policy": "fixed"}, "params.arm"),
    ],
)
def test_wrong_params_are_refused(params, field):
    """A wrong param, of the budget or of the policy inside, is a ConfigError that names where it stands."""
    with pytest.raises(ConfigError) as caught:
        make_policy("budget", params=params)
    assert caught.value.field == f"policy.params.{field}"
    assert caught.value.remedy
