"""A safe start: a policy that is held back to an incumbent arm, and the facts of its rows."""

import math
from collections import deque
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ragbandit.router.config.learning import LEAST_SHARE
from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.audit.checks import draw_fault
from ragbandit.router.policies import make_policy
from ragbandit.router.policies.algorithms.conservative import KNOWN, Shortfall
from ragbandit.router.policies.base import PolicyOutput, Restraint, pmf_of_one
from ragbandit.router.policies.draw import (
    Holdback,
    Offer,
    draw,
    make_decisions,
    seed_of,
    uniform_of,
    with_incumbent,
    with_least_share,
)
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import ArmName
from ragbandit.testing.policies import ARMS, made_features, made_query, made_reward, made_updates

INCUMBENT = ArmName("single_step")
FLOORS = {"floor": 0.02, "fallback": None}


def row(arm, reward, *, propensity=1.0, seq=1):
    """A ledger row of this arm with this reward."""
    (update,) = made_updates(1, first=seq)
    return replace(update, arm=arm, propensity=propensity, reward=made_reward(reward))


def taught(policy, *rows):
    for seq, (arm, reward, propensity) in enumerate(rows, start=1):
        policy.learn(row(arm, reward, propensity=propensity, seq=seq))
    return policy


def drawn(policy, *, arms=ARMS, seed=7, **more):
    """The draw of one question."""
    output = pmf_of_one(policy, made_query(seed), features=made_features(seed), arms=arms)
    return draw(output, arms=arms, seed=seed_of(str(seed)), **FLOORS | more)


def conservative(policy="uniform", **params):
    return make_policy("conservative", params={"incumbent": INCUMBENT, "policy": policy, **params})


def test_first_the_incumbent_alone():
    """Only the incumbent is drawn before its outcomes are known, floors or not, and the row has this reason."""
    policy = taught(conservative(), *[(INCUMBENT, 0.7, 1.0)] * (KNOWN - 1))
    found = drawn(policy, floors={ARMS[0]: 0.05})
    assert found.pmf == (0.0, 1.0, 0.0)
    assert found.floor == 0.0
    said = found.facts["incumbent"]
    assert (said["arm"], said["share"], said["floor"]) == (INCUMBENT, 0.0, 0.02)
    assert said["reason"] == "too few outcomes of it are learned"
    policy.learn(row(INCUMBENT, 0.7, seq=KNOWN))
    assert 0.0 < drawn(policy).facts["incumbent"]["share"] < 1.0


def test_the_mixture_is_exact():
    """The pmf is share times the policy's, floors included, the rest the incumbent's; no floor is left."""
    policy = taught(conservative(), *[(INCUMBENT, 0.6, 1.0), (INCUMBENT, 0.8, 1.0)] * 20)
    found = drawn(policy)
    share = found.facts["incumbent"]["share"]
    assert found.facts["incumbent"]["reason"] == "another arm may cost too much"
    assert 0.0 < share < 0.5
    assert found.pmf == pytest.approx([share / 3, 1 - 2 * share / 3, share / 3])
    assert found.floor == 0.0  # 0.02 * share is below the least share
    policy = taught(conservative(harm=0.5), *[(INCUMBENT, 0.6, 1.0), (INCUMBENT, 0.8, 1.0)] * 20)
    found = drawn(policy)
    assert found.floor == pytest.approx(0.02 * found.facts["incumbent"]["share"])
    assert min(found.pmf) >= found.floor >= LEAST_SHARE


def test_an_arm_that_is_worth_it_is_set_free():
    """Where the policy earns more than the incumbent the slack grows, and nothing holds it back any more."""
    good = [(INCUMBENT, 0.5, 0.5), (ARMS[2], 0.9, 0.5)]
    found = drawn(taught(conservative(), *good * 100), arms=ARMS[1:])
    assert found.facts["incumbent"]["share"] == 1.0
    assert found.facts["incumbent"]["reason"] is None
    assert found.floor == 0.02


def test_what_was_lost_holds_back():
    """After losses beyond what is allowed the incumbent plays alone, until its rows have allowed more."""
    policy = taught(conservative(), *[(INCUMBENT, 0.7, 1.0)] * 50, *[(ARMS[0], 0.0, 0.1)] * 20)
    said = drawn(policy).facts["incumbent"]
    assert said["share"] == 0.0
    assert said["slack"] < 0.0
    assert said["reason"] == "nothing may be lost now"
    for seq in range(1000):
        policy.learn(row(INCUMBENT, 0.7, seq=seq))
    assert drawn(policy).facts["incumbent"]["share"] > 0.0


