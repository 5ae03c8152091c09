"""${message}"""

from alembic import op
import sqlalchemy as sa

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
# The oldest schema whose code can go on during and after this migration: the previous revision if this one only adds, a
# newer one if it removes, renames or adds constraints (docs/operations.md).
oldest_code = 


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
