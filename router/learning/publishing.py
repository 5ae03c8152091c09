"""Publishing: the learner's snapshots, written at intervals, announced to the routers, and pruned."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.diagnosis import diagnose
from ragbandit.router.learning.monitoring.frontier import EVERY_S, frontier_text
from ragbandit.router.learning.snapshots import SnapshotFiles, pack
from ragbandit.router.policies.base import Policy
from ragbandit.router.storage.ledgers.ledger import KEPT_MOST, Ledger, is_kept
from ragbandit.shared.errors import SnapshotError
from ragbandit.shared.types import SnapshotInfo

log = logging.getLogger("ragbandit.learner")

#: A snapshot that takes long (a fine-tuned model has hundreds of megabytes) is followed by this many times as long
#: without one, _LONGEST_S at most, so that learning and serving get most of the machine.
_SHARE: Final = 4.0
_LONGEST_S: Final = 20.0
#: after so many snapshots the rows of old ones are pruned
FORGET_EVERY = 100


class Publisher:
    """Writes the snapshots of one label's learner."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        files: SnapshotFiles,
        settings: Settings,
        announce: Callable[[SnapshotInfo], None],
        clock: Callable[[], float],
    ) -> None:
        self.ledger, self.files, self.settings = ledger, files, settings
        self.announce, self.clock = announce, clock
        #: of the last snapshot: when it was written, monotonic seconds, and how long it took
        self._at, self._took_s = -math.inf, 0.0
        #: when the frontier is computed again, monotonic seconds
        self._frontier_due = -math.inf
        #: snapshots written here
        self._count = 0
        #: the newest that was written or found whole here: its version, last update, and its files as they were then
        self._newest: tuple[str, int, str | None] = ("", -1, None)

    @property
    def _interval(self) -> float:
        """Least time between two snapshots, seconds."""
        return max(self.settings.learning.snapshot_interval_s, min(_SHARE * self._took_s, _LONGEST_S))

    def wait(self) -> None:
        """Wait until the interval is over: drains that follow each other closely become one."""
        left = self._at + self._interval - time.monotonic()
        if left > 0:
            time.sleep(left)

    def publish(self, policy: Policy, *, last_seq: int, encoder_hash: str, force: bool) -> None:
        """Write a snapshot and tell the routers, if there is news and (unless forced) it is time."""
        now, began = self.clock(), time.monotonic()
        if not force and began - self._at < self._interval:
            return
        version, written_seq, fingerprint = self._newest
        if written_seq == last_seq and fingerprint is not None and self.files.fingerprint(version) == fingerprint:
            return
        info, tensors, described = pack(
            policy, label=self.ledger.label, last_seq=last_seq, encoder_hash=encoder_hash, now=now
        )
        most = self.settings.learning.snapshots_kept
        of: dict[str, Any] = {
            "algorithm": policy.algorithm,
            "params": policy.params,
            "encoder_hash": encoder_hash,
        }
        known = self.ledger.latest_snapshots(limit=most + 1, **of)
        if not (known and known[0].version == info.version and self._is_whole(known[0])):
            self.files.write(info, tensors, described)
            self.ledger.add_snapshot(info)
            self._at = time.monotonic()
            self._took_s = self._at - began
            self._prune_files(info, known=[one for one in known if one.version != info.version], of=of)
            self._forget_rows(info)
            self.announce(info)
            self._note(policy, encoder_hash=encoder_hash)
        self._newest = info.version, last_seq, self.files.fingerprint(info.version)

    def _note(self, policy: Policy, *, encoder_hash: str) -> None:
        """Keep how far the policy has learned; at intervals its frontier too."""
        settings = self.settings
        texts = {"diagnosis": diagnose(self.ledger, policy, settings=settings, encoder_hash=encoder_hash)}
        if time.monotonic() >= self._frontier_due:
            self._frontier_due = time.monotonic() + EVERY_S
            texts["frontier"] = frontier_text(self.ledger, policy, settings=settings, encoder_hash=encoder_hash)
        self.ledger.note(**texts)

    def _is_whole(self, info: SnapshotInfo) -> bool:
        """True if the snapshot's files are there and the learner's own; reading them takes time."""
        try:
            self.files.load(info, encoder_hash=info.encoder_hash)
        except SnapshotError as error:
            log.warning(
                "the newest snapshot is written again", extra={"action": "snapshot_refused", "reason": str(error)}
            )
            return False
        return True

    def _prune_files(self, info: SnapshotInfo, *, known: Sequence[SnapshotInfo], of: Mapping[str, Any]) -> None:
        """Delete what is older than the newest, but for the newest of those that are kept longer. known: older ones."""
        old = [one for one in known[self.settings.learning.snapshots_kept - 1 :] if not is_kept(one.last_seq)]
        if is_kept(info.last_seq):
            old += self.ledger.latest_snapshots(limit=KEPT_MOST + 1, kept=True, **of)[KEPT_MOST:]
        self.files.prune([one.version for one in old])

    def _forget_rows(self, ours: SnapshotInfo) -> None:
        """Prune the rows of old snapshots, at the first snapshot made here and at every FORGET_EVERY-th after it."""
        self._count += 1
        if self._count % FORGET_EVERY != 1:
            return
        gone = self.ledger.prune_snapshots()
        # Of this very policy `publish` has deleted the files; those of a former one stayed when it was replaced.
        others = [one for one in gone if _maker(one) != _maker(ours)]
        self.files.prune([one.version for one in others])


def _maker(info: SnapshotInfo) -> tuple[object, ...]:
    return info.algorithm, dict(info.params), info.encoder_hash
