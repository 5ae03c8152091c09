"""Who judged the newest learned decisions, for the page Feedback."""

from typing import Any

from sqlalchemy import func, select

from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.tables import feedback, updates


def raters_lately(ledger: Ledger, *, decisions: int, among: int, limit: int) -> list[dict[str, Any]]:
    """Raters of the last `decisions` decisions that were learned from feedback. Returns at most `limit` rows.

    Keys of a row: source, rater, api_key, judgements (a number), newest_at. Searches only the newest `among` updates.
    """
    learned = select(updates.c.decision_id).where(
        updates.c.policy == ledger.label, updates.c.source == "explicit", updates.c.sample_weight > 0
    )
    columns = feedback.c.source, feedback.c.rater, feedback.c.api_key
    count = func.count().label("judgements")
    with ledger.database.read() as connection:
        learned = learned.where(updates.c.seq > ledger.last_seq(connection=connection) - among)
        newest = learned.order_by(updates.c.seq.desc()).limit(decisions).subquery()
        rows = select(*columns, count, func.max(feedback.c.received_at).label("newest_at")).where(
            feedback.c.decision_id.in_(select(newest.c.decision_id))
        )
        ordered = rows.group_by(*columns).order_by(count.desc(), *columns).limit(limit)
        return [dict(row) for row in connection.execute(ordered).mappings()]
