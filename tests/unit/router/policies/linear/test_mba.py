"""MBA-RAG's policy: its pmf against closed forms, its alarm against chance and against worlds that change."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.policies.linear.mba import MbaRag, chances
from ragbandit.router.policies.linear.ridge import RidgeHeads
from ragbandit.shared.types import Query
from ragbandit.testing.policies import sha_of, taught, through_files
from ragbandit.testing.policy_examples import ARMS, made_features, made_reward, made_updates
from tests.support.examples import steady


def by_rows(**params):
    """The policy that learns row by row, so that its sums can be made again."""
    return MbaRag(**{"block": 1} | params)


QUERY = Query(text="who?")
PHI = NormalDist().cdf


def output_of(policy, features, arms=ARMS):
    return pmf_of_one(policy, QUERY, features=features, arms=arms)


def rewarded(update, quality, *, cost=1.0, weight=0.05):
    return replace(update, reward=made_reward(float(quality), cost=float(cost), weight=weight))


def design(features):
    """The row (1, x / sqrt(d)), shape (d+1,)."""
    return np.concatenate([[1.0], features.astype(np.float64) / math.sqrt(features.size)])


# --- odds of being better --------------------------------------------------------------------------------------------

#: multiples of 2^-10: sums and differences of them are exact
means = st.integers(-2048, 2048).map(lambda n: n / 1024)
widths = st.sampled_from([0.0, 1e-6, 1e-3]) | st.floats(1e-3, 3.0)
several = st.lists(st.tuples(means, widths), min_size=1, max_size=6)


@steady
@given(gap=st.floats(0.0, 4.0), wide=st.floats(1e-3, 3.0), narrow=st.floats(0.0, 3.0))
def test_two_arms_have_the_normal_tail(gap, wide, narrow):
    """Of two arms the lower one has Phi(-gap / sqrt(w1^2 + w2^2)), to 1e-12, whichever of them is wide."""
    wanted = PHI(-gap / math.sqrt(wide * wide + narrow * narrow))
    assert chances((gap, 0.0), widths=(wide, narrow)) == pytest.approx([1 - wanted, wanted], abs=1e-12)
    assert chances((0.0, gap), widths=(wide, narrow)) == pytest.approx([wanted, 1 - wanted], abs=1e-12)


def test_several_arms_have_their_odds():
    """Four arms: P(better) : P(worse) than the best one, divided by their sum; the best one's odds are 1."""
    found = chances((0.3, 0.5, -0.2, 0.45), widths=(0.1, 0.2, 0.6, 0.0))
    better = [
        PHI(-0.2 / math.hypot(0.1, 0.2)),
        0.5,
        PHI(-0.7 / math.hypot(0.6, 0.2)),
        PHI(-0.05 / 0.2),
    ]
    odds = [p / (1 - p) for p in better]
    assert found == pytest.approx([o / sum(odds) for o in odds], abs=1e-12)


@steady
@given(arms=several)
def test_chances_are_a_pmf_led_by_the_best(arms):
    """They are finite, at least 0, sum to 1, and no arm has more than one with the highest mean."""
    mean, width = zip(*arms, strict=True)
    found = chances(mean, widths=width)
    assert all(math.isfinite(p) and p >= 0.0 for p in found)
    assert math.fsum(found) == pytest.approx(1.0, abs=1e-12)
    assert max(found) == found[mean.index(max(mean))]


@steady
@given(arms=several, data=st.data())
def test_order_of_arms_does_not_matter(arms, data):
    """The chances of permuted arms are the permuted chances, bit for bit."""
    order = data.draw(st.permutations(range(len(arms))))
    straight = chances([mean for mean, _ in arms], widths=[width for _, width in arms])
    turned = chances([arms[i][0] for i in order], widths=[arms[i][1] for i in order])
    assert turned == [straight[i] for i in order]


@steady
@given(tied=st.lists(widths, min_size=1, max_size=5), others=several)
def test_equal_means_share(tied, others):
    """Arms with the highest mean have one and the same chance, whatever their widths; alone they have 1/K."""
    best = 3.0
    found = chances((best,) * len(tied) + tuple(m for m, _ in others), widths=(*tied, *(w for _, w in others)))
    assert len(set(found[: len(tied)])) == 1
    assert chances((best,) * len(tied), widths=tied) == pytest.approx([1 / len(tied)] * len(tied), abs=1e-15)


