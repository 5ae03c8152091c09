"""Live versions: immutable values that the thread which decides reads, and another one replaces as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.base import Policy
from ragbandit.router.serving.deciding.runner import CandidateRunner
from ragbandit.shared.types import ArmName, PolicyControl, PolicyVersion, RunBy


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """The policy in use. Replaced as a whole; its `learn` is never called here."""

    policy: Policy
    version: str
    last_seq: int
    #: the configured policy is being learned again from the ledger; this one decides until it is there
    rebuilding: bool = False
    #: outcomes learned by arm, for the cold-start floor, where the policy in use has not counted them itself
    learned: Mapping[ArmName, int] | None = None

    @property
    def seen(self) -> Mapping[ArmName, int]:
        """Outcomes learned by arm."""
        return self.policy.seen if self.learned is None else self.learned


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A version in shadow or canary, as it can be asked here."""

    version: PolicyVersion
    #: the configuration with its changes
    settings: Settings
    #: None: it is not loaded, and cannot be asked
    serving: Serving | None
    #: why it is not loaded
    unloaded: str | None
    runner: CandidateRunner
    #: arms that it offers and the champion does not
    added: tuple[ArmName, ...] = ()

    @property
    def fault(self) -> str | None:
        """Why it cannot be asked; None where it can."""
        rebuilding = self.serving is not None and self.serving.rebuilding
        return self.unloaded or ("its ledger is being learned again" if rebuilding else None)

    def added_for(self, run_by: RunBy) -> tuple[ArmName, ...]:
        """Its own arms for a question that our workers answer, or the caller's own stack."""
        return tuple(arm for arm in self.added if run_by == "caller" or arm in self.settings.worker_arms)


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveVersions:
    """The switch and the candidates, as of one revision."""

    control: PolicyControl
    #: the canary first, then those in shadow, the oldest first
    candidates: tuple[Candidate, ...] = ()

    @property
    def asks(self) -> bool:
        """Whether candidates are asked: not while the switch is thrown."""
        return bool(self.candidates) and self.control.killed is None

    @property
    def added(self) -> tuple[ArmName, ...]:
        """Arms that candidates alone offer."""
        return tuple(dict.fromkeys(arm for one in self.candidates for arm in one.added))

    def added_for(self, run_by: RunBy) -> tuple[ArmName, ...]:
        """Those of them that fit a question that our workers answer, or the caller's own stack."""
        return tuple(dict.fromkeys(arm for one in self.candidates for arm in one.added_for(run_by)))


#: where no version was ever made
NOTHING_LIVE: Final = LiveVersions(control=PolicyControl(revision=0))
