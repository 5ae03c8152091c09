"""Verdicts: which rule speaks first, what a version waits for, and that pages and repetitions change nothing."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.rollouts import World, rows
from ragbandit.router.config.sections import GuardrailSettings, RolloutSettings
from ragbandit.router.rollouts.evidence import Draws, Judged, Outcomes
from ragbandit.router.rollouts.verdicts import EXPIRED, Evidence, decide, facts_of
from ragbandit.shared.types import PolicyControl, PolicyLabel, PolicyVersion

SETTINGS = RolloutSettings(rows_per_step=50, seconds_per_step=60.0, steps=[0.25, 0.5])
VERSION = PolicyVersion(
    name="v1",
    base=PolicyLabel("main"),
    label=PolicyLabel("main.v1"),
    state="canary",
    weight=0.25,
    former=None,
    revision=3,
    reason="tried",
    made_by="test",
    made_at=0.0,
    since=0.0,
)


def cut(made, here):
    """These rows of judged draws or outcomes."""
    less = made.draws.cut(here)
    if isinstance(made, Judged):
        return replace(made, draws=less, reward=made.reward[here])
    return Outcomes(draws=less, failed=made.failed[here], seconds=made.seconds[here], cost=made.cost[here])


def evidence_of(world, *, count=600, weight=0.25, seed=1, settings=SETTINGS, page=None, change=lambda made: made):
    judged, ended = rows(world, weight=weight, count=count, rng=np.random.default_rng(seed), first=0)
    ended = change(ended)
    evidence = Evidence(settings=settings)
    for first in range(0, count, page or count):
        here = slice(first, first + (page or count))
        evidence.draws.add(cut(judged, here).draws)
        evidence.rewards.add(cut(judged, here))
        evidence.guardrails.add(cut(ended, here))
    return evidence


def verdict(evidence, *, version=VERSION, now=100.0, **more):
    return decide(version, evidence=evidence, control=PolicyControl(revision=1), now=now, **more)


SAME = World(name="same", gap=0.0)


def test_no_data_holds_and_says_how_much_is_missing():
    """Without rows the verdict is to hold, with the number that is needed; it never becomes a step by time alone."""
    found = verdict(Evidence(settings=SETTINGS), now=1e5)
    assert (found.kind, found.verb) == ("hold", None)
    assert found.waits_for == "50 effective rows, of which there are 0"
    few = verdict(evidence_of(SAME, count=30), now=1e5)
    assert few.kind == "hold"
    assert "effective rows are there" in few.waits_for


def test_no_interval_is_printed_before_it_was_tried_enough():
    """A few rows, or policies that agree, give no difference and no bound; then all three are there, and points."""
    for world, count in ((SAME, 30), (World(name="agree", gap=0.0, differing=0.001), 600)):
        facts = facts_of(VERSION, evidence=evidence_of(world, count=count))
        assert (facts["difference"], facts["low"], facts["high"], facts["points"]) == (None, None, None, [])
        assert facts["missing"].startswith(f"not tried enough: {count} draws, {count} judged; 50 effective rows needed")
    few = facts_of(VERSION, evidence=evidence_of(SAME, count=8))["guardrails"]["failures"]
    assert (few["excess"], few["low"], few["high"]) == (None, None, None)
    assert few["missing"].startswith("not tried enough: 8 draws")
    facts = facts_of(VERSION, evidence=evidence_of(SAME))
    assert facts["low"] < facts["difference"] < facts["high"]
    assert (facts["missing"], facts["guardrails"]["failures"]["missing"]) == (None, None)
    assert facts["points"]


def test_a_step_needs_time_and_kept_guardrails():
    """Enough rows wait for the time; then the next weight is due, at the last one the proof that it is better."""
    evidence = evidence_of(SAME)
    assert verdict(evidence, now=10.0).waits_for == "50 s more"
    assert verdict(evidence).kind == "step"
    last = verdict(evidence, version=replace(VERSION, weight=0.5))
    assert last.kind == "hold"
    assert "not better for sure" in last.reason
    strict = SETTINGS.model_copy(update={"guardrails": GuardrailSettings(proven=True)})
    assert "is not proven" in verdict(evidence_of(SAME, settings=strict)).reason


def test_better_is_promoted_and_worse_rolled_back():
    """At the last weight a better one is promoted; a worse one goes at any weight, also before its time."""
    better = evidence_of(World(name="better", gap=0.12), weight=0.5, count=1500)
    assert verdict(better, version=replace(VERSION, weight=0.5)).kind == "promote"
    assert verdict(better, version=replace(VERSION, weight=0.25)).kind == "step"
    found = verdict(evidence_of(World(name="worse", gap=-0.12)), now=1.0)
    assert (found.kind, found.verb) == ("rollback", "rollback")
    assert "reward is worse" in found.reason


def test_the_first_failures_in_a_row_roll_back():
    """Where at least half of the candidate's newest twenty answers fail it is out within a hundred decisions."""

    def broken(made):
        other = made.draws.candidate[np.arange(len(made.draws)), made.draws.arm] > 0.5
        return replace(made, failed=(other & (made.draws.ratio > 1.0)).astype(float))

    found = verdict(evidence_of(SAME, count=400, weight=0.5, change=broken), now=1.0)
    assert found.kind == "rollback"
    assert "failed" in found.reason
    everywhere = evidence_of(SAME, count=400, change=lambda made: replace(made, failed=np.ones(len(made.draws))))
    assert verdict(everywhere, now=1.0).kind == "hold", "where the champion fails as well it is not the candidate"


