"""Sources of feedback: where each judgement came from, how far it is trusted, which are left out of a ledger.

A source has one of the names that settings use:

    key:ID       the API key; `ID` is its public id or its name. A key and those that it was rotated to are one source
    tenant:NAME  the tenant of the decision that was judged
    role:NAME    the role of the key
    rater:NAME   who judged, as the caller sent it; import:... is short for rater:import:...

A name that ends in * stands for all that begin so.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast, get_args

from sqlalchemy import Connection, func, insert, select, update

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.reward import quality_of
from ragbandit.router.storage.access.api_keys import ApiKey, KeyStore
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import TableRows
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import feedback, quarantines, updates
from ragbandit.router.storage.sql.waiting import flag_again
from ragbandit.shared.errors import NotFound
from ragbandit.shared.types import LABEL_QUEUE, Feedback, JoinedDecision, Json, JudgedBy, Outcome

DAY_S: Final = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Quarantine:
    """A source whose feedback of a time is left out of a ledger."""

    #: 1, 2, 3 ...
    number: int
    #: "key:PUBLIC_ID", "tenant:NAME", "role:NAME" or "rater:NAME"
    source: str
    #: upper bound of the time of receipt, seconds since 1970; None: no bound
    since: float | None
    until: float | None
    #: the ledger that had learned from it, and the one that is learned without
    label: str
    new_label: str
    reason: str
    actor: str
    made_at: float
    #: None if it is in force
    lifted_at: float | None

    def covers(self, received_at: float) -> bool:
        """Whether it is about feedback that came in then."""
        return (self.since is None or received_at >= self.since) and (self.until is None or received_at < self.until)


#: API key, rater, and UTC day, in days since the epoch
RaterDay = tuple[str | None, str, int]
_ROWS: Final = TableRows(quarantines, Quarantine)


def quarantines_of(database: Database, *, new_label: str | None = None, lifted: bool = False) -> list[Quarantine]:
    """Quarantines in force, the oldest first. new_label: of one ledger; lifted: those that were lifted too."""
    with database.read() as connection:
        return in_force(connection, new_label=new_label, lifted=lifted)


def in_force(connection: Connection, *, new_label: str | None = None, lifted: bool = False) -> list[Quarantine]:
    """`quarantines_of` in a transaction of the caller's."""
    query = select(quarantines).order_by(quarantines.c.number)
    if new_label is not None:
        query = query.where(quarantines.c.new_label == new_label)
    if not lifted:
        query = query.where(quarantines.c.lifted_at.is_(None))
    return [_ROWS.value(row) for row in connection.execute(query).mappings()]


def add_quarantine(connection: Connection, quarantine: Quarantine) -> Quarantine:
    """Store it under the next number, in the caller's write transaction."""
    last = connection.execute(select(func.coalesce(func.max(quarantines.c.number), 0))).scalar_one()
    numbered = replace(quarantine, number=int(last) + 1, actor=quarantine.actor[:128], lifted_at=None)
    connection.execute(insert(quarantines).values(**_ROWS.row(numbered)))
    return numbered


def lifted(ledger: Ledger, number: int, *, actor: str, now: float) -> int:
    """End an exclusion; how many decisions that wait the learner looks at again. Raises NotFound."""
    with ledger.database.write() as connection:
        row = connection.execute(select(quarantines).where(quarantines.c.number == number)).mappings().first()
        if row is None or row["lifted_at"] is not None:
            remedy = "`ragbandit feedback exclude` shows those in force"
            raise NotFound(f"no quarantine {number} is in force", field="number", remedy=remedy)
        connection.execute(update(quarantines).where(quarantines.c.number == number).values(lifted_at=now))
        facts = {"label": row["new_label"], "number": number}
        record(connection, actor=actor, action="feedback.lift", target=row["source"], facts=facts, now=now)
    return flag_again(ledger.database, label=row["new_label"])


def first_beyond(database: Database, days: Collection[RaterDay], *, cap: int) -> dict[RaterDay, tuple[float, str]]:
    """(received_at, id) of the first feedback beyond the cap, for the raters and days that have more; UTC days."""
    beyond: dict[RaterDay, tuple[float, str]] = {}
    with database.read() as connection:
        for number in sorted({day for _, _, day in days}):
            raters = {rater for _, rater, day in days if day == number}
            here = feedback.c.received_at >= number * DAY_S, feedback.c.received_at < (number + 1) * DAY_S
            names = feedback.c.rater, feedback.c.api_key
            many = select(*names).where(feedback.c.rater.in_(raters), *here).group_by(*names)
            for rater, api_key in connection.execute(many.having(func.count() > cap)).all():
                theirs = feedback.c.rater == rater, feedback.c.api_key.is_not_distinct_from(api_key)
                query = select(feedback.c.received_at, feedback.c.id).where(*theirs, *here)
                ordered = query.order_by(feedback.c.received_at, feedback.c.id).offset(cap).limit(1)
                received_at, key = connection.execute(ordered).one()
                beyond[api_key, rater, number] = (received_at, key)
    return beyond


