"""Calibration pairs: decisions of a ledger that a model has scored and a person has judged, in the order found.

Where both judgements came in time the pair is written with the update. Where one came late, the decision waits in
`calibration_due` until the learner looks at it: nobody has to search the ledger for it.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import Connection, and_, delete, func, insert, select

from ragbandit.router.storage.rows.conversion import TableRows
from ragbandit.router.storage.sql.bulk_insert import insert_into
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import calibration_due, calibration_pairs, feedback
from ragbandit.shared.types import CalibrationPair

_PAIRS: Final = TableRows(calibration_pairs, CalibrationPair)
_SCORED = and_(feedback.c.source == "judge", feedback.c.kind == "rating")
_JUDGED = and_(feedback.c.source.in_(("human", "code")), feedback.c.kind.in_(("label", "rating")))


def read_pairs(database: Database, *, label: str, after: int = 0, upto: int | None = None) -> list[CalibrationPair]:
    """The pairs of a ledger with number > after (and <= upto), in order."""
    here = [calibration_pairs.c.policy == label, calibration_pairs.c.number > after]
    if upto is not None:
        here.append(calibration_pairs.c.number <= upto)
    with database.read() as connection:
        query = select(calibration_pairs).where(*here).order_by(calibration_pairs.c.number)
        rows = connection.execute(query).mappings().all()
    return [_PAIRS.value(row) for row in rows]


def last_pair(database: Database, *, label: str, before_seq: int | None = None) -> int:
    """The number of a ledger's newest pair, or of the newest that update `before_seq` is calibrated with; 0: none."""
    query = select(func.coalesce(func.max(calibration_pairs.c.number), 0)).where(calibration_pairs.c.policy == label)
    if before_seq is not None:
        query = query.where(calibration_pairs.c.after_seq < before_seq)
    with database.read() as connection:
        return int(connection.execute(query).scalar_one())


def append_pairs(connection: Connection, pairs: Sequence[CalibrationPair], *, label: str) -> None:
    """Write pairs, in the transaction that their place in the ledger follows from."""
    if pairs:
        connection.execute(insert(calibration_pairs), [{"policy": label, **_PAIRS.row(pair)} for pair in pairs])


def paired(database: Database, ids: Iterable[str], *, label: str) -> set[str]:
    """Those of these decisions that have a pair in this ledger."""
    wanted = list(ids)
    if not wanted:
        return set()
    here = calibration_pairs.c.policy == label, calibration_pairs.c.decision_id.in_(wanted)
    with database.read() as connection:
        return set(connection.execute(select(calibration_pairs.c.decision_id).where(*here)).scalars())


def note_due(
    connection: Connection, ids: Iterable[str], *, labels: Iterable[str], waiting: set[tuple[str, str]]
) -> None:
    """Note decisions that feedback has reached late, where they have both judgements now.

    labels: the ledgers that may want the pair; waiting: (decision, label) that will see the feedback in time.
    """
    wanted = sorted(set(ids))
    if not wanted:
        return
    both = (
        select(feedback.c.decision_id)
        .where(feedback.c.decision_id.in_(wanted), _SCORED)
        .intersect(select(feedback.c.decision_id).where(feedback.c.decision_id.in_(wanted), _JUDGED))
    )
    ids_with_both = sorted(connection.execute(both).scalars())
    rows = [
        {"policy": to, "decision_id": key} for key in ids_with_both for to in sorted(labels) if (key, to) not in waiting
    ]
    if rows:
        connection.execute(insert_into(connection, calibration_due).values(rows).on_conflict_do_nothing())


def due_pairs(database: Database, *, label: str, limit: int) -> list[str]:
    """Decisions that feedback has reached late and that may be pairs, oldest ids first."""
    query = select(calibration_due.c.decision_id).where(calibration_due.c.policy == label)
    with database.read() as connection:
        return list(connection.execute(query.order_by(calibration_due.c.decision_id).limit(limit)).scalars())


def forget_due(connection: Connection, ids: Sequence[str], *, label: str | None = None) -> None:
    """Let these decisions not wait any more. label: of the ledger that has looked at them; None: of all."""
    here = calibration_due.c.decision_id.in_(ids)
    connection.execute(
        delete(calibration_due).where(here if label is None else and_(here, calibration_due.c.policy == label))
    )
