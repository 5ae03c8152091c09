"""Verdicts: which rule speaks first, what a version waits for, and that pages and repetitions change nothing."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.coverage.places import VERSION
from benchmarks.rollouts import World, rows
from ragbandit.router.config.sections import GuardrailSettings, RolloutSettings
from ragbandit.router.rollouts.overview import comparison_of
from ragbandit.router.rollouts.verdicts import Evidence, decide, facts_of
from ragbandit.shared.types import PolicyControl

SETTINGS = RolloutSettings(rows_per_step=50, seconds_per_step=60.0, steps=[0.25, 0.5])
LAST = replace(VERSION, weight=0.5)
SAME = World(name="same", gap=0.0)
WORSE = World(name="worse", gap=-0.12)
BETTER = World(name="better", gap=0.12)


def cut(made, here):
    """These rows of judged draws or outcomes."""
    columns = {
        name: getattr(made, name)[here] for name in ("reward", "failed", "seconds", "cost") if hasattr(made, name)
    }
    return replace(made, draws=made.draws.cut(here), **columns)


def evidence_of(world, *, count=600, weight=0.25, seed=1, settings=SETTINGS, page=None, change=lambda made: made):
    judged, ended = rows(world, weight=weight, count=count, rng=np.random.default_rng(seed), first=0)
    ended = change(ended)
    evidence = Evidence(settings=settings, champion="main")
    for first in range(0, count, page or count):
        here = slice(first, first + (page or count))
        evidence.rewards.add(cut(judged, here))
        evidence.guardrails.add(cut(ended, here))
    return evidence


def verdict(evidence, *, version=VERSION, now=100.0, killed=None, **more):
    control = PolicyControl(revision=1, killed=killed)
    return decide(version, evidence=evidence, control=control, now=now, **more)


def facts(evidence):
    return facts_of(VERSION, evidence=evidence, comparison=evidence.comparison(VERSION, now=100.0))


def test_no_data_holds_and_says_how_much_is_missing():
    """Without rows the verdict is to hold, with the number that is needed; it never becomes a step by time alone."""
    found = verdict(Evidence(settings=SETTINGS), now=1e5)
    assert (found.kind, found.verb, found.waits_for) == ("hold", None, "rated questions")
    assert found.reason == "too few effective rated questions: 0 of 50"
    few = verdict(evidence_of(SAME, count=30), now=1e5)
    assert few.kind == "hold"
    assert few.waits_for == "about 60 more rated questions, about 2 days at today's rate"


def test_a_step_needs_time_and_kept_guardrails():
    """Enough rows wait for the time; then the next weight is due, at the last one the proof that it is better."""
    evidence = evidence_of(SAME)
    assert verdict(evidence, now=10.0).waits_for == "50 s more"
    assert verdict(evidence).kind == "step"
    last = verdict(evidence, version=LAST)
    assert last.kind == "hold"
    assert last.reason.startswith("whether v1 is better than main is not known yet")
    assert last.waits_for == last.comparison.missing
    strict = SETTINGS.model_copy(update={"guardrails": GuardrailSettings(proven=True)})
    assert "is not proven" in verdict(evidence_of(SAME, settings=strict)).reason
    agree = verdict(evidence_of(World(name="agree", gap=0.0, differing=0.001)), version=LAST)
    assert (agree.kind, agree.comparison.verdict) == ("hold", "as good")
    assert agree.waits_for == "a person: ragbandit policy promote v1 --force, or retire v1"


def test_better_is_promoted_and_worse_rolled_back():
    """At the last weight a better one is promoted; a worse one goes at any weight, also before its time."""
    better = evidence_of(BETTER, weight=0.5, count=1500)
    found = verdict(better, version=LAST)
    assert (found.kind, found.comparison.verdict) == ("promote", "better")
    assert found.reason.startswith("v1 is better than main: +0.1")
    assert verdict(better).kind == "step"
    found = verdict(evidence_of(WORSE), now=1.0)
    assert (found.kind, found.verb) == ("rollback", "rollback")
    assert found.reason.startswith("v1 is worse than main: -0.1")


def test_a_difference_within_the_settings_moves_nothing():
    """Better by less than `margin` is not promoted, and worse by less than `harm` is not rolled back."""
    settings = SETTINGS.model_copy(update={"margin": 0.2, "harm": 0.2})
    found = verdict(evidence_of(BETTER, weight=0.5, count=1500, settings=settings), version=LAST)
    assert (found.kind, found.comparison.verdict) == ("hold", "better")
    assert found.waits_for == "proof that it is better by more than rollout.margin (0.2)"
    found = verdict(evidence_of(WORSE, settings=settings), version=LAST)
    assert (found.kind, found.comparison.verdict) == ("hold", "worse")


@pytest.mark.parametrize(("name", "column"), [("failures", "failed"), ("latency", "seconds"), ("cost", "cost")])
def test_answers_that_fail_or_are_slow_or_expensive_roll_back(name, column):
    """An arm that only the candidate prefers violates its guardrail, from the first decision of the canary on."""

    def heavier(made):
        theirs = made.draws.ratio > 1.2
        return replace(made, **{column: np.where(theirs, 5.0 * getattr(made, column) + 1.0, getattr(made, column))})

    evidence = evidence_of(SAME, count=400, weight=0.5, change=heavier)
    assert facts(evidence)["guardrails"][name]["state"] == "passed"
    found = verdict(evidence, now=1.0)
    assert (found.kind, found.comparison.verdict) == ("rollback", "not known yet")
    assert found.reason.endswith("than the champion's, beyond the margin")
    everywhere = evidence_of(SAME, count=400, change=lambda made: replace(made, failed=np.ones(len(made.draws))))
    assert verdict(everywhere, now=1.0).kind == "hold", "if the champion fails as well, it is not the candidate"


def test_the_switch_holds_and_harm_still_counts():
    """Killed, nothing moves on; what is proven harmful is rolled back all the same."""
    assert verdict(evidence_of(SAME), killed="champion").waits_for == "ragbandit policy resume"
    assert verdict(evidence_of(WORSE), killed="champion").kind == "rollback"


def test_pages_change_nothing():
    """Read in pages of any size, the same rows give the same hash, bounds, points and verdict; they can be stored."""
    whole, paged = evidence_of(BETTER), evidence_of(BETTER, page=7)
    assert verdict(whole) == verdict(paged)
    stored = json.loads(json.dumps(facts(whole)))
    assert np.allclose(stored["points"], facts(paged)["points"], atol=2e-6)
    assert len(stored["points"]) > 10
    compared = comparison_of(stored)
    assert compared == verdict(whole).comparison
    reward, again = compared.reward, facts(paged)["comparison"]["reward"]
    assert [getattr(reward, name) for name in again] == pytest.approx(list(again.values()))
    assert reward.first - reward.second == pytest.approx(reward.estimate)
    assert reward.second == pytest.approx(0.5, abs=0.05)
    assert compared.cost.low < 0.0 < compared.cost.high
    assert evidence_of(SAME, seed=2).rewards.digest.digest() != whole.rewards.digest.digest()


@pytest.mark.parametrize("facts", [{}, {"low": 0.1, "n": 3}, {"comparison": {"first": 3}}, {"comparison": None}])
def test_a_verdict_of_an_earlier_release_has_no_comparison(facts):
    """Facts without a comparison, or with a damaged one, are read as unknown."""
    assert comparison_of(facts) is None


def test_a_shadow_that_often_gives_no_pmf_stays_there():
    """Faults hold a version in shadow, also one that may become a canary by itself; a canary goes back."""
    settings = SETTINGS.model_copy(update={"enter_canary": True})
    evidence = evidence_of(SAME, settings=settings)
    shadow = replace(VERSION, state="shadow", weight=0.0)
    assert verdict(evidence, version=shadow).verb == "step"
    evidence.faults = 60
    found = verdict(evidence, version=shadow)
    assert (found.kind, found.verb, found.reason) == ("hold", None, "it gave no pmf for 60 of 660 decisions")
    assert verdict(evidence).kind == "expire"


@pytest.mark.parametrize("usual", [0.02, 0.98])
def test_candidates_as_good_as_the_champion_are_left_alone(usual):
    """At any look, at most `alpha` are found better and `rollback_alpha` worse, also if bad answers are rare."""
    lives, better, worse, passed = 40, 0, 0, 0
    for seed in range(lives):
        evidence, rng = Evidence(settings=SETTINGS), np.random.default_rng(seed)
        seen = set()
        for first in range(0, 1_500, 100):
            world = World(name="same", gap=0.0, labels=True, usual=usual)
            judged, ended = rows(world, weight=0.05, count=100, rng=rng, first=first)
            evidence.rewards.add(replace(judged, minimum=0.0))
            evidence.guardrails.add(ended)
            seen |= {evidence.comparison(VERSION, now=1.0).verdict, evidence.guardrails.guardrails["failures"].state}
        better, worse, passed = better + ("better" in seen), worse + ("worse" in seen), passed + ("passed" in seen)
    for count, alpha in ((better, SETTINGS.alpha), (worse, SETTINGS.rollback_alpha), (passed, SETTINGS.rollback_alpha)):
        assert count <= lives * alpha + 3.0 * np.sqrt(lives * alpha)
