"""Policy follower: keeps the deciding policy and the live versions as they are in the database.

The thread that decides calls `glance` before each batch: one row by its key. The kill switch holds at once, and so does
the removal or a new weight of a version. A new candidate or another champion is loaded by `refresh` on another thread,
and decides once it is loaded.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.monitoring.diagnosis import read_frontier
from ragbandit.router.policies.base import serves_prices
from ragbandit.router.rollouts.overview import settings_of
from ragbandit.router.serving.deciding.live import NOTHING_LIVE, Candidate, CandidateRunner, LiveVersions
from ragbandit.router.serving.deciding.service import RouteService
from ragbandit.router.serving.following.snapshots import SnapshotFollower
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import control_of, versions_of
from ragbandit.shared.errors import ConfigError, Conflict, RagBanditError
from ragbandit.shared.types import LIVE_STATES, ArmName, PolicyControl, PolicyVersion

log = logging.getLogger("ragbandit.versions")

#: pause before a candidate that could not be loaded is tried again, seconds
AGAIN_S: Final = 10.0
#: how long a candidate that is loaded for the first time is waited for, seconds
LOAD_S: Final = 5.0


class PolicyFollower:
    """Lets `service` decide by the configuration, or by the champion version; follows the snapshots of all live ones.

    own: of the configuration; before `start` the service decides by its policy that has learned nothing.
    wake: lets `refresh` be called soon.
    """

    def __init__(self, own: SnapshotFollower, *, service: RouteService, wake: Callable[[], None]) -> None:
        self._own, self._service, self._wake = own, service, wake
        self._settings, self._database, self._base = own.settings, own.ledger.database, own.ledger.label
        #: snapshots of the policy that decides
        self.snapshots = own
        #: the kill switch, and the candidates
        self.live: LiveVersions = NOTHING_LIVE
        #: the version that is to decide; None: the configuration itself
        self._champion: PolicyVersion | None = None
        #: that cannot be used here; logged once
        self._refused: PolicyVersion | None = None
        self._loaded_revision = 0
        self._again_at: float | None = None
        self._loaded: dict[str, SnapshotFollower] = {}
        self._runners: dict[str, CandidateRunner] = {}
        #: guards `live`, which two threads replace
        self._lock = threading.Lock()
        self._following = threading.Lock()
        #: as it was read last
        self._frontier: str | None = None
        service.live = self.glance

    @property
    def ledger(self) -> Ledger:
        """The ledger of the policy that decides."""
        return self.snapshots.ledger

    def start(self) -> None:
        """Register the policy and take over its newest snapshot. Raises ConfigError, Conflict, StoreError."""
        self._own.register()  # versions need it, whichever policy decides
        self._follow()
        self._take_over(self._champion)

    def glance(self) -> LiveVersions:
        """What is live for the next batch. Raises StoreError."""
        with self._database.look() as connection:
            if control_of(connection, base=self._base).revision == self.live.control.revision:
                return self.live
        with self._database.read() as connection:
            control = control_of(connection, base=self._base)
            versions = {one.name: one for one in versions_of(connection, base=self._base)}
        with self._lock:
            if control.revision > self.live.control.revision:
                candidates = [replace(one, version=versions[one.version.name]) for one in self.live.candidates]
                self.live = LiveVersions(control=control, candidates=_in_order(candidates))
            live = self.live
        self._wake()
        return live

    def refresh(self) -> bool:
        """Take over the newest snapshot if there is a newer one; True if the policy was swapped. Raises StoreError."""
        # A caller of `learn` and the thread that polls: one that loads slowly would bring back an older policy.
        with self._following:
            self._follow()
            self._follow_champion()
            if serves_prices(self._service.serving.policy) and (text := self.ledger.frontier()) != self._frontier:
                self._frontier, self._service.frontier = text, read_frontier(text)
            swapped = self.snapshots.refresh()
            if swapped:
                self._service.take_over(self.snapshots.serving)
            return swapped

    def learned(self) -> list[Settings]:
        """The settings of the versions that learn here beside the configuration: the champion's, and candidates'."""
        champion = [] if self._champion is None else [settings_of(self._settings, self._champion)]
        return champion + [one.settings for one in list(self._loaded.values())]

    def close(self) -> None:
        """End the threads of the candidates."""
        for runner in self._runners.values():
            runner.close()

    def _opened(self, version: PolicyVersion | None) -> SnapshotFollower:
        """What follows the snapshots of a version, or of the configuration, with the first of them."""
        snapshots = self._own
        if version is not None:
            settings, encoder = settings_of(self._settings, version), self._own.encoder
            snapshots = SnapshotFollower(self._database, settings=settings, files=self._own.files, encoder=encoder)
        snapshots.first()
        return snapshots

    def _follow(self) -> None:
        """Load what has become live, drop what is not, and take over newer snapshots of candidates."""
        with self._database.read() as connection:
            control = control_of(connection, base=self._base)
            due = control.revision != self._loaded_revision
            due |= self._again_at is not None and time.monotonic() >= self._again_at
            versions = versions_of(connection, base=self._base) if due else []
        if due:
            self._load(control, versions)
        for name, snapshots in self._loaded.items():
            try:
                swapped = snapshots.refresh()
            except Exception as error:  # whatever a candidate's class does: it must not stop the others
                facts = {"action": "candidate", "version": name, "reason": str(error)}
                log.warning("a newer snapshot of a candidate cannot be loaded", extra=facts)
                continue
            if swapped:
                with self._lock:
                    for number, one in enumerate(live := list(self.live.candidates)):
                        if one.version.name == name:
                            live[number] = replace(one, serving=snapshots.serving)
                    self.live = replace(self.live, candidates=tuple(live))

    def _load(self, control: PolicyControl, versions: list[PolicyVersion]) -> None:
        champion = next((one for one in versions if one.state == "champion"), None)
        self._champion = None if champion is None or champion.label == self._base else champion
        versions = [one for one in versions if one.state in LIVE_STATES]
        most = self._settings.rollout.shadows + 1  # and a canary
        self._again_at = None
        arms: Mapping[str, object] = self._settings.arms
        if self._champion is not None:
            with suppress(RagBanditError):  # what takes the champion over logs the reason
                arms = settings_of(self._settings, self._champion).arms
        candidates = [self._candidate(one, champion_arms=arms) for one in sorted(versions, key=_place)[:most]]
        names = {one.version.name for one in candidates}
        self._loaded = {name: one for name, one in self._loaded.items() if name in names}
        for name in set(self._runners) - names:
            if not self._runners[name].busy:  # one that hangs is kept, or each return would cost another thread
                self._runners.pop(name).close()
        with self._lock:
            if control.revision >= self.live.control.revision:
                self.live = LiveVersions(control=control, candidates=_in_order(candidates))
                self._loaded_revision = control.revision
        listed = ", ".join(f"{one.version.name} ({one.version.state})" for one in candidates)
        log.info("versions at revision %d", control.revision, extra={"action": "versions", "live": listed})

    def _candidate(self, version: PolicyVersion, *, champion_arms: Mapping[str, object]) -> Candidate:
        if (runner := self._runners.get(version.name)) is None:
            limit_s = self._settings.rollout.time_limit_s
            runner = self._runners[version.name] = CandidateRunner(version.name, limit_s=limit_s)
        snapshots = self._loaded.get(version.name)
        try:
            if snapshots is None:
                snapshots = self._loaded[version.name] = runner.loaded(partial(self._opened, version), wait_s=LOAD_S)
        except Exception as error:  # whatever a candidate's class does: it must not stop the others
            self._again_at = time.monotonic() + AGAIN_S
            facts = {"action": "candidate", "version": version.name, "reason": str(error)}
            log.error("a candidate cannot be loaded: the champion decides alone", extra=facts)
            return Candidate(version=version, serving=None, unloaded=f"it cannot be loaded: {error}", runner=runner)
        added = tuple(ArmName(name) for name in snapshots.settings.arms if name not in champion_arms)
        return Candidate(version=version, serving=snapshots.serving, unloaded=None, runner=runner, added=added)

    def _follow_champion(self) -> None:
        """Let the champion in the database decide; a champion that cannot be used here changes nothing."""
        wanted = self._champion
        if self.ledger.label == (self._base if wanted is None else wanted.label):
            return
        try:
            self._take_over(wanted)
        except RagBanditError as error:
            if self._refused != wanted:
                self._refused = wanted
                facts = {"action": "champion", "version": _name_of(wanted), "reason": str(error)}
                log.error("the champion cannot be used here: the previous one keeps deciding", extra=facts)

    def _take_over(self, version: PolicyVersion | None) -> None:
        """Decide with this version; None: with the configuration. Raises ConfigError, Conflict, StoreError."""
        try:
            snapshots = self._opened(version)
        except (ConfigError, Conflict) as error:
            if version is None:
                raise
            raise ConfigError(
                f"the champion is the version {version.name!r}, and what it changes does not fit this "
                f"configuration: {error.message}",
                field=error.field,
                remedy=f"{error.remedy or 'set it back'}; or: ragbandit policy rollback {version.name}",
            ) from error
        before, self.snapshots = self.ledger.label, snapshots
        self._service.take_over(snapshots.serving)
        self._service.store.label = self.ledger.label
        if before != self.ledger.label:
            facts = {"action": "champion", "version": _name_of(version), "snapshot": snapshots.serving.version}
            log.info("another version decides from now on", extra=facts)


def _name_of(version: PolicyVersion | None) -> str:
    return "the configuration" if version is None else version.name


def _place(version: PolicyVersion) -> tuple[bool, float, str]:
    """Canaries first, then the oldest."""
    return version.state != "canary", version.since, version.name


def _in_order(candidates: "list[Candidate]") -> tuple[Candidate, ...]:
    """The live ones, the canary first; should there be two, the younger one is asked as if it were in shadow."""
    live = sorted((one for one in candidates if one.version.state in LIVE_STATES), key=lambda one: _place(one.version))
    return (*live[:1], *(replace(one, version=replace(one.version, state="shadow", weight=0.0)) for one in live[1:]))
