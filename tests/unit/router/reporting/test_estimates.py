"""Estimates of "always one arm": against values computed by hand, without data, and in worlds with known truth."""

import numpy as np
import pytest

from ragbandit.router.reporting import estimates
from ragbandit.router.reporting.estimates.mean_intervals import UNSEEN_ROWS, standard_errors


def compared(value, *, pmf, against, **options):
    """The served answers against always one arm."""
    return estimates.compared(value, pmf=pmf, second=np.tile(np.eye(2)[against], (len(value), 1)), **options)[0]


def comparison(value, *, arm, p, against=1, predicted=None, **options):
    """A comparison of two arms. p: probability of the second arm."""
    pmf = np.stack([1.0 - p, p], axis=1)
    predicted = np.full(pmf.shape, np.nan) if predicted is None else predicted
    given = {"least": 0.0, "most": 2.0, **options}
    return compared(value, arm=arm, pmf=pmf, predicted=predicted, against=against, **given)


def test_costs_of_all_outcomes():
    """What was served is the plain mean; elsewhere the arm is worth the mean of its answers with weight (1 - p) / p."""
    random = np.random.default_rng(1)
    p = random.uniform(0.1, 0.9, 400)
    arm = (random.random(400) < p).astype(np.intp)
    value = 1.0 + arm + random.normal(0.0, 0.1, 400)
    found = comparison(value, arm=arm, p=p)
    weight = arm * (1.0 - p) / p
    elsewhere = weight @ value / weight.sum()
    assert found.first == pytest.approx(value.mean(), abs=1e-12)
    assert found.second == pytest.approx(np.where(arm == 1, value, elsewhere).mean(), abs=1e-12)
    assert found.low < found.estimate < found.high
    assert found.estimate == pytest.approx(found.first - found.second)


def test_ratings_that_depend_on_the_arm():
    """An arm that is rated eight times as often counts in what was served by its share of the questions."""
    arm = np.tile(np.array([0, 0, 0, 1], dtype=np.intp), 400)
    value = np.where(arm == 1, 1.0, 0.5)
    value[(arm == 0) & (np.arange(1600) % 24 != 0)] = np.nan
    found = comparison(value, arm=arm, p=np.full(1600, 0.25))
    assert np.nanmean(value) > 0.9
    assert found.first == pytest.approx(0.75 * 0.5 + 0.25 * 1.0)
    assert found.second == pytest.approx(1.0)
    assert found.low <= -0.375 <= found.high


@pytest.mark.parametrize("losses", [4, 20, 60, 100, 180])
def test_the_interval_leans_to_rare_rows(losses):
    """That of a share reaches as far as Wilson's to the side of the rarer value, and to the other side no less."""
    value = np.where(np.arange(200) < losses, 0.0, 1.0)
    share, n, z = value.mean(), 200, 2.0 * UNSEEN_ROWS
    below, above = standard_errors(value - share, variance=share * (1.0 - share) / n, farthest=1.0 / n)
    spread = z * np.sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n))
    lean = z * z / (2.0 * n) * (1.0 - 2.0 * share)
    wilson = spread - lean, spread + lean
    assert (z * below, z * above) == pytest.approx(wilson, rel=0.15)
    assert z * below >= 0.97 * wilson[0]
    assert z * above >= 0.97 * wilson[1]


@pytest.mark.parametrize("skew", [-1.0, 1.0])
def test_a_wider_range_of_values_never_narrows_the_interval(skew):
    """Neither error falls if the most extreme row may lie farther away."""
    rows = skew * np.random.default_rng(5).lognormal(0.0, 1.5, 300)
    rows -= rows.mean()
    options = {"variance": float(rows.var()) / len(rows)}
    errors = [standard_errors(rows, farthest=far, **options) for far in np.linspace(0.0, 0.3, 40)]
    assert (np.diff(np.array(errors), axis=0) >= -1e-12).all()


