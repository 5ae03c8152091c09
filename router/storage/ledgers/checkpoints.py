"""Rows of `checkpoints`: which snapshots are kept, the chain at their place, and what `verify` has found there."""

from collections.abc import Mapping

from sqlalchemy import RowMapping, delete, select, update

from ragbandit.router.storage.rows.conversion import canonical, snapshot_row, snapshot_value
from ragbandit.router.storage.rows.mapping import TableRows
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import checkpoints
from ragbandit.shared.types import Checkpoint, Json, PolicyLabel


class CheckpointRows:
    """The checkpoints of one ledger."""

    def __init__(self, database: Database, *, label: PolicyLabel) -> None:
        self.database = database
        self.label = label

    def newest(
        self,
        *,
        algorithm: str | None = None,
        params: Mapping[str, Json] | None = None,
        encoder_hash: str | None = None,
    ) -> list[Checkpoint]:
        """All of them, the latest in the ledger first; only those of the algorithm, params and encoder given."""
        query = select(checkpoints).where(checkpoints.c.policy == self.label)
        if algorithm is not None:
            query = query.where(checkpoints.c.algorithm == algorithm)
        if params is not None:
            query = query.where(checkpoints.c.params == canonical(dict(params)))
        if encoder_hash is not None:
            query = query.where(checkpoints.c.encoder_hash == encoder_hash)
        with self.database.read() as connection:
            rows = connection.execute(query.order_by(checkpoints.c.last_seq.desc(), checkpoints.c.made_at.desc()))
            return [_value(row) for row in rows.mappings()]

    def add(self, checkpoint: Checkpoint) -> None:
        """Make it known; known already is fine (the same ledger gives the same snapshot)."""
        row = snapshot_row(checkpoint.snapshot) | {"chain": checkpoint.chain}
        with self.database.write() as connection:
            insert_new(connection, checkpoints, [row], key="version")

    def remove(self, version: str) -> None:
        """Forget it."""
        with self.database.write() as connection:
            here = checkpoints.c.policy == self.label, checkpoints.c.version == version
            connection.execute(delete(checkpoints).where(*here))

    def mark_verified(self, version: str, *, at: float, decided_before: float, decisions: int) -> None:
        """Remember that a verify without faults got here, and which decisions it checked."""
        with self.database.write() as connection:
            connection.execute(
                update(checkpoints)
                .where(checkpoints.c.policy == self.label, checkpoints.c.version == version)
                .values(verified_at=at, decided_before=decided_before, decisions=decisions)
            )


_CHECKPOINTS = TableRows(checkpoints, Checkpoint)


def _value(row: RowMapping) -> Checkpoint:
    return _CHECKPOINTS.value(row, snapshot=snapshot_value(row))
