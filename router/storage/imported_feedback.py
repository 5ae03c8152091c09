"""What importers have to know of feedback that is stored: what was imported of open decisions, and who has voted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, select

from ragbandit.router.storage.sql.tables import feedback, waiting
from ragbandit.shared.types import Json

#: the key of a feedback's facts that says where it was imported from
IMPORTED_FACTS: Final = "import"
#: most rows that a look-up of open imports returns, the newest decisions first
MOST_OPEN: Final = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A feedback that came from another system, of a decision that is still open."""

    feedback_id: str
    decision_id: str
    kind: str
    source: str
    rater: str
    #: None: it took back what was said before
    value: Json
    #: what the importer noted: from, id, name, of
    facts: Mapping[str, str]
    #: when it was imported, seconds since 1970
    received_at: float


def votes_of(connection: Connection, decision_ids: Sequence[str]) -> set[tuple[str, str, str | None, str]]:
    """(decision, source, rater, kind) of what is stored about these decisions."""
    columns = feedback.c["decision_id", "source", "rater", "kind"]
    rows = connection.execute(select(*columns).where(feedback.c.decision_id.in_(list(decision_ids))).distinct())
    return {(row.decision_id, row.source, row.rater, row.kind) for row in rows}


def open_imports(connection: Connection, *, raters: str) -> list[Imported]:
    """What was imported of decisions that a ledger still waits for, in the order received.

    raters: what the names of raters begin with.
    """
    here = feedback.c.rater.startswith(raters, autoescape=True), feedback.c.facts.is_not(None)
    columns = feedback.c["id", "decision_id", "kind", "source", "rater", "value", "facts", "received_at"]
    open_ones = select(waiting.c.decision_id).where(waiting.c.has_feedback).distinct()
    newest = select(*columns).where(*here, feedback.c.decision_id.in_(open_ones))
    newest = newest.order_by(feedback.c.decision_id.desc()).limit(MOST_OPEN)
    rows = sorted(connection.execute(newest), key=lambda row: (row.received_at, row.id))
    imported = []
    for row in rows:
        facts = _facts_of(row.facts)
        if facts:
            imported.append(
                Imported(
                    feedback_id=row.id,
                    decision_id=row.decision_id,
                    kind=row.kind,
                    source=row.source,
                    rater=row.rater,
                    value=json.loads(row.value),
                    facts=facts,
                    received_at=row.received_at,
                )
            )
    return imported


def _facts_of(facts: str) -> dict[str, str]:
    try:
        noted = json.loads(facts)[IMPORTED_FACTS]
    except (ValueError, KeyError, TypeError):
        return {}
    return noted if isinstance(noted, dict) and isinstance(noted.get("id"), str) else {}
