"""An index of the labels by time, so that the page Labels counts today's labels without reading other feedback."""

from alembic import op

revision = "0011"
down_revision = "0010"
oldest_code = "0007"


def upgrade() -> None:
    op.execute("CREATE INDEX feedback_labels ON feedback (received_at) WHERE source = 'label'")
