"""${message}"""

from alembic import op
import sqlalchemy as sa

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
# The oldest schema whose code goes on while this runs and after it: that of the migration before where this one only
# adds; a newer one where it removes, renames or demands (docs/operations.md).
oldest_code = 


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
