"""Chats that arms pass on as they came: the request until it is answered, and what a model replied beside the text."""

from alembic import op

from ragbandit.migrations import add, take_back
from ragbandit.router.storage.sql.tables import answer_queue, outcomes

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
oldest_code = "0007"

_NEW = (answer_queue.c.chat, outcomes.c.reply, outcomes.c.call)


def upgrade() -> None:
    add(*_NEW)
    (index,) = (index for index in outcomes.indexes if index.name == "outcomes_call")
    index.create(op.get_bind())


def downgrade() -> None:
    op.drop_index("outcomes_call", table_name="outcomes")
    take_back(*_NEW)