def test_the_widest_of_equal_means_leads():
    """The others' odds are against the least known of the best arms, wherever it stands."""
    odds = PHI(-0.2 / math.hypot(0.5, 0.1)) / PHI(0.2 / math.hypot(0.5, 0.1))
    wanted = [1 / (2 + odds), 1 / (2 + odds), odds / (2 + odds)]
    assert chances((0.3, 0.3, 0.1), widths=(0.01, 0.5, 0.1)) == pytest.approx(wanted, abs=1e-12)
    assert chances((0.3, 0.3, 0.1), widths=(0.5, 0.01, 0.1)) == pytest.approx(wanted, abs=1e-12)


def test_sure_means_leave_nothing_to_the_rest():
    """Where all widths are 0 the best arms share everything; an unsure arm among them keeps its tail."""
    assert chances((0.1, 0.3, 0.2), widths=(0.0, 0.0, 0.0)) == [0.0, 1.0, 0.0]
    assert chances((0.3, 0.3, 0.2), widths=(0.0, 0.0, 0.0)) == [0.5, 0.5, 0.0]
    assert chances((0.3,), widths=(0.0,)) == [1.0]
    found = chances((0.3, 0.2, 0.1), widths=(0.0, 0.0, 0.4))
    tail = PHI(-0.2 / 0.4)
    assert found == pytest.approx([1 - tail, 0.0, tail], abs=1e-12)


@pytest.mark.parametrize("tiny", [1e-10, 1e-100, 1e-200, 5e-324])
def test_tiny_widths_are_as_good_as_none(tiny):
    """Widths that nobody can tell from 0 give what 0 gives, without a warning or an overflow."""
    assert chances((0.3, 0.1), widths=(tiny, tiny)) == [1.0, 0.0]
    assert chances((0.3, 0.3), widths=(tiny, tiny)) == [0.5, 0.5]
    assert chances((1e-320, 0.0), widths=(tiny, 1.0)) == pytest.approx([0.5, 0.5])


@steady
@given(arms=several, gap=st.floats(1e-3, 3.0), more=st.floats(1e-3, 3.0), width=st.floats(1e-3, 3.0))
def test_a_larger_gap_is_a_smaller_chance(arms, gap, more, width):
    """An arm that falls further behind the best one has no more chance than before, and the best one no less."""
    mean, width_of = [4.0, *(m for m, _ in arms)], [0.1, *(w for _, w in arms)]
    near, far = (chances([*mean, 4.0 - g], widths=[*width_of, width]) for g in (gap, gap + more))
    assert far[-1] <= near[-1]
    assert far[0] >= near[0]
    assert (far[-1] < near[-1]) == (near[-1] > 0.0)


@steady
@given(arms=several, gap=st.floats(1e-2, 3.0), width=st.floats(0.0, 3.0), more=st.floats(1e-3, 3.0))
def test_a_wider_arm_is_a_larger_chance(arms, gap, width, more):
    """An arm behind the best one gains by being less known, and the best one loses."""
    mean, width_of = [4.0, *(m for m, _ in arms)], [0.1, *(w for _, w in arms)]
    sure, unsure = (chances([*mean, 4.0 - gap], widths=[*width_of, w]) for w in (width, width + more))
    assert unsure[-1] >= sure[-1]
    assert unsure[0] <= sure[0]


@steady
@given(arms=several, shift=means, scale=st.sampled_from([1.0, 2.0**-20, 2.0**20]))
def test_units_do_not_matter(arms, shift, scale):
    """Means moved together, and means and widths times one number, leave the chances to 1e-9."""
    mean, width = zip(*arms, strict=True)
    other = chances([(m + shift) * scale for m in mean], widths=[w * scale for w in width])
    assert other == pytest.approx(chances(mean, widths=width), abs=1e-9)


# --- the pmf ---------------------------------------------------------------------------------------------------------


def recursion(rows, *, ridge, bias_ridge, memory, size):
    """One arm's means (2, d+1) and leverage by linear solves of the explicit, fading precision."""
    kept, prior = 1.0 - 1.0 / memory, np.array([bias_ridge] + [ridge] * size)
    precision, moment, spreads = np.diag(prior), np.zeros((2, size + 1)), []
    for count, update in enumerate(rows):
        z = design(update.features)
        spreads.append(z @ np.linalg.solve(precision, z))
        precision = kept * precision + np.outer(z, z)
        precision[count % (size + 1), count % (size + 1)] += (1.0 - kept) * (size + 1) * prior[count % (size + 1)]
        moment = kept * moment + np.outer((update.reward.quality, update.reward.cost), z)
    assert len(spreads) <= 50  # so that the running mean is the mean
    return np.linalg.solve(precision, moment.T).T, float(np.mean(spreads))


