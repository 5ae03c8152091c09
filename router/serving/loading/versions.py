"""Version loader: makes this process use the champion, candidates and snapshots that the database names.

`refresh_control` applies the kill switch at once: it reads one row by its key. Decisions are made with `live`. If the
transaction that stores them finds another revision, they are made again after `refresh_control`. `refresh`, on another
thread, drops ended versions, and loads new ones and another champion, which decides as soon as it is loaded.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from ragbandit.router.learning.monitoring.frontier import Frontier, read_frontier
from ragbandit.router.policies.base import serves_prices
from ragbandit.router.rollouts.version_settings import settings_of
from ragbandit.router.serving.loading.candidate_runner import CandidateRunner
from ragbandit.router.serving.loading.live import NOTHING_LIVE, Candidate, LiveVersions
from ragbandit.router.serving.loading.snapshots import ServedPolicy, SnapshotLoader
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import control_of, versions_of
from ragbandit.shared.errors import ConfigError, Conflict, RagBanditError
from ragbandit.shared.types import ArmName, PolicyControl, PolicyVersion

log = logging.getLogger("ragbandit.versions")

#: pause before another attempt to load a candidate, seconds
AGAIN_S: Final = 10.0
#: longest wait for the first load of a candidate, seconds
LOAD_S: Final = 5.0


class VersionLoader:
    """Loads the policy of the configuration or of the champion, and the candidates.

    serve: called with each policy that decides from now on. wake: lets another thread call `refresh` soon.
    """

    def __init__(self, own: SnapshotLoader, *, serve: Callable[[ServedPolicy], None], wake: Callable[[], None]) -> None:
        self._own, self._settings = own, own.settings
        self._database, self._base = own.ledger.database, own.ledger.label
        self._serve, self._wake = serve, wake
        self.snapshots = own
        self.live: LiveVersions = NOTHING_LIVE
        #: the version that should decide; None if the configured policy should decide
        self._champion: PolicyVersion | None = None
        self._refused: PolicyVersion | None = None
        self._loaded_revision = 0
        #: time.monotonic() of the next attempt to load candidates; None if all are loaded
        self._retry_at: float | None = None
        self._loaded: dict[str, SnapshotLoader] = {}
        self._runners: dict[str, CandidateRunner] = {}
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._frontier_text: str | None = None
        self._frontier: Frontier | None = None

    @property
    def ledger(self) -> Ledger:
        return self.snapshots.ledger

    def start(self) -> None:
        """Register the policy and take over its newest snapshot. Raises ConfigError, Conflict, StoreError."""
        # Policy versions refer to the configured policy, so it must be registered even if a version decides.
        self._own.register()
        self._refresh_candidates()
        self._take_over(self._champion)

    def refresh_control(self) -> LiveVersions:
        with self._database.connection() as connection:
            control = control_of(connection, base=self._base)
        if control.revision == self.live.control.revision:
            return self.live
        with self._lock:
            if control.revision > self.live.control.revision:
                self.live = replace(self.live, control=control)
            live = self.live
        self._wake()
        return live

    def refresh(self) -> bool:
        """Load new versions and snapshots. Returns whether the deciding policy has a newer one. Raises StoreError."""
        # `learn` and the poll both call this. The lock prevents a slow thread from restoring an older policy.
        with self._refreshing:
            self._refresh_candidates()
            self._follow_champion()
            has_frontier = self._read_frontier()
            swapped = self.snapshots.refresh()
            if swapped or has_frontier:
                self._serve_current()
            return swapped

    def _read_frontier(self) -> bool:
        """Read the frontier of the ledger. Returns whether it changed."""
        text = self.ledger.frontier() if serves_prices(self.snapshots.served.policy) else self._frontier_text
        if text == self._frontier_text:
            return False
        self._frontier_text, self._frontier = text, read_frontier(text)
        return True

    def _serve_current(self) -> None:
        self._serve(replace(self.snapshots.served, frontier=self._frontier))

    @property
    def learning(self) -> list[PolicyVersion]:
        """The champion version and the loaded candidates, which learn in ledgers of their own."""
        loaded = [candidate.version for candidate in self.live.candidates if candidate.served is not None]
        return loaded if self._champion is None else [self._champion, *loaded]

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()

    def _open_snapshots(self, version: PolicyVersion | None) -> SnapshotLoader:
        """Load the newest snapshot of a version, or of the configured policy if `version` is None."""
        snapshots = self._own
        if version is not None:
            settings, encoder = settings_of(self._settings, version), self._own.encoder
            snapshots = SnapshotLoader(self._database, settings=settings, files=self._own.files, encoder=encoder)
        snapshots.load_first()
        return snapshots

    def _refresh_candidates(self) -> None:
        """Load new candidates and newer snapshots of candidates; drop candidates that are no longer live."""
        with self._database.read() as connection:
            control = control_of(connection, base=self._base)
            due = control.revision != self._loaded_revision
            due |= self._retry_at is not None and time.monotonic() >= self._retry_at
            versions = versions_of(connection, base=self._base) if due else []
        if due:
            self._load_candidates(control, versions)
        for name, snapshots in self._loaded.items():
            try:
                swapped = snapshots.refresh()
            except Exception as error:  # one candidate must not stop the others
                fields = {"action": "candidate", "version": name, "reason": str(error)}
                log.warning("a newer snapshot of a candidate cannot be loaded", extra=fields)
                continue
            if swapped:
                with self._lock:
                    candidates = list(self.live.candidates)
                    for number, candidate in enumerate(candidates):
                        if candidate.version.name == name:
                            candidates[number] = replace(candidate, served=snapshots.served)
                    self.live = replace(self.live, candidates=tuple(candidates))

    def _load_candidates(self, control: PolicyControl, versions: list[PolicyVersion]) -> None:
        champion = next((version for version in versions if version.state == "champion"), None)
        self._champion = None if champion is None or champion.label == self._base else champion
        shadows = sorted((v for v in versions if v.state == "shadow"), key=lambda v: (v.since, v.name))
        self._retry_at = None
        arms: Mapping[str, object] = self._settings.arms
        if self._champion is not None:
            with suppress(RagBanditError):  # `_follow_champion` logs the reason
                arms = settings_of(self._settings, self._champion).arms
        shadows = shadows[: self._settings.rollout.shadows]
        candidates = tuple(self._load_candidate(version, champion_arms=arms) for version in shadows)
        names = {candidate.version.name for candidate in candidates}
        self._loaded = {name: snapshots for name, snapshots in self._loaded.items() if name in names}
        for name in set(self._runners) - names:
            self._runners.pop(name).close()
        with self._lock:
            if control.revision >= self.live.control.revision:
                self.live = LiveVersions(control=control, candidates=candidates)
                self._loaded_revision = control.revision
        listed = ", ".join(candidate.version.name for candidate in candidates)
        log.info(
            "the versions in shadow are those of revision %d",
            control.revision,
            extra={"action": "versions", "live": listed},
        )

    def _load_candidate(self, version: PolicyVersion, *, champion_arms: Mapping[str, object]) -> Candidate:
        if version.name not in self._runners:
            limit_s = self._settings.rollout.time_limit_s
            self._runners[version.name] = CandidateRunner(version.name, limit_s=limit_s)
        runner = self._runners[version.name]
        snapshots = self._loaded.get(version.name)
        try:
            if snapshots is None:
                snapshots = self._loaded[version.name] = runner.load_in_time(
                    partial(self._open_snapshots, version), wait_s=LOAD_S
                )
        except Exception as error:  # one candidate must not stop the others
            self._retry_at = time.monotonic() + AGAIN_S
            fields = {"action": "candidate", "version": version.name, "reason": str(error)}
            log.error("a candidate cannot be loaded: the champion decides alone", extra=fields)
            return Candidate(version=version, served=None, unloaded=f"it cannot be loaded: {error}", runner=runner)
        added = tuple(ArmName(name) for name in snapshots.settings.arms if name not in champion_arms)
        return Candidate(version=version, served=snapshots.served, unloaded=None, runner=runner, added=added)

    def _follow_champion(self) -> None:
        """Let the champion in the database decide. If it cannot be used here, the previous policy keeps deciding."""
        champion = self._champion
        if self.ledger.label == (self._base if champion is None else champion.label):
            return
        try:
            self._take_over(champion)
        except RagBanditError as error:
            if self._refused != champion:
                self._refused = champion
                fields = {"action": "champion", "version": _name_of(champion), "reason": str(error)}
                log.error("the champion cannot be used here: the previous one keeps deciding", extra=fields)

    def _take_over(self, version: PolicyVersion | None) -> None:
        """Let this version decide, or the configuration if None. Raises ConfigError, Conflict, StoreError."""
        try:
            snapshots = self._open_snapshots(version)
        except (ConfigError, Conflict) as error:
            if version is None:
                raise
            raise ConfigError(
                f"the champion is the version {version.name!r}, whose changes do not fit this configuration: "
                f"{error.message}",
                field=error.field,
                remedy=f"{error.remedy or 'undo the change'}; or: `ragbandit policy rollback {version.name}`",
            ) from error
        before, self.snapshots = self.ledger.label, snapshots
        self._serve_current()
        if before != self.ledger.label:
            fields = {"action": "champion", "version": _name_of(version), "snapshot": snapshots.served.version}
            log.info("another version decides from now on", extra=fields)


def _name_of(version: PolicyVersion | None) -> str:
    return "the configuration" if version is None else version.name
