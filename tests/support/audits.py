"""Audits of stores that tests made, for this processor and for another one."""

from typing import Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.audit.checks import AuditResult
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router

#: largest relative difference between arrays of float64 of two processors (docs/machines.md)
ROUNDING: Final = 1e-6


def verified(settings: Settings) -> AuditResult:
    """The deep audit of a store."""
    with Router.open(settings, jobs=MemoryJobs()) as router:
        return router.verify(deep=True)


def assert_compared(*verdicts: AuditResult, tolerance: float = ROUNDING) -> None:
    """Nothing is wrong, and each policy was compared with its ledger: they differ by rounding at most."""
    for verdict in verdicts:
        assert verdict.ok, verdict.notes
        assert verdict.replay_sha256 != "", verdict.notes
        assert (verdict.within_rounding or 0.0) <= tolerance