def test_a_predicted_cost_narrows_the_interval():
    """Where the arm's cost follows the question, a prediction of it takes noise from the possible values."""
    random, count = np.random.default_rng(6), 2_000
    arm = (random.random(count) < 0.1).astype(np.intp)
    cost = 0.05 + 0.4 * (random.random((count, 1)) < 0.5) * np.array([0.0, 1.0])
    value = 0.9 - cost[np.arange(count), arm]
    best = 1.0 - cost[np.arange(count), arm]
    ends = []
    for predicted in (None, cost):
        possible = estimates.Possible(best=best, worst=best - 1.0, least=-1.0, most=1.0, cost=predicted)
        unrated = np.where(arm == 1, np.nan, value)
        found = comparison(unrated, arm=arm, p=np.full(count, 0.1), least=-1.0, most=1.0, possible=possible)
        ends.append(found.low)
    assert ends[0] + 0.005 < ends[1] < 0.9 * (0.85 - 0.75)


@pytest.mark.parametrize(("there", "chance"), [(0.0, 0.0), (1.0, 0.0), (1.0, 1e-9)])
def test_a_question_that_could_not_draw_the_arm_is_bounded(there, chance):
    """Whatever the arm would be worth there, the interval holds the truth; a tiny chance is no chance."""
    random, count = np.random.default_rng(4), 1_000
    could = random.random(count) < 0.6
    p = np.where(could, 0.5, chance)
    arm = (random.random(count) < p).astype(np.intp)
    arm[np.flatnonzero(~could)[0]] = int(chance > 0.0)
    other = np.where(could, 0.6, there)
    value = (random.random(count) < np.where(arm == 1, other, 0.8)).astype(np.float64)
    possible = estimates.Possible(best=1.0, worst=0.0, least=0.0, most=1.0)
    found = comparison(value, arm=arm, p=p, most=1.0, possible=possible)
    truth = float(((1.0 - p) * (0.8 - other)).mean())
    unknown = float(((arm == 0) & ~could).mean())
    assert found.low <= truth <= found.high
    assert unknown < found.high - found.low < unknown + 0.3
    shares = np.array([other[could].mean(), 0.0]), np.array([other[could].mean(), 1.0])
    low, high = (0.5 * could.mean() * (0.8 - here[0]) + unknown * (0.8 - here[1]) for here in shares[::-1])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.15)


def test_what_was_not_tried_has_no_interval():
    """Eight draws, no draws and missing values give no interval; the served value is reported in all cases."""
    arm = np.zeros(1000, dtype=np.intp)
    arm[::125] = 1
    few = comparison(np.ones(1000), arm=arm, p=np.full(1000, 0.01))
    assert (few.first, few.second, few.low) == (1.0, None, None)
    assert 0.0 < few.effective_rows < 10.0
    assert comparison(np.ones(1000), arm=np.zeros(1000, dtype=np.intp), p=np.full(1000, 0.01)).second is None
    unseen = comparison(np.full(1000, np.nan), arm=arm, p=np.full(1000, 0.5))
    assert (unseen.first, unseen.effective_rows) == (None, 0.0)


def test_an_arm_whose_values_nobody_saw():
    """If no value of an arm is known, the interval allows any value in the range for its share of the questions."""
    arm = np.tile(np.array([0, 1, 1, 2], dtype=np.intp), 500)
    pmf = np.tile([0.25, 0.5, 0.25], (2000, 1))
    options = {"arm": arm, "pmf": pmf, "predicted": np.full(pmf.shape, np.nan), "least": 0.0, "most": 2.0}
    second = np.tile([0.0, 1.0, 0.0], (2000, 1))
    found = estimates.compared(np.where(arm == 0, np.nan, 1.0), second=second, **options).difference
    assert found.low <= 0.25 * (0.0 - 1.0) < 0.25 * (2.0 - 1.0) <= found.high
    assert estimates.compared(np.where(arm == 1, 1.0, np.nan), second=second, **options).difference.low is None


