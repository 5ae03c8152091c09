"""Entering of a warm start: the rows go to the end of the configured ledger, and the policy learns them.

What the ledger has already adds nothing, so the same command goes on where it was stopped.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.learner import Learner
from ragbandit.router.learning.lessons import policy_of
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.logs.ledger_transfer import ImportCounts, take_in
from ragbandit.router.offline.logs.records import Logged
from ragbandit.router.offline.types import Progress, no_progress
from ragbandit.router.offline.warm.material import Material
from ragbandit.router.policies.base import Policy
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.ledgers.registration import register_policy
from ragbandit.router.storage.rows.conversion import canonical, reward_value
from ragbandit.router.storage.sql.tables import updates
from ragbandit.shared.errors import Conflict, StoreError
from ragbandit.shared.types import Decision, Reward

#: rows that are looked for at once
PAGE = 500
#: how long to wait for the ledger's learner, seconds
PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Entered:
    """What became of the rows."""

    #: in the ledger now and not before
    added: int
    #: it had them already
    known: int
    #: of the ledger, after it
    last_seq: int
    #: the snapshot that has learned them; None where a running learner makes it
    version: str | None


def enter(
    material: Material,
    *,
    ledger: Ledger,
    settings: Settings,
    encoder_hash: str,
    patience_s: float | None = None,
    clock: Callable[[], float] = time.time,
    progress: Progress = no_progress,
) -> Entered:
    """Append the rows that the ledger does not have, learn them, and make a snapshot.

    Raises Conflict where a row says something else than the ledger has learned, or was made with another encoder;
    NotReady where a learner holds the ledger for longer than patience_s (default PATIENCE_S).
    """
    patience_s = PATIENCE_S if patience_s is None else patience_s
    policy = register(ledger, settings=settings, encoder_hash=encoder_hash, now=clock())
    learner = Learner(ledger, files=SnapshotFiles(settings.snapshot_root), settings=settings, clock=clock)
    learner.drain(patience_s=patience_s)  # what was there before: the rows come after it
    new = _unlearned(material, ledger=ledger)
    if settings.log.text != "full":
        new = [replace(row, decision=_without_texts(row.decision, settings=settings)) for row in new]

    def show(taken: ImportCounts) -> None:
        progress("rows entered", taken.added + taken.known, len(new))

    taken = take_in(
        ledger,
        new,
        origin=material.origin,
        source=material.source,
        lease_s=settings.learning.lease_s,
        patience_s=patience_s,
        clock=clock,
        progress=show,
    )
    progress("learning", 0, 0)
    learner.drain(patience_s=patience_s)
    last = ledger.last_seq()
    newest = ledger.latest_snapshots(
        limit=1, algorithm=policy.algorithm, params=policy.params, encoder_hash=_hash_for(policy, encoder_hash)
    )
    version = newest[0].version if newest and newest[0].last_seq == last else None
    known = len(material.rows) - len(new) + taken.known
    return Entered(added=taken.added, known=known, last_seq=last, version=version)


def register(ledger: Ledger, *, settings: Settings, encoder_hash: str, now: float) -> Policy:
    """Make the ledger known as a router would, with the configured policy; a fresh one of it. Raises Conflict."""
    policy = policy_of(settings)
    register_policy(
        ledger.database,
        label=ledger.label,
        algorithm=policy.algorithm,
        params=canonical(dict(policy.params)),
        encoder_hash=_hash_for(policy, encoder_hash),
        now=now,
    )
    return policy


def _hash_for(policy: Policy, encoder_hash: str) -> str:
    return encoder_hash if "features" in policy.needs else ""


def _unlearned(material: Material, *, ledger: Ledger) -> list[Logged]:
    """The rows that the ledger has not learned; a decision that the store has is taken as it stands there.

    Its time and its features may differ by a moment, or by rounding on another processor. Raises Conflict.
    """
    store = DecisionStore(ledger.database, label=ledger.label)
    rows: list[Logged] = []
    for start in range(0, len(material.rows), PAGE):
        page = material.rows[start : start + PAGE]
        learned = _learned(ledger, page)
        standing = store.decisions_by_id([row.decision.id for row in page])
        for row in page:
            if row.decision.id in learned:
                _check_same(row, learned[row.decision.id], source=material.source)
            elif row.decision.id in standing:
                rows.append(_as_stored(row, standing[row.decision.id][0], source=material.source))
            else:
                rows.append(row)
    return rows


def _learned(ledger: Ledger, page: Sequence[Logged]) -> Mapping[str, Reward]:
    ids = [row.decision.id for row in page]
    query = select(updates).where(updates.c.policy == ledger.label, updates.c.decision_id.in_(ids))
    with ledger.database.read() as connection:
        return {row["decision_id"]: reward_value(row) for row in connection.execute(query).mappings()}


def _check_same(row: Logged, reward: Reward, *, source: str) -> None:
    """The weight of cost may have changed since; quality and cost of an answer do not."""
    if reward.preset != row.reward.preset:  # another ledger's, of which this one learned the value alone
        return
    for name, here, there in (
        ("quality", row.reward.quality, reward.quality),
        ("cost", row.reward.cost, reward.cost),
    ):
        if here != there:
            raise _conflict(row, name, f"is {here:g}, and the ledger has learned {there:g}", source=source)


def _as_stored(row: Logged, decision: Decision | StoreError, *, source: str) -> Logged:
    if isinstance(decision, StoreError):
        raise decision
    for name, here, there in (
        ("arm", row.decision.arm, decision.arm),
        ("arms", row.decision.arms, decision.arms),
        ("pmf", row.decision.pmf, decision.pmf),
    ):
        if here != there:
            raise _conflict(row, name, f"is {here}, the store has {there} for {decision.id!r}", source=source)
    return replace(row, decision=decision)


def _conflict(row: Logged, name: str, message: str, *, source: str) -> Conflict:
    where = (
        f"{source}:{row.line} {name}"
        if row.line
        else f"{source} {row.decision.query.text:.60} {row.decision.arm} {name}"
    )
    return Conflict(
        message, field=where, remedy="what is learned stays: correct the row, or start a new ledger (policy.label)"
    )


def _without_texts(decision: Decision, *, settings: Settings) -> Decision:
    """As live decisions are kept under log.text: none."""
    context = {key: value for key, value in decision.query.context.items() if key in settings.context}
    return replace(decision, query=replace(decision.query, text="", context=context))