def test_an_incumbent_that_is_not_offered():
    """The policy decides with its floors if the incumbent is not offered, and the row has this reason."""
    policy = taught(conservative(), *[(INCUMBENT, 0.7, 1.0)] * 20)
    found = drawn(policy, arms=(ARMS[0], ARMS[2]))
    assert found.pmf == pytest.approx([0.5, 0.5])
    assert found.floor == 0.02
    assert found.facts["incumbent"]["reason"] == "not offered"


@pytest.mark.parametrize("offered", [True, False])
def test_a_policy_that_fails_leaves_it_to_the_incumbent(offered):
    """The incumbent has all of the probability, whatever the fallback; where it is not offered the fallback decides."""
    arms = ARMS if offered else (ARMS[0], ARMS[2])
    found = draw(ValueError("no"), arms=arms, floor=0.02, fallback="multi_step", seed=1, incumbent=INCUMBENT)
    assert found.pmf == pytest.approx((0.0, 1.0, 0.0) if offered else (0.02, 0.98))
    assert found.floor == (0.0 if offered else 0.02)
    assert ("incumbent" in found.facts) == offered


def test_rows_pass_the_check_of_draws():
    """What `verify` checks of a row holds for one that was held back."""
    settings = Settings(policy={"incumbent": INCUMBENT})
    policy = taught(conservative(), *[(INCUMBENT, 0.6, 1.0), (INCUMBENT, 0.8, 1.0)] * 20)
    output = pmf_of_one(policy, made_query(7), features=None, arms=ARMS)
    decisions = make_decisions(
        [Offer(query=replace(made_query(7), id=f"d{number}"), run_by="caller", arms=ARMS) for number in range(20)],
        outputs=[output] * 20,
        features=[None] * 20,
        settings=settings.policy,
        learned=policy.seen,
        version="v",
        encoder_hash="",
        now=0.0,
    )
    for decision in decisions:
        assert draw_fault(decision) is None
        assert decision.floor < settings.policy.floor_of(len(ARMS))


def test_rewards_below_zero():
    """Where the incumbent's mean is negative harm is a share of its size; where it is 0, of the rewards' spread."""
    negative, nothing = Shortfall(INCUMBENT, harm=0.1, weight=0.1), Shortfall(INCUMBENT, harm=0.1, weight=0.1)
    for _ in range(20):
        negative.learn(row(INCUMBENT, -0.5))
        nothing.learn(row(INCUMBENT, 0.5))
        nothing.learn(row(INCUMBENT, -0.5))
    assert negative.allowance("turn") == pytest.approx(0.05)
    assert nothing.allowance("turn") == pytest.approx(0.1 * 0.1 * 0.5, rel=0.05)
    assert negative.slack > 0.0 < nothing.slack


@pytest.mark.slow
def test_the_tally_is_unbiased():
    """Over many rows the estimated loss is the true one, also if the incumbent is left where it is weak."""
    errors = []
    for seed in range(200):
        rng, tally, lost = np.random.default_rng(seed), Shortfall(INCUMBENT, harm=0.05, weight=0.1), 0.0
        for _ in range(300):
            weak = rng.random() < 0.4
            incumbent, other = float(rng.random() < (0.4 if weak else 0.9)), float(rng.random() < 0.6)
            share = 0.5 if weak else 0.1
            stays = rng.random() >= share
            lost += 0.0 if stays else incumbent - other
            arm, reward = (INCUMBENT, incumbent) if stays else (ARMS[2], other)
            tally.learn(row(arm, reward, propensity=1 - share if stays else share))
        errors.append(tally._lost - lost)
    assert abs(np.mean(errors)) < 4 * np.std(errors) / math.sqrt(len(errors))