def raters_lately(ledger: Ledger, *, decisions: int, among: int, limit: int) -> list[dict[str, Any]]:
    """Source, rater and API key of the feedback on the newest judged decisions, with how much each sent and when last.

    decisions: number of newest judged decisions that are read. limit: most sources, those with most feedback.
    """
    learned = select(updates.c.decision_id).where(
        updates.c.policy == ledger.label, updates.c.source == "explicit", updates.c.sample_weight > 0
    )
    who = feedback.c.source, feedback.c.rater, feedback.c.api_key
    sent = func.count().label("judgements")
    with ledger.database.read() as connection:
        learned = learned.where(updates.c.seq > ledger.last_seq(connection=connection) - among)
        newest = learned.order_by(updates.c.seq.desc()).limit(decisions).subquery()
        rows = select(*who, sent, func.max(feedback.c.received_at).label("newest_at")).where(
            feedback.c.decision_id.in_(select(newest.c.decision_id))
        )
        ordered = rows.group_by(*who).order_by(sent.desc(), *who).limit(limit)
        return [dict(row) for row in connection.execute(ordered).mappings()]


#: what a name of a source begins with, the closest to the person first
KINDS: Final = ("rater", "import", "key", "role", "tenant")
#: least probability of the label queue, as a part of the share that is labelled: no label weighs more than its inverse
LEAST_LABELLED: Final = 0.2
#: what the rater of feedback begins with that comes from a file of another system
IMPORTED_RATER: Final = "import:"
#: stands in an id between the id of the feedback that it supersedes and a number; no caller's id may hold it
SUPERSEDES: Final = "~"


