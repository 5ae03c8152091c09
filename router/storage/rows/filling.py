"""Fills the columns of QueriedFacts in rows that former releases have inserted (rows/queried_facts.py)."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy import bindparam, func, select

from ragbandit.router.storage.rows.queried_facts import JSON_COLUMNS, UNFILLED, QueriedFacts
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.positions import move_position, position_of
from ragbandit.router.storage.sql.tables import QUERIED_FACTS, decisions, policies, updates

#: maximum number of rows that `fill` changes in one transaction
BATCH: Final = 500


def count_unfilled(database: Database) -> int:
    """Number of rows of former releases that are not filled yet."""
    with database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(decisions).where(UNFILLED)).scalar_one())


def limited_rows(connection: Connection, *, label: str) -> int:
    """Number of updates of this ledger whose arm a limit chose. Releases before schema 1007 learned them."""
    return int(position_of(connection, f"limited_rows:{label}").get("rows", 0))


def _note_learned(connection: Connection, limited: Sequence[str]) -> None:
    """Add to `limited_rows` of each ledger the number of these decisions that it has learned."""
    learned = select(updates.c.policy, func.count()).where(
        updates.c.policy.in_(select(policies.c.label)), updates.c.decision_id.in_(limited)
    )
    for label, count in connection.execute(learned.group_by(updates.c.policy)).all() if limited else ():
        rows = {"rows": count + limited_rows(connection, label=label)}
        move_position(connection, f"limited_rows:{label}", position=rows, now=time.time())


def fill(database: Database, *, progress: Callable[[int, int], None]) -> int:
    """Fill empty columns of queried facts, batch by batch. Returns the number of filled rows.

    A call after an interruption continues with the rows that remain. Decisions may be made and erased meanwhile.
    progress: called with (rows filled, rows to fill). Raises StoreError.
    """
    count = count_unfilled(database)
    columns = decisions.c[("id", *JSON_COLUMNS, *QUERIED_FACTS)]
    new = {name: bindparam(f"new_{name}", type_=decisions.c[name].type) for name in QUERIED_FACTS}
    change = decisions.update().where(decisions.c.id == bindparam("of"), UNFILLED).values(new)
    filled, after = 0, ""
    while filled < count:
        query = select(*columns).where(UNFILLED, decisions.c.id > after).order_by(decisions.c.id).limit(BATCH)
        with database.write() as connection:
            # key_share lets other transactions insert outcomes and feedback of these decisions meanwhile.
            rows = connection.execute(query.with_for_update(key_share=True)).mappings().all()
            if not rows:
                break
            changes = []
            for row in rows:
                facts = QueriedFacts.of_unfilled(row)._asdict()
                changes.append({"of": row["id"], **{f"new_{name}": value for name, value in facts.items()}})
            connection.execute(change, changes)
            limited = [one["of"] for one in changes if one["new_arm_by"] == "limit"]
            _note_learned(connection, limited)
        filled, after = filled + len(rows), rows[-1]["id"]
        progress(filled, max(count, filled))
    return filled
