"""The account of a safe start: what a row of the ledger may change of it, whatever its price, unit and arms."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies import untrained_policy
from ragbandit.router.policies.algorithms.conservative import KNOWN
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.policies.draw import draw, seed_of
from ragbandit.shared.types import ArmName
from ragbandit.testing.policies import made_features, made_query, made_reward, made_updates

LARGE, SMALL, OTHER = ArmName("large"), ArmName("small"), ArmName("other")
ARMS = (LARGE, SMALL)
#: dollars of an answer
DOLLARS = {LARGE: 0.0065, SMALL: 0.0004}
#: a policy that always wants the small arm
WANTS_SMALL = {"name": "fixed", "params": {"arm": SMALL}}


def held(*, weight=20.0, **policy):
    """A policy that is held back to the large arm, at this weight of cost."""
    return untrained_policy(
        Settings(reward={"weight": weight}, policy={"incumbent": LARGE, **policy}).policy_definition
    )


def row(arm, quality, *, weight=None, dollars=None, propensity=1.0, seq=1, arms=ARMS, unit=None):
    """A row of the ledger. weight: the question's own weight of cost; None for reward.weight, which is 20."""
    (update,) = made_updates(1, first=seq)
    cost = DOLLARS[arm] if dollars is None else dollars
    reward = made_reward(quality, cost=cost, weight=20.0 if weight is None else weight)
    reward = replace(reward, value=min(max(reward.value, reward.minimum), reward.maximum))
    query = replace(update.query, cost_weight=weight, unit=unit)
    pmf = tuple(propensity if one == arm else (1.0 - propensity) / max(len(arms) - 1, 1) for one in arms)
    return replace(update, arm=arm, arms=arms, pmf=pmf, propensity=propensity, reward=reward, query=query)


def restraint_of(policy, *, weight=None, unit=None):
    """How far the next decision may leave the large arm."""
    query = replace(made_query(3), cost_weight=weight, unit=unit)
    return pmf_of_one(policy, query, features=made_features(3), arms=ARMS).restraint


def slack_of(policy):
    return restraint_of(policy).slack


def started(**given):
    """A policy that has learned 40 outcomes of the large arm, right on .85 of its questions, at weight 20."""
    policy = held(**given)
    for seq in range(1, 41):
        policy.learn(row(LARGE, float(seq % 20 not in (3, 9, 15)), seq=seq))
    return policy


@pytest.mark.parametrize("weight", [20_000.0, 1e6])
def test_one_row_at_a_huge_price_does_not_move_the_account(weight):
    """One answer of the weak arm at the price of a spent budget, or at a caller's own, leaves the slack below 5."""
    policy = started()
    before = slack_of(policy)
    policy.learn(row(SMALL, 0.0, weight=weight, propensity=0.5, seq=41))
    assert 0.0 < slack_of(policy) < before < 5.0


def test_rows_lose_the_same_at_every_price():
    """Forty answers of the weak arm lose what they would lose at reward.weight, at whatever price they were asked."""
    slacks = {}
    for weight in (None, 0.0, 20_000.0, 1e6):
        policy = started(**WANTS_SMALL)
        for seq in range(41, 81):
            policy.learn(row(SMALL, float(seq % 5 < 2), weight=weight, propensity=0.5, seq=seq))
        slacks[weight] = slack_of(policy)
    assert set(slacks.values()) == {slacks[None]}
    assert slacks[None] < 0.0


