"""Checkpoints: snapshots that are kept, spread over the ledger, so that a policy is not rebuilt from the beginning.

The learner makes one every so many updates, also while it rebuilds. The files lie apart from the other snapshots, of
which only the newest are kept; the row in SQL has the sha256 that they must have, and the sha256 chain over the ledger
at that place, from which `verify` goes on.
"""

import logging
from collections.abc import Iterator

from ragbandit.router.learning.snapshots import SnapshotFiles, pack
from ragbandit.router.policies.base import Policy
from ragbandit.router.storage.ledgers.chain import START, Chain
from ragbandit.router.storage.ledgers.checkpoints import CheckpointRows
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.errors import SnapshotError
from ragbandit.shared.types import Checkpoint

log = logging.getLogger("ragbandit.checkpoints")


class Checkpoints:
    """The checkpoints of one ledger. files: their own folder."""

    def __init__(self, ledger: Ledger, *, files: SnapshotFiles) -> None:
        self.ledger = ledger
        self.files = files
        self.rows = CheckpointRows(ledger.database, label=ledger.label)
        self.chain = Chain(ledger.database, label=ledger.label)

    def last_seq(self, policy: Policy, *, encoder_hash: str) -> int:
        """The last update of this policy's newest checkpoint; 0 where it has none."""
        known = self.rows.newest(algorithm=policy.algorithm, params=policy.params, encoder_hash=encoder_hash)
        return known[0].snapshot.last_seq if known else 0

    def usable(
        self, policy: Policy, *, encoder_hash: str, upto: int, verified: bool = False
    ) -> Iterator[tuple[Policy, Checkpoint]]:
        """This policy's checkpoints whose files are whole, the latest first, each with the policy that it holds.

        upto: the last update that the ledger has; a checkpoint of later ones is of another ledger. verified: only
        those that a `verify` has passed.
        """
        for known in self.rows.newest(algorithm=policy.algorithm, params=policy.params, encoder_hash=encoder_hash):
            if known.snapshot.last_seq > upto or (verified and known.verified_at is None):
                continue
            try:
                made, _ = self.files.load(known.snapshot, encoder_hash=encoder_hash)
            except SnapshotError as error:
                facts = {"action": "checkpoint_refused", "version": known.snapshot.version, "reason": str(error)}
                log.warning("a checkpoint cannot be used; an older one is tried", extra=facts)
                continue
            yield made, known

    def make(self, policy: Policy, *, last_seq: int, encoder_hash: str, now: float, kept: int) -> None:
        """Keep this policy; of more than `kept` checkpoints the ones that are missed least are forgotten."""
        info, tensors, described = pack(
            policy, label=self.ledger.label, last_seq=last_seq, encoder_hash=encoder_hash, now=now
        )
        self.files.write(info, tensors, described)
        self.rows.add(Checkpoint(snapshot=info, chain=self._link(last_seq)))
        known = self.rows.newest()
        while len(known) > kept:
            gone = _least_missed(known, newest=info.version)
            self.rows.remove(gone.snapshot.version)
            self.files.prune([gone.snapshot.version])
            known.remove(gone)

    def _link(self, last_seq: int) -> str:
        """The chain at an update: its end as the append left it, else made from the nearest place that is known."""
        end, last = self.chain.end()
        if end == last_seq:
            return last
        known = [(one.snapshot.last_seq, one.chain) for one in self.rows.newest()]
        return self.chain.at(last_seq, start=max((place for place in known if place[0] <= last_seq), default=START))


def _least_missed(known: list[Checkpoint], *, newest: str) -> Checkpoint:
    """The checkpoint to forget: of another policy the oldest; else the one that leaves the smallest gap.

    The newest stays, and the newest that a verify has passed. known: two or more, the latest first.
    """
    now = next(one for one in known if one.snapshot.version == newest)
    others = [one for one in known if not _alike(one, now)]
    if others:
        return others[-1]
    verified = next((one for one in known if one.verified_at is not None), None)
    places = [*(one.snapshot.last_seq for one in known), 0]
    gaps = [places[index - 1] - places[index + 1] for index in range(1, len(known))]
    free = [(gap, one) for gap, one in zip(gaps, known[1:], strict=True) if one is not now and one is not verified]
    return min(free, key=lambda found: (found[0], found[1].snapshot.last_seq))[1]


def _alike(one: Checkpoint, other: Checkpoint) -> bool:
    a, b = one.snapshot, other.snapshot
    return (a.algorithm, a.params, a.encoder_hash) == (b.algorithm, b.params, b.encoder_hash)