def test_pmf_is_the_closed_form():
    """After 90 rows the pmf follows from linear solves, the heads' noise and the normal tail, to 1e-9."""
    updates, size = made_updates(90, seed=3), 24
    policy = taught(lambda: by_rows(ridge=3.0, bias_ridge=0.5, explore=0.7, epsilon_min=0.1, memory=60.0), updates)
    z, value, width = design(made_features(9)), [], []
    for arm in ARMS:
        rows = [update for update in updates if update.arm == arm]
        mean, leverage = recursion(rows, ridge=3.0, bias_ridge=0.5, memory=60.0, size=size)
        value.append(float((mean[0] - 0.1 * mean[1]) @ z))
        width.append(0.7 * policy._heads.noise * math.sqrt(leverage))
    best = value.index(max(value))
    better = [PHI((v - value[best]) / math.hypot(w, width[best])) for v, w in zip(value, width, strict=True)]
    odds = [p / (1 - p) if i != best else 1.0 for i, p in enumerate(better)]
    output = output_of(policy, made_features(9))
    assert output.scores == pytest.approx(value, abs=1e-9)
    assert output.pmf == pytest.approx([0.1 / 3 + 0.9 * o / sum(odds) for o in odds], abs=1e-9)


@steady
@given(
    known=st.integers(0, 60),
    arms=st.lists(st.sampled_from(ARMS) | st.text(min_size=1, max_size=3), min_size=1, max_size=6, unique=True),
    epsilon_min=st.floats(0.0, 1.0),
    explore=st.floats(0.0, 5.0),
)
def test_every_arm_has_its_share_of_epsilon_min(known, arms, epsilon_min, explore):
    """No offered arm, known or not, has less than epsilon_min / K, and they sum to 1."""
    policy = taught(lambda: by_rows(epsilon_min=epsilon_min, explore=explore), made_updates(known))
    pmf = output_of(policy, made_features(1), tuple(arms)).pmf
    assert min(pmf) >= epsilon_min / len(arms) * (1 - 1e-12)
    assert math.fsum(pmf) == pytest.approx(1.0, abs=1e-12)


def test_epsilon_falls_as_the_widths_do():
    """Where one arm pays .8 and the others .4, epsilon is 2/3 before any row and ends at epsilon_min's share."""
    policy, said, rng = by_rows(epsilon_min=0.03), {}, np.random.default_rng(2)
    for count, update in enumerate(made_updates(1500, size=8)):
        if count in (0, 30, 150, 1000):
            said[count] = output_of(policy, made_features(1, size=8)).facts["epsilon"]
        policy.learn(rewarded(update, rng.random() < (0.8 if update.arm == ARMS[1] else 0.4)))
    assert said[0] == pytest.approx(2 / 3)
    assert said[0] > said[30] > said[150] > said[1000]
    assert said[1000] == pytest.approx(0.02, abs=2e-3)


def test_log_has_the_heads_apart():
    """The facts are quality and cost of every arm, the weight between them, and epsilon = 1 - the likeliest arm."""
    updates = made_updates(60)
    output = output_of(taught(by_rows, updates), made_features(1), (*ARMS, "newcomer"))
    heads = RidgeHeads(ridge=5.0, bias_ridge=1.0, memory=20_000.0)
    for update in updates:
        heads.learn(update)
    prediction = heads.predict(made_features(1), arms=(*ARMS, "newcomer"))
    assert set(output.facts) == {"quality", "cost", "weight", "epsilon"}
    assert output.facts["quality"] == pytest.approx(prediction.quality, abs=1e-12)
    assert output.facts["cost"] == pytest.approx(prediction.cost, abs=1e-12)
    assert (output.facts["weight"], output.facts["epsilon"]) == (0.1, 1.0 - max(output.pmf))
    assert output.scores == pytest.approx(prediction.value, abs=1e-12)


