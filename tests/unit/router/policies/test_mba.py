"""MBA-RAG's policy: its pmf against counts of points, its alarm against chance and against worlds that change."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ragbandit.router.policies.algorithms.mba import MbaRag
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.shared.types import ArmName, Query
from ragbandit.testing.policies import ARMS, made_features, made_reward, made_updates, sha_of, taught, through_files
from tests.support.examples import steady

QUERY = Query(text="who?")


def output_of(policy, features, arms=ARMS):
    return pmf_of_one(policy, QUERY, features=features, arms=arms)


def rewarded(update, quality, *, cost=1.0, weight=0.05):
    return replace(update, reward=made_reward(float(quality), cost=float(cost), weight=weight))


# --- the pmf ---------------------------------------------------------------------------------------------------------


def counted(values):
    """Each row's share of the columns in which it is the largest; those that are equal share the column."""
    shares = [0.0] * len(values)
    for column in zip(*values, strict=True):
        best = [at for at, value in enumerate(column) if value == max(column)]
        for at in best:
            shares[at] += 1.0 / len(best) / len(values[0])
    return shares


@pytest.mark.parametrize(
    ("arms", "factor"), [(2, 0.7), (3, 0.6746), (4, 0.6006), (11, 0.4566), (50, 0.3575)], ids=lambda one: str(one)
)
def test_pmf_is_the_share_of_points(arms, factor):
    """An arm has the share of points in which it is the best, deviations counting min(.7, 1 / sqrt(2 ln K)) times."""
    names = [*ARMS, *(ArmName(f"arm {number}") for number in range(47))][:arms]
    policy = taught(lambda: MbaRag(explore=0.8, epsilon_min=0.1), made_updates(90, seed=3, arms=names[: arms - 1]))
    output = output_of(policy, made_features(9), names)
    values = np.array(output.scores)[:, None] + 0.8 * factor * output.deviations
    assert factor == pytest.approx(min(0.7, 1.0 / math.sqrt(2.0 * math.log(arms))), abs=5e-5)
    shares = counted(values.tolist())
    assert output.deviations.shape == (arms, 64)
    assert output.pmf == pytest.approx([0.1 / arms + 0.9 * share for share in shares], abs=1e-12)
    assert len({p for p in output.pmf if p > 0.1 / arms + 1e-12}) > 1 or arms == 2


def test_arms_that_are_alike_have_alike_shares():
    """Over the names of 40 sets of new arms each has 1/K, and none of a set is left out for ever."""
    for count in (2, 5, 11):
        shares = []
        for turn in range(40):
            arms = [ArmName(f"{turn} of {number}") for number in range(count)]
            shares.append(np.mean([output_of(MbaRag(), made_features(n, size=8), arms).pmf for n in range(5)], axis=0))
        assert np.mean(shares, axis=0) == pytest.approx([1 / count] * count, abs=0.25 / count)
        assert np.min(shares) > 0.2 / count


