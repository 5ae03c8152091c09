"""What is served of versions: the settings that a version stands for, and what decisions say of candidates.

In the facts of a decision under CANDIDATE, while versions are in shadow or canary:

    {"version": "v2", "state": "shadow" | "canary", "weight": w, "snapshot": version of its snapshot or null,
     "pmf": [of every arm of the decision, after the candidate's floors] or null, "fault": why there is none, or null}

In canary the row also has "champion", the champion's pmf after its floors, and "floor", the champion's floor: the
decision's pmf is `mixed(champion, pmf, weight=w)`. Arms that only the candidate offers come last; "added" names them,
and the champion's probability of them is 0. In shadow nothing is drawn from them: "unseen" is the probability that the
candidate gives them all together, and pmf adds up to what is left. A canary with a fault serves the champion alone.
Further candidates, all in shadow, stand under "others" in the same shape.
"""

from collections.abc import Mapping
from typing import Final

from ragbandit.router.config.grids import expanded
from ragbandit.router.config.loading import with_changes
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.checks import check_policy
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import CANDIDATE, Json, PolicyVersion

#: what a version may not change: its label is made for it; incumbent and holdback are those of all versions
_NOT_THEIRS: Final = ("label", "incumbent", "harm", "holdback")


def candidate_in(facts: Mapping[str, Json], version: str) -> Mapping[str, Json] | None:
    """What a decision's facts say of this version; None where it was not live."""
    first = facts.get(CANDIDATE)
    if not isinstance(first, Mapping):
        return None
    others = first.get("others")
    candidates = [first, *(others if isinstance(others, list) else [])]
    return next((one for one in candidates if isinstance(one, Mapping) and one.get("version") == version), None)


def settings_of(settings: Settings, version: PolicyVersion) -> Settings:
    """The configuration with what the version changes, and with its ledger; checked like a configuration.

    Raises ConfigError naming the setting: one that a version cannot change, a policy that cannot be made, an arm that
    the configuration has under another meaning.
    """
    return changed_settings(settings, version.changes, label=version.label)


def changed_settings(settings: Settings, changes: Mapping[str, Json], *, label: str) -> Settings:
    """`settings_of` for a version with these changes and this label, whether or not there is one."""
    sections: dict[str, Mapping[str, object]] = {}
    for section, given in changes.items():
        if section not in ("policy", "reward", "arms") or not isinstance(given, Mapping):
            remedy = "change policy, reward or arms"
            raise ConfigError("no version can change it", field=section, remedy=remedy)
        sections[section] = given
    for name in _NOT_THEIRS:
        if name in sections.get("policy", {}):
            remedy = "set it in the configuration, for all versions"
            raise ConfigError("no version can change it", field=f"policy.{name}", remedy=remedy)
    changed = with_changes(settings, sections) if sections else settings
    for arm, params in expanded(sections.get("arms", {})).items():
        if arm in settings.arms and settings.arms[arm] != (params or {}):
            raise ConfigError(
                "the configuration has an arm of this name with other params, and workers run that one",
                field=f"arms.{arm}",
                remedy="give the new arm a name of its own",
            )
    changed = changed.model_copy(update={"policy": changed.policy.model_copy(update={"label": label})})
    check_policy(changed)
    return changed
