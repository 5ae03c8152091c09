"""The label queue: answers that wait for a person's label, and how many labels were given today."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Select, exists, func, select

from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import DAY_S
from ragbandit.router.storage.sql.tables import IS_LABEL, decisions, feedback, jobs

MOST_COUNTED: Final = 10_000


def ids_to_label(connection: Connection, *, tenant: str | None, limit: int, skip: int) -> Sequence[str]:
    """Ids of decisions to label, newest first. If tenant is None, all tenants take turns."""
    newest = jobs.c.made_at.desc(), jobs.c.decision_id
    turn = func.row_number().over(partition_by=decisions.c.tenant, order_by=newest)
    query = _awaiting_label(tenant).order_by(turn, *newest).offset(skip).limit(limit)
    return list(connection.execute(query).scalars())


def label_counts(connection: Connection, *, tenant: str | None, now: float) -> tuple[int, int]:
    """(answers that wait for a label, labels given today in UTC), each at most MOST_COUNTED. tenant: None for all."""
    labels = select(feedback.c.decision_id).where(IS_LABEL, feedback.c.received_at >= now - now % DAY_S)
    if tenant is not None:
        labels = labels.join(decisions, decisions.c.id == feedback.c.decision_id).where(decisions.c.tenant == tenant)
    waiting, today = (
        connection.execute(select(func.count()).select_from(query.limit(MOST_COUNTED).subquery())).scalar_one()
        for query in (_awaiting_label(tenant), labels)
    )
    return waiting, today


def _awaiting_label(tenant: str | None) -> Select[Any]:
    """Query for ids. Answers that users have rated are left out, so that ratings and labels represent all questions."""
    query = select(jobs.c.decision_id).join(decisions, decisions.c.id == jobs.c.decision_id)
    query = query.where(jobs.c.kind == "label", decisions.c.text != "")
    if tenant is not None:
        query = query.where(decisions.c.tenant == tenant)
    rated = exists().where(feedback.c.decision_id == jobs.c.decision_id, feedback.c.source == "human")
    return query.where(~rated)
