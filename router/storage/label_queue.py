"""The label queue: answers that wait for a person's label, blind, in one order, each for at most LABEL_EXPIRE_S.

There are two kinds. An answer of a decision is a job of the kind `label` (`jobs/scores.py`), and the policy learns its
label. An answer of a bought verdict (`report --decide --judge labels`) is a row of `paired_answers` with the judge
LABEL_QUEUE, and no policy learns its label. Verdicts come first: their questions in the random order in which they were
asked, so that the labelled ones stay a random sample, each with its two answers in a random order that follows from the
store's secret. Then come answers of decisions, newest first.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, exists, false, func, or_, select, update

from ragbandit.router.storage import judgements
from ragbandit.router.storage.access.shared_secrets import DRAWS, draw_number, stored_secret
from ragbandit.router.storage.decisions.store import read_outcome
from ragbandit.router.storage.sql.bulk_insert import Row
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import DAY_S
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import IS_LABEL, decisions, feedback, jobs, outcomes, paired_answers as pairs
from ragbandit.shared.errors import Conflict, NotFound, StoreError
from ragbandit.shared.types import ArmName, FeedbackId, Source, own_feedback_id

#: judge in `paired_answers` if people label the answers of a bought verdict
LABEL_QUEUE: Final = "label queue"
#: maximum number of questions of bought verdicts in the queue
MOST_QUESTIONS: Final = 200
#: largest number to which decisions and labels are counted
MOST_COUNTED: Final = 10_000
_CHANGED: Final = "its arm has changed"
_EXPIRED: Final = "no label within 7 days"
_MARK_DIGITS, _ID_DIGITS = 16, 40
_PAIR_IS_QUEUED: Final[ColumnElement[bool]] = and_(
    pairs.c.judge == LABEL_QUEUE,
    pairs.c.quality.is_(None),
    pairs.c.unjudged.is_(None),
    pairs.c.status != "failed",
)
_HAS_TEXT: Final[ColumnElement[bool]] = and_(
    decisions.c.text != "", or_(pairs.c.answer.is_not(None), and_(pairs.c.is_stored, outcomes.c.answer.is_not(None)))
)
_JOINED: Final = pairs.join(decisions, decisions.c.id == pairs.c.decision_id).outerjoin(
    outcomes, outcomes.c.decision_id == pairs.c.decision_id
)
_KEY: Final = (pairs.c.decision_id, pairs.c.arm, pairs.c.version)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelItem:
    """An answer to label, without the arm's name. For a verdict, passages are left out too: they could show the arm."""

    #: the decision's id; for an answer of a verdict `_PairRow.id`, which contains a point
    id: str
    kind: Literal["decision", "verdict"]
    question: str
    answer: str
    sources: Sequence[Source] = ()
    #: time of the decision
    made_at: float


class LabelCounts(NamedTuple):
    """Answers in the queue by kind, and labels of decisions of today (UTC). The last two are at most MOST_COUNTED."""

    verdicts: int
    decisions: int
    today: int


def waiting_items(database: Database, *, tenant: str | None, limit: int, skip: int = 0) -> list[LabelItem]:
    """Answers to label, in the order of the queue. tenant: None for all tenants, in turns."""
    secret = stored_secret(database, name=DRAWS) or b""  # without it, no question was asked for a verdict
    with database.read() as connection:
        rows = sorted(_waiting_pairs(connection, tenant=tenant), key=lambda row: row.sort_key(secret))
        items = [_pair_item(connection, row, secret=secret) for row in rows[skip : skip + limit]]
        rest, skip = limit - len(items), max(0, skip - len(rows))
        return items + (_decision_items(connection, tenant=tenant, limit=rest, skip=skip) if rest else [])


def count_items(connection: Connection, *, tenant: str | None, now: float) -> LabelCounts:
    """The counts of the queue. tenant: None for all. now: seconds since 1970"""
    verdicts = len(_waiting_pairs(connection, tenant=tenant))
    labels = select(feedback.c.decision_id).where(IS_LABEL, feedback.c.received_at >= now - now % DAY_S)
    if tenant is not None:
        labels = labels.join(decisions, decisions.c.id == feedback.c.decision_id).where(decisions.c.tenant == tenant)
    waiting, today = (
        connection.execute(select(func.count()).select_from(query.limit(MOST_COUNTED).subquery())).scalar_one()
        for query in (_waiting_decisions(tenant), labels)
    )
    return LabelCounts(verdicts, waiting, today)