def test_learns_which_question_needs_which_arm():
    """Where the sign of one feature decides which of two arms pays, the likeliest arm follows it."""
    policy, pair = by_rows(), ARMS[:2]
    for update in made_updates(600, arms=pair, size=8):
        policy.learn(rewarded(update, (update.features[2] > 0) == (update.arm == pair[0])))
    right = 0
    for seed in range(200):
        x = made_features(50_000 + seed, size=8)
        pmf = output_of(policy, x, pair).pmf
        right += pmf.index(max(pmf)) == (0 if x[2] > 0 else 1)
    assert right >= 180


def test_unseen_arm_gets_tried():
    """Behind arms that pay .3 a new one has far more than epsilon_min / K; as soon as it is known to fail, that."""
    policy = by_rows(epsilon_min=0.02)
    for update in made_updates(300):
        policy.learn(rewarded(update, 0.1 + 0.4 * (update.seq % 2)))
    policy.learn(rewarded(made_updates(1, first=301)[0], 0.3))
    fresh = output_of(policy, made_features(1), [*ARMS, "newcomer"])
    assert fresh.scores[-1] < max(fresh.scores)
    assert fresh.pmf[-1] > 8 * 0.005
    for update in made_updates(300):
        policy.learn(rewarded(replace(update, arm="newcomer"), 0.0, cost=4.0))
    assert output_of(policy, made_features(1), [*ARMS, "newcomer"]).pmf[-1] == pytest.approx(0.005, rel=0.05)


def test_unseen_arm_beats_arms_that_lose():
    """Where every known arm's mean is below 0, the new arm is the greedy one: it gets tried."""
    policy = by_rows()
    for update in made_updates(60):
        policy.learn(rewarded(update, -0.8))
    output = output_of(policy, made_features(1), [*ARMS, "newcomer"])
    assert max(output.scores) == output.scores[-1] == 0.0
    assert max(output.pmf) == output.pmf[-1]


# --- what a reward is worth ------------------------------------------------------------------------------------------


def test_heads_know_nothing_of_the_weight():
    """Rows that differ in their weight alone leave the same quality and cost heads, bit for bit."""
    updates = made_updates(200)
    cheap, dear = (
        taught(by_rows, [rewarded(u, u.reward.quality, cost=u.reward.cost, weight=weight) for u in updates])
        for weight in (0.01, 0.15)
    )
    for name, array in cheap.state()[0].items():
        assert np.array_equal(array, dear.state()[0][name]), name
    assert output_of(cheap, made_features(1)).scores != output_of(dear, made_features(1)).scores


@pytest.mark.parametrize("judged", [0, 40])
def test_raw_rewards_keep_their_value(judged):
    """A reward that the caller made itself is learned so that quality - weight * cost is its value.

    Before any judged row the weight is 0 and the cost is known apart; after some it is theirs, and stays.
    """
    rng, size = np.random.default_rng(3), 6
    policy = taught(by_rows, made_updates(judged, size=size))
    weight = 0.1 if judged else 0.0
    for update in made_updates(3000, size=size, first=judged + 1):
        value = 0.6 if update.arm == ARMS[1] else 0.2
        raw = replace(update.reward, preset="reward", weight=0.9, value=value, quality=value, cost=rng.choice([1, 5]))
        policy.learn(replace(update, reward=raw))
    output = output_of(policy, np.zeros(size, dtype=np.float32))
    assert output.facts["weight"] == weight
    assert output.scores == pytest.approx((0.2, 0.6, 0.2), abs=0.02)
    assert output.facts["cost"] == pytest.approx([3.0] * 3, abs=0.2)
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
    """In 20,000 rows of three arms with constant chances it does not ring, however unlike in noise they are."""
    policy = taught(by_rows, world(20_000, chance=chance))
    assert policy.alarms == {}
    assert {arm: policy._heads.age(arm) for arm in ARMS} == policy.seen


@pytest.mark.parametrize("seed", range(4))
def test_alarm_rings_when_rewards_are_swapped(seed):
    """Arms that pay .8 and .2 change places after 1,500 rows: within 60 rows of each its alarm rings, once."""
    policy = taught(by_rows, world(1500, chance=(0.8, 0.5, 0.2), seed=seed))
    assert policy.alarms == {}
    assert rings(policy, world(1500, chance=(0.2, 0.5, 0.8), seed=seed, first=1501), arm=ARMS[0]) <= 60
    policy = taught(by_rows, world(1500, chance=(0.8, 0.5, 0.2), seed=seed))
    assert rings(policy, world(1500, chance=(0.2, 0.5, 0.8), seed=seed, first=1501), arm=ARMS[2]) <= 60
    taught(lambda: policy, world(3000, chance=(0.2, 0.5, 0.8), seed=seed, first=5001))
    assert policy.alarms == {ARMS[0]: 1, ARMS[2]: 1}


