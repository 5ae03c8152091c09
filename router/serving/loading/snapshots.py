"""Snapshots: loads the newest usable snapshot of one policy, and newer ones as they come."""

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder, origin_of
from ragbandit.router.learning.interim import find_interim
from ragbandit.router.learning.monitoring.frontier import Frontier
from ragbandit.router.learning.snapshots import SnapshotFiles, pack
from ragbandit.router.policies import untrained_policy
from ragbandit.router.policies.base import Policy
from ragbandit.router.storage.ledgers.inheritance import register_policy
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import SnapshotError
from ragbandit.shared.types import ArmName, PolicyLabel, SnapshotInfo

log = logging.getLogger("ragbandit.snapshots")

#: number of newest snapshots that are tried at the start, and at each refresh
FIRST_TRIES, REFRESH_TRIES = 5, 3
REMEMBERED = 16
LAGS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedPolicy:
    """A loaded policy that decides. To load a newer snapshot, the object is replaced; its policy never learns here."""

    policy: Policy
    version: str
    last_seq: int
    #: the configuration with the changes of the version that decides
    settings: Settings
    #: whether this policy decides only until the configured one has been learned again from the ledger
    rebuilding: bool = False
    #: arm -> learned outcomes, for the cold-start floor; None if the policy counts them itself
    learned: Mapping[ArmName, int] | None = None
    #: turns aims into cost weights; None until the first one is learned
    frontier: Frontier | None = None

    @property
    def seen(self) -> Mapping[ArmName, int]:
        return self.policy.seen if self.learned is None else self.learned


class SnapshotLoader:
    """Loads snapshots of the policy of `settings` with this encoder. Not thread-safe."""

    def __init__(self, database: Database, *, settings: Settings, files: SnapshotFiles, encoder: Encoder) -> None:
        self.ledger = Ledger(database, label=PolicyLabel(settings.policy.label))
        self.settings, self.encoder = settings, encoder
        self.files = files
        #: the policy before learning; snapshots of another algorithm or with other params are not used
        self.untrained = untrained_policy(settings.policy_definition)
        self.encoder_hash = encoder.hash if "features" in self.untrained.needs else ""
        self.served = ServedPolicy(policy=self.untrained, version="", last_seq=0, settings=settings)
        #: seconds from feedback until this router's policy has learned it, for the newest updates
        self.lags: deque[float] = deque(maxlen=LAGS)
        #: number of snapshots that could not be used
        self.refused = 0
        self._refused_lately: deque[str] = deque(maxlen=REMEMBERED)

    def register(self) -> None:
        """Register the policy. Raises ConfigError, StoreError, and Conflict if the ledger has another encoder."""
        register_policy(
            self.ledger.database,
            label=self.ledger.label,
            algorithm=self.untrained.algorithm,
            params=canonical(dict(self.untrained.params)),
            encoder_hash=self.encoder_hash,
            now=time.time(),
            encoder=origin_of(self.encoder),
        )

    def load_first(self) -> ServedPolicy:
        """Register the policy, and load the newest usable snapshot, or make the first one. Raises as `register`.

        If a ledger has updates, but no usable snapshot, an interim policy decides until the learner has made one.
        """
        self.register()
        self.served = self._load_or_make()
        return self.served

    def _load_or_make(self) -> ServedPolicy:
        for info in self.newest(limit=FIRST_TRIES):
            policy = self._load(info)
            if policy is not None:
                return self._served_policy(info, policy)
        if self.ledger.last_seq() > 0:
            return self._load_interim()
        info, tensors, described = pack(
            self.untrained, label=self.ledger.label, last_seq=0, encoder_hash=self.encoder_hash, now=time.time()
        )
        self.files.write(info, tensors, described)
        self.ledger.add_snapshot(info)
        return self._served_policy(info, self.untrained)

    def _load_interim(self) -> ServedPolicy:
        arms, encoder_hash = tuple(map(ArmName, self.settings.arms)), self.encoder_hash
        policy, snapshot = find_interim(
            self.ledger,
            files=self.files,
            definition=self.settings.policy_definition,
            arms=arms,
            encoder_hash=encoder_hash,
        )
        fields = {"action": "rebuilding", "version": snapshot.version}
        message = "no snapshot of the policy can be used: another one decides until it is learned again"
        log.warning(message, extra=fields)
        learned = None if policy.seen else self.ledger.count_recent_updates()
        return replace(self._served_policy(snapshot, policy), rebuilding=True, learned=learned)

    def _served_policy(self, info: SnapshotInfo, policy: Policy) -> ServedPolicy:
        return ServedPolicy(policy=policy, version=info.version, last_seq=info.last_seq, settings=self.settings)

    def refresh(self) -> bool:
        """Load a snapshot that is newer than `served`. Returns whether one was loaded. If the ledger ends before
        `served`, because a failover or a restored backup lost rows, an older snapshot is loaded.
        """
        served = self.served
        for info in self.newest(limit=REFRESH_TRIES):
            if info.version == served.version or info.last_seq < served.last_seq <= self.ledger.last_seq():
                return False
            policy = self._load(info)
            if policy is None:
                continue
            self.served = self._served_policy(info, policy)
            now = time.time()
            after = max(served.last_seq, info.last_seq - LAGS)  # an imported ledger may have millions of rows
            self.lags.extend(now - at for at in self.ledger.feedback_times(after=after, upto=info.last_seq))
            return True
        return False

    def newest(self, *, limit: int) -> list[SnapshotInfo]:
        return self.ledger.latest_snapshots(
            limit=limit,
            algorithm=self.untrained.algorithm,
            params=self.untrained.params,
            encoder_hash=self.encoder_hash,
        )

    def _load(self, info: SnapshotInfo) -> Policy | None:
        """The snapshot's policy; None if its files are missing, damaged or do not fit. Logs each such snapshot once."""
        try:
            return self.files.load(info, encoder_hash=self.encoder_hash)[0]
        except SnapshotError as error:
            if info.version not in self._refused_lately:
                self._refused_lately.append(info.version)
                self.refused += 1
                fields = {"action": "snapshot_refused", "version": info.version, "reason": str(error)}
                log.warning("snapshot refused: an older one stays in use", extra=fields)
            return None