def test_answers_of_the_arm_itself_do_not_differ():
    """Ratings of the arm's own answers move the estimate only as controls of the other questions."""
    random = np.random.default_rng(2)
    p = np.where(np.arange(2000) % 2, 0.5, 1.0)
    arm = np.where(random.random(2000) < p, 1, 0)
    value = np.where(arm == 1, random.random(2000), 0.5)
    found = comparison(value, arm=arm, p=p)
    noisy = comparison(np.where(p == 1.0, 2.0 * random.random(2000), value), arm=arm, p=p)
    assert (found.low, found.high) == pytest.approx((noisy.low, noisy.high), abs=0.005)


def test_what_is_possible_bounds_the_difference():
    """A quality is at most 1, so no control needs a rating; without a known cost of the arm, its cost may be 0."""
    random = np.random.default_rng(4)
    n, p = 2000, np.full(2000, 0.1)
    arm = (random.random(n) < p).astype(np.intp)
    value = np.where(arm == 0, (random.random(n) < 0.98) - 0.02, np.nan)
    charge = np.where(arm == 0, 0.02, 0.2)
    possible = estimates.Possible(best=1.0 - charge, worst=-charge, least=-1.0, most=1.0)
    found = comparison(value, arm=arm, p=p, least=-0.2, most=1.0, possible=possible)
    assert 0.0 < found.low < 0.9 * (0.98 - 0.02 - 0.8)
    assert found.estimate is None
    free = estimates.Possible(best=1.0, worst=-1.0, least=-1.0, most=1.0)
    assert comparison(value, arm=arm, p=p, least=-0.2, most=1.0, possible=free).low < 0.0
    assert comparison(value, arm=arm, p=p, least=-0.2, most=1.0).low is None


def test_the_interval_is_within_what_is_possible():
    """Where other arms answer 3 % of the questions, the difference is within 3 % of the range, rated or not."""
    arm = (np.arange(1000) % 33 > 0).astype(np.intp)
    value = np.where(np.arange(1000) < 40, 1.0, np.nan)
    possible = estimates.Possible(best=1.0, worst=0.0, least=0.0, most=1.0)
    found = comparison(value, arm=arm, p=np.full(1000, 0.97), possible=possible)
    assert (found.low, found.high) == pytest.approx((-0.031, 0.031))


def labelled_by_doubt(seed, *, n=6_000):
    """Answers of which bad ones are labelled more often. Returns (value or NaN, arm, p, counts, true difference)."""
    random = np.random.default_rng([7, seed])
    quality = random.uniform(0.1, 0.9, n)
    p = np.full(n, 0.4)
    arm = (random.random(n) < p).astype(np.intp)
    right = (random.random(n) < quality - 0.1 * arm).astype(np.float64)
    q = np.clip(0.4 * (1.0 - quality), 0.02, 1.0)
    value = np.where(random.random(n) < q, right, np.nan)
    return value, arm, p, 0.1 / q, float((-0.1 * (arm - 1.0)).mean()), right.mean()


def test_labels_count_by_their_probability():
    """Weighted by 1 / q labels of doubtful answers speak of all: the truth is inside as often as it should be."""
    inside, served, plain = 0, [], []
    for seed in range(60):
        value, arm, p, counts, truth, right = labelled_by_doubt(seed)
        given = {"arm": arm, "pmf": np.stack([1 - p, p], axis=1), "predicted": np.full((len(arm), 2), np.nan)}
        found = compared(value, against=1, least=0.0, most=1.0, counts=counts, **given)
        inside += found.low <= truth <= found.high
        served.append(found.first - right)
        plain.append(compared(value, against=1, least=0.0, most=1.0, **given).first - right)
    assert inside >= 56
    assert abs(np.mean(served)) < 3 * np.std(served) / np.sqrt(60) + 0.002
    assert np.mean(plain) < -0.05
    alike = compared(value, against=1, least=0.0, most=1.0, counts=np.ones(len(value)), **given)
    assert alike.estimate == pytest.approx(compared(value, against=1, least=0.0, most=1.0, **given).estimate)
    scaled = compared(value, against=1, least=0.0, most=1.0, counts=3.0 * counts, **given)
    assert scaled.estimate == pytest.approx(found.estimate)