@pytest.mark.parametrize(("name", "factor"), [("latency", 6.0), ("cost", 4.0)])
def test_slow_or_dear_answers_roll_back(name, factor):
    """A slow or expensive arm that only the candidate prefers violates the guardrail."""

    def heavier(made):
        theirs = made.draws.ratio > 1.2
        value = {"latency": "seconds", "cost": "cost"}[name]
        return replace(made, **{value: getattr(made, value) * np.where(theirs, factor, 1.0)})

    evidence = evidence_of(SAME, count=4000, weight=0.5, change=heavier)
    assert facts_of(VERSION, evidence=evidence)["guardrails"][name]["state"] == "passed"
    assert verdict(evidence).kind == "rollback"


def test_a_log_that_contradicts_itself_is_invalid():
    """If arms are not drawn as logged, the version is taken out, and the verdict contains the alarm."""
    evidence = evidence_of(SAME)
    evidence.alarm = "draws favour fast over deep"
    found = verdict(evidence)
    assert (found.kind, found.verb) == ("invalid", "rollback")
    assert "draws favour fast over deep" in found.reason


def test_time_runs_out_and_a_person_decides_then():
    """A canary that is neither goes back to shadow; from there it does not move on by itself."""
    evidence = evidence_of(SAME)
    found = verdict(evidence, now=SETTINGS.max_age_s + 1.0)
    assert (found.kind, found.verb) == ("expire", "shadow")
    shadow = replace(VERSION, state="shadow", weight=0.0, reason=found.reason)
    again = verdict(evidence, version=shadow)
    assert again.reason.startswith(EXPIRED)
    assert again.waits_for == "a person: ragbandit policy canary v1"


def test_the_switch_holds_and_harm_still_counts():
    """Killed, nothing moves on; what is proven harmful is rolled back all the same."""
    control = PolicyControl(revision=2, killed="champion")
    held = decide(VERSION, evidence=evidence_of(SAME), control=control, now=100.0)
    assert held.waits_for == "ragbandit policy resume"
    worse = evidence_of(World(name="worse", gap=-0.12))
    assert decide(VERSION, evidence=worse, control=control, now=100.0).kind == "rollback"


def test_pages_change_nothing():
    """Read in pages of any size, the same rows give the same hash, bounds, points and verdict."""
    whole, paged = evidence_of(World(name="better", gap=0.1)), evidence_of(World(name="better", gap=0.1), page=7)
    one, other = verdict(whole), verdict(paged)
    assert one == other
    facts, same = facts_of(VERSION, evidence=whole), facts_of(VERSION, evidence=paged)
    assert np.allclose(facts.pop("points"), same.pop("points"), atol=2e-6)
    for name in ("difference", "low", "high", "n_eff", "better_at", "worse_at"):
        assert facts[name] == pytest.approx(same[name])
    assert evidence_of(SAME, seed=2).rewards.digest.digest() != whole.rewards.digest.digest()


def test_a_few_rows_on_which_they_differ_prove_no_harm():
    """With a dozen slightly different rows among a hundred, no harm is reported, though the deviation is tiny."""

    def seen(differing):
        pmf = np.full((110, 2), 0.5)
        candidate = pmf.copy()
        candidate[5 : 5 + differing] += (-0.01, 0.01)
        arm = np.arange(110) % 2
        plain = {"arm": arm, "pmf": pmf, "champion": pmf, "weight": np.zeros(110), "scores": np.full((110, 2), np.nan)}
        draws = Draws(ids=tuple(map(str, arm)), arms=("fast", "deep"), candidate=candidate, **plain)
        found = Evidence(settings=SETTINGS)
        found.rewards.add(Judged(draws=draws, reward=np.where(arm == 1, 0.2, 0.8), minimum=-1.0, maximum=1.0))
        return found.rewards

    assert (seen(12).worse_at, seen(12).high) == (None, 2.0)
    assert seen(90).worse_at is not None


def test_a_shadow_that_often_gives_no_pmf_stays_there():
    """Faults hold a version in shadow, also one that may become a canary by itself; a canary goes back."""
    settings = SETTINGS.model_copy(update={"enter_canary": True})
    evidence = evidence_of(SAME, settings=settings)
    shadow = replace(VERSION, state="shadow", weight=0.0)
    assert verdict(evidence, version=shadow).verb == "step"
    evidence.draws.faults = 60
    found = verdict(evidence, version=shadow)
    assert (found.kind, found.verb, found.reason) == ("hold", None, "it gave no pmf for 60 of 660 decisions")
    assert verdict(evidence).kind == "expire"