def decision_id_of(item_id: str) -> str:
    """The decision of an answer to label. Its tenant may label the answer."""
    return item_id.partition(".")[0]


def is_of_verdict(item_id: str) -> bool:
    return "." in item_id  # ids of decisions have no points


def unknown_item() -> NotFound:
    return NotFound("no such answer waits for a label", field="item", remedy="read GET /v1/label-queue again")


def label_id(item_id: str, *, secret: bytes) -> FeedbackId:
    """Id of the feedback with the label of a decision's answer: one id for each answer, which callers cannot know."""
    digest = hmac.digest(secret, f"ragbandit label {item_id}".encode(), "sha256")
    return own_feedback_id("label", digest=digest.hex()[:_ID_DIGITS])


def stored_label(database: Database, item_id: str, *, secret: bytes) -> float | None:
    """The label that an answer of a decision got from this queue; None without one. Raises StoreError."""
    # The last release made ids that callers could know, so a row with such an id counts only if it is a label.
    old_id = own_feedback_id("label", digest=hashlib.sha256(item_id.encode()).hexdigest()[:_ID_DIGITS])
    tenant = select(decisions.c.tenant).where(decisions.c.id == item_id).scalar_subquery()
    query = select(feedback.c.value).join(decisions, decisions.c.id == feedback.c.decision_id)
    query = query.where(feedback.c.id.in_([label_id(item_id, secret=secret), old_id]))
    query = query.where(feedback.c.source == "label", decisions.c.tenant == tenant)
    with database.read() as connection:
        value = connection.execute(query.order_by(feedback.c.received_at).limit(1)).scalar()
    return None if value is None else json.loads(value)


def refuse_other_label(*, right: bool, given: float | None, ended: str | None = None) -> None:
    """Raise Conflict if an answer that has left the queue has no label or another one. ended: why it has no label"""
    if given != float(right):
        why = ended or "it has the other label already"
        raise Conflict(f"this answer waits for no label: {why}", field="item", remedy="read the next one")


def label_verdict(database: Database, item_id: str, *, right: bool, rater: str) -> bool:
    """Label an answer of a bought verdict. Returns whether it had this label before. Raises NotFound, StoreError, and
    Conflict if it has the other label or has left the queue. rater: who labels it
    """
    secret = stored_secret(database, name=DRAWS) or b""
    query = select(*_KEY).where(pairs.c.judge == LABEL_QUEUE, pairs.c.decision_id == decision_id_of(item_id))
    with database.write() as connection:
        rows = [_PairRow(*key) for key in connection.execute(query)]
        sent = item_id.encode("utf-8", "surrogatepass")
        row = next((one for one in rows if hmac.compare_digest(one.id(secret).encode(), sent)), None)
        if row is None:
            raise unknown_item()
        changed = update(pairs).where(row.condition, _PAIR_IS_QUEUED).values(quality=float(right), rater=rater)
        if connection.execute(changed).rowcount:
            return False
        # Read after the update, since another person may have labelled it meanwhile.
        given, ended = connection.execute(select(pairs.c.quality, pairs.c.unjudged).where(row.condition)).one()
    refuse_other_label(right=right, given=given, ended=ended)
    return True


def expire_items(database: Database, *, before: float, now: float) -> int:
    """Remove answers made before the time `before` from the queue. Returns their number. Raises StoreError."""
    expired = judgements.expire(database, kind="label", before=before, now=now)
    overdue = and_(_PAIR_IS_QUEUED, pairs.c.made_at <= before)
    with database.read() as connection:
        if not connection.execute(select(pairs.c.decision_id).where(overdue).limit(1)).first():
            return expired
    with database.write() as connection:
        return expired + connection.execute(update(pairs).where(overdue).values(unjudged=_EXPIRED)).rowcount


def room_for_questions(connection: Connection, *, versions: Mapping[ArmName, str]) -> int:
    """How many more questions of bought verdicts the queue may have. Questions whose text was erased count, too.

    versions: present versions of the arms; `withdraw_items` removes answers of other versions before more are asked
    """
    query = select(func.count(pairs.c.decision_id.distinct())).where(_PAIR_IS_QUEUED, ~_has_changed(versions))
    return max(0, MOST_QUESTIONS - int(connection.execute(query).scalar_one()))