def two_policies(champion, candidate, *, value=None, seed=3, n=600):
    """The candidate minus the champion, which drew the arms."""
    random = np.random.default_rng(seed)
    pmf = np.tile(champion, (n, 1))
    arm = (pmf.cumsum(axis=1) < random.random((n, 1))).sum(axis=1)
    value = (random.random(n) < np.array([0.2, 0.5, 0.8])[arm]).astype(float) if value is None else value[arm]
    ways = {"pmf": pmf, "first": np.tile(candidate, (n, 1)), "second": pmf, "predicted": np.full(pmf.shape, np.nan)}
    return estimates.compared(value, arm=arm, least=0.0, most=1.0, **ways)[0]


def test_a_policy_does_not_differ_from_itself():
    """Without a difference in the probabilities the interval is 0 to 0."""
    same = two_policies([0.5, 0.3, 0.2], [0.5, 0.3, 0.2])
    assert (same.estimate, same.low, same.high) == (0.0, 0.0, 0.0)


def test_two_policies():
    """The interval contains the difference of expected values; an arm without a known value widens it by its share."""
    found = two_policies([0.5, 0.3, 0.2], [0.1, 0.3, 0.6])
    assert found.low < 0.4 * (0.8 - 0.2) < found.high
    assert found.first - found.second == pytest.approx(found.estimate)
    unseen = two_policies([0.5, 0.3, 0.2], [0.1, 0.3, 0.6], value=np.array([0.2, 0.5, np.nan]))
    assert unseen.high - unseen.low > 2 * 0.4


def test_an_unseen_answer_is_at_most_as_good_as_possible():
    """How good an answer can be moves the low end of the difference, and how bad it can be moves the high end."""
    random = np.random.default_rng(3)
    p = np.where(random.random(1200) < 0.5, 0.06, 0.94)
    arm = (random.random(1200) < p).astype(np.intp)
    pmf = np.stack([1.0 - p, p], axis=1)
    options = {"arm": arm, "pmf": pmf, "predicted": np.full(pmf.shape, np.nan), "against": 1}
    value = 0.5 + random.uniform(-0.1, 0.1, 1200)
    plain = compared(value, least=0.0, most=1.0, **options)
    better = compared(value, least=0.0, most=3.0, **options)
    worse = compared(value, least=-2.0, most=1.0, **options)
    assert better.low < plain.low - 0.01
    assert better.high == pytest.approx(plain.high)
    assert worse.high > plain.high + 0.01
    assert worse.low == pytest.approx(plain.low)


def test_the_outlook_is_the_number_of_rows_of_the_verdict():
    """After that many times the same rows, the interval gives a verdict; before, it gives none."""
    random = np.random.default_rng(8)
    arm, pmf = random.integers(2, size=400), np.full((400, 2), 0.5)
    value = (random.random(400) < 0.7).astype(np.float64)

    def found(times):
        many = {"arm": np.tile(arm, times), "pmf": np.tile(pmf, (times, 1))}
        options = {"predicted": np.full((400 * times, 2), np.nan), "least": 0.0, "most": 1.0}
        second = np.tile([0.0, 1.0], (400 * times, 1))
        return estimates.compared(np.tile(value, times), second=second, **many, **options)

    times = found(1).outlook
    assert 2.0 < times < 20.0
    assert found(int(times) - 1).difference.verdict() == "not known yet"
    assert found(int(times) + 2).difference.verdict() != "not known yet"
