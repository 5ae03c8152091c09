"""Turns belong to a decision: `decisions.turn_of`, a table with the newest task of each conversation, and task ends.

Earlier releases counted each request of a tool loop as a decision, which ledgers closed without learning. Now these
rows name their decision, and no ledger has a row for them. Turns that stayed on an arm for a conversation
(`sticky_turns`, `sticky_prefix`) were learned one by one, so they stay decisions of their own: ledgers, reports and
replays of older stores do not change.
"""

import sqlalchemy as sa
from alembic import op

from ragbandit.router.storage.decisions.turns import read_continues
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import recount
from ragbandit.router.storage.sql.tables import closures, decisions, units, waiting

revision = "1004"
down_revision = "1003"
oldest_code = "1004"

#: number of rows that one statement reads
_PAGE = 500


def upgrade() -> None:
    connection = op.get_bind()
    op.add_column("decisions", decisions.c.turn_of)
    op.add_column("waiting", waiting.c.open_until)
    next(index for index in decisions.indexes if index.name == "decisions_turns").create(connection)
    units.create(connection)
    columns = decisions.c["id", "request"]
    turns = sa.select(*columns).where(decisions.c.request.is_not(None), decisions.c.turn_of.is_(None))
    after, changed = "", False
    while page := connection.execute(turns.where(decisions.c.id > after).order_by(decisions.c.id).limit(_PAGE)).all():
        after = page[-1].id
        firsts = {row.id: loop.first for row in page if (loop := read_continues(row.request).loop) is not None}
        rows = [{"key": key, "first": first} for key, first in firsts.items() if first]
        if not rows:
            continue
        named = decisions.update().where(decisions.c.id == sa.bindparam("key")).values(turn_of=sa.bindparam("first"))
        connection.execute(named, rows)
        for table in (waiting, closures):
            connection.execute(table.delete().where(table.c.decision_id.in_([row["key"] for row in rows])))
        changed = True
    if changed:
        assert isinstance(connection, Connection)
        recount(connection)