def test_imported_rows_lose_nothing():
    """Rows of a table or of another router's log count as outcomes, and cost no slack."""
    imported = Shortfall(INCUMBENT, harm=0.05, weight=0.1)
    for _ in range(50):
        for arm, reward in zip(ARMS, (0.0, 0.7, 0.1), strict=True):
            imported.learn(replace(row(arm, reward, propensity=1 / 3), imported=True))
    assert imported.knows("turn")
    assert imported.mean(ARMS[1]) == pytest.approx(0.7, rel=0.05)
    assert imported.slack == pytest.approx(0.05 * 0.7 * 50)
    imported.learn(row(ARMS[0], 0.0))
    assert imported.slack < 0.05 * 0.7 * 50 - 0.6


def table_rows(questions, *, arms=(INCUMBENT, ARMS[2]), gain=0.3, first=0):
    """Imported rows of questions of two kinds: the second arm earns `gain` more on one kind, and less on the other."""
    for number in range(first, first + questions):
        features = made_features(number, size=8)
        features[0] = 3.0 * (-1.0) ** number
        for arm in arms:
            reward = 0.5 + 0.1 * (number // 2 % 2) + (0.0 if arm == INCUMBENT else gain * (-1.0) ** number)
            yield replace(row(arm, reward, propensity=0.5, seq=number + 1), features=features, imported=True)


def first_share(held, number):
    """Probability that the first question of this service leaves the incumbent."""
    [update] = table_rows(1, arms=(INCUMBENT,), first=number)
    output = pmf_of_one(held, update.query, features=update.features, arms=(INCUMBENT, ARMS[2]))
    return 1.0 - draw(output, arms=(INCUMBENT, ARMS[2]), seed=1, **FLOORS).pmf[0]


def test_a_warm_start_is_evidence():
    """Proven gains free the policy where it gains, from the first question on; where it loses it is held back."""
    warm, apart = conservative("mba"), conservative("mba")
    for update in table_rows(60):
        warm.learn(update)
    for arm in (INCUMBENT, ARMS[2]):  # the same rows, but no question has both outcomes in a row
        for update in table_rows(60, arms=(arm,)):
            apart.learn(update)
    assert warm.gains.count > 10
    assert 0.2 < warm.gains.bound <= 0.3
    assert first_share(warm, 60) > 0.9 > 0.2 > first_share(warm, 61)
    assert (apart.gains.count, apart.gains.bound) == (0, 0.0)
    assert first_share(apart, 60) < 0.2
    warm.restart(ARMS[2])
    assert warm.gains.bound == 0.0


def test_no_row_is_evidence_twice():
    """A question gives one observation, whatever is repeated; rows of this service and rows of weight 0 give none."""
    held, again = conservative("mba"), conservative("mba")
    for update in table_rows(60):
        held.learn(update)
        for _ in range(2 if update.arm == INCUMBENT else 1):
            again.learn(update)
    assert held.gains.asked == again.gains.asked == 60
    assert 10 < again.gains.count <= 30
    count = held.gains.count
    for update in table_rows(30, first=60):
        held.learn(replace(update, imported=False))
    assert (held.gains.asked, held.gains.count) == (60, count)
    for update in table_rows(30, first=90):
        held.learn(replace(update, reward=replace(update.reward, sample_weight=0.0)))
    assert (held.gains.asked, held.gains.count) == (90, count)


def test_a_snapshot_inside_a_question_changes_nothing():
    """A policy that is restored between two rows of a question has the same evidence after the second."""
    rows, whole = [*table_rows(60)], conservative("mba")
    parts = conservative("mba")
    for update in rows:
        whole.learn(update)
        parts.learn(update)
        restored = conservative("mba")
        restored.restore(*parts.state())
        parts = restored
    assert parts.gains.state() == whole.gains.state()
    assert parts.gains.count > 10


@pytest.mark.parametrize(("policy", "delay"), [("uniform", 0), ("uniform", 100), ("mba", 100)])
def test_the_promise_is_kept(policy, delay):
    """Where every other arm is worse, no prefix of 100 questions falls below 1 - harm of the incumbent, late or not."""
    chances = dict(zip(ARMS, (0.2, 0.75, 0.5), strict=True))
    broken = 0
    for seed in range(8):
        rng, held = np.random.default_rng(seed), conservative(policy)
        won, theirs, waiting = 0.0, 0.0, deque()
        for number in range(400):
            rewards = {arm: float(rng.random() < chance) for arm, chance in chances.items()}
            output = pmf_of_one(held, made_query(number), features=made_features(number, size=8), arms=ARMS)
            found = draw(output, arms=ARMS, seed=seed_of(f"{seed}/{number}"), **FLOORS, floors={ARMS[0]: 0.05})
            arm = ARMS[found.index]
            won, theirs = won + rewards[arm], theirs + rewards[INCUMBENT]
            update = row(arm, rewards[arm], propensity=found.pmf[found.index])
            waiting.append(replace(update, features=made_features(number, size=8)))
            if len(waiting) > delay:
                held.learn(waiting.popleft())
            if number >= 99 and won < 0.95 * theirs:
                broken += 1
                break
    assert broken == 0


def test_a_share_is_at_most_what_is_allowed():
    """The expected risk of what is drawn is the allowance, to the last digits, wherever something is held back."""
    restraint = Restraint(arm=INCUMBENT, risks=(3.0, 0.0, -0.5), allowance=0.1, slack=1.0, reason="why")
    mixed = partial(with_incumbent, restraint=restraint, arms=ARMS, seed=7)
    pmf, floor, fact = mixed((0.3, 0.3, 0.4), floor=0.05)
    assert math.fsum(p * r for p, r in zip(pmf, restraint.risks, strict=True)) == pytest.approx(0.1)
    assert fact.share == pytest.approx(0.1 / 0.7)
    assert floor == 0.05 * fact.share
    assert mixed((0.0, 0.4, 0.6), floor=0.0)[0] == (0.0, 0.4, 0.6)


@pytest.mark.parametrize(("count", "held"), [(2, 0.0), (2, 0.1), (12, 0.0), (30, 0.05), (400, 0.0)])
def test_no_arm_has_less_than_the_least_share(count, held):
    """Each logged probability is 0 or at least LEAST_SHARE, their sum is 1, and the same seed gives the same."""
    rng = np.random.default_rng(count)
    arms = tuple(ArmName(f"arm{number}") for number in range(count))
    holdback = Holdback(arm=arms[0], share=held) if held else None
    for number in range(1000):
        risks = (0.0, *rng.uniform(0.0, 1.0, count - 1).tolist())
        allowance = float(10.0 ** rng.uniform(-9.0, 0.0))
        restraint = Restraint(arm=arms[0], risks=risks, allowance=allowance, slack=1.0, reason="why")
        output = PolicyOutput(pmf=tuple(rng.dirichlet(np.full(count, 0.3)).tolist()), restraint=restraint)
        floor = Settings().policy.floor_of(count)
        found, again = (
            draw(output, arms=arms, floor=floor, fallback=None, seed=seed_of(str(number)), holdback=holdback)
            for _ in range(2)
        )
        assert found.pmf == again.pmf
        assert math.fsum(found.pmf) == pytest.approx(1.0, abs=1e-12)
        assert min([p for p in found.pmf if p > 0.0]) >= LEAST_SHARE - 1e-12
        assert found.pmf[0] >= LEAST_SHARE - 1e-12
        assert min(found.pmf) >= found.floor


def test_turns_are_fair():
    """Over many seeds each arm has, on average, the probability that it would have without a least share."""
    pmf = (0.9849, 0.0001, 0.003, 0.004, 0.001, 0.007)
    shares = np.array(
        [
            with_least_share(pmf, min_share=0.005, uniform=uniform_of(seed_of(str(n))), kept_index=0)
            for n in range(20_000)
        ]
    )
    assert shares.mean(axis=0) == pytest.approx(pmf, abs=0.0002)
    assert set(np.count_nonzero(shares[:, 1:5], axis=1)) == {1, 2}  # their probabilities sum to 1.62 least shares
    assert (shares[:, 5] == 0.007).all()
    assert with_least_share((0.0, 0.002, 0.998), min_share=0.005, uniform=0.0, kept_index=1) == pytest.approx(
        (0.0, 0.005, 0.995)
    )


def test_bad_settings_are_refused():
    """An unknown incumbent, an invalid harm, and a policy that wraps itself are refused, each with its field."""
    with pytest.raises(ConfigError, match="'singel_step' is not among the arms") as caught:
        check_policy(Settings(policy={"incumbent": "singel_step"}))
    assert (caught.value.field, "single_step" in caught.value.remedy) == ("policy.incumbent", True)
    with pytest.raises(ConfigError) as caught:
        check_policy(
            Settings(policy={"name": "conservative", "params": {"incumbent": INCUMBENT}, "incumbent": INCUMBENT})
        )
    assert caught.value.field == "policy.incumbent"
    for params, field in (({"harm": 0.0}, "harm"), ({"policy": "conservative"}, "policy")):
        with pytest.raises(ConfigError) as caught:
            conservative(**params)
        assert caught.value.field == f"policy.params.{field}"
    with pytest.raises(ConfigError, match="cannot wrap itself"):
        make_policy("conservative", params={"incumbent": "x", "policy": "conservative"})
    with pytest.raises(ValueError, match="least share of an arm; use 0, or at least 0"):
        Settings(policy={"floor": 0.002})
    for harm in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="harm"):
            Settings(policy={"harm": harm})


