"""Diagnosis of the cost weight: the proposed weight with its error, and the warning about a weight that is far off."""

import numpy as np
import pytest

from ragbandit.router.config.settings import RewardSettings
from ragbandit.router.learning.monitoring.price import ArmMeans, implied, in_words, means_of, price_of, proposal, remedy
from tests.support.cases import every_case


def means(*, labels=1000.0, error=0.002, cost_error=0.0, **arms):
    return [
        ArmMeans(arm=arm, labels=labels, quality=q, cost=c, quality_error=error, cost_error=cost_error)
        for arm, (q, c) in arms.items()
    ]


STEPS = RewardSettings(cost={"steps": 1.0})

#: figures of the two public tables of retrieval strategies
FLAN = {"no_retrieval": (0.328, 0.0), "single_step": (0.780, 1.0), "multi_step": (0.859, 4.824)}
LLAMA = {"multi_step": (0.3537, 3.347), "single_step": (0.3197, 1.0), "no_retrieval": (0.2867, 0.0)}


def test_half_the_slope_from_the_cheapest_to_the_dearest():
    """The diagnosis has the proposed weight, the best fixed arm, and the gain that an expensive arm needs and has."""
    flan, llama = price_of(means(**FLAN), weight=0.05), price_of(means(**LLAMA), weight=0.05)
    assert flan.proposed == pytest.approx(0.055, abs=5e-4)
    assert llama.proposed == pytest.approx(0.010, abs=5e-5)
    assert (flan.best_fixed, llama.best_fixed) == ("single_step", "no_retrieval")
    assert [one.arm for one in llama.arms] == ["no_retrieval", "single_step", "multi_step"]
    assert "single_step pays if it gets 5.0 more of 100 right than no_retrieval; it gets 3.3 more; mult" in implied(
        llama
    )
    assert (flan.verdict, llama.verdict) == (None, "far")
    assert "(weight 0.05) is high for these arms: at it always no_retrieval is the best" in proposal(
        llama, reward=STEPS
    )
    assert "to 0.01. The ledger stays when you change it" in remedy(llama)
    cents = {arm: (q, 100.0 * c) for arm, (q, c) in FLAN.items()}
    assert price_of(means(**cents), weight=0.05).proposed == pytest.approx(flan.proposed / 100.0)


def test_when_a_weight_is_far_off():
    """The warning needs a factor of 2, more than the error, and 50 labels; it names an expensive arm that is worse."""
    far = {"cheap": (0.5, 0.0), "dear": (0.7, 2.0)}  # .05
    worse = {"cheap": (0.5, 0.0), "dear": (0.4, 2.0)}
    rows = [
        ("within", 0.03, means(**far), None, "begin with weight 0.05 (a right answer is worth 20 steps)"),
        ("below", 0.02, means(**far), "far", "your price of cost (weight 0.02) is low"),
        ("nothing", 0.0, means(**far), "far", "(weight 0) is low"),
        ("few labels", 0.02, means(labels=49.0, **far), None, "begin with weight 0.05"),
        ("noise", 0.02, means(error=0.05, **far), None, "begin with weight 0.05"),
        ("worse", 0.05, means(**worse), "worse", "dear costs more than cheap and is right less often"),
        ("worse by noise", 0.05, means(error=0.05, **worse), None, "nothing says that dear is worth"),
        ("same cost", 0.05, means(a=(0.5, 1.0), b=(0.7, 1.0)), None, "the weight decides nothing"),
        ("alone", 0.05, means(a=(0.5, 1.0)), None, "the weight decides nothing"),
    ]
    with every_case() as case:
        for name, weight, arms, expected, words in rows:
            with case(name):
                price = price_of(arms, weight=weight)
                assert price.verdict == expected
                assert words in proposal(price, reward=STEPS)
    assert remedy(price_of(means(**worse), weight=0.05)).startswith("drop dear, unless")


def test_means_are_of_all_questions_and_errors_those_of_chance():
    """A policy that sends easy questions to the cheap arm misleads no mean; the errors are how far runs scatter."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(300):
        easy = rng.random(400) < 0.5
        propensity = np.where(easy, 0.9, 0.2)  # labels of the cheap arm
        cheap = rng.random(400) < propensity
        right = rng.random(400) < np.where(easy, 0.9, np.where(cheap, 0.1, 0.7))
        cost = np.where(cheap, 1.0, 4.0) + rng.random(400)
        arms = np.where(cheap, "cheap", "dear").tolist()
        chances = np.where(cheap, propensity, 1.0 - propensity)
        rows = zip(arms, right.tolist(), cost.tolist(), [1.0] * 400, chances.tolist(), strict=True)
        found.append(price_of(means_of(rows), weight=0.05))
    proposed = np.array([one.proposed for one in found])
    assert proposed.mean() == pytest.approx(0.5 * (0.8 - 0.5) / 3.0, abs=3 * proposed.std() / 300**0.5)
    assert np.mean([one.error for one in found]) == pytest.approx(proposed.std(), rel=0.2)
    twice = means_of([("a", 1.0, 2.0, 2.0, 0.5), ("a", 0.0, 5.0, 1.0, 0.5)])
    assert (twice[0].labels, twice[0].quality, twice[0].cost) == pytest.approx((3.0, 2 / 3, 3.0))


def test_weight_and_prices_in_words():
    """What a right answer is worth in each priced term, and what that implies where dollars have a price."""
    rows = [
        ({"steps": 1.0}, None, ["a right answer is worth 20 steps", "which the papers use"], 2),
        ({"steps": 1.0}, 0.05, ["a right answer is worth 20 steps"], 1),
        ({"steps": 2.0}, 0.04, ["12.5 steps"], 1),
        ({"dollars": 1.0}, None, ["$20.00", "one cent more must be right on 0.05 more", "chosen for steps"], 3),
        ({"dollars": 1.0}, 2.0, ["worth 50 cents", "must be right on 2 more of 100"], 2),
        ({"dollars": 1.0, "steps": 1.0}, 0.05, ["$20.00 or 20 steps", "warning: one step counts as much as 1"], 3),
        ({"dollars": 1.0, "steps": 0.05}, 2.0, ["step counts as much as 0.05 dollars: is that"], 3),
        ({"steps": 1.0}, 0.0, ["reward.weight is 0: cost counts for nothing"], 1),
        ({"steps": 0.0}, 0.05, ["reward.cost prices nothing: cost counts for nothing"], 1),
    ]  # fmt: skip
    with every_case() as case:
        for cost, weight, parts, count in rows:
            with case(cost, weight):
                words = in_words(RewardSettings(cost=cost, **({} if weight is None else {"weight": weight})))
                assert len(words) == count
                assert all(part in " ".join(words) for part in parts)
