"""Policy follower: the policy that decides here is the one that the database and the learner want."""

import logging
import threading
from collections.abc import Callable

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.frontier import read_frontier
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies.base import serves_prices
from ragbandit.router.rollouts.served import settings_of
from ragbandit.router.serving.deciding.service import RouteService
from ragbandit.router.serving.following.snapshots import SnapshotFollower, registered_follower
from ragbandit.router.serving.following.versions import VersionFollower
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.errors import ConfigError, Conflict, RagBanditError
from ragbandit.shared.types import PolicyVersion

log = logging.getLogger("ragbandit.versions")


class PolicyFollower:
    """Lets `service` decide by the configuration, or by the champion version; follows the snapshots of either.

    service: before `start` it decides by a policy that has learned nothing.
    wake: lets `refresh` be called soon.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        service: RouteService,
        files: SnapshotFiles,
        wake: Callable[[], None],
    ) -> None:
        self._settings, self._service, self._files = settings, service, files
        self._database, self._encoder = service.store.database, service.encoder
        label = service.store.label
        #: what is live of versions
        self.versions = VersionFollower(
            self._database, base=label, files=files, encoder=self._encoder, settings=settings, wake=wake
        )
        #: of the policy that decides
        self.ledger = Ledger(self._database, label=label)
        self.snapshots = SnapshotFollower(
            self.ledger, files=files, settings=settings, fresh=service.serving.policy, encoder=self._encoder
        )
        #: the version that decides; None: the configuration itself
        self._champion: PolicyVersion | None = None
        #: that cannot be used here; logged once
        self._refused: PolicyVersion | None = None
        self._following = threading.Lock()
        #: as it was read last
        self._frontier: str | None = None

    def start(self) -> None:
        """Register the policy and take over its newest snapshot. Raises ConfigError, Conflict, StoreError."""
        self._registered(self._settings)  # what versions stand on is there, whoever decides
        self.versions.follow()
        self._take_over(self.versions.champion)

    def refresh(self) -> bool:
        """Take over the newest snapshot if there is a newer one; True if the policy was swapped. Raises StoreError."""
        with self._following:  # a caller of `learn` and the thread that polls
            self.versions.follow()
            self._follow_champion()
        if serves_prices(self._service.serving.policy) and (text := self.ledger.frontier()) != self._frontier:
            self._frontier, self._service.frontier = text, read_frontier(text)
        return self.snapshots.refresh(lambda: self._service.serving, swap=self._service.swap)

    def _follow_champion(self) -> None:
        """Let another version decide, if the database says so; one that cannot be used here changes nothing."""
        wanted = self.versions.champion
        if self._champion == wanted:
            return
        if wanted is not None and self._champion is not None and wanted.name == self._champion.name:
            self._champion = wanted  # the same, in another revision
            return
        try:
            self._take_over(wanted)
        except RagBanditError as error:
            if self._refused != wanted:
                self._refused = wanted
                facts = {"action": "champion", "version": _name_of(wanted), "reason": str(error)}
                log.error("the champion cannot be used here: the one before it goes on deciding", extra=facts)

    def _take_over(self, version: PolicyVersion | None) -> None:
        """Decide with this version; None: with the configuration. Raises ConfigError, Conflict, StoreError."""
        settings = self._settings
        try:
            settings = settings if version is None else settings_of(settings, version)
            snapshots = self._registered(settings)
            serving = snapshots.first()
        except (ConfigError, Conflict) as error:
            if version is None:
                raise
            raise ConfigError(
                f"the champion is the version {version.name!r}, and what it changes does not fit this "
                f"configuration: {error.message}",
                field=error.field,
                remedy=f"{error.remedy or 'set it back'}; or: ragbandit policy rollback {version.name}",
            ) from error
        self._service.take_over(serving, settings=settings)
        self.snapshots, self.ledger = snapshots, snapshots.ledger
        self._service.store.label = self.ledger.label
        changed, self._champion = self._champion != version, version
        if changed:
            facts = {"action": "champion", "version": _name_of(version), "snapshot": serving.version}
            log.info("another version decides from now on", extra=facts)

    def _registered(self, settings: Settings) -> SnapshotFollower:
        return registered_follower(self._database, settings, files=self._files, encoder=self._encoder)


def _name_of(version: PolicyVersion | None) -> str:
    return "the configuration" if version is None else version.name
