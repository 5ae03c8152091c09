"""The settings that a version stands for."""

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.rollouts.version_settings import settings_of
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import PolicyVersion


def version(**changes):
    return PolicyVersion(
        name="v1",
        base="main",
        label="main.v1",
        state="draft",
        former=None,
        changes=changes,
        revision=1,
        reason="tried",
        made_by="cli:ann@host",
        made_at=1.0,
        since=1.0,
    )


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
