"""The advice on two pipelines whose truth is known: which evidence decides, its numbers, and what is missing."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ragbandit.additions.advice.gains import gains_on_outcomes, memory_log_of, paired_outcomes
from ragbandit.additions.advice.verdict import Advice, Criteria, advice_of, decide_verdict
from ragbandit.router.comparison import Difference, compare
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.learning.monitoring.price import cost_unit_of
from ragbandit.router.offline.logs import Logged
from ragbandit.router.offline.logs.tables import arm_rows
from tests.support import two_pipelines as world
from tests.support.examples import made_table

ARMS = ("fast", "deep")
SETTINGS = Settings(
    encoder={"model": "hashing", "dimension": 64},
    reward={"weight": world.WEIGHT},
    arms={arm: {"run_by": "caller"} for arm in ARMS},
)
#: always `deep` has the reward 0.60, always `fast` 0.485, the better arm of each question 0.71
GAIN = 0.11


def rows_of(table) -> tuple[Logged, ...]:
    """The outcomes of both arms, as an import stores them."""
    encoder, rows = HashingEncoder(dimension=64), list[Logged]()
    common = {"arms": ARMS, "encoder_hash": encoder.hash, "reward": SETTINGS.reward, "label": "main", "now": 0.0}
    for row, features in zip(table.rows, encoder.encode([row.question for row in table.rows]), strict=True):
        rows += arm_rows(row, features=features, first=len(rows) + 1, **common)
    return tuple(rows)


@cache
def outcomes(count: int, *, seed: int) -> tuple[Logged, ...]:
    """The outcomes of both arms on questions of the world."""
    texts, pipelines = list(world.questions(count, seed=seed)), world.pipelines()
    right = [[float(pipelines[arm](text)[0] == "yes") for arm in ARMS] for text in texts]
    return rows_of(made_table(right, [[1.0, 4.0]] * count, arms=ARMS, texts=texts))


def drawn(count: int, *, seed: int, pmfs=((0.5, 0.5), (0.1, 0.9), (0.9, 0.1)), weights=None) -> list[Logged]:
    """Served questions of the world: one drawn arm each, with its probability. weights: of the arms, if not the pmf."""
    rng, rows, served = random.Random(seed), outcomes(count, seed=seed), []
    for at in range(count):
        pmf = rng.choice(pmfs)
        (arm,) = rng.choices((0, 1), weights=weights or pmf)
        decision = replace(rows[2 * at + arm].decision, pmf=pmf, propensity=pmf[arm], facts={})
        served.append(replace(rows[2 * at + arm], decision=decision))
    return served


def asked(*rows) -> Advice:
    return advice_of([*rows], source="the store", settings=SETTINGS)


def test_outcomes_of_every_arm_are_compared_question_by_question():
    """A table gives reward, quality and cost of routing against both arms, near the truth, and every picture."""
    advice = asked(*outcomes(240, seed=1))
    assert (advice.verdict, advice.best, advice.missing, advice.progress) == ("route", "deep", None, 1.0)
    best, other = advice.comparisons
    assert (best.design, best.second, other.second, best.unit) == (
        "paired outcomes",
        "always deep",
        "always fast",
        "steps",
    )
    assert best.reward.low < GAIN < best.reward.high
    assert best.reward.first - best.reward.second == pytest.approx(best.reward.estimate)
    assert best.quality.verdict() == "as good"
    assert best.cost.high < -1.2
    assert 0.4 < advice.shares["fast"] < 0.6
    by_arm = {max(kind.arms, key=kind.arms.get): kind.share for kind in advice.kinds}
    assert by_arm == {"fast": 0.5, "deep": 0.5}
    assert {point.kind for point in advice.frontier} == {"arm", "in use"}
    assert advice.sentence.startswith("route: learned routing is better than always deep: +0.")
    assert "reward a question; quality as good" in advice.sentence
    assert advice.sentence.endswith("; on 240 questions with the outcomes of every arm")


def test_the_confusion_matrix_counts_routings_choices():
    """Four questions by label: shares of arms are means of routing's probabilities. A raw reward has no matrix."""
    right = [[1.0, 1.0], [0.4, 1.0], [0.0, 0.5], [0.0, 0.4]]  # labels: fast, deep, deep, none
    rows = rows_of(made_table(right, [[1.0, 4.0]] * 4, arms=ARMS))
    pmf = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    common = {"reward": SETTINGS.reward, "schema": {}, "confidence": 0.95}

    def confusion(logged):
        known, _ = paired_outcomes(logged)
        return gains_on_outcomes(
            known, log=memory_log_of(logged, source="table"), pmf=pmf.repeat(2, axis=0), **common
        ).confusion

    matrix = confusion(rows)
    assert {label: row.questions for label, row in matrix.labels.items()} == {"fast": 1, "deep": 2, "none right": 1}
    chosen = {label: [row.chosen[arm] for arm in ARMS] for label, row in matrix.labels.items()}
    assert chosen == {
        "fast": pytest.approx([0.9, 0.1]),
        "deep": pytest.approx([0.4, 0.6]),
        "none right": pytest.approx([0.7, 0.3]),
    }
    assert matrix.accuracy == pytest.approx((0.9 + 0.8 + 0.4) / 3)
    assert confusion([replace(row, reward=replace(row.reward, preset="reward")) for row in rows]) is None


def test_more_data_never_weakens_the_verdict():
    """Live rows after an import of outcomes of every arm are learned too, and the import decides as before."""
    table = outcomes(300, seed=1)
    alone, both = asked(*table), asked(*table, *drawn(200, seed=11))
    assert (alone.verdict, both.verdict, both.questions) == ("route", "route", 300)
    (first, _), (second, _) = alone.comparisons, both.comparisons
    assert second.design == "paired outcomes"
    assert second.reward.low > first.reward.low - 0.005
    assert second.reward.first >= first.reward.first - 0.005


