"""Versions of a policy as immutable values: the deciding thread reads them, another thread replaces them."""

from dataclasses import dataclass
from typing import Final

from ragbandit.router.serving.loading.candidate_runner import CandidateRunner
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.shared.types import ArmName, PolicyControl, PolicyVersion, RunBy


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    version: PolicyVersion
    served: ServedPolicy | None
    #: why `served` is None; None if the candidate is loaded
    unloaded: str | None
    runner: CandidateRunner
    #: arms that this version offers and the champion does not
    added: tuple[ArmName, ...] = ()

    @property
    def fault(self) -> str | None:
        """Why the candidate cannot be asked; None if it can be asked."""
        rebuilding = self.served is not None and self.served.rebuilding
        return self.unloaded or ("its ledger is being learned again" if rebuilding else None)

    def added_for(self, run_by: RunBy) -> tuple[ArmName, ...]:
        if run_by == "caller":
            return self.added
        worker_arms = {} if self.served is None else self.served.settings.worker_arms
        return tuple(arm for arm in self.added if arm in worker_arms)


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveVersions:
    """The kill switch and the candidates in one revision of `policy_control`."""

    control: PolicyControl
    #: the versions in shadow, the oldest first
    candidates: tuple[Candidate, ...] = ()

    @property
    def asks_candidates(self) -> bool:
        return bool(self.candidates) and self.control.killed is None


NOTHING_LIVE: Final = LiveVersions(control=PolicyControl(revision=0))
