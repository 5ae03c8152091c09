"""Decision links: the ids that other systems have for a decision, so that what they are told of it can be joined.

A caller names them with its question, kind -> value (`Query.request["links"]`); they are written in the decision's
transaction and are never changed. A value may stand for several decisions: a trace in which several questions were
asked, a message that was sent twice. What is known of it tells them apart; see `Linked`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sqlalchemy import ColumnElement, Connection, delete, exists, func, literal, select, tuple_
from sqlalchemy import text as sql

from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decision_links, decisions
from ragbandit.shared.types import Decision, Json

#: the key of `Query.request` that holds a decision's links
LINKS: Final = "links"
#: decisions of one value that a look-up returns: two are enough to see that there are several
_MOST: Final = 2

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_UUID_DIGITS: Final = re.compile(r"[0-9a-f]{32}")
_OPENAI_PREFIX: Final = "chatcmpl-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Linked:
    """A decision that another system's id stands for."""

    decision_id: str
    #: None: the decision is gone
    tenant: str | None
    #: seconds since 1970; 0 where the decision is gone
    made_at: float


def trace_links(traceparent: str | None) -> dict[str, str]:
    """The links of a W3C header traceparent: `trace`, and `span` of the caller; none of a header that is not valid."""
    match = _TRACEPARENT.fullmatch(traceparent.strip().lower()) if traceparent else None
    if match is None or match[0].startswith("ff") or not match[1].strip("0") or not match[2].strip("0"):
        return {}
    return {"trace": match[1], "span": match[2]}


def links_of(request: Mapping[str, Json]) -> Mapping[str, str]:
    """The links among what the edge knows of a request: kind -> value."""
    links = request.get(LINKS)
    return links if isinstance(links, Mapping) else {}


def write_links(connection: Connection, new: Iterable[Decision]) -> None:
    """Write the links of decisions that are being written in this transaction; nothing for those that have none."""
    rows = [
        {"kind": kind, "value": value, "decision_id": decision.id}
        for decision in new
        if decision.query.request
        for kind, value in links_of(decision.query.request).items()
    ]
    if rows:
        # Links outlive a decision that an earlier release archived: the id may be there, should it be used again.
        statement = "INSERT INTO decision_links (kind, value, decision_id) VALUES (:kind, :value, :decision_id)"
        connection.execute(sql(f"{statement} ON CONFLICT DO NOTHING"), rows)


def linked_decisions(
    connection: Connection, kind: str, values: Sequence[str], *, tenant: str | None = None
) -> dict[str, list[Linked]]:
    """The newest decisions that these values stand for, by value, the newest first, at most two of each.

    A value that stands for none is left out. tenant: whose decisions, without those that are gone; None: of all.
    """
    made_at = func.coalesce(decisions.c.made_at, 0.0)
    here: list[ColumnElement[bool]] = [decision_links.c.kind == kind, decision_links.c.value.in_(values)]
    if tenant is not None:
        here.append(decisions.c.tenant == tenant)
    newest_first = [made_at.desc(), decision_links.c.decision_id.desc()]
    rank = func.row_number().over(partition_by=decision_links.c.value, order_by=newest_first)
    columns = *decision_links.c["value", "decision_id"], decisions.c.tenant, made_at.label("made_at")
    rows = select(*columns, rank.label("rank")).where(*here)
    ranked = rows.outerjoin(decisions, decisions.c.id == decision_links.c.decision_id).subquery()
    chosen = select(ranked).where(ranked.c.rank <= _MOST).order_by(ranked.c.value, ranked.c.rank)
    by_value: dict[str, list[Linked]] = defaultdict(list)
    for row in connection.execute(chosen):
        by_value[row.value].append(Linked(decision_id=row.decision_id, tenant=row.tenant, made_at=row.made_at))
    return dict(by_value)


def links_between(
    connection: Connection, kind: str, *, since: float, until: float, after: tuple[float, str] | None, limit: int
) -> list[tuple[str, float, str]]:
    """(value, time, decision id) of the links of decisions made in [since, until), the oldest first.

    after: time and id of a decision; those up to it are left out. Links of one decision come together, whatever limit.
    """
    within = [decisions.c.made_at >= since, decisions.c.made_at < until]
    if after is not None:
        within.append(tuple_(decisions.c.made_at, decisions.c.id) > tuple_(*map(literal, after)))
    there = exists().where(decision_links.c.kind == kind, decision_links.c.decision_id == decisions.c.id)
    some = select(decisions.c.id, decisions.c.made_at).where(*within, there)
    chosen = some.order_by(decisions.c.made_at, decisions.c.id).limit(limit).subquery()
    rows = (
        select(decision_links.c.value, chosen.c.made_at, chosen.c.id)
        .join(decision_links, decision_links.c.decision_id == chosen.c.id)
        .where(decision_links.c.kind == kind)
        .order_by(chosen.c.made_at, chosen.c.id)
    )
    return [(row.value, row.made_at, row.id) for row in connection.execute(rows)]


def named_ids(value: str) -> tuple[str, ...]:
    """The decision ids that another system may mean by this text, the likeliest first.

    It may have the prefix of an OpenAI completion, and a UUID may come as its 32 hex digits, as trace ids do.
    """
    bare = value.removeprefix(_OPENAI_PREFIX)
    digits = bare.lower()
    if not _UUID_DIGITS.fullmatch(digits):
        return (bare,)
    cuts = (0, 8, 12, 16, 20, 32)
    return (bare, "-".join(digits[a:b] for a, b in pairwise(cuts)))


def decisions_named(connection: Connection, values: Sequence[str]) -> dict[str, Linked]:
    """The decisions that these values name directly (`named_ids`), by value; a value that names none is left out."""
    values_of: dict[str, list[str]] = defaultdict(list)
    for value in values:
        for key in named_ids(value):
            values_of[key].append(value)
    query = select(*decisions.c["id", "tenant", "made_at"]).where(decisions.c.id.in_(list(values_of)))
    named: dict[str, Linked] = {}
    for row in connection.execute(query):
        one = Linked(decision_id=row.id, tenant=row.tenant, made_at=row.made_at)
        named.update({value: one for value in values_of[row.id] if value not in named or value == row.id})
    return named


def traces_of(database: Database, ids: Iterable[str]) -> dict[str, Mapping[str, Json]]:
    """What the edge knew of the requests of these decisions, among it their places in traces; of those that know some.

    Raises StoreError.
    """
    query = select(decisions.c.id, decisions.c.request)
    query = query.where(decisions.c.id.in_(list(ids)), decisions.c.request.is_not(None))
    known: dict[str, Mapping[str, Json]] = {}
    with database.read() as connection:
        for row in connection.execute(query):
            with suppress(ValueError):  # a damaged row is `verify`'s matter
                known[row.id] = json.loads(row.request).get("edge", {})
    return known


def forget_links(connection: Connection, ids: Iterable[str]) -> None:
    """Remove the links of these decisions."""
    connection.execute(delete(decision_links).where(decision_links.c.decision_id.in_(list(ids))))
