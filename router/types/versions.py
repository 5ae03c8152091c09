"""Versions of a policy that roll out by evidence, the verdicts on them, and the switch that stops it all.

A version is the configuration with some settings changed. It learns in a ledger of its own from the same decisions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ragbandit.router.types.names import ArmName, Json, PolicyLabel

__all__ = ["LIVE_STATES", "PolicyControl", "PolicyVerdict", "PolicyVersion", "VerdictKind", "VersionState"]

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
    """One version: the settings that it changes, and where it is on its way."""

    #: "v1", "v2" ..., or a name that the operator gave; unique in the store
    name: str
    #: policy.label of the configuration that it is a version of
    base: PolicyLabel
    #: its own ledger; of the configuration itself that is `base`
    label: PolicyLabel
    state: VersionState
    #: share of its pmf in what is served, in [0, 1]: 0 but in canary, 1 of the champion
    weight: float
    #: the state that it comes back to; None unless it is paused
    former: VersionState | None
    #: settings that differ from the configuration, as its sections: {"policy": {...}, "reward": {...}, "arms": {...}}
    changes: Mapping[str, Json] = field(default_factory=dict)
    #: changes of this row so far; who changes it names the one that it saw
    revision: int
    #: why it is in its state
    reason: str
    #: why it does not move on, and what is missing; "": nothing, or it is not on its way
    waits_for: str = ""
    made_by: str
    made_at: float
    #: when its state or weight changed last: evidence counts from here on
    since: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyVerdict:
    """What one look at the evidence came to. Kept whenever it differs from the one before."""

    number: int
    version: str
    #: as they were when it was looked at
    state: VersionState
    weight: float
    kind: VerdictKind
    reason: str
    #: hex digits, over the rows and settings that it follows from: the same inputs give the same verdict
    inputs_sha256: str
    #: the numbers: n, effective rows, difference with its bounds, guardrails
    facts: Mapping[str, Json]
    made_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyControl:
    """What every router reads before each batch: whether versions changed, and whether a switch overrides them."""

    #: rises with every change of a version or of the switch
    revision: int
    #: "arm": `arm` is played for every question. "champion": the champion alone, no candidate. None: not killed
    killed: Literal["arm", "champion"] | None = None
    arm: ArmName | None = None
    actor: str = ""
    reason: str = ""
    made_at: float = 0.0
