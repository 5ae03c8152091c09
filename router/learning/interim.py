"""The policy that decides while the configured policy is learned again from its ledger."""

import time
from collections.abc import Sequence
from dataclasses import replace

from ragbandit.router.config.learning import PolicyDefinition
from ragbandit.router.learning.snapshots import SnapshotFiles, pack
from ragbandit.router.policies import untrained_policy
from ragbandit.router.policies.base import Policy
from ragbandit.router.policies.draw import fallback_arm
from ragbandit.router.storage.ledgers.ledger import TRIES, Ledger
from ragbandit.shared.errors import SnapshotError
from ragbandit.shared.types import ArmName, SnapshotInfo


def needs_rebuild(ledger: Ledger, *, files: SnapshotFiles, policy: Policy) -> bool:
    """Whether the ledger has updates, but none of the policy's newest snapshots has both its files."""
    newest = ledger.latest_snapshots(
        limit=TRIES, algorithm=policy.algorithm, params=policy.params, encoder_hash=ledger.encoder_hash()
    )
    return ledger.last_seq() > 0 and not any(files.exists(info.version) for info in newest)


def find_interim(
    ledger: Ledger,
    *,
    files: SnapshotFiles,
    definition: PolicyDefinition,
    arms: Sequence[ArmName],
    encoder_hash: str,
) -> tuple[Policy, SnapshotInfo]:
    """Find a policy that decides until the configured policy is learned. Returns (policy, its stored snapshot).

    It is the newest usable policy of the ledger or, if there is none, a policy that always plays the incumbent (without
    an incumbent, the fallback arm).
    """
    settings, incumbent = definition.settings, definition.settings.incumbent
    for info in ledger.snapshots_to_try():
        keeps_promise = incumbent in (None, info.params.get("incumbent"))
        if keeps_promise and info.last_seq > 0 and info.encoder_hash in ("", encoder_hash):
            try:
                return files.load(info, encoder_hash=info.encoder_hash)[0], info
            except SnapshotError:
                continue
    preferred = settings.fallback if incumbent is None else incumbent
    arm = fallback_arm(preferred, arms=arms)
    always = settings.model_copy(update={"name": "fixed", "params": {"arm": arm}})
    fixed = untrained_policy(replace(definition, settings=always))
    info, tensors, described = pack(fixed, label=ledger.label, last_seq=0, encoder_hash="", now=time.time())
    files.write(info, tensors, described)
    ledger.add_snapshot(info)
    return fixed, info
