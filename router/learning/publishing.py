"""The publisher: writes a learner's snapshots, announces them, and prunes old ones."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ragbandit.router.config.learning import LearningSettings
from ragbandit.router.learning.snapshots import SnapshotFiles, pack
from ragbandit.router.policies.base import Policy
from ragbandit.router.storage.ledgers.ledger import KEPT_MOST, Ledger, is_kept
from ragbandit.shared.errors import SnapshotError
from ragbandit.shared.types import SnapshotInfo

log = logging.getLogger("ragbandit.learner")

#: pause after a snapshot, in multiples of the time that writing it took, so that other work gets processor time
_PAUSE: Final = 4.0
_PAUSE_IN_BACKLOG: Final = 25.0
_LONGEST_S: Final = 20.0
#: old snapshot rows are pruned once every 100 snapshots
FORGET_EVERY = 100


class Publisher:
    def __init__(
        self,
        ledger: Ledger,
        *,
        files: SnapshotFiles,
        settings: LearningSettings,
        announce: Callable[[SnapshotInfo], None],
        clock: Callable[[], float],
    ) -> None:
        self.ledger, self.files = ledger, files
        self.settings = settings
        self.announce, self.clock = announce, clock
        self._written_at = -math.inf
        self._took_s = 0.0
        self._count = 0
        self._has_new = False
        #: (version, last update, fingerprint of the files) of the newest snapshot that was written or checked here
        self._newest: tuple[str, int, str | None] = ("", -1, None)

    def _remaining_s(self, pause: float) -> float:
        """Seconds until the next snapshot may be written. pause: multiple of the time that the last snapshot took."""
        interval = max(self.settings.snapshot_interval_s, min(pause * self._took_s, _LONGEST_S))
        return self._written_at + interval - time.monotonic()

    def wait(self) -> None:
        """Wait until the next snapshot may be written, so that one `Learner.drain` serves several notifications."""
        time.sleep(max(0.0, self._remaining_s(_PAUSE)))

    def publish(
        self, policy: Policy, *, last_seq: int, encoder_hash: str, force: bool, is_behind: bool = False
    ) -> None:
        """Write a snapshot and notify the routers, if there are new updates and the pause is over.

        force: ignore the pause. is_behind: a backlog is being learned, which makes the pause longer.
        """
        now, began = self.clock(), time.monotonic()
        if not force and self._remaining_s(_PAUSE_IN_BACKLOG if is_behind else _PAUSE) > 0.0:
            return
        version, written_seq, fingerprint = self._newest
        if written_seq == last_seq and fingerprint is not None and self.files.fingerprint(version) == fingerprint:
            return
        info, tensors, described = pack(
            policy, label=self.ledger.label, last_seq=last_seq, encoder_hash=encoder_hash, now=now
        )
        limit = self.settings.snapshots_kept + 1
        maker: dict[str, Any] = {"algorithm": policy.algorithm, "params": policy.params, "encoder_hash": encoder_hash}
        stored = self.ledger.latest_snapshots(limit=limit, **maker)
        if not (stored and stored[0].version == info.version and self._is_whole(stored[0])):
            self.ledger.database.check_file()  # raises if the data folder was moved: writing would create a new one
            self.files.write(info, tensors, described, policy=policy)
            self.ledger.add_snapshot(info)
            self._written_at = time.monotonic()
            self._took_s = self._written_at - began
            self._prune_files(info, older=[old for old in stored if old.version != info.version], maker=maker)
            self._forget_rows(info)
            self.announce(info)
            self._has_new = True
        self._newest = info.version, last_seq, self.files.fingerprint(info.version)

    def take_new(self) -> bool:
        """Whether a snapshot was published since the last call."""
        is_new, self._has_new = self._has_new, False
        return is_new

    def _is_whole(self, info: SnapshotInfo) -> bool:
        """Whether the snapshot's files have the right content. Reads the files, which takes time."""
        try:
            self.files.load(info, encoder_hash=info.encoder_hash)
        except SnapshotError as error:
            details = {"action": "snapshot_refused", "reason": str(error)}
            log.warning("the newest snapshot is written again", extra=details)
            return False
        return True

    def _prune_files(self, info: SnapshotInfo, *, older: Sequence[SnapshotInfo], maker: Mapping[str, Any]) -> None:
        old = [item for item in older[self.settings.snapshots_kept - 1 :] if not is_kept(item.last_seq)]
        if is_kept(info.last_seq):
            old += self.ledger.latest_snapshots(limit=KEPT_MOST + 1, kept=True, **maker)[KEPT_MOST:]
        self.files.prune([item.version for item in old])

    def _forget_rows(self, newest: SnapshotInfo) -> None:
        self._count += 1
        if self._count % FORGET_EVERY != 1:
            return
        # `_prune_files` has deleted the files of this policy, but not the files of earlier policies.
        former = [info for info in self.ledger.prune_snapshots() if _maker(info) != _maker(newest)]
        self.files.prune([info.version for info in former])


def _maker(info: SnapshotInfo) -> tuple[object, ...]:
    return info.algorithm, dict(info.params), info.encoder_hash
