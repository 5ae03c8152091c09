"""Questions with the outcomes of every arm are paired outcomes, and a question counts once however often it came."""

from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.comparison.intervals import mean_difference
from ragbandit.router.encoders.hashing import HashingEncoder
from ragbandit.router.offline.logs import write_rows
from ragbandit.router.offline.replay import memory_log
from ragbandit.shared.types import IMPORTED
from tests.support.logs.replay_logs import ARMS, judged, lived_rows, rows_from, with_text


def outcomes(count, *, seed=0):
    """Rewards of every arm for each question, shape (count, 3): the arms have much in common."""
    random = np.random.default_rng(seed)
    return (random.random((count, 1)) + random.normal(0.0, 0.05, (count, 3)) + [0.0, 0.1, 0.2]).clip(0.0, 1.0)


def paired_rows(rewards, *, facts=None):
    """A row for each question and arm, as a warm start logs them."""
    records = []
    for question, of_arms in enumerate(rewards):
        for arm, reward in zip(ARMS, of_arms, strict=True):
            record = {
                "id": f"evaluated-{question}-{arm}",
                "text": f"labelled {question}",
                "arms": list(ARMS),
                "arm": arm,
            }
            records.append(record | {"pmf": [1 / 3] * 3, "reward": float(reward), "facts": facts or {}})
    return rows_from(records)


def live_rows(count):
    """Decisions of a service, each on a question of its own."""
    return [with_text(row, f"asked {number}") for number, row in enumerate(lived_rows(count, weight=0.0))]


def test_every_outcome_gives_the_paired_difference():
    """A log with the outcomes of every arm gives the mean difference of its questions, with the interval of pairs."""
    rewards = outcomes(60)
    replayed = judged(
        paired_rows(rewards),
        "fixed:slow",
        "fixed:fast",
        "linucb",
        baseline="fixed:fast",
        encoder=lambda: HashingEncoder(8),
    )
    slow, _, learned = (candidate.comparison for candidate in replayed.candidates)
    gaps = rewards[:, 2] - rewards[:, 0]
    expected = mean_difference(gaps, possible=(-2.0, 2.0), confidence=0.975)
    assert (slow.design, slow.rated, slow.verdict) == ("paired outcomes", 60, "better")
    assert slow.reward.estimate == pytest.approx(gaps.mean())
    assert (slow.reward.low, slow.reward.high) == pytest.approx((expected.low, expected.high))
    assert learned.design == "paired outcomes"
    assert (replayed.rows, replayed.questions, replayed.faults) == (180, 60, ())


@pytest.mark.parametrize("form", ["memory", "parquet"])
def test_imported_rows_are_not_judged_beside_live_decisions(tmp_path, form):
    """Imported questions are another population, so live decisions are judged without them."""
    rows = [*paired_rows(outcomes(60), facts={IMPORTED: "table"}), *live_rows(120)]
    log = memory_log(rows)
    if form == "parquet":
        write_rows(tmp_path / "log.parquet", rows)
        log = replace(log, rows=None, path=tmp_path / "log.parquet")
    result = judged(log, "fixed:slow", "fixed:fast")
    assert [candidate.comparison.design for candidate in result.candidates] == ["logged draws"] * 2
    assert (result.rows, result.notes[0]) == (
        120,
        "180 rows were imported: policies learn them, none is judged on them",
    )
    assert judged(rows[:180], "fixed:slow").rows == 180


def test_notes_have_singulars():
    """A note on one row says "1 row was imported", not "1 rows were imported"."""
    row, *_ = paired_rows(outcomes(1), facts={IMPORTED: "table"})
    result = judged([row, *live_rows(120)], "fixed:slow", "fixed:fast")
    assert result.notes[0] == "1 row was imported: policies learn it, none is judged on it"


def test_a_question_that_comes_again_counts_once():
    """If 20 questions come again and again, the interval is that of 20 questions, not of 600 rows."""
    worth = np.random.default_rng(0).random(20)
    rows = [
        with_text(replace(row, reward=replace(row.reward, value=value, quality=value, cost=0.0)), f"question {number}")
        for at, row in enumerate(lived_rows(600, weight=0.0))
        for number, value in [(at % 20, float(worth[at % 20]))]
    ]
    replayed = judged(rows, "fixed:fast")
    reward = replayed.candidates[0].reward
    assert (replayed.rows, replayed.questions) == (600, 20)
    assert reward.low < worth.mean() < reward.high
    assert reward.high - reward.low > 1.9 * 2.0 * worth.std() / np.sqrt(20)
