"""Relearning: a new ledger that is learned from all decisions and feedback of the store, but for a quarantined source.

The ledger in use is not touched: services go on with it until they are started with the new label.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import select
from sqlalchemy.engine import Connection

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.learner import Learner
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.learning.sources import KINDS, KeyDirectory, matches
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.ledgers.inheritance import is_inheriting, register_policy
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.ledgers.quarantines import Quarantine, add_quarantine, in_force, lift, quarantines_of
from ragbandit.router.storage.rows.conversion import feedback_value
from ragbandit.router.storage.sql.tables import decisions, feedback, policies
from ragbandit.router.storage.sql.waiting import flag_again
from ragbandit.shared.errors import InvalidInput, NotReady
from ragbandit.shared.types import PolicyLabel

_NUMBERED: Final = re.compile(r"^(.*)_q([0-9]+)$")
#: longest wait for the learner of the new ledger, if there is one already, seconds
_PATIENCE_S: Final = 60.0
#: feedback rows that are read at a time
_PAGE: Final = 5000


@dataclass(frozen=True, kw_only=True, slots=True)
class Relearned:
    """A ledger that was learned without a source."""

    quarantine: Quarantine
    #: feedback that it was learned without
    feedback: int
    #: its updates, and its newest snapshot
    updates: int
    snapshot: str | None


def checked_source(source: str) -> str:
    """The name of a source, or InvalidInput."""
    kind, _, name = source.partition(":")
    if kind not in KINDS or not name or len(source) > 160:
        remedy = "name it key:PUBLIC_ID, tenant:NAME, role:NAME or rater:NAME"
        raise InvalidInput(f"{source!r:.80} is no source of feedback", field="source", remedy=remedy)
    return source


def selected(ledger: Ledger, *, source: str, since: float | None, until: float | None) -> int:
    """How much feedback of the store is of this source and time."""
    keys, after, count = KeyDirectory(KeyStore(ledger.database).listed()), "", 0
    while True:
        query = select(feedback, decisions.c.tenant).join_from(feedback, decisions).where(feedback.c.id > after)
        with ledger.database.read() as connection:
            rows = connection.execute(query.order_by(feedback.c.id).limit(_PAGE)).mappings().all()
        for row in rows:
            item = feedback_value(row)
            in_time = (since is None or item.received_at >= since) and (until is None or item.received_at < until)
            count += in_time and matches(source, keys.origin(item, tenant=row["tenant"]))
        if not rows:
            return count
        after = rows[-1]["id"]


def relearn(
    ledger: Ledger,
    *,
    settings: Settings,
    source: str,
    since: float | None,
    until: float | None,
    reason: str,
    actor: str,
    now: float,
    progress: Callable[[int], None] = lambda _closed: None,
) -> Relearned:
    """Learn a new ledger without the feedback of a source; what that ledger had left out before stays out.

    source: as `checked_source` takes it. since, until: of when the feedback came in, seconds; None: no bound. The same
    call again goes on with one that was interrupted. Raises NotReady while another learner holds the new ledger.
    """
    quarantine = _begun(ledger, source=checked_source(source), since=since, until=until)
    if quarantine is None:
        quarantine = Quarantine(
            number=0,
            source=source,
            since=since,
            until=until,
            label=ledger.label,
            new_label=_next_label(ledger),
            reason=reason,
            actor=actor,
            made_at=now,
            lifted_at=None,
        )
        with ledger.database.write() as connection:
            quarantine = _begin(connection, quarantine)
    registered = ledger.registered()
    assert registered is not None, "the caller has looked for the ledger"
    new = Ledger(ledger.database, label=PolicyLabel(quarantine.new_label))
    facts = {name: registered[name] for name in ("algorithm", "params", "encoder_hash")}
    register_policy(ledger.database, label=new.label, now=now, **facts)
    _learn(new, settings=settings, progress=progress)
    newest = new.latest_snapshots(limit=1)
    return Relearned(
        quarantine=quarantine,
        feedback=selected(ledger, source=source, since=since, until=until),
        updates=new.last_seq(),
        snapshot=newest[0].version if newest else None,
    )


def lifted(ledger: Ledger, number: int, *, actor: str, now: float) -> int:
    """End an exclusion; how many decisions that wait the learner looks at again. Raises NotFound."""
    with ledger.database.write() as connection:
        ended = lift(connection, number, now=now)
        facts = {"label": ended.new_label, "number": number}
        record(connection, actor=actor, action="feedback.lift", target=ended.source, facts=facts, now=now)
    return flag_again(ledger.database, label=ended.new_label)


def _begun(ledger: Ledger, *, source: str, since: float | None, until: float | None) -> Quarantine | None:
    """The very same quarantine, in force already."""
    known = quarantines_of(ledger.database)
    same = (ledger.label, source, since, until)
    return next((one for one in known if (one.label, one.source, one.since, one.until) == same), None)


def _begin(connection: Connection, quarantine: Quarantine) -> Quarantine:
    """Store the exclusion with all that the former ledger leaves out."""
    for one in in_force(connection, new_label=quarantine.label):
        add_quarantine(connection, replace(one, label=quarantine.label, new_label=quarantine.new_label))
    stored = add_quarantine(connection, quarantine)
    facts = {name: getattr(stored, name) for name in ("number", "label", "new_label", "since", "until", "reason")}
    record(
        connection,
        actor=quarantine.actor,
        action="feedback.quarantine",
        target=quarantine.source,
        facts=facts,
        now=quarantine.made_at,
    )
    return stored


def _next_label(ledger: Ledger) -> str:
    """The name of the ledger that follows: main, main_q1, main_q2."""
    numbered = _NUMBERED.match(ledger.label)
    base = numbered[1] if numbered else str(ledger.label)
    with ledger.database.read() as connection:
        labels = set(connection.execute(select(policies.c.label)).scalars())
    taken = {one.new_label for one in quarantines_of(ledger.database, lifted=True)} | labels
    number = 1
    while (label := f"{base[: 40 - len(f'_q{number}')]}_q{number}") in taken:
        number += 1
    return label


def _learn(ledger: Ledger, *, settings: Settings, progress: Callable[[int], None]) -> None:
    """Learn all there is, as a learner does."""
    policy = settings.policy.model_copy(update={"label": str(ledger.label)})
    ours = settings.model_copy(update={"policy": policy})
    learner = Learner(ledger, files=SnapshotFiles(settings.snapshot_root), settings=ours)
    closed, give_up = 0, time.monotonic() + _PATIENCE_S
    try:
        while True:
            done = learner.drain(patience_s=1.0)
            closed += done
            progress(closed)
            if done:
                give_up = time.monotonic() + _PATIENCE_S
            elif not is_inheriting(ledger) and ledger.latest_snapshots(limit=1):
                return
            elif time.monotonic() >= give_up:
                remedy = "wait until it has learned, or stop it, and give the same command again"
                raise NotReady(f"another learner holds the ledger {ledger.label!r}", remedy=remedy)
    finally:
        learner.close()