def test_arm_that_rang_learns_anew_and_the_others_keep_all():
    """The row that rings leaves the arm a guess that 100 rows outweigh, and the others' arrays as they were."""
    policy = taught(by_rows, world(1500, chance=(0.8, 0.5, 0.2)))
    after = list(world(3000, chance=(0.2, 0.5, 0.8), first=1501))
    place = 0
    while not policy.alarms:
        row = after[place]
        before = {name: array.copy() for name, array in policy.state()[0].items()}
        width = policy._heads.predict_fast(row.features, arms=[row.arm]).width[0]
        policy.learn(row)
        place += 1
    arrays, facts = policy.state()
    changed = {name for name, array in arrays.items() if not np.array_equal(array, before[name])}
    assert changed == {"scatter", *(f"{kind}/{row.arm}" for kind in ("inverse", "moment", "mean"))}
    assert policy._heads.predict_fast(row.features, arms=[row.arm]).width[0] > 2 * width
    assert facts["surprise"][row.arm] == [0.0, 0.0]
    assert facts["updates"] == 1500 + place
    calm = np.zeros(8, dtype=np.float32)
    for later in [one for one in after[place:] if one.arm == row.arm][:100]:
        policy.learn(later)
    expected = {ARMS[0]: 0.15, ARMS[2]: 0.75}[row.arm]  # chance - .05 * 1
    assert output_of(policy, calm).scores[ARMS.index(row.arm)] == pytest.approx(expected, abs=0.2)


def test_one_miss_of_a_sure_arm_is_no_alarm():
    """An arm that is right in 999 of 1,000 may miss now and then, and one wild cost does not ring either."""
    policy, rng = by_rows(), np.random.default_rng(1)
    for update in made_updates(3000, arms=ARMS[:2], size=8):
        right, slow = float(rng.random() < 0.999), rng.random() < 0.002
        policy.learn(rewarded(update, right, cost=30.0 if slow else 1.0, weight=0.05))
    assert policy.alarms == {}


def test_one_wild_cost_does_not_drown_the_rest():
    """After 3,000 good rows one answer that cost a billion leaves the best arm the likeliest."""
    policy = taught(by_rows, world(3000, chance=(0.2, 0.4, 0.9)))
    wild = next(iter(world(1, chance=(1.0, 1.0, 1.0), first=3001)))
    policy.learn(rewarded(replace(wild, arm=ARMS[2]), 1.0, cost=1e9, weight=0.05))
    pmf = output_of(policy, np.zeros(8, dtype=np.float32)).pmf
    assert pmf[2] > 0.8


def test_after_a_swap_the_best_arm_is_found_again():
    """600 rows after arms that paid .8 and .2 changed places the new best arm is the likeliest; without alarm, not."""
    for params, right in (({}, True), ({"alarm": 1e9}, False)):
        policy = taught(lambda params=params: by_rows(**params), world(3000, chance=(0.8, 0.5, 0.2)))
        for row in world(600, chance=(0.2, 0.5, 0.8), first=3001):
            policy.learn(row)
        pmf = output_of(policy, np.zeros(8, dtype=np.float32)).pmf
        assert (max(pmf) == pmf[2]) == right


def residuals_of(updates):
    """Arm -> the heads' residuals, one number per row, by heads of their own."""
    heads, found = RidgeHeads(ridge=5.0, bias_ridge=1.0, memory=20_000.0), {arm: [] for arm in ARMS}
    for update in updates:
        found[update.arm].append(heads.learn(update))
    return found


