"""Entering of a warm start: the rows go to the end of the configured ledger, and the policy learns them.

What the ledger has already adds nothing, so the same command goes on where it was stopped.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.examples import policy_of
from ragbandit.router.learning.learner import Learner
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.offline.logs.ledger_transfer import ImportCounts, take_in
from ragbandit.router.offline.types import Progress, no_progress
from ragbandit.router.offline.warm.material import WarmRows
from ragbandit.router.policies.base import Policy
from ragbandit.router.storage.ledgers.inheritance import register_policy
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.types import Decision

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
    material: WarmRows,
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
    rows = material.rows
    if settings.log.text != "full":
        rows = [replace(row, decision=_without_texts(row.decision, settings=settings)) for row in rows]

    def show(taken: ImportCounts) -> None:
        progress("rows entered", taken.added + taken.known, len(rows))

    taken = take_in(
        ledger,
        rows,
        origin=material.origin,
        source=material.source,
        lease_s=settings.learning.lease_s,
        patience_s=patience_s,
        remade=True,
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
    return Entered(added=taken.added, known=taken.known, last_seq=last, version=version)


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


def _without_texts(decision: Decision, *, settings: Settings) -> Decision:
    """As live decisions are kept under log.text: none."""
    context = {key: value for key, value in decision.query.context.items() if key in settings.context}
    return replace(decision, query=replace(decision.query, text="", context=context))
