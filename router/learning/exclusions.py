"""Exclusion of a source of feedback: a new ledger is learned from the whole store without this source's feedback.

Services use the old ledger until they are started with the label of the new one.
"""

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sqlalchemy import select

from ragbandit.router.learning.learner import Learner
from ragbandit.router.learning.sources import (
    KINDS,
    Exclusion,
    add_exclusion,
    exclusions_of,
    matches_source,
    read_keys,
    sources_of,
    stored_exclusions,
)
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.ledgers.inheritance import is_inheriting, register_policy
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import feedback_value
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.tables import decisions, feedback, policies
from ragbandit.shared.errors import InvalidInput, NotReady
from ragbandit.shared.texts.formats import did_you_mean
from ragbandit.shared.types import Json, PolicyLabel

#: label of a ledger that was learned again, without excluded sources or at other prices, for example main_q1
_NUMBERED: Final = re.compile(r"^(.*)_q([0-9]+)$")
#: longest wait for another learner of the new ledger, seconds
_PATIENCE_S: Final = 60.0
_PAGE: Final = 5000
#: most sources that an error names
_MOST_LISTED: Final = 10


def checked_source(source: str) -> str:
    kind, _, name = source.partition(":")
    if kind not in KINDS or not name or len(source) > 160:
        remedy = "name it key:PUBLIC_ID, tenant:NAME, role:NAME or rater:NAME"
        raise InvalidInput(f"{source!r:.80} is not a source of feedback", field="source", remedy=remedy)
    return source


def count_feedback(ledger: Ledger, *, source: str, since: float | None, until: float | None) -> int:
    """Number of feedback rows of this source that were received at since <= time < until. None is no bound.

    Raises InvalidInput, with the sources that have feedback in that time, if this source has none.
    """
    keys = read_keys(ledger.database)
    after, count, counts = "", 0, Counter[str]()
    while True:
        query = select(feedback, decisions.c.tenant).join_from(feedback, decisions).where(feedback.c.id > after)
        with ledger.database.read() as connection:
            rows = connection.execute(query.order_by(feedback.c.id).limit(_PAGE)).mappings().all()
        for row in rows:
            item = feedback_value(row)
            in_time = (since is None or item.received_at >= since) and (until is None or item.received_at < until)
            if in_time:
                names = sources_of(item, tenant=row["tenant"], keys=keys)
                counts.update(names)
                count += matches_source(source, names)
        if not rows:
            break
        after = rows[-1]["id"]
    if count == 0:
        raise _no_feedback(source, counts=counts, in_period=since is not None or until is not None)
    return count


def _no_feedback(source: str, *, counts: Counter[str], in_period: bool) -> InvalidInput:
    """The error for a source without feedback. counts: source -> number of judgements."""
    message = f"no feedback of {source} was received{' in this period' if in_period else ''}: nothing to exclude"
    listed = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_MOST_LISTED]
    others = f", and {len(counts) - len(listed):,} others" if len(counts) > len(listed) else ""
    sources = ", ".join(f"{name} ({count:,})" for name, count in listed) or "none"
    remedy = (
        f"{did_you_mean(source, counts)}sources with feedback{' then' if in_period else ''}: {sources}{others}; "
        "for feedback to come, set a factor in learning.sources"
    )
    return InvalidInput(message, field="source", remedy=remedy)


def relearn_without_source(
    ledger: Ledger,
    *,
    make_learner: Callable[[Ledger], Learner],
    source: str,
    since: float | None,
    until: float | None,
    reason: str,
    actor: str,
    now: float,
    progress: Callable[[int], None] = lambda _closed: None,
) -> dict[str, Json]:
    """Learn a new ledger without the feedback that a source sent at since <= time < until.

    since and until are seconds since 1970; a bound of None is open. The ledger's earlier exclusions stay in force. If a
    call was interrupted, repeat it to continue. Returns facts about the exclusion and the new ledger. Raises
    InvalidInput, for example for a source without feedback, and NotReady if another learner holds the new ledger.
    progress: called with the number of decisions handled so far (see `Learner.drain`).
    """
    wanted = ledger.label, checked_source(source), since, until
    count = count_feedback(ledger, source=source, since=since, until=until)
    in_place = exclusions_of(ledger.database)
    exclusion = next((one for one in in_place if (one.label, one.source, one.since, one.until) == wanted), None)
    if exclusion is None:
        exclusion = Exclusion(
            source=source,
            since=since,
            until=until,
            label=ledger.label,
            new_label=next_label(ledger),
            reason=reason,
            actor=actor,
            made_at=now,
        )
        with ledger.database.write() as connection:
            exclusion = _store_exclusion(connection, exclusion)
    return {
        "number": exclusion.number,
        "source": source,
        "feedback": count,
        **learn_new_ledger(ledger, label=exclusion.new_label, make_learner=make_learner, now=now, progress=progress),
    }


def learn_new_ledger(
    ledger: Ledger,
    *,
    label: str,
    make_learner: Callable[[Ledger], Learner],
    now: float,
    progress: Callable[[int], None],
) -> dict[str, Json]:
    """Learn a ledger of this label from the whole store. Returns its label, number of updates and snapshot.

    If a call was interrupted, repeat it to continue. Raises NotReady if another learner holds the new ledger.
    """
    registered = ledger.policy_row()
    assert registered is not None, "the caller has looked for the ledger"
    new = Ledger(ledger.database, label=PolicyLabel(label))
    policy = {name: registered[name] for name in ("algorithm", "params", "encoder_hash")}
    register_policy(ledger.database, label=new.label, now=now, **policy)
    _learn_all(make_learner(new), progress=progress)
    newest = new.latest_snapshots(limit=1)
    return {"label": label, "updates": new.last_seq(), "snapshot": newest[0].version if newest else None}


def carry_exclusions(connection: Connection, *, label: str, new_label: str) -> None:
    """Copy the exclusions of a ledger for the ledger that replaces it."""
    for earlier in stored_exclusions(connection, new_label=label):
        add_exclusion(connection, replace(earlier, label=label, new_label=new_label))


def _store_exclusion(connection: Connection, exclusion: Exclusion) -> Exclusion:
    carry_exclusions(connection, label=exclusion.label, new_label=exclusion.new_label)
    stored = add_exclusion(connection, exclusion)
    names = ("number", "label", "new_label", "since", "until", "reason")
    record(
        connection,
        actor=exclusion.actor,
        action="feedback.quarantine",
        target=exclusion.source,
        facts={name: getattr(stored, name) for name in names},
        now=exclusion.made_at,
    )
    return stored


def next_label(ledger: Ledger) -> str:
    """The first unused label for the new ledger, for example main_q1 for main, then main_q2."""
    numbered = _NUMBERED.match(ledger.label)
    base = numbered[1] if numbered else str(ledger.label)
    with ledger.database.read() as connection:
        labels = set(connection.execute(select(policies.c.label)).scalars())
    labels |= {exclusion.new_label for exclusion in exclusions_of(ledger.database)}
    suffixes = (f"_q{number}" for number in itertools.count(1))
    candidates = (f"{base[: 40 - len(suffix)]}{suffix}" for suffix in suffixes)
    return next(label for label in candidates if label not in labels)


def _learn_all(learner: Learner, *, progress: Callable[[int], None]) -> None:
    ledger = learner.ledger
    closed, give_up = 0, time.monotonic() + _PATIENCE_S
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