_ROWS = st.lists(
    st.builds(
        dict,
        arms=st.sampled_from([(LARGE, SMALL), (OTHER, LARGE, SMALL), (SMALL, OTHER), (SMALL,), (LARGE,)]),
        place=st.integers(0, 2),
        quality=st.floats(0.0, 1.0),
        dollars=st.floats(0.0, 1e3),
        weight=st.none() | st.floats(0.0, 1e6),
        propensity=st.floats(0.001, 1.0),
        unit=st.sampled_from([None, "turn", "task"]),
        decisions=st.integers(1, 30),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(rows=_ROWS, known=st.booleans(), right=st.floats(0.0, 1.0), harm=st.sampled_from([0.05, 0.3, 1.0]))
def test_no_row_moves_the_account_by_more_than_its_bounds(rows, known, right, harm):
    """A row changes the slack by at most the range of rewards times its weight times the decisions that it stands for.

    The weight is 1 / propensity, at most 10. This holds at every price, for all offered arms and units.
    """
    policy, seq, decided = held(**WANTS_SMALL, harm=harm), 0, 0
    start = {"arms": ARMS, "place": 0, "quality": right, "dollars": 0.0, "propensity": 1.0, "decisions": 3}
    first = [{**start, "unit": ("turn", "task")[number % 2]} for number in range(2 * KNOWN)] if known else []
    for given_row in [*first, *rows]:
        parts = dict(given_row)
        arms, place, decisions = parts["arms"], parts.pop("place"), parts.pop("decisions")
        seq, decided = seq + 1, decided + decisions
        update = row(arms[place % len(arms)], parts.pop("quality"), seq=seq, **parts)
        before = slack_of(policy)
        policy.learn(replace(update, decided=decided))
        largest = 2.0 * min(1.0 / update.propensity, 10.0) * max(decided / seq, 1.0)
        assert abs(slack_of(policy) - before) <= largest * (1.0 + 1e-9)


def test_a_row_that_no_policy_has_made_stands_for_no_decisions():
    """A row of the kill switch (`decided` is None) leaves the number of decisions for which the others stand."""
    policies = [started(**WANTS_SMALL) for _ in range(2)]
    for seq in range(41, 61):
        for policy in policies:
            policy.learn(replace(row(SMALL, 0.0, propensity=0.5, seq=2 * seq), decided=5 * (seq - 40)))
        policies[1].learn(row(LARGE, 1.0, arms=(LARGE,), seq=2 * seq + 1))
    assert slack_of(policies[0]) == slack_of(policies[1]) < slack_of(started(**WANTS_SMALL))


def test_rows_without_a_choice_do_not_count():
    """Answers of a tenant that a rule binds to one arm, or from which the incumbent is taken, cost no slack."""
    policy = started()
    before = slack_of(policy)
    for seq in range(41, 141):
        arm, arms = ((SMALL, (SMALL,)), (SMALL, (SMALL, OTHER)), (LARGE, (LARGE,)))[seq % 3]
        policy.learn(row(arm, 0.0, arms=arms, seq=seq))
    assert slack_of(policy) == before
    bound = held()
    for seq in range(1, 41):
        bound.learn(row(LARGE, 1.0, arms=(LARGE,), seq=seq))
    assert restraint_of(bound).reason == "too few outcomes of it are learned"


def test_rows_that_a_spent_budget_chose_do_not_count():
    """An answer that was drawn without the safe start, because a budget was spent, costs no slack."""
    policy = started()
    before = slack_of(policy)
    for seq in range(41, 141):
        policy.learn(replace(row(SMALL, 0.0, weight=20_000.0, seq=seq), released=True))
    assert slack_of(policy) == before


def test_a_task_does_not_change_what_turns_lose():
    """Tasks that cost as much as 25 chats change neither the base of chats nor what a chat of another arm loses."""
    losses = []
    for tasks in (0, 5):
        policy = started(**WANTS_SMALL)
        for number in range(tasks):
            policy.learn(row(LARGE, 1.0, dollars=0.1625, unit="task", seq=41 + number))
        before = slack_of(policy)
        policy.learn(row(SMALL, 0.0, propensity=0.5, seq=61))
        losses.append(before - slack_of(policy))
    assert losses[0] == pytest.approx(losses[1], abs=0.02)


def test_tasks_have_an_incumbent_of_their_own():
    """Tasks are held back until the incumbent's tasks are known, and lose against the mean of these."""
    policy = started(**WANTS_SMALL)
    assert restraint_of(policy, unit="task").reason == "too few outcomes of it are learned"
    for seq in range(41, 41 + KNOWN):
        policy.learn(row(LARGE, 1.0, dollars=0.03, unit="task", seq=seq))
    task, turn = restraint_of(policy, unit="task"), restraint_of(policy)
    assert 0.0 < task.allowance < turn.allowance
    before = slack_of(policy)
    policy.learn(row(SMALL, 0.4, dollars=0.0, unit="task", propensity=0.5, seq=61))
    assert slack_of(policy) == pytest.approx(before, abs=0.6)  # the margin for its noise
    policy.learn(row(SMALL, 0.4, dollars=0.0, unit="turn", propensity=0.5, seq=62))
    assert slack_of(policy) < before - 0.4


def test_rewards_that_were_sent_whole_count_at_their_value():
    """A reward of the caller has no cost apart, so no weight changes what it loses."""
    slacks = []
    for cost in (0.0, 0.5):
        policy = started(**WANTS_SMALL)
        update = row(SMALL, 0.4, dollars=cost, weight=0.0, propensity=0.5, seq=41)
        policy.learn(replace(update, reward=replace(update.reward, preset="reward")))
        slacks.append(slack_of(policy))
    assert slacks[0] == slacks[1]


def test_a_price_does_not_open_the_safe_start():
    """What a question may risk is read at reward.weight, so a price at which the weak arm is best does not free it."""
    policy = started(name="mba", params={})
    for seq in range(41, 61):
        policy.learn(row(SMALL, 0.0, propensity=0.1, seq=seq))
        policy.learn(row(LARGE, 1.0, propensity=0.9, seq=seq + 100))
    for seq in range(200, 600):
        policy.learn(row(LARGE, 1.0, propensity=0.9, seq=seq))
    usual, priced = restraint_of(policy), restraint_of(policy, weight=1e6)
    assert usual.slack > 0.0
    assert priced == usual


@pytest.mark.parametrize("learned", [0, 40])
def test_a_spent_budget_comes_before_the_safe_start(learned):
    """A spent budget comes before the restraint, however little is known, and the row has this fact and the slack."""
    policy = held(**WANTS_SMALL)
    for seq in range(1, learned + 1):
        policy.learn(row(LARGE, 1.0, seq=seq))
    output = pmf_of_one(policy, made_query(3), features=made_features(3), arms=ARMS)
    given = {"arms": ARMS, "floor": 0.0, "fallback": None, "seed": seed_of("1")}
    assert draw(output, **given).facts["incumbent"]["share"] < 1.0
    released = draw(output, **given, released=True)
    fact = released.facts["incumbent"]
    assert released.pmf == (0.0, 1.0)
    assert (fact["share"], fact["released"], fact["reason"]) == (1.0, True, "a spent budget comes first")
    assert fact["slack"] == output.restraint.slack


def test_the_weight_of_the_account_is_that_of_the_settings():
    """`reward.weight` is a param of the policy, so a ledger is learned again if it is changed."""
    assert held(weight=3.0).params["weight"] == 3.0
    named = Settings(reward={"weight": 3.0}, policy={"name": "conservative", "params": {"incumbent": LARGE}})
    assert untrained_policy(named.policy_definition).params["weight"] == 3.0
