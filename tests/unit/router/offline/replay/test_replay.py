"""The replay as a library: small logs by hand, arms, columns, reward models, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.offline.estimation.bandit_log import folds_of
from ragbandit.router.offline.replay import memory_log
from ragbandit.shared.errors import InvalidInput
from tests.support.logs.log_rows import with_extra
from tests.support.logs.replay_logs import HAND, close, hand_rows, judged, lived_rows, rows_from

# -------------------------------------------------------------------------------------------------------------- by hand


def test_weights_by_hand():
    """Always deep has the weights 0, 5, 2, 0, 2."""
    (replayed,) = judged(hand_rows(), "fixed:deep").candidates
    assert (replayed.weights.largest, replayed.weights.possible) == (pytest.approx(5.0), pytest.approx(5.0))
    assert replayed.weights.effective_rows == pytest.approx(81 / 33)
    assert replayed.weights.mean.estimate == pytest.approx(9 / 5)
    assert replayed.shares == {"fast": 0.0, "deep": 1.0}
    assert replayed.described == "always deep"


def test_dr_by_hand():
    """DR of the arms' means: every row is predicted by the other folds, shrunk to their mean by one row's worth."""
    rows = hand_rows()
    fold = folds_of(memory_log(rows).read().log.questions, folds=2)
    assert len(set(fold)) == 2
    scores = []
    for place, (share, arm, reward) in enumerate(HAND):
        others = [row for row, its in zip(HAND, fold, strict=True) if its != fold[place]]
        mean = sum(row[2] for row in others) / len(others)
        own = [row[2] for row in others if row[1] == "deep"]
        model = mean + sum(each - mean for each in own) / (len(own) + 1)
        weight = 1 / (1 - share) if arm == "deep" else 0.0
        scores.append(model + weight * (reward - model))
    (replayed,) = judged(rows, "fixed:deep", folds=2).candidates
    assert replayed.reward.estimate == pytest.approx(np.mean(scores))
    assert replayed.comparison.reward.estimate == pytest.approx(np.mean(scores) - 1.75 / 5)


def test_log_by_hand():
    """The log's own table: draws, expected draws, mean rewards; an arm never drawn has no reward."""
    replayed = judged(hand_rows(), "uniform")
    fast, deep = replayed.arms
    assert (fast.name, fast.drawn, fast.expected, fast.reward) == ("fast", 0.4, pytest.approx(0.57), 0.25)
    assert (deep.drawn, deep.reward) == (0.6, pytest.approx(1.25 / 3))
    assert replayed.baseline_reward.estimate == pytest.approx(1.75 / 5)
    assert (replayed.rows, replayed.comparisons) == (5, 1)
    never = rows_from({"arms": ["a", "b"], "pmf": [0.9, 0.1], "arm": "a", "reward": 0.5} for _ in range(3))
    assert [arm.reward for arm in judged(never, "uniform").arms] == [0.5, None]


# ----------------------------------------------------------------------------------------------------------------- arms


def mixed_rows():
    """Two offers: the second one without slow."""
    return rows_from(
        [
            {"arms": ["fast", "deep", "slow"], "pmf": [0.5, 0.25, 0.25], "arm": "slow", "reward": 1.0},
            {"arms": ["deep", "fast"], "pmf": [0.5, 0.5], "arm": "deep", "reward": 0.5},
        ]
    )


def test_mixed_arms_are_refused_unless_asked_for():
    """Rows with different arms are refused by line, arms and remedy; with mixed_arms each is judged among its own."""
    with pytest.raises(InvalidInput, match="offers deep, fast; the first row offers fast, deep, slow") as caught:
        memory_log(mixed_rows()).read()
    assert caught.value.field == "line 2 arms"
    assert "--mixed-arms" in caught.value.remedy
    log = memory_log(mixed_rows(), mixed_arms=True).read().log
    assert log.arms == ("fast", "deep", "slow")
    assert log.pmf.tolist() == [[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]
    assert log.offered.tolist() == [[True] * 3, [True, True, False]]


def test_wrong_row_is_named():
    """A row that cannot be true is refused by its place: the line of a file, else the decision's id."""
    rows = lived_rows(3)
    wrong = replace(rows[1], decision=replace(rows[1].decision, pmf=(0.5, 0.3, 0.3)))
    for row, place in ((wrong, "line 2 pmf"), (replace(wrong, line=0), f"decision {wrong.decision.id} pmf")):
        with pytest.raises(InvalidInput, match=r"sums to 1\.1") as caught:
            memory_log([rows[0], row, rows[2]]).read()
        assert caught.value.field == place


# -------------------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "is missing"),
        ([0.5, 0.5], "does not fit the arms fast, deep, slow"),
        ({"fast": 0.5, "quick": 0.5}, "does not fit the arms"),
        ("fast", "Give a list"),
        ([0.5, 0.5, "none"], "Give a finite number"),
        ([0.5, 0.5, 0.5], "is no distribution"),
        ([1.5, -0.5, 0.0], "is no distribution"),
        ({"fast": 0.5}, "is no distribution"),
        ([float("nan"), 0.5, 0.5], "Give a finite number"),
    ],
)
def test_column_is_refused(value, said):
    """A row whose column is no distribution over its arms is named, with the column and a remedy."""
    rows = with_extra(lived_rows(3), "new", [[1.0, 0.0, 0.0]] * 3)
    rows[1] = replace(rows[1], extra={} if value is None else {"new": value})
    with pytest.raises(InvalidInput, match=said) as caught:
        judged(rows, "column:new")
    assert caught.value.field == "line 2 new"
    assert caught.value.remedy


# ----------------------------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize("candidate", ["fixed:slow", "linucb"])
def test_weight_of_cost_after_the_fact(candidate):
    """Another weight of cost put on a log gives what the same log made with that weight gives, learners included."""
    then = judged(lived_rows(200, weight=0.2), candidate, "uniform")
    after = judged(lived_rows(200, weight=0.05), candidate, "uniform", weight=0.2)
    assert (then.plan.weight, after.plan.weight) == (None, 0.2)
    close(replace(after, plan=then.plan), then)
    kept = judged(lived_rows(200, weight=0.05), candidate, "uniform")
    assert kept.candidates[0].reward.estimate != pytest.approx(then.candidates[0].reward.estimate, abs=0.05)
    assert kept.candidates[1].quality == then.candidates[1].quality