def test_the_narrower_estimate_is_taken():
    """Few questions with every outcome do not hide many drawn ones, and the sentence names the evidence."""
    live = drawn(700, seed=5)
    advice = asked(*outcomes(30, seed=1), *live)
    best = advice.comparisons[0]
    assert (advice.verdict, best.design, best.rated) == ("route", "logged draws", 700)
    assert best.reward.low < GAIN < best.reward.high
    assert best.quality.is_known
    assert best.cost.high < 0.0
    assert "estimated from 700 decisions that drew one arm each" in advice.sentence
    assert asked(*outcomes(30, seed=1), *live[:60]).comparisons[0].design == "paired outcomes"


def test_a_served_question_that_has_every_arm_by_chance_is_not_paired():
    """Only imports whose questions mostly have every arm count as paired outcomes."""
    rows = drawn(200, seed=6, pmfs=((0.5, 0.5),))
    (other,) = [row for row in outcomes(200, seed=6)[:2] if row.decision.arm != rows[0].decision.arm]
    second = replace(other, decision=replace(other.decision, facts={}))
    assert asked(*rows, second).comparisons[0].design == "logged draws"


def test_questions_that_offer_different_arms_are_judged_as_draws():
    """If no question has the outcomes of all arms, replay compares routing with each arm."""
    rows = []
    for at, row in enumerate(outcomes(60, seed=1)):
        names = ({"fast": "fast", "deep": "deep"}, {"fast": "quick", "deep": "slow"})[at < 60]
        decision = replace(row.decision, arm=names[row.decision.arm], arms=tuple(names.values()), facts={})
        rows.append(replace(row, decision=decision))
    assert asked(*rows).on == "estimated from 120 decisions that drew one arm each"


def test_what_a_log_cannot_judge_is_named():
    """An arm that was never drawn has no forecast, draws unlike their probabilities are a wrong log, and a log with one
    probability a row judges no choice per question.
    """
    untried = asked(*drawn(300, seed=7, pmfs=((0.0, 1.0),)))
    assert (untried.verdict, untried.best) == ("not enough", "deep")
    assert untried.missing.startswith("fast cannot be judged: it was never drawn")
    assert untried.missing.endswith("offer fast for a while, with a probability that is logged")
    wrong = asked(*drawn(300, seed=7, pmfs=((0.3, 0.7),), weights=(7, 3)))
    assert (wrong.verdict, wrong.comparisons, wrong.best) == ("wrong log", (), "")
    assert wrong.sentence.startswith("this log is wrong: fast has")
    only = [
        replace(row, decision=replace(row.decision, facts={"only_propensity": True}))
        for row in drawn(300, seed=7, pmfs=((0.5, 0.5),))
    ]
    partial = asked(*only)
    assert (partial.verdict, partial.comparisons[0].reward.estimate) == ("not enough", None)
    assert "log the probability of every arm" in partial.missing


def verdict(low, estimate, high, *, questions=400, **changes):
    """The verdict on a gain with this interval."""
    reward = Difference(estimate=estimate, low=low, high=high, effective_rows=questions)
    common = {"design": "paired outcomes", "questions": questions, "rated": questions, "needed": 10}
    comparison = compare("routing", "always deep", reward=reward, **common)
    ask = Criteria(**{name: changes.pop(name) for name in ("worth",) if name in changes})
    given = {"verdict": "not enough", "sentence": "", "questions": questions, "comparisons": (comparison,)}
    return decide_verdict(Advice(**given, on="on made questions", ask=ask, **changes))


@pytest.mark.parametrize(
    ("advice", "expected", "missing"),
    [
        (verdict(0.01, 0.1, 0.2), "route", None),
        (verdict(-0.03, -0.01, 0.009), "fix", None),
        (verdict(-0.03, -0.01, 0.009, questions=120), "not enough", "at least 180 more labelled questions"),
        (verdict(-0.03, -0.01, 0.009, untried={"fast": "was seldom drawn"}), "not enough", "fast was seldom drawn"),
        (verdict(-0.05, 0.05, 0.15), "not enough", "about 600 to 2,400 more labelled questions"),  # 3 times 400: route
        (verdict(-0.03, 0.0, 0.03), "not enough", "about 1,600 to 6,400 more labelled questions"),  # 8 times 400: fix
        (verdict(-0.1, 0.0, 0.1, worth=0.0), "not enough", "more labelled questions than anybody has"),
        (verdict(None, 0.1, None, questions=5), "not enough", "not known how long: 5 of 10 effective rated questions"),
    ],
)
def test_the_verdict_and_what_it_needs(advice, expected, missing):
    """The comparison with the best arm decides; without a verdict the forecast is for the nearer of route and fix."""
    assert advice.verdict == expected
    assert advice.sentence.startswith(f"{expected}: ")
    assert (advice.missing is None) == (missing is None)
    assert advice.missing is None or (advice.missing.startswith(missing) and advice.missing in advice.sentence)
    assert (advice.progress == 1.0) == (missing is None)


def test_the_unit_of_a_cost():
    """One charged term with the price 1 is the unit; otherwise a cost has no unit."""
    for prices, unit in (({"steps": 1.0}, "steps"), ({"seconds_total": 1.0, "steps": 0.0}, "seconds")):
        assert cost_unit_of(SETTINGS.reward.model_copy(update={"cost": prices})) == unit
    for prices in ({"steps": 2.0}, {"steps": 1.0, "dollars": 1.0}, {}):
        assert cost_unit_of(SETTINGS.reward.model_copy(update={"cost": prices})) == "cost"
