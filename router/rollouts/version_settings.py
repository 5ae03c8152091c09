"""The settings of a version: the configuration with the changes of the version."""

from collections.abc import Mapping
from typing import Final

from ragbandit.router.config.grids import expand_grids
from ragbandit.router.config.loading import with_changes
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Json, PolicyVersion

#: sections of the configuration that a version may change
SECTIONS: Final = ("policy", "reward", "arms")
#: settings of `policy` that a version cannot change: the label is generated, and all versions share the other settings
_SHARED_SETTINGS: Final = ("label", "incumbent", "harm", "holdback")


def settings_of(settings: Settings, version: PolicyVersion) -> Settings:
    """The configuration with a version's changes and its label as policy.label. Raises ConfigError with the setting."""
    return settings_with(settings, version.changes, label=version.label)


def settings_with(settings: Settings, changes: Mapping[str, Json], *, label: str) -> Settings:
    """Like `settings_of`, for changes that are not stored as a version yet."""
    sections: dict[str, Mapping[str, object]] = {}
    for section, changed_values in changes.items():
        if section not in SECTIONS or not isinstance(changed_values, Mapping):
            message = "a version cannot change this section"
            raise ConfigError(message, field=section, remedy="change settings of policy, reward or arms")
        sections[section] = changed_values
    for name in _SHARED_SETTINGS:
        if name in sections.get("policy", {}):
            remedy = "set it in the configuration, for all versions"
            raise ConfigError("a version cannot change this setting", field=f"policy.{name}", remedy=remedy)
    changed = with_changes(settings, sections) if sections else settings
    for arm, params in expand_grids(sections.get("arms", {})).items():
        if arm in settings.arms and settings.arms[arm] != (params or {}):
            message = "the configuration has an arm of this name with other params, which workers run"
            raise ConfigError(message, field=f"arms.{arm}", remedy="give the new arm another name")
    changed = changed.model_copy(update={"policy": changed.policy.model_copy(update={"label": label})})
    check_policy(changed)
    return changed
