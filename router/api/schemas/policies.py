"""Bodies and replies of the endpoints of policy versions."""

from collections.abc import Mapping
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from ragbandit.router.rollouts.overview import Overview, control_facts, version_facts
from ragbandit.router.rollouts.verbs import MAX_REASON
from ragbandit.router.types import PolicyControl, PolicyVersion, VersionState

__all__ = [
    "POLICY_FIELDS",
    "ControlReply",
    "KillBody",
    "PoliciesReply",
    "PolicyReply",
    "UnkillBody",
    "VerbBody",
    "VersionReply",
    "control_json",
    "policies_json",
    "policy_json",
    "version_json",
]

#: a text that says something; the character class names ASCII, so that every engine reads it alike
_REASON: Final = r"[!-~]"

_FIELDS: Final[dict[str, str]] = {
    "ControlReply.revision": "Changes of versions and of the switch so far.",
    "ControlReply.killed": '"arm": one arm for every question; "champion": no candidate is served; null: not killed.',
    "ControlReply.arm": "The arm that every question gets; null unless one is pinned.",
    "ControlReply.actor": "Who made the last change.",
    "ControlReply.reason": "Why the switch was thrown, or taken back.",
    "ControlReply.made_at": "When, seconds since 1970.",
    "VersionReply.name": "Name of the version; that of the configuration itself is `policy.label`.",
    "VersionReply.base": "`policy.label` of the configuration that it is a version of.",
    "VersionReply.label": "Its own ledger.",
    "VersionReply.state": "draft, shadow, canary, champion, paused, rolled_back or retired.",
    "VersionReply.weight": "Share of its pmf in what is served.",
    "VersionReply.former": "The state that a paused one comes back to; of a former champion `champion`.",
    "VersionReply.changes": "Settings that differ from the configuration.",
    "VersionReply.revision": "Changes of this version so far.",
    "VersionReply.reason": "Why it is in its state.",
    "VersionReply.waits_for": "Why it does not move on, and what is missing; empty where nothing is.",
    "VersionReply.made_by": "Who added it.",
    "VersionReply.made_at": "When it was added, seconds since 1970.",
    "VersionReply.since": "When its state or share changed last, seconds since 1970.",
    "PoliciesReply.control": "The kill switch.",
    "PoliciesReply.policies": "The versions, the oldest first.",
    "PolicyReply.possible": "What can be done to it in its state.",
    "PolicyReply.next_weight": "The share that `step` leads to; null where there is none.",
    "PolicyReply.killed": "Whether the kill switch is thrown, and how.",
    "PolicyReply.recent": "What became of it in the newest decisions.",
    "PolicyReply.verdicts": "What the newest looks at the evidence came to, the newest first.",
    "RecentReply.decisions": "Of the newest decisions those that it was asked about.",
    "RecentReply.faults": "Those among them in which it gave no pmf that could be used.",
    "RecentReply.last_fault": "Why, the last time; null where it never failed.",
    "VerdictReply.number": "1, 2, 3 ...",
    "VerdictReply.version": "Name of the version.",
    "VerdictReply.state": "The state that it was in.",
    "VerdictReply.weight": "The share that it had.",
    "VerdictReply.kind": "hold, step, promote, rollback, invalid or expire.",
    "VerdictReply.reason": "Why.",
    "VerdictReply.inputs_sha256": "Over the rows and settings that it follows from.",
    "VerdictReply.facts": "The numbers.",
    "VerdictReply.made_at": "When, seconds since 1970.",
}
#: "Object.field" -> description, for /openapi.json
POLICY_FIELDS: Final[Mapping[str, str]] = _FIELDS | {
    name.replace("VersionReply.", "PolicyReply."): said
    for name, said in _FIELDS.items()
    if name.startswith("VersionReply.")
}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class UnkillBody(_Body):
    """Why the switch is taken back."""

    model_config = ConfigDict(json_schema_extra={"example": {"reason": "the outage is over"}})

    reason: str = Field(
        description="Why; it stands in the audit log.", min_length=1, max_length=MAX_REASON, pattern=_REASON
    )


class KillBody(_Body):
    """What the switch is to do, and why."""

    model_config = ConfigDict(json_schema_extra={"example": {"reason": "the canary answers nonsense"}})

    reason: str = Field(
        description="Why; it stands in the audit log.", min_length=1, max_length=MAX_REASON, pattern=_REASON
    )
    arm: str | None = Field(
        default=None, description="The arm for every question; null: the champion alone.", max_length=64
    )


class VerbBody(_Body):
    """Why a version is moved, and how it was when that was decided."""

    model_config = ConfigDict(json_schema_extra={"example": {"reason": "it looked well in shadow"}})

    reason: str = Field(
        description="Why; it stands in the audit log.", min_length=1, max_length=MAX_REASON, pattern=_REASON
    )
    expected_state: VersionState | None = Field(
        default=None, description="The state that was seen: 409 if it is in another one by now."
    )
    revision: int | None = Field(
        default=None, description="The revision that was seen: 409 if it was changed meanwhile.", ge=1, le=10**15
    )
    weight: float | None = Field(
        default=None,
        description="Of `canary`: the share of its pmf in what is served; null: the first of `rollout.steps`.",
        gt=0,
        le=0.5,
    )
    force: bool = Field(default=False, description="Of `promote`: whatever the evidence says. It is marked.")


class ControlReply(TypedDict):
    """The kill switch."""

    revision: int
    killed: str | None
    arm: str | None
    actor: str
    reason: str
    made_at: float


class VersionReply(TypedDict):
    """A version of the policy."""

    name: str
    base: str
    label: str
    state: str
    weight: float
    former: str | None
    changes: dict[str, Any]
    revision: int
    reason: str
    waits_for: str
    made_by: str
    made_at: float
    since: float


class VerdictReply(TypedDict):
    """What a look at the evidence came to."""

    number: int
    version: str
    state: str
    weight: float
    kind: str
    reason: str
    inputs_sha256: str
    facts: dict[str, Any]
    made_at: float


class RecentReply(TypedDict):
    """What became of a candidate in the newest decisions."""

    decisions: int
    faults: int
    last_fault: str | None


class PolicyReply(VersionReply):
    """A version with its verdicts."""

    possible: list[str]
    next_weight: float | None
    killed: str | None
    recent: RecentReply
    verdicts: list[VerdictReply]


class PoliciesReply(TypedDict):
    """All versions, and the kill switch."""

    control: ControlReply
    policies: list[VersionReply]


def policies_json(found: Overview) -> PoliciesReply:
    """All versions as JSON."""
    return cast(PoliciesReply, found.facts)


def policy_json(found: Mapping[str, Any]) -> PolicyReply:
    """One version with its verdicts as JSON."""
    return cast(PolicyReply, dict(found))


def version_json(version: PolicyVersion) -> VersionReply:
    """A version as JSON."""
    return cast(VersionReply, version_facts(version))


def control_json(control: PolicyControl) -> ControlReply:
    """The switch as JSON."""
    return cast(ControlReply, control_facts(control))
