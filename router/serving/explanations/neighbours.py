"""Nearest learned questions: what the policy had learned of questions like this one, by cosine of the features."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from ragbandit.router.policies import needs_of
from ragbandit.router.serving.explanations.values import Neighbour, Neighbours, SnapshotShown
from ragbandit.router.storage.rows.feature_bytes import features_value
from ragbandit.router.storage.rows.mapping import TableRows
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import Decision, Json

#: questions that are shown
NEIGHBOURS: Final = 5
#: newest updates that are compared
WINDOW: Final = 2_000

_NEIGHBOURS: Final = TableRows(updates, Neighbour)


def nearest(
    database: Database,
    decision: Decision,
    *,
    snapshot: SnapshotShown,
    params: Mapping[str, Json],
    tenant: str | None = None,
    window: int = WINDOW,
) -> Neighbours:
    """The nearest of the newest `window` updates that the snapshot had learned.

    params: of the policy. tenant: whose questions may be shown; None: everybody's.
    """
    if snapshot.learned is None:
        return _none("its policy version does not say which updates it had learned")
    if snapshot.learned == 0:
        return _none("the policy had learned nothing yet")
    if decision.features is None:
        return _none("the features of this question are not kept, so no question can be compared with it")
    rows = _learned(database, decision, snapshot=snapshot, tenant=tenant, window=window)
    if not rows:
        return _none(
            "none of the newest questions that it had learned can be compared: they are in the archive, of another "
            "encoder or tenant, or their features were erased"
        )
    similarity = _cosines(decision.features, [row["features"] for row in rows])
    order = np.argsort(-similarity, kind="stable")[:NEIGHBOURS]
    texts = _texts(database, [rows[at]["decision_id"] for at in order])
    nearest_ones = tuple(_neighbour(rows[at], float(similarity[at]), texts) for at in order)
    return Neighbours(found=nearest_ones, compared=len(rows), note=_note(snapshot, params=params, shown=nearest_ones))


def _none(note: str) -> Neighbours:
    return Neighbours(found=(), compared=0, note=note)


def _note(snapshot: SnapshotShown, *, params: Mapping[str, Json], shown: tuple[Neighbour, ...]) -> str | None:
    notes = []
    try:
        unread = snapshot.algorithm is not None and not needs_of(snapshot.algorithm, params=params)
    except RagBanditError:  # a plug-in that is not installed here
        unread = False
    if unread:
        notes.append(f"the policy {snapshot.algorithm} does not look at the question: these had no part in the choice")
    if any(not one.question for one in shown):
        notes.append("some texts were erased, or never kept")
    return "; ".join(notes) or None


def _learned(
    database: Database, decision: Decision, *, snapshot: SnapshotShown, tenant: str | None, window: int
) -> list[Mapping[str, Any]]:
    """The updates that can be compared, of the newest `window`."""
    newest = (
        select(*(updates.c[name] for name in (*_NEIGHBOURS.names, "value")))
        .where(updates.c.policy == snapshot.label, updates.c.seq <= snapshot.learned)
        .order_by(updates.c.seq.desc())
        .limit(window)
        .subquery()
    )
    query = select(newest, decisions.c.features).join(decisions, decisions.c.id == newest.c.decision_id)
    query = query.where(decisions.c.features.is_not(None), decisions.c.encoder_hash == decision.encoder_hash).order_by(
        newest.c.seq.desc()
    )
    if tenant is not None:
        query = query.where(decisions.c.tenant == tenant)
    assert decision.features is not None
    width, comparable = decision.features.shape[0], list[Mapping[str, Any]]()
    with database.read() as connection:
        for row in connection.execute(query).mappings():
            try:
                features = features_value(row["features"])
            except ValueError:  # a damaged row is `verify`'s matter
                continue
            if features is not None and features.shape[0] == width:
                comparable.append({**row, "features": features})
    return comparable


def _cosines(features: npt.NDArray[np.float32], others: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float64]:
    """The cosine of one vector with each of n others, shape (n,); 0 with a vector of zeros."""
    own, rows = features.astype(np.float64), np.array(others, dtype=np.float64)  # (d,), (n, d)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(own)
    similarity: npt.NDArray[np.float64] = np.divide(rows @ own, lengths, out=np.zeros(len(others)), where=lengths > 0.0)
    return similarity


def _texts(database: Database, ids: list[str]) -> dict[str, str]:
    with database.read() as connection:
        rows = connection.execute(select(decisions.c.id, decisions.c.text).where(decisions.c.id.in_(ids)))
        return {row.id: row.text for row in rows}


def _neighbour(row: Mapping[str, Any], similarity: float, texts: Mapping[str, str]) -> Neighbour:
    question = texts.get(row["decision_id"], "")
    return _NEIGHBOURS.value(row, similarity=similarity, question=question, reward=row["value"])