def test_rows_of_elsewhere_are_no_decisions_of_here():
    """`decided` also counts rows of a warm start; learned rows represent only decisions made here."""
    warm, cold = Shortfall(INCUMBENT, harm=0.05, weight=0.1), Shortfall(INCUMBENT, harm=0.05, weight=0.1)
    for _ in range(500):
        warm.learn(replace(row(INCUMBENT, 0.7), imported=True, decided=500))
    for number in range(1, 31):
        for tally, before in ((warm, 500), (cold, 0)):
            tally.learn(replace(row(ARMS[number % 2], 0.7), decided=before + 3 * number))
    assert warm._ratio == cold._ratio == 3.0


def mean_by_hand(rows):
    """(weighted mean, standard deviation) of the incumbent's rewards in these rows, weighted by age and propensity."""
    of_it = [one for one in rows if one[0] == INCUMBENT]
    weights = [0.999 ** (len(of_it) - 1 - n) * min(1.0 / one[2], 10.0) for n, one in enumerate(of_it)]
    rewards = np.array([one[1] for one in of_it])
    mean = np.average(rewards, weights=weights)
    return mean, math.sqrt(np.average((rewards - mean) ** 2, weights=weights))


def slack_by_hand(rows, *, harm):
    """The slack after these rows of here, (arm, reward, propensity, decided), by sums over all of them.

    allowance * max(N, (N + 100) / 2) - r lost - sqrt(others * variance * (1 + (r - 1) r)), N = r * own.
    """
    lost = others = 0.0
    for at, (arm, reward, propensity, _) in enumerate(rows):
        base = mean_by_hand(rows[:at])[0] if at else reward
        if arm == INCUMBENT:
            lost += (reward - base) * (min(1.0 / propensity, 10.0) - 1.0)
        else:
            lost, others = lost + base - reward, 0.999 * others + 1.0
    others_rewards = [reward for arm, reward, _, _ in rows if arm != INCUMBENT]
    variance = (len(others_rewards) * np.var(others_rewards) + 10 * 0.25) / (len(others_rewards) + 10)
    mean, spread = mean_by_hand(rows)
    allowance = harm * max(abs(mean), 0.1 * spread)
    ratio = max(1.0, (rows[-1][3] or len(rows)) / len(rows))
    noise = math.sqrt(others * variance * (1.0 + (ratio - 1.0) * ratio))
    decisions = ratio * len(rows)
    return allowance * max(decisions, 0.5 * (decisions + 100)) - ratio * lost - noise


