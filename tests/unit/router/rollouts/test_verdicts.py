"""Verdicts: what does harm, what a version waits for, and that pages and repetitions change nothing."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.rollouts.evidence import Predictions
from ragbandit.router.rollouts.verdicts import Evidence, comparison_of, decide, facts_of
from tests.support.canaries import VERSION, World, rows

SETTINGS = RolloutSettings()
SAME = World(name="same", gap=0.0)
WORSE = World(name="worse", gap=-0.12)
BETTER = World(name="better", gap=0.12)


def cut(made, here):
    """These rows of outcomes."""
    return {name: column.cut(here) if name == "draws" else column[here] for name, column in made.items()}


def evidence_of(world, *, count=600, weight=0.25, seed=1, settings=SETTINGS, page=None, change=lambda made: made):
    judged, ended = rows(world, weight=weight, count=count, rng=np.random.default_rng(seed))
    ended = change(ended)
    evidence = Evidence(settings=settings, champion="main")
    for first in range(0, count, page or count):
        here = slice(first, first + (page or count))
        evidence.rewards.add_judged(replace(judged, **cut({"draws": judged.draws, "reward": judged.reward}, here)))
        evidence.add(**cut(ended, here))
    return evidence


def verdict(evidence, *, version=VERSION, now=100.0):
    return decide(version, evidence=evidence, now=now)


@pytest.mark.parametrize(
    ("evidence", "kind", "reason", "waits_for"),
    [
        (Evidence(settings=SETTINGS, champion="main"), "not known yet", "whether v1 is better", "rated questions of"),
        (evidence_of(SAME), "not known yet", "whether v1 is better than main", "more rated questions, about"),
        (
            evidence_of(World(name="a", gap=0.0, differing=0.001)),
            "as good",
            "v1 is as good as main",
            "promote v1 --force",
        ),
        (evidence_of(BETTER), "better", "v1 is better than main: +0.1", "a person: ragbandit policy promote v1"),
        (evidence_of(WORSE), "rollback", "v1 is worse than main: -0.1", ""),
    ],
)
def test_the_verdict_is_that_of_the_comparison(evidence, kind, reason, waits_for):
    """A version waits for what the comparison misses, or for a person; one that is surely worse is rolled back."""
    found = verdict(evidence)
    assert (found.kind, found.rolls_back) == (kind, kind == "rollback")
    assert found.reason.startswith(reason)
    assert waits_for in found.waits_for


def test_answers_that_fail_more_often_roll_back():
    """An arm that only the candidate prefers violates the guardrail; if the champion fails as well, it does not."""

    def failing(made):
        return {**made, "failed": np.where(made["draws"].ratio > 1.2, 1.0, made["failed"])}

    found = verdict(evidence_of(SAME, count=400, weight=0.5, change=failing), now=1.0)
    assert (found.kind, found.comparison.verdict) == ("rollback", "not known yet")
    assert found.reason.startswith("its answers fail or are too slow more often than the champion's")
    everywhere = evidence_of(SAME, count=400, change=lambda made: {**made, "failed": np.ones(400)})
    assert not verdict(everywhere, now=1.0).rolls_back


def test_pages_change_nothing():
    """Read in pages of any size, the same rows give the same bounds, points and verdict, which can be stored."""
    whole, paged = evidence_of(BETTER), evidence_of(BETTER, page=7)
    compared = verdict(whole).comparison
    stored, again = (
        json.loads(json.dumps(facts_of(one, comparison=verdict(one).comparison))) for one in (whole, paged)
    )
    assert comparison_of(stored) == compared
    assert np.allclose(stored["points"], again["points"], atol=2e-6)
    assert len(stored["points"]) > 10
    for found, other in [(stored["comparison"][part], again["comparison"][part]) for part in ("reward", "cost")] + [
        (stored["failures"], again["failures"])
    ]:
        assert found == pytest.approx(other)
    reward = compared.reward
    assert reward.first - reward.second == pytest.approx(reward.estimate)
    assert reward.second == pytest.approx(0.5, abs=0.05)
    assert compared.cost.low < 0.0 < compared.cost.high


@pytest.mark.parametrize("facts", [{}, {"low": 0.1, "n": 3}, {"comparison": {"first": 3}}, {"comparison": None}])
def test_a_verdict_of_an_earlier_release_has_no_comparison(facts):
    """Facts without a comparison, or with a damaged one, are read as unknown."""
    assert comparison_of(facts) is None


def test_a_version_that_often_gives_no_pmf_does_not_serve():
    """A canary with many faults is rolled back; in shadow the faults are what a verdict misses."""
    evidence = evidence_of(BETTER)
    evidence.faults = 60
    fault = "it gave no pmf for 60 of 660 decisions"
    found = verdict(evidence)
    assert (found.kind, found.reason) == ("rollback", fault)
    found = verdict(evidence, version=replace(VERSION, state="shadow", weight=0.0))
    assert (found.kind, found.waits_for) == ("not known yet", f"fewer faults: {fault}")


@pytest.mark.parametrize("usual", [0.02, 0.98])
def test_candidates_as_good_as_the_champion_are_left_alone(usual):
    """At any look, at most `alpha` are found better and `rollback_alpha` worse, also if bad answers are rare."""
    lives, better, worse, passed = 40, 0, 0, 0
    for seed in range(lives):
        evidence, rng = Evidence(settings=SETTINGS), np.random.default_rng(seed)
        seen = set()
        for _ in range(0, 1_500, 100):
            world = World(name="same", gap=0.0, labels=True, usual=usual)
            judged, ended = rows(world, weight=0.05, count=100, rng=rng)
            evidence.rewards.add_judged(replace(judged, minimum=0.0))
            evidence.add(**ended)
            excess = evidence.failures.difference.low
            is_passed = excess is not None and excess > SETTINGS.guardrails.failures
            seen |= {evidence.comparison(VERSION, now=1.0).verdict, "passed" if is_passed else ""}
        better, worse, passed = better + ("better" in seen), worse + ("worse" in seen), passed + ("passed" in seen)
    for count, alpha in ((better, SETTINGS.alpha), (worse, SETTINGS.rollback_alpha), (passed, SETTINGS.rollback_alpha)):
        assert count <= lives * alpha + 3.0 * np.sqrt(lives * alpha)


def test_a_prediction_knows_earlier_rows_alone():
    """A prediction changes with what earlier rows earned; with the row itself and later ones it does not."""
    rng = np.random.default_rng(6)
    arm, value = rng.integers(0, 2, 40), rng.random(40)
    scores = np.where(rng.random((40, 1)) < 0.2, np.nan, np.full((40, 2), 0.5))
    changed = value.copy()
    changed[20:] = 1.0 - changed[20:]
    first, second = (
        Predictions().before(("one", "two"), arm=arm, value=told, scores=scores) for told in (value, changed)
    )
    assert np.array_equal(first[:21], second[:21])
    assert not np.array_equal(first[21:], second[21:])
