"""What is served of versions: mixtures of pmfs, and the settings that a version stands for."""

import math

import pytest
from hypothesis import given, strategies as some

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.base import PolicyOutput
from ragbandit.router.policies.draw import gate, mixed, mixed_floor, with_floor
from ragbandit.router.rollouts.overview import settings_of
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import CandidateNotes, PolicyVersion, candidate_note

WEIGHTS = some.floats(0.0, 1.0)
FLOORS = some.floats(0.0, 0.2)


def version(**changes):
    return PolicyVersion(
        name="v1",
        base="main",
        label="main.v1",
        state="draft",
        weight=0.0,
        former=None,
        changes=changes,
        revision=1,
        reason="tried",
        made_by="cli:ann@host",
        made_at=1.0,
        since=1.0,
    )


@some.composite
def two_pmfs(draw):
    """Two pmfs over the same arms as the draw makes them, with their floors."""
    arms = draw(some.integers(1, 6))
    made = []
    for _ in range(2):
        raw = draw(some.lists(some.floats(0.0, 1.0), min_size=arms, max_size=arms).filter(lambda row: sum(row) > 0.01))
        floor = draw(FLOORS)
        names = [str(n) for n in range(arms)]
        pmf = gate(PolicyOutput(pmf=tuple(p / math.fsum(raw) for p in raw)), arms=names)
        made.append((with_floor(pmf, floor=floor), floor))
    return made


@given(two=two_pmfs(), weight=WEIGHTS)
def test_a_mixture_is_a_pmf_within_its_bounds(two, weight):
    """It adds up to 1, bounds what either policy loses by its share, keeps the mixed floors; its ends are its parts."""
    (champion, floor), (candidate, other_floor) = two
    pmf = mixed(champion, candidate, weight=weight)
    assert math.fsum(pmf) == pytest.approx(1.0, abs=1e-12)
    for p, one, other in zip(pmf, champion, candidate, strict=True):
        assert min(one, other) - 1e-12 <= p <= max(one, other) + 1e-12
        assert one * (1.0 - weight) <= p + 1e-12
        assert other * weight <= p + 1e-12
    assert min(pmf) >= mixed_floor(floor, other_floor, weight=weight, arms=len(pmf)) - 1e-12
    assert mixed(champion, candidate, weight=0.0) == pytest.approx(champion)
    assert mixed(champion, candidate, weight=1.0) == pytest.approx(candidate)


def test_a_version_is_the_configuration_with_its_changes():
    """Other settings stay, params of the same policy too; the ledger is its own."""
    settings = Settings.model_validate({"policy": {"name": "mba", "params": {"epsilon_min": 0.1}, "floor": 0.02}})
    same = settings_of(settings, version(policy={"params": {"ridge": 2.0}}, reward={"weight": 0.2}))
    assert same.policy.label == "main.v1"
    assert same.policy.params == {"epsilon_min": 0.1, "ridge": 2.0}
    assert same.policy.floor == 0.02
    assert (same.reward.weight, settings.reward.weight) == (0.2, 0.05)
    assert settings_of(settings, version(policy={"name": "linucb"})).policy.params == {}
    more = settings_of(settings, version(arms={"deep": {"run_by": "caller"}}))
    assert set(more.arms) == {*settings.arms, "deep"}
    assert settings_of(settings, version()).policy.name == "mba"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"policy": {"label": "other"}}, "policy.label"),
        ({"policy": {"incumbent": "single_step"}}, "policy.incumbent"),
        ({"policy": {"holdback": {"arm": "single_step"}}}, "policy.holdback"),
        ({"policy": {"name": "nonsense"}}, "policy.name"),
        ({"policy": {"params": {"nonsense": 1}}}, "policy.params.nonsense"),
        ({"policy": {"floor": 2.0}}, "policy.floor"),
        ({"policy": {"flor": 0.1}}, "policy.flor"),
        ({"policy": {"params": 3}}, "policy.params"),
        ({"policy": 3}, "policy"),
        ({"reward": {"nonsense": 1}}, "reward.nonsense"),
        ({"arms": {"single_step": {"run_by": "caller"}}}, "arms.single_step"),
        ({"arms": {"a b": {}}}, "arms"),
        ({"encoder": {"model": "hashing"}}, "encoder"),
    ],
)
def test_a_wrong_change_names_its_setting(changes, field):
    """What no version can change, and what makes no configuration, is refused by the setting's name."""
    with pytest.raises(ConfigError) as caught:
        settings_of(Settings(), version(**changes))
    assert caught.value.field == field


def test_facts_of_several_candidates_are_found_by_name():
    """The facts contain the first candidate with the others in a list; earlier decisions contain none."""
    facts = {CandidateNotes.key: {"version": "v1", "others": [{"version": "v2", "fault": "late"}]}}
    assert candidate_note(facts, "v1").version == "v1"
    assert candidate_note(facts, "v2").fault == "late"
    assert candidate_note(facts, "v3") is None
    assert candidate_note({}, "v1") is None