def withdraw_items(database: Database, *, versions: Mapping[ArmName, str]) -> int:
    """Withdraw answers whose arm has another version now. Returns their number."""
    changed = and_(_PAIR_IS_QUEUED, _has_changed(versions))
    with database.write() as connection:
        return connection.execute(update(pairs).where(changed).values(unjudged=_CHANGED)).rowcount


def _has_changed(versions: Mapping[ArmName, str]) -> ColumnElement[bool]:
    changed = [and_(pairs.c.arm == arm, pairs.c.version != version) for arm, version in versions.items()]
    return or_(false(), *changed)


@dataclass(frozen=True, slots=True)
class _PairRow:
    decision_id: str
    arm: str
    version: str

    def id(self, secret: bytes) -> str:
        """The decision's id, a point, and a mark that does not show the arm."""
        text = f"ragbandit paired item {self.decision_id} {self.arm} {self.version}".encode("utf-8", "surrogatepass")
        return f"{self.decision_id}.{hmac.digest(secret, text, 'sha256').hex()[:_MARK_DIGITS]}"

    def sort_key(self, secret: bytes) -> tuple[float, str, str]:
        return draw_number("decide", self.decision_id, secret=secret), self.decision_id, self.id(secret)

    @property
    def condition(self) -> ColumnElement[bool]:
        values = zip(_KEY, (self.decision_id, self.arm, self.version), strict=True)
        return and_(pairs.c.judge == LABEL_QUEUE, *(column == value for column, value in values))


def _waiting_pairs(connection: Connection, *, tenant: str | None) -> Sequence[_PairRow]:
    query = _of_tenant(select(*_KEY).select_from(_JOINED).where(_PAIR_IS_QUEUED, _HAS_TEXT), tenant=tenant)
    return [_PairRow(*row) for row in connection.execute(query)]


def _pair_item(connection: Connection, row: _PairRow, *, secret: bytes) -> LabelItem:
    answer = func.coalesce(pairs.c.answer, outcomes.c.answer)
    query = select(decisions.c.text, answer, decisions.c.made_at).select_from(_JOINED).where(row.condition)
    question, text, made_at = connection.execute(query).one()
    return LabelItem(id=row.id(secret), kind="verdict", question=question, answer=text, made_at=made_at)


def _waiting_decisions(tenant: str | None) -> Select[Any]:
    """Query for ids. Answers that users have rated are left out, so that ratings and labels represent all questions."""
    query = select(jobs.c.decision_id).join(decisions, decisions.c.id == jobs.c.decision_id)
    query = _of_tenant(query.where(jobs.c.kind == "label", decisions.c.text != ""), tenant=tenant)
    rated = exists().where(feedback.c.decision_id == jobs.c.decision_id, feedback.c.source == "human")
    return query.where(~rated)


def _decision_items(connection: Connection, *, tenant: str | None, limit: int, skip: int) -> list[LabelItem]:
    """Answers of decisions, newest first. If the tenant is None, answers of all tenants alternate."""
    newest = jobs.c.made_at.desc(), jobs.c.decision_id
    rank = func.row_number().over(partition_by=decisions.c.tenant, order_by=newest)
    chosen = _waiting_decisions(tenant).order_by(rank, *newest).offset(skip).limit(limit)
    ids = list(connection.execute(chosen).scalars())
    texts = select(decisions.c.text, decisions.c.made_at.label("asked_at"), *outcomes.c)
    texts = texts.join_from(decisions, outcomes, outcomes.c.decision_id == decisions.c.id)
    rows = connection.execute(texts.where(decisions.c.id.in_(ids))).mappings()
    items = {row["decision_id"]: _decision_item(row) for row in rows}
    return [items[key] for key in ids if key in items]  # a decision may have been deleted meanwhile


def _decision_item(row: Row) -> LabelItem:
    outcome = read_outcome(row)
    if isinstance(outcome, StoreError):
        raise outcome
    return LabelItem(
        id=outcome.decision_id,
        kind="decision",
        question=row["text"],
        answer=outcome.answer or "",
        sources=outcome.sources,
        made_at=row["asked_at"],
    )


def _of_tenant(query: Select[Any], *, tenant: str | None) -> Select[Any]:
    return query if tenant is None else query.where(decisions.c.tenant == tenant)
