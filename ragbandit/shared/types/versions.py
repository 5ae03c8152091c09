"""Versions of a policy that roll out by evidence, the verdicts on them, and the switch that stops it all.

A version is the configuration with some settings changed. It learns in a ledger of its own from the same decisions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ragbandit.shared.types.names import ArmName, Json, PolicyLabel

#: draft: known, nothing computed. shadow: its pmf is logged beside the champion's, nothing of it is served. canary: the
#: served pmf is (1 - weight) * champion's + weight * its own. champion: it decides. paused: as draft, until it is
#: resumed. rolled_back: the evidence, or a person, took it out. retired: a former champion, or a draft given up
VersionState = Literal["draft", "shadow", "canary", "champion", "paused", "rolled_back", "retired"]
#: states in which a candidate gives pmfs
LIVE_STATES: Final = frozenset({"shadow", "canary"})
#: hold: not enough is known. step: to the next state or weight. promote: better beyond the margin. rollback: worse, or
#: a guardrail was passed. invalid: the log contradicts its propensities, so that nothing can be said. expire: it took
#: longer than allowed without a decision
VerdictKind = Literal["hold", "step", "promote", "rollback", "invalid", "expire"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyVersion:
    """A version of the policy: the settings that it changes, and its state."""

    name: str
    """Name of the version, unique in the store: "v1", "v2" ..., or what the operator chose."""
    base: PolicyLabel
    """`policy.label` of the configuration that it is a version of."""
    label: PolicyLabel
    """Label of its own ledger; of the configuration itself that is `base`."""
    state: VersionState
    """State of its rollout."""
    weight: float
    """Share of its pmf in what is served, in [0, 1]: 0 except in canary, 1 of the champion."""
    former: VersionState | None
    """The state that a paused version comes back to; of a former champion `champion`; else null."""
    changes: Mapping[str, Json] = field(default_factory=dict)
    """Settings that differ from the configuration, by its sections: {"policy": {...}, "reward": {...}}."""
    revision: int
    """Changes of this version so far; who changes it names the revision that was seen."""
    reason: str
    """Why it is in its state."""
    waits_for: str = ""
    """Why it does not move on, and what is missing; empty where nothing is, or it is not being rolled out."""
    made_by: str
    """Who added it."""
    made_at: float
    """When it was added, seconds since 1970."""
    since: float
    """When its state or share changed last, seconds since 1970: evidence counts from here on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyVerdict:
    """The verdict of one look at the evidence. Stored whenever it differs from the one before."""

    number: int
    """1, 2, 3 ..."""
    version: str
    """Name of the version."""
    state: VersionState
    """The state that the version was in."""
    weight: float
    """The share that it had."""
    kind: VerdictKind
    """What is to be done."""
    reason: str
    """Why."""
    inputs_sha256: str
    """Over the rows and settings that it follows from, hex digits: the same inputs give the same verdict."""
    facts: Mapping[str, Json]
    """The numbers: n, effective rows, difference with its bounds, guardrails."""
    made_at: float
    """When, seconds since 1970."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyControl:
    """The kill switch, and a revision that tells every router before each batch whether versions changed."""

    revision: int
    """Changes of versions and of the switch so far."""
    killed: Literal["arm", "champion"] | None = None
    """`arm`: one arm is played for every question; `champion`: no candidate is served; null: not killed."""
    arm: ArmName | None = None
    """The arm that every question gets; null unless one is pinned."""
    actor: str = ""
    """Who made the last change."""
    reason: str = ""
    """Why the switch was thrown, or taken back."""
    made_at: float = 0.0
    """When, seconds since 1970."""