@pytest.mark.parametrize("per_row", [None, 1, 4, 10])
@pytest.mark.parametrize("count", [12, 80])
def test_slack_is_the_formula(count, per_row):
    """The slack equals the formula over all rows, if every decision is learned and if one of ten is.

    What 800 decisions allow is below the largest surplus.
    """
    rng, rows, tally = np.random.default_rng(count), [], Shortfall(INCUMBENT, harm=0.3, weight=0.1)
    for number in range(1, count + 1):
        arm = INCUMBENT if number == 1 or rng.random() < 0.7 else ARMS[2]
        reward = float(rng.random() < (0.7 if arm == INCUMBENT else 0.6))
        decided = None if per_row is None else per_row * number + int(rng.integers(3))
        rows.append((arm, reward, 0.7 if arm == INCUMBENT else 0.05, decided))
        tally.learn(replace(row(arm, reward, propensity=rows[-1][2]), decided=decided))
    assert tally.slack == pytest.approx(slack_by_hand(rows, harm=0.3), rel=1e-9)


def test_the_first_outcomes_of_an_arm_may_be_luck():
    """Equal rewards have a variance, by prior rows; so three lucky outcomes of another arm do not release all draws.

    Rewards without known bounds vary like the incumbent's.
    """
    policy = conservative("fixed", params={"arm": ARMS[2]})
    for number in range(1, 29):
        arm, reward = (ARMS[2], 0.95) if number in (20, 22, 24) else (INCUMBENT, 0.7)
        policy.learn(replace(row(arm, reward, seq=number), decided=15 * number))
    assert policy.shortfall.variance == pytest.approx(2.5 / 13)
    assert drawn(policy).facts["incumbent"]["share"] < 0.5
    tally = Shortfall(INCUMBENT, harm=0.05, weight=0.1)
    for number in range(40):
        update = row(INCUMBENT, float(number % 2))
        tally.learn(replace(update, reward=replace(update.reward, preset="reward")))
    assert tally.variance == pytest.approx(0.25, rel=1e-3)