def test_sums_are_pages():
    """Up and down are the largest sum, over all starts after the arm's 30th row, of residual less .25 (Page 1954).

    Surprise is measured against the arm's own root mean square so far, ten rows of 1 added, and never against less
    than 1; one row counts 4 at most.
    """
    updates = list(world(400, chance=(0.5, 0.5, 0.5), seed=5))
    policy = taught(lambda: by_rows(alarm=1e9), updates)
    found, some = policy.state()[1]["surprise"], 0
    for arm, said in residuals_of(updates).items():
        squares = [10.0 + sum(s * s for s in said[:n]) for n in range(len(said))]
        scales = [math.sqrt(max(1.0, square / (n + 10))) for n, square in enumerate(squares)]
        late = [min(4.0, max(-4.0, s / scale)) for s, scale in zip(said, scales, strict=True)][30:]
        for place, sign in enumerate((1.0, -1.0)):
            tails = [sum(sign * s - 0.25 for s in late[start:]) for start in range(len(late))]
            assert found[arm][place] == pytest.approx(max(0.0, *tails), abs=1e-9)
            some += found[arm][place] > 0
    assert some >= 2


def test_alarm_rings_above_its_bound_and_not_at_it():
    """Set just below the largest sum of a stream it rings there for the first time; set just above, never."""
    updates = list(world(300, chance=(0.5, 0.5, 0.5), seed=6))
    policy, sums = by_rows(alarm=1e9), []
    for update in updates:
        policy.learn(update)
        sums.append(max(policy.state()[1]["surprise"].get(update.arm, [0.0])))
    largest, place = max(sums), sums.index(max(sums))
    assert taught(lambda: by_rows(alarm=largest * 0.999), updates[:place]).alarms == {}
    assert taught(lambda: by_rows(alarm=largest * 0.999), updates[: place + 1]).alarms == {updates[place].arm: 1}
    assert taught(lambda: by_rows(alarm=largest * 1.001), updates).alarms == {}


def test_young_arms_do_not_ring():
    """However its rewards jump, an arm's first 30 rows raise no sum; the 31st can."""
    rows = list(made_updates(40, arms=ARMS[:1], size=8))
    policy = by_rows(alarm=1e-6)
    for count, row in enumerate(rows[:31], start=1):
        assert (policy.alarms, policy.state()[1]["surprise"]) == ({}, {}), count
        policy.learn(rewarded(row, count % 2 if count < 31 else 50.0))
    assert policy.alarms == {ARMS[0]: 1}
    assert policy._heads.age(ARMS[0]) == 0


def test_alarm_counts_every_start():
    """An arm that changes three times is started again three times, and its count of updates goes on."""
    policy, chance = by_rows(), [(0.9, 0.5, 0.5), (0.1, 0.5, 0.5)]
    for turn in range(4):
        for row in world(900, chance=chance[turn % 2], first=1 + 900 * turn):
            policy.learn(row)
    assert policy.alarms == {ARMS[0]: 3}
    assert sum(policy.seen.values()) == 3600


# --- state -----------------------------------------------------------------------------------------------------------


def test_snapshot_carries_sums_and_alarms():
    """Cut right after an alarm, and in the midst of a rise, the policy that comes back goes on as if never cut."""
    rows = [*world(600, chance=(0.8, 0.5, 0.2)), *world(600, chance=(0.2, 0.5, 0.8), first=601)]
    policy, cuts = by_rows(), []
    for place, row in enumerate(rows, start=1):
        before = dict(policy.alarms)
        policy.learn(row)
        if before != policy.alarms:
            cuts += [place - 3, place]
    assert len(cuts) == 4
    straight = sha_of(policy)
    for cut in cuts:
        back = through_files(taught(by_rows, rows[:cut]))
        facts = back.state()[1]
        assert any(sum(sums) > 0 for sums in facts["surprise"].values())
        assert bool(facts["alarms"]) == (cut >= cuts[1])
        for row in rows[cut:]:
            back.learn(row)
        assert sha_of(back) == straight
        assert back.alarms == policy.alarms


def test_params_reach_the_heads():
    """Each of the six settings changes what is learned or what is drawn."""
    rows = [*world(300, chance=(0.9, 0.5, 0.1)), *world(300, chance=(0.1, 0.5, 0.9), first=301)]
    plain = dict(by_rows().params)
    changes = {"ridge": 50.0, "bias_ridge": 9.0, "explore": 3.0, "epsilon_min": 0.3, "memory": 60.0, "alarm": 1e9}
    pmfs = set()
    for change in ({}, *({name: value} for name, value in changes.items())):
        policy = taught(lambda change=change: make_policy("mba", params=plain | change), rows)
        pmfs.add(output_of(policy, made_features(1, size=8)).pmf)
    assert len(pmfs) == 7
