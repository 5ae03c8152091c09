"""The schema, once: `migrations/` builds it, the store reads and writes it.

decisions, feedback bodies and updates are never changed after they are written. `waiting` holds a row for every
decision that a policy has not done with; the row leaves in the same transaction that writes the decision's
update (learned, defaulted) or closure (closed, quarantined). That is promise 7: a decision is in one place.

A module for each theme; who reads or writes a table imports it from this package.
"""

from ragbandit.router.storage.sql.tables.access import (
    api_keys,
    audit_log,
    leases,
    policy_control,
    policy_verdicts,
    policy_versions,
    service_secrets,
)
from ragbandit.router.storage.sql.tables.ledger import (
    closures,
    jobs,
    judge_days,
    metadata,
    policies,
    quarantines,
    snapshots,
    updates,
    waiting,
)
from ragbandit.router.storage.sql.tables.traffic import (
    answer_queue,
    arm_hours,
    cancellations,
    counters,
    decisions,
    feedback,
    outcomes,
    reading_positions,
)

__all__ = [
    "OLDEST_REVISION",
    "SCHEMA_REVISION",
    "answer_queue",
    "api_keys",
    "arm_hours",
    "audit_log",
    "cancellations",
    "closures",
    "counters",
    "decisions",
    "feedback",
    "jobs",
    "judge_days",
    "leases",
    "metadata",
    "outcomes",
    "policies",
    "policy_control",
    "policy_verdicts",
    "policy_versions",
    "quarantines",
    "reading_positions",
    "service_secrets",
    "snapshots",
    "updates",
    "waiting",
]

#: the migration this code was written for
SCHEMA_REVISION = "0006"
#: the oldest schema that this code can also use: the migrations up to here are run before its processes start, those
#: after it may wait until the last process of the release before has ended
OLDEST_REVISION = "0006"