def test_proven_pairs_count_as_learned_rows():
    """Unlearned decisions are judged by learned rows and pairs together; without a proven gain pairs add nothing."""
    tally = Shortfall(INCUMBENT, harm=0.05, weight=0.1)
    for number in range(1, 41):
        arm, reward = (INCUMBENT, 0.6 + 0.2 * (number // 4 % 2)) if number % 4 else (ARMS[2], 0.5)
        tally.learn(replace(row(arm, reward), decided=4 * number))
    assert tally.slack_with(gain=0.0, pairs=30) == tally.slack
    rest, others, part = 3.0, tally._others, tally._others / (tally._others + 30)
    lost = tally._lost + rest * part * (tally._lost - 30 * 0.1)
    noise = others * tally.variance * (1.0 + rest * (1.0 + rest * part))
    slack = tally.slack_with(gain=0.1, pairs=30)
    assert slack == pytest.approx(tally.allowance("turn") * 160 - lost - math.sqrt(noise))
    assert slack > tally.slack


def test_doubt_lowers_what_an_arm_is_taken_for():
    """An arm's risk is that of its score less the deviation of its difference from the incumbent, draw by draw."""
    held = conservative("mba")
    for number in range(60):
        arm = ARMS[number % 2]
        update = replace(row(arm, 0.6, propensity=0.5, seq=number + 1), features=made_features(number, size=8))
        held.learn(update)
    output = pmf_of_one(held, made_query(7), features=made_features(7, size=8), arms=ARMS)
    apart = output.deviations - output.deviations[1]
    doubts = np.sqrt((apart**2).mean(axis=1))
    assert doubts[1] == 0.0 < doubts[0] < doubts[2]
    slack, tally = held.shortfall.slack, held.shortfall
    noise = 2.0 * tally.variance / slack
    losses = np.maximum(output.scores[1] - np.array(output.scores) + doubts, 0.0) + noise
    assert output.restraint.risks == pytest.approx((losses[0], 0.0, losses[2]), rel=1e-9)
    wanted = 0.5 * tally.allowance("turn") + max(slack - tally.reserve, 0.0) / 50.0
    assert output.restraint.allowance == pytest.approx(wanted)
    unsure = output.scores[1] - np.array(output.scores)
    assert all(output.restraint.risks[at] > max(unsure[at], 0.0) + noise for at in (0, 2))


def test_slack_above_the_reserve_is_spent():
    """With more slack an arm without a known loss gets a larger share; the reserve grows with unlearned decisions."""
    shares, reserves = [], []
    for count in (40, 400, 4000):
        policy = taught(conservative(), *[(INCUMBENT, 0.6, 1.0), (INCUMBENT, 0.8, 1.0)] * count)
        shares.append(drawn(policy).facts["incumbent"]["share"])
        reserves.append(policy.shortfall.reserve)
    assert shares == sorted(shares)
    assert shares[0] < 0.2 < shares[-1]
    assert reserves == pytest.approx([4.0] * 3)
    rarely = conservative()
    for seq in range(1, 41):
        rarely.learn(replace(row(INCUMBENT, 0.7, seq=seq), decided=4 * seq))
    assert rarely.shortfall.reserve == pytest.approx(16.0)
