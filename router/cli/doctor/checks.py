"""The checks, in the order in which they are told."""

from collections.abc import Sequence
from typing import Final

from ragbandit.router.cli.doctor import budgets, configuration, database, files, price, processes, redis
from ragbandit.router.cli.doctor.findings import Check, Finding, Installation, run_checks

CHECKS: Final[tuple[Check, ...]] = (
    ("settings", configuration.contradictions),
    ("API keys", configuration.exposure),
    ("schema", database.schema),
    ("arms", database.renamed_arms),
    ("clock of the database", database.clock),
    ("learner", database.learner),
    ("reward.weight", price.weight),
    ("sample ratio", database.even),
    ("dollar budgets", budgets.budgets),
    ("costs", price.costs),
    ("counters", database.counters),
    ("leases", database.held),
    ("Redis", redis.reachable),
    ("Redis memory", redis.memory),
    ("Redis writes", redis.persistence),
    ("queues", redis.queues),
    ("listeners", redis.listeners),
    ("processes", processes.there),
    ("versions", processes.versions),
    ("clocks of the hosts", processes.clocks),
    ("encoder", processes.encoder),
    ("indexes", processes.indexes),
    ("snapshots over hosts", processes.shared_snapshots),
    ("disk", files.disk),
    ("permissions", files.permissions),
)


def examine(installation: Installation, *, limit_s: float) -> list[Finding]:
    """The findings of every check. It reads; it changes nothing. Of a Redis that is not used nothing is asked."""
    checks, asking = CHECKS, {redis.__name__, processes.__name__}
    if redis.is_unused(installation.settings):
        checks = tuple(each for each in CHECKS if each[1] is redis.reachable or each[1].__module__ not in asking)
    return run_checks(installation, checks, limit_s=limit_s)


def worst(findings: Sequence[Finding]) -> str:
    """The gravest level among them."""
    levels = [finding.level for finding in findings]
    return "problem" if "problem" in levels else "warning" if "warning" in levels else "ok"
