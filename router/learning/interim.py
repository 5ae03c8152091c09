"""The interim policy: what decides while the policy is being learned again from its ledger.

A ledger that has updates and no usable snapshot of the configured policy must not be served by a policy that has
learned nothing: it would explore as on its first day. In its place stands the newest policy that was served before
(the configuration may have changed) and whose snapshot is usable, or always the fallback arm; both with the floor,
exact propensities, and a snapshot row of their own, so that `verify` makes their pmfs again.
With `policy.incumbent`, only policies that are held back to this arm stand in, and then the incumbent alone.
"""

import time
from dataclasses import dataclass

from ragbandit.router.config.settings import PolicySettings, Settings
from ragbandit.router.learning.snapshots import SnapshotFiles, pack
from ragbandit.router.policies import protected
from ragbandit.router.policies.base import Policy
from ragbandit.router.policies.draw import fallback_arm
from ragbandit.router.storage.ledgers.ledger import TRIES, Ledger
from ragbandit.shared.errors import SnapshotError
from ragbandit.shared.types import ArmName, SnapshotInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Interim:
    """A policy that decides meanwhile, and its snapshot, which the database knows."""

    policy: Policy
    snapshot: SnapshotInfo


def needs_rebuild(ledger: Ledger, *, files: SnapshotFiles, policy: Policy) -> bool:
    """Whether the ledger has updates, and none of the policy's newest snapshots is there. Contents are not checked."""
    newest = ledger.latest_snapshots(
        limit=TRIES, algorithm=policy.algorithm, params=policy.params, encoder_hash=ledger.encoder_hash()
    )
    return ledger.last_seq() > 0 and not any(files.exists(info.version) for info in newest)


def find_interim(ledger: Ledger, *, files: SnapshotFiles, settings: Settings, encoder_hash: str) -> Interim:
    """What decides until the learner has learned the policy again. Raises StoreError, and SnapshotError if files cannot
    be written.
    """
    for info in ledger.snapshots_to_try():
        if info.last_seq > 0 and info.encoder_hash in ("", encoder_hash) and _protects(info, settings=settings.policy):
            try:
                return Interim(policy=files.load(info, encoder_hash=info.encoder_hash)[0], snapshot=info)
            except SnapshotError:
                continue
    wanted = settings.policy.fallback if settings.policy.incumbent is None else settings.policy.incumbent
    arm = fallback_arm(wanted, arms=[ArmName(name) for name in settings.arms])
    fixed = protected("fixed", params={"arm": arm}, settings=settings.policy)
    info, tensors, described = pack(fixed, label=ledger.label, last_seq=0, encoder_hash="", now=time.time())
    files.write(info, tensors, described)
    ledger.add_snapshot(info)
    return Interim(policy=fixed, snapshot=info)


def _protects(info: SnapshotInfo, *, settings: PolicySettings) -> bool:
    """Whether this snapshot's policy keeps what the settings promise of the incumbent, if they do."""
    return settings.incumbent in (None, info.params.get("incumbent"))