class KeyDirectory:
    """The API keys of a store at one moment, with those that were rotated or revoked."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._keys: Mapping[str, ApiKey] = {key.public_id: key for key in keys}
        self._names: dict[str, set[str]] = {}
        for key in self._keys.values():
            self._names.setdefault(self.newest(key.public_id), set()).update((key.public_id, key.name))

    def newest(self, public_id: str) -> str:
        """The last successor of a rotated key; the key itself if it was not rotated."""
        seen = {public_id}
        while (key := self._keys.get(public_id)) and key.replaced_by is not None and key.replaced_by not in seen:
            public_id = key.replaced_by
            seen.add(public_id)
        return public_id

    def names_of(self, item: Feedback, *, tenant: str) -> frozenset[str]:
        """Every source that this feedback is of, by its full name. tenant: of its decision."""
        names = {f"tenant:{tenant}"}
        if item.rater is not None:
            names.add(f"rater:{item.rater}")
        if item.api_key is not None:
            newest = self.newest(item.api_key)
            names.update(f"key:{name}" for name in (newest, item.api_key, *self._names.get(newest, ())))
            if newest in self._keys:
                names.add(f"role:{self._keys[newest].role}")
        return frozenset(names)


def matches(name: str, sources: Collection[str]) -> bool:
    """Whether a name of the settings stands for one of these sources, which have their full names."""
    full = f"rater:{name}" if name.startswith("import:") else name
    return any(one.startswith(full[:-1]) for one in sources) if full.endswith("*") else full in sources


def factor(item: Feedback, *, sources: Collection[str], configured: Mapping[str, float]) -> float:
    """Factor on the weight of a feedback, >= 0; with 0 it is stored, but not learned.

    If several names match, the closest to the person counts: rater, then key, role, tenant; within a kind the longest
    name. Without a match it is 1, or 0 for scores of another system's model, which no operator has checked yet.
    """
    names = [name for name in configured if matches(name, sources)]
    if names:
        best = min(names, key=lambda name: (KINDS.index(name.partition(":")[0]), name.endswith("*"), -len(name), name))
        return configured[best]
    foreign = item.source == "judge" and (item.rater or "").startswith(IMPORTED_RATER)
    return 0.0 if foreign else 1.0


def label_weight(facts: Mapping[str, Json]) -> float:
    """Rows that a label out of the label queue counts as, in (0, 1 / LEAST_LABELLED]: share / q of its decision."""
    queue = facts.get(LABEL_QUEUE)
    if not isinstance(queue, Mapping) or not queue.get("asked"):
        return 1.0
    q, share = float(cast("float", queue["q"])), float(cast("float", queue["share"]))
    return min(share / q, 1.0 / LEAST_LABELLED)


_CLASSES: Final[tuple[JudgedBy, ...]] = get_args(JudgedBy)


def class_of(item: Feedback) -> JudgedBy:
    """The class of a judgement; scores of a model are in the class "judge", whatever their kind."""
    if item.source in ("judge", "event"):
        return "judge" if item.source == "judge" else "event"
    return "label" if item.source in ("code", "label") or item.kind in ("label", "reward") else "human"


def standing(feedback: Sequence[Feedback]) -> tuple[Feedback, ...]:
    """The judgements that stand, in the order received: a rater's later one of a kind replaces the earlier.

    A retraction replaces it with nothing. Raters are those of an API key: a key cannot replace what came with another.
    Feedback that does not say its rater is its key's; without a key, each is of a rater of its own.
    """
    last = {_key(item): item.id for item in feedback}
    return tuple(item for item in feedback if last[_key(item)] == item.id and not is_retraction(item))


def is_retraction(item: Feedback) -> bool:
    """Whether it takes back what its rater said before, of its kind. (An event without a value is worth nothing.)"""
    return item.value is None and item.kind != "event"


def _key(item: Feedback) -> tuple[str, ...]:
    if item.rater is None and item.api_key is None:
        return (item.id.partition(SUPERSEDES)[0],)
    return (item.source, item.api_key or "", item.rater or "", item.kind, item.event or "")


def most_trusted(feedback: Sequence[Feedback]) -> tuple[JudgedBy, tuple[Feedback, ...]]:
    """The most trusted class that is there, and its judgements; checks by code only where it has no others."""
    first = min((class_of(item) for item in feedback), key=_CLASSES.index)
    trusted = tuple(item for item in feedback if class_of(item) == first)
    return first, tuple(item for item in trusted if item.source != "code") or trusted


def disagreement(feedback: Sequence[Feedback], *, outcome: Outcome | None, measure: str) -> float | None:
    """How far the judgements of one decision lie apart in quality; None where fewer than two can be compared.

    Raw rewards have a scale of their own and are left out. measure: how a label becomes quality.
    """
    qualities = [quality_of(one, outcome=outcome, measure=measure) for one in feedback if one.kind != "reward"]
    qualities = [quality for quality in qualities if math.isfinite(quality)]
    return max(qualities) - min(qualities) if len(qualities) > 1 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Screened:
    """A decision with the feedback that may be learned."""

    joined: JoinedDecision
    #: what was left out, though it came in time
    left_out: tuple[Feedback, ...] = ()
    #: factor on the weight of a feedback, by its id; 1 where it is not named
    factors: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """Whether feedback is there, and none that can be learned."""
        return bool(self.left_out) and all(item.value is None for item in self.joined.feedback)


class Screening:
    """Filter of the feedback that one ledger learns from."""

    def __init__(self, ledger: Ledger, *, settings: Settings) -> None:
        self.ledger, self.settings = ledger, settings
        self._keys = KeyDirectory()
        self._quarantines: tuple[Quarantine, ...] = ()
        #: (received_at, id) of the first feedback beyond the cap, by rater and day; of the decisions looked up last
        self._beyond: Mapping[RaterDay, tuple[float, str]] = {}

    def refresh(self) -> None:
        """Read what others may have changed: keys and exclusions."""
        self._keys = KeyDirectory(KeyStore(self.ledger.database).listed())
        self._quarantines = tuple(quarantines_of(self.ledger.database, new_label=self.ledger.label))

    def look_up(self, joined: Sequence[JoinedDecision]) -> None:
        """Read which raters of these decisions have given more than a day's cap, before they are screened."""
        days = {day for one in joined for item in one.feedback if (day := _capped_day(item)) is not None}
        cap = self.settings.learning.rater_per_day
        self._beyond = first_beyond(self.ledger.database, days, cap=cap) if days and cap else {}

    def screened(self, joined: JoinedDecision) -> Screened:
        """The decision with what may be learned of its feedback. It must have been looked up."""
        kept: list[Feedback] = []
        factors: dict[str, float] = {}
        for item in joined.feedback:
            sources = self._keys.names_of(item, tenant=joined.decision.query.tenant)
            day = _capped_day(item)
            first = None if day is None else self._beyond.get(day)
            if first is not None and (item.received_at, item.id) >= first:
                continue
            if any(one.covers(item.received_at) and matches(one.source, sources) for one in self._quarantines):
                continue
            weight = factor(item, sources=sources, configured=self.settings.learning.sources)
            if item.source == "label":
                weight *= label_weight(joined.decision.facts)
            if weight > 0.0 or is_retraction(item):
                kept.append(item)
            if weight != 1.0:
                factors[item.id] = weight
        stands = self._standing(joined, kept)
        left = tuple(item for item in joined.feedback if item.id not in {one.id for one in stands})
        remaining = replace(joined, feedback=tuple(stands)) if left else joined
        return Screened(joined=remaining, left_out=left, factors=factors)

    def _standing(self, joined: JoinedDecision, items: Sequence[Feedback]) -> list[Feedback]:
        """The judgements that stand, and events without a value; with a window, by what came in it."""
        wait_s = self.settings.learning.wait_s
        end = joined.decision.made_at + wait_s
        in_time = [item for item in items if wait_s == 0 or item.received_at <= end]
        votes = [item for item in in_time if item.value is not None or is_retraction(item)]
        stands = {item.id for item in standing(votes)}
        gone = {item.id for item in votes if item.id not in stands}
        return [item for item in items if item.id not in gone]


def _capped_day(item: Feedback) -> RaterDay | None:
    """The rater and day that a feedback counts for.

    None without a rater's name, and for what processes of the operator write: the judge, checks by code, imports.
    """
    if item.rater is None:
        return None
    if item.api_key is None and (item.source in ("judge", "code") or item.rater.startswith(IMPORTED_RATER)):
        return None
    return item.api_key, item.rater, int(item.received_at // DAY_S)