@pytest.mark.parametrize("arms", [2, pytest.param(11, marks=pytest.mark.slow)])
def test_it_ends_at_the_better_arm(arms):
    """Where one arm pays .7 and the others .5, its probability grows with the rows, to 95 % after 200 of each arm."""
    names, right = [ArmName(f"arm {number}") for number in range(arms)], {}
    for seed in range(3):
        rng, policy = np.random.default_rng(seed), MbaRag()
        for count, update in enumerate(made_updates(200 * arms + 1, arms=names, seed=seed, size=8)):
            if count in (20 * arms, 60 * arms, 200 * arms):
                pmfs = [output_of(policy, made_features(n, size=8), names).pmf[1] for n in range(20)]
                right.setdefault(count // arms, []).append(np.mean(pmfs))
            policy.learn(rewarded(update, rng.random() < (0.7 if update.arm == names[1] else 0.5)))
    some, more, most = (float(np.mean(right[rows])) for rows in (20, 60, 200))
    assert 1.5 / arms < some or arms == 2
    assert some < more < most
    assert most > 0.95


@steady
@given(
    known=st.integers(0, 60),
    arms=st.lists(st.sampled_from(ARMS) | st.text(min_size=1, max_size=3), min_size=1, max_size=6, unique=True),
    epsilon_min=st.floats(0.0, 1.0),
    explore=st.floats(0.0, 5.0),
)
def test_every_arm_has_its_share_of_epsilon_min(known, arms, epsilon_min, explore):
    """No offered arm, known or not, has less than epsilon_min / K, and they sum to 1."""
    policy = taught(lambda: MbaRag(epsilon_min=epsilon_min, explore=explore), made_updates(known))
    pmf = output_of(policy, made_features(1), tuple(arms)).pmf
    assert min(pmf) >= epsilon_min / len(arms) * (1 - 1e-12)
    assert math.fsum(pmf) == pytest.approx(1.0, abs=1e-12)


def test_learns_which_question_needs_which_arm():
    """Where the sign of one feature decides which of two arms pays, the likeliest arm follows it."""
    policy, pair = MbaRag(), ARMS[:2]
    for update in made_updates(600, arms=pair, size=8):
        policy.learn(rewarded(update, (update.features[2] > 0) == (update.arm == pair[0])))
    right = 0
    for seed in range(200):
        x = made_features(50_000 + seed, size=8)
        pmf = output_of(policy, x, pair).pmf
        right += pmf.index(max(pmf)) == (0 if x[2] > 0 else 1)
    assert right >= 180


def test_unseen_arm_gets_tried():
    """Behind arms that pay .55 a new one has far more than epsilon_min / K; as soon as it is known to fail, that."""
    policy = MbaRag(epsilon_min=0.02)
    for update in made_updates(300):
        policy.learn(rewarded(update, 0.35 + 0.4 * (update.seq % 2)))
    policy.learn(rewarded(made_updates(1, first=301)[0], 0.55))
    fresh = output_of(policy, made_features(1), [*ARMS, "newcomer"])
    assert fresh.scores[-1] < max(fresh.scores)
    assert fresh.pmf[-1] > 8 * 0.005
    for update in made_updates(300):
        policy.learn(rewarded(replace(update, arm="newcomer"), 0.0, cost=4.0))
    assert output_of(policy, made_features(1), [*ARMS, "newcomer"]).pmf[-1] == pytest.approx(0.005, rel=0.05)


# --- what a reward is worth ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("judged", [0, 40])
def test_raw_rewards_keep_their_value(judged):
    """A reward that the caller made itself is learned so that quality - weight * cost is its value.

    Before any judged row the weight is 0 and the cost is known apart; after some it is theirs, and stays.
    """
    rng, size = np.random.default_rng(3), 6
    policy = taught(lambda: MbaRag(alarm=1e18), made_updates(judged, size=size))
    weight = 0.1 if judged else 0.0
    for update in made_updates(1500, size=size, first=judged + 1):
        value = 0.6 if update.arm == ARMS[1] else 0.2
        raw = replace(update.reward, preset="reward", weight=0.9, value=value, quality=value, cost=rng.choice([1, 5]))
        policy.learn(replace(update, reward=raw))
    output = output_of(policy, np.zeros(size, dtype=np.float32))
    assert output.facts["weight"] == weight
    assert output.scores == pytest.approx((0.2, 0.6, 0.2), abs=0.02)
    assert output.facts["cost"] == pytest.approx([3.0] * 3, abs=0.27)  # three errors of the mean: 2 / sqrt(500)
    made = [q - weight * c for q, c in zip(output.facts["quality"], output.facts["cost"], strict=True)]
    assert output.scores == pytest.approx(made, abs=1e-12)


# --- the alarm -------------------------------------------------------------------------------------------------------


def world(count, *, chance, seed=0, size=8, first=1):
    """Rows of three arms drawn alike, a reward of 1 with the arm's chance, whatever the question."""
    rng = np.random.default_rng([seed, first])
    template = made_updates(1, size=size)[0]
    for seq in range(first, first + count):
        arm = int(rng.integers(3))
        row = replace(template, seq=seq, arm=ARMS[arm], features=rng.standard_normal(size).astype(np.float32))
        yield rewarded(row, rng.random() < chance[arm])


def rings(policy, rows, *, arm):
    """How many rows of an arm until its alarm rings; the policy has learned them then. None if it never does."""
    count = 0
    for row in rows:
        before = policy.alarms.get(arm, 0)
        policy.learn(row)
        count += row.arm == arm
        if policy.alarms.get(arm, 0) > before:
            return count
    return None


@pytest.mark.parametrize(
    "chance",
    [(0.5, 0.5, 0.5), (0.05, 0.5, 0.97), (0.97, 0.97, 0.97), (0.5, 1.0, 1.0), (0.97, 0.5, 0.97), (0.99, 0.6, 0.4)],
)
@pytest.mark.slow
def test_alarm_is_silent_where_nothing_changes(chance):
    """In 20,000 rows of three arms with constant chances it rings twice at most, however unlike in noise they are.

    One in 100,000 rows is stated: more than two would come by chance in one such run of a thousand.
    """
    policy = taught(MbaRag, world(20_000, chance=chance))
    assert sum(policy.alarms.values()) <= 2
    quiet = [arm for arm in ARMS if arm not in policy.alarms]
    assert [policy.age(arm) for arm in quiet] == [policy.seen[arm] for arm in quiet]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_alarm_rings_when_rewards_are_swapped(seed):
    """Arms that pay .8 and .2 change places after 1,500 rows: within 60 rows of each its alarm rings, once."""
    for arm in (ARMS[0], ARMS[2]):
        policy = taught(MbaRag, world(1500, chance=(0.8, 0.5, 0.2), seed=seed))
        assert policy.alarms == {}
        assert rings(policy, world(1500, chance=(0.2, 0.5, 0.8), seed=seed, first=1501), arm=arm) <= 60
    taught(lambda: policy, world(3000, chance=(0.2, 0.5, 0.8), seed=seed, first=5001))
    assert policy.alarms == {ARMS[0]: 1, ARMS[2]: 1}


def test_draws_are_as_wide_as_the_lengths_leave_open():
    """Questions of one length have the same deviations of the samples, whatever they ask; their scores differ."""
    policy, one, other = taught(MbaRag, made_updates(300, size=8)), made_features(5, size=8), made_features(6, size=8)
    longer = other.copy()
    other[-2:] = one[-2:]
    first, second, third = (output_of(policy, features) for features in (one, other, longer))
    assert (first.deviations == second.deviations).all()
    assert not np.allclose(first.deviations, third.deviations)
    assert first.scores != second.scores


def test_arm_that_rang_learns_anew_and_the_others_keep_all():
    """The row that rings leaves the arm a guess that 100 rows outweigh, and the others' arrays as they were."""
    policy = taught(MbaRag, world(1500, chance=(0.8, 0.5, 0.2)))
    after = list(world(3000, chance=(0.2, 0.5, 0.8), first=1501))
    place = 0
    while not policy.alarms:
        row = after[place]
        before = {name: array.copy() for name, array in policy.state()[0].items()}
        width = np.std(output_of(policy, row.features).deviations[ARMS.index(row.arm)])
        policy.learn(row)
        place += 1
    arrays, facts = policy.state()
    changed = {name for name, array in arrays.items() if not np.array_equal(array, before[name])}
    kinds = ("gram/trusted", "moment/trusted", "newest")
    wanted = {"scatter", *(f"{kind}/{row.arm}" for kind in kinds)}
    own = {f"{model}/{name}" for model in ("short", "question", "pooled") for name in wanted}
    own |= {f"short/noise/trusted/{row.arm}"}
    assert {name for name in changed if not name.startswith("pooled/pool/")} == own
    assert np.std(output_of(policy, row.features).deviations[ARMS.index(row.arm)]) > 2 * width
    assert facts["updates"] == 1500 + place
    calm = np.zeros(8, dtype=np.float32)
    for later in [one for one in after[place:] if one.arm == row.arm][:100]:
        policy.learn(later)
    expected = {ARMS[0]: 0.15, ARMS[2]: 0.75}[row.arm]  # chance - .05 * 1
    assert output_of(policy, calm).scores[ARMS.index(row.arm)] == pytest.approx(expected, abs=0.2)


def test_one_miss_of_a_sure_arm_is_no_alarm():
    """An arm that is right in 999 of 1,000 may miss now and then, and one wild cost does not ring either."""
    policy, rng = MbaRag(), np.random.default_rng(1)
    for update in made_updates(3000, arms=ARMS[:2], size=8):
        right, slow = float(rng.random() < 0.999), rng.random() < 0.002
        policy.learn(rewarded(update, right, cost=30.0 if slow else 1.0, weight=0.05))
    assert policy.alarms == {}


def test_one_wild_cost_does_not_drown_the_rest():
    """After 1,500 good rows one answer that cost a billion leaves the best arm the likeliest."""
    policy = taught(MbaRag, world(1500, chance=(0.2, 0.4, 0.9)))
    wild = next(iter(world(1, chance=(1.0, 1.0, 1.0), first=1501)))
    policy.learn(rewarded(replace(wild, arm=ARMS[2]), 1.0, cost=1e9, weight=0.05))
    pmf = output_of(policy, np.zeros(8, dtype=np.float32)).pmf
    assert pmf[2] > 0.8


# --- state -----------------------------------------------------------------------------------------------------------


def test_snapshot_carries_sums_and_alarms():
    """Cut right after an alarm, and in the midst of a rise, the policy that comes back goes on as if never cut."""
    rows = [*world(300, chance=(0.8, 0.5, 0.2)), *world(200, chance=(0.2, 0.5, 0.8), first=301)]
    policy, cuts = MbaRag(), []
    for place, row in enumerate(rows, start=1):
        policy.learn(row)
        if policy.alarms and not cuts:
            cuts = [place - 3, place]
    assert len(cuts) == 2
    for cut in cuts:
        back = through_files(taught(MbaRag, rows[:cut]))
        assert back.state()[1]["changes"]
        assert bool(back.alarms) == (cut == cuts[1])
        for row in rows[cut:]:
            back.learn(row)
        assert sha_of(back) == sha_of(policy)
        assert back.alarms == policy.alarms
