"""The schema, once: `migrations/` builds it, the store reads and writes it.

decisions, feedback bodies and updates are never changed after they are written. `waiting` holds a row for every
decision that a policy has not done with; the row leaves in the same transaction that writes the decision's
update (learned, defaulted) or closure (closed, quarantined). That is promise 7: a decision is in one place.

A module for each theme; who reads or writes a table imports it from this package.
"""

from ragbandit.router.storage.sql.tables.access import *
from ragbandit.router.storage.sql.tables.ledger import *
from ragbandit.router.storage.sql.tables.traffic import *

#: the migration this code was written for
SCHEMA_REVISION = "0008"
#: the oldest schema that this code can also use: the migrations up to here are run before its processes start, those
#: after it may wait until the last process of the release before has ended
OLDEST_REVISION = "0008"
