"""The schema, once: `migrations/` builds it, the store reads and writes it.

decisions, feedback bodies and updates are never changed after they are written. `waiting` holds a row for every
decision that a policy has not done with; the row leaves in the same transaction that writes the decision's
update (learned, defaulted) or closure (closed, quarantined). That is promise 7: a decision is in one place.

A module for each theme; who reads or writes a table imports it from this package.
"""

from ragbandit.router.storage.sql.tables.access import (
    api_keys as api_keys,
    audit_log as audit_log,
    leases as leases,
    policy_control as policy_control,
    policy_verdicts as policy_verdicts,
    policy_versions as policy_versions,
    service_secrets as service_secrets,
)
from ragbandit.router.storage.sql.tables.ledger import (
    closures as closures,
    jobs as jobs,
    judge_days as judge_days,
    metadata as metadata,
    policies as policies,
    quarantines as quarantines,
    snapshots as snapshots,
    updates as updates,
    waiting as waiting,
)
from ragbandit.router.storage.sql.tables.traffic import (
    answer_queue as answer_queue,
    arm_hours as arm_hours,
    cancellations as cancellations,
    counters as counters,
    decisions as decisions,
    feedback as feedback,
    outcomes as outcomes,
    reading_positions as reading_positions,
)

#: the migration this code was written for
SCHEMA_REVISION = "0008"
#: the oldest schema that this code can also use: the migrations up to here are run before its processes start, those
#: after it may wait until the last process of the release before has ended
OLDEST_REVISION = "0008"
