"""Chores of a process: one class for each, in the order of CHORES, and after them those of additions."""

from typing import Final

from ragbandit.router.telemetry.routines import Routine
from ragbandit.shared.additions import load_offered
from ragbandit.workers.chores.blocked_loop import BlockedLoop
from ragbandit.workers.chores.bought_verdicts import BoughtVerdicts
from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.chores.clock import HostClock, StoreTime
from ragbandit.workers.chores.exchanges import CancelledRuns, RenewedClaims
from ragbandit.workers.chores.recovery import LostWakeUps
from ragbandit.workers.chores.reward_checks import RewardChecks
from ragbandit.workers.chores.store_upkeep import HourlyTotals, OldDecisions
from ragbandit.workers.chores.version_learning import VersionLearning
from ragbandit.workers.running.context import Context

#: chores of the core. Another chore is one class, in a folder of ragbandit/additions
CHORES: Final[tuple[type[Chore], ...]] = (
    CancelledRuns,  # the first four run in every process that runs arms, scores answers or learns
    RenewedClaims,
    BlockedLoop,
    StoreTime,
    LostWakeUps,  # the others run in processes that learn; each takes a lease if one process is enough
    HostClock,
    HourlyTotals,
    VersionLearning,
    BoughtVerdicts,
    OldDecisions,
    RewardChecks,
)


def start_chores(context: Context) -> list[Routine]:
    """Start the chores of this process. Close the returned threads before `context`. Raises ConfigError."""
    kinds = [
        kind
        for kind in (*CHORES, *load_offered("chores").values())
        if context.learner is not None or not kind.of_learner
    ]
    chores = [chore for kind in kinds for chore in kind.of(context)]  # all are made before the first one starts
    return [chore.start() for chore in chores]
