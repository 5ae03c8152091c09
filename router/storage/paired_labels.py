"""Paired answers that wait for a person's label: one row of `paired_answers` each, without the arm's name.

Both answers to a question wait one after the other, in a random order that follows from the store's secret; questions
wait in the order in which they were asked, so that the labelled ones stay a random sample. A wait ends by a label or
after EXPIRE_S.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, and_, false, func, or_, select, update

from ragbandit.router.storage.access.shared_secrets import drawn_for
from ragbandit.router.storage.jobs.scores import LABEL_EXPIRE_S
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes, paired_answers as table
from ragbandit.shared.errors import Conflict, NotFound
from ragbandit.shared.types import ArmName

#: the judge of these rows
LABEL_QUEUE: Final = "label queue"
#: maximum number of questions that wait at the same time, and their longest wait, seconds
MOST_QUESTIONS: Final = 200
EXPIRE_S: Final = LABEL_EXPIRE_S
_CHANGED: Final = "its arm has changed"
_EXPIRED: Final = "no label within 7 days"
_MARK_DIGITS: Final = 16
_WAITS: Final[ColumnElement[bool]] = and_(
    table.c.judge == LABEL_QUEUE,
    table.c.quality.is_(None),
    table.c.unjudged.is_(None),
    table.c.status != "failed",
)
_HAS_TEXT: Final[ColumnElement[bool]] = and_(
    decisions.c.text != "", or_(table.c.answer.is_not(None), and_(table.c.is_stored, outcomes.c.answer.is_not(None)))
)
_JOINED: Final = table.join(decisions, decisions.c.id == table.c.decision_id).outerjoin(
    outcomes, outcomes.c.decision_id == table.c.decision_id
)
_KEY: Final = (table.c.decision_id, table.c.arm, table.c.version)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedItem:
    """An answer to label. It has neither the arm's name nor passages, which could show the arm."""

    id: str
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class _Row:
    decision_id: str
    arm: str
    version: str

    def id(self, secret: bytes) -> str:
        """The decision's id and a mark that does not show the arm."""
        text = f"ragbandit paired item {self.decision_id} {self.arm} {self.version}".encode("utf-8", "surrogatepass")
        return f"{self.decision_id}.{hmac.digest(secret, text, 'sha256').hex()[:_MARK_DIGITS]}"

    def place(self, secret: bytes) -> tuple[float, str, str]:
        return drawn_for("decide", self.decision_id, secret=secret), self.decision_id, self.id(secret)

    @property
    def condition(self) -> ColumnElement[bool]:
        values = zip(_KEY, (self.decision_id, self.arm, self.version), strict=True)
        return and_(table.c.judge == LABEL_QUEUE, *(column == value for column, value in values))


def waiting_items(
    connection: Connection, *, secret: bytes, tenant: str | None, limit: int, skip: int = 0
) -> list[PairedItem]:
    """Answers to label, in their order. secret: secret of the store's draws. tenant: None for all."""
    rows = sorted(_waiting_rows(connection, tenant=tenant), key=lambda row: row.place(secret))
    items = []
    for row in rows[skip : skip + limit]:
        answer = func.coalesce(table.c.answer, outcomes.c.answer)
        query = select(decisions.c.text, answer).select_from(_JOINED).where(row.condition)
        question, text = connection.execute(query).one()
        items.append(PairedItem(id=row.id(secret), question=question, answer=text))
    return items


def count_items(connection: Connection, *, tenant: str | None) -> int:
    """Number of answers to label."""
    return len(_waiting_rows(connection, tenant=tenant))


def count_questions(connection: Connection, *, versions: Mapping[ArmName, str]) -> int:
    """Number of questions with an answer that waits, also of those whose text was erased.

    versions: present versions of the arms; answers of other versions are withdrawn before more are asked
    """
    query = select(func.count(table.c.decision_id.distinct())).where(_WAITS, ~_has_changed(versions))
    return int(connection.execute(query).scalar_one())


def _waiting_rows(connection: Connection, *, tenant: str | None) -> Sequence[_Row]:
    query = select(*_KEY).select_from(_JOINED).where(_WAITS, _HAS_TEXT)
    if tenant is not None:
        query = query.where(decisions.c.tenant == tenant)
    return [_Row(*row) for row in connection.execute(query)]


def label_item(database: Database, item_id: str, *, right: bool, rater: str, tenant: str | None, secret: bytes) -> bool:
    """Label an answer. Returns whether it had this label before. Raises NotFound, Conflict, StoreError.

    rater: who labelled it. tenant: the only tenant whose items may be labelled; None for all
    """
    quality = 1.0 if right else 0.0
    decision_id = item_id.rpartition(".")[0]
    query = select(*_KEY).select_from(_JOINED)
    query = query.where(table.c.judge == LABEL_QUEUE, table.c.decision_id == decision_id)
    if tenant is not None:
        query = query.where(decisions.c.tenant == tenant)
    with database.write() as connection:
        for key in connection.execute(query).all():
            row = _Row(*key)
            if not hmac.compare_digest(row.id(secret).encode(), item_id.encode("utf-8", "surrogatepass")):
                continue
            changed = update(table).where(row.condition, _WAITS).values(quality=quality, rater=rater)
            if connection.execute(changed).rowcount:
                return False
            # Read after the update, since another person may have labelled it meanwhile.
            known, unjudged = connection.execute(select(table.c.quality, table.c.unjudged).where(row.condition)).one()
            if known == quality:
                return True
            why = unjudged or "it has the other label already"
            raise Conflict(f"this answer waits for no label: {why}", field="item", remedy="read the next one")
    raise NotFound("no such answer waits for a label", field="item", remedy="read GET /v1/paired-labels again")


def _has_changed(versions: Mapping[ArmName, str]) -> ColumnElement[bool]:
    changed = [and_(table.c.arm == arm, table.c.version != version) for arm, version in versions.items()]
    return or_(false(), *changed)


def withdraw_items(database: Database, *, versions: Mapping[ArmName, str]) -> int:
    """Withdraw answers whose arm has another version now. Returns their number."""
    changed = and_(_WAITS, _has_changed(versions))
    with database.write() as connection:
        return connection.execute(update(table).where(changed).values(unjudged=_CHANGED)).rowcount


def expire_items(database: Database, *, before: float) -> int:
    """End the wait of answers that were given before a time. Returns their number. Raises StoreError."""
    overdue = and_(_WAITS, table.c.made_at < before)
    with database.read() as connection:
        if not connection.execute(select(table.c.decision_id).where(overdue).limit(1)).first():
            return 0
    with database.write() as connection:
        return connection.execute(update(table).where(overdue).values(unjudged=_EXPIRED)).rowcount
