"""Version follower: keeps what is live here as the database says.

The thread that decides calls `glance` before each batch: one row by its key. A switch that was thrown holds at once,
and so does a version that was taken out or has another weight. What has to be loaded, a new candidate or another
champion, is loaded by `follow` on another thread, and decides from when it is there.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic, TypeVar

from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.learning.monitoring.frontier import read_frontier
from ragbandit.router.learning.snapshots import SnapshotFiles
from ragbandit.router.policies.base import serves_prices
from ragbandit.router.queue.notifier import Jobs, Notifier, Subscription
from ragbandit.router.rollouts.overview import settings_of
from ragbandit.router.serving.deciding.live import (
    NOTHING_LIVE,
    Candidate,
    CandidateRunner,
    LiveVersions,
    Serving,
    as_fault,
)
from ragbandit.router.serving.deciding.service import RouteService
from ragbandit.router.serving.following.snapshots import SnapshotFollower, registered_follower
from ragbandit.router.serving.overview import Savings
from ragbandit.router.serving.pending import PendingAnswers
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import control_of, versions_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.telemetry.routines import Routine, StoreOutage
from ragbandit.shared.errors import ConfigError, Conflict, NotReady, RagBanditError
from ragbandit.shared.types import LIVE_STATES, ArmName, PolicyControl, PolicyLabel, PolicyVersion

log = logging.getLogger("ragbandit.versions")

#: a candidate that could not be loaded is tried again after so long, seconds
AGAIN_S: Final = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _LoadedCandidate:
    """A candidate whose policy is loaded, and what keeps it up to date."""

    settings: Settings
    snapshots: SnapshotFollower
    serving: Serving


class VersionFollower:
    """What is live of the versions of one configuration. wake: lets `follow` be called soon."""

    #: how long a candidate that is loaded for the first time is waited for, seconds
    load_s = 5.0

    def __init__(
        self,
        database: Database,
        *,
        base: PolicyLabel,
        files: SnapshotFiles,
        encoder: Encoder,
        settings: Settings,
        wake: Callable[[], None],
    ) -> None:
        self.database, self.base, self.files, self.encoder = database, base, files, encoder
        self.settings, self.wake = settings, wake
        self.live: LiveVersions = NOTHING_LIVE
        #: the version that is to decide; None: the configuration itself
        self.champion: PolicyVersion | None = None
        self._loaded_revision = 0
        self._again_at: float | None = None
        self._loaded: dict[str, _LoadedCandidate] = {}
        self._runners: dict[str, CandidateRunner] = {}
        self._loader: CandidateLoader[_LoadedCandidate] = CandidateLoader(wait_s=self.load_s)
        self._lock = threading.Lock()

    def glance(self) -> LiveVersions:
        """What is live for the next batch. Raises StoreError."""
        with self.database.read() as connection:
            control = control_of(connection, base=self.base)
            if control.revision == self.live.control.revision:
                return self.live
            versions = {one.name: one for one in versions_of(connection, base=self.base)}
        with self._lock:
            if control.revision > self.live.control.revision:
                candidates = [replace(one, version=versions[one.version.name]) for one in self.live.candidates]
                self.live = LiveVersions(control=control, candidates=_in_order(candidates))
            live = self.live
        self.wake()
        return live

    def follow(self) -> None:
        """Load what has become live, drop what is not, and take over newer snapshots. Raises StoreError."""
        with self.database.read() as connection:
            control = control_of(connection, base=self.base)
            due = control.revision != self._loaded_revision or self._is_due()
            versions = versions_of(connection, base=self.base) if due else []
        if due:
            self._load(control, versions)
        self._refresh()

    def learned(self) -> list[Settings]:
        """The settings of the versions that learn here beside the configuration: the champion's, and candidates'."""
        champion = [] if self.champion is None else [settings_of(self.settings, self.champion)]
        return champion + [one.settings for one in self._loaded.values()]

    def close(self) -> None:
        """End the threads of the candidates."""
        for runner in self._runners.values():
            runner.close()

    def _is_due(self) -> bool:
        return self._again_at is not None and time.monotonic() >= self._again_at

    def _load(self, control: PolicyControl, versions: list[PolicyVersion]) -> None:
        champion = next((one for one in versions if one.state == "champion"), None)
        self.champion = None if champion is None or champion.label == self.base else champion
        versions = [one for one in versions if one.state in LIVE_STATES]
        most = self.settings.rollout.shadows + 1  # and a canary
        self._again_at = None
        arms = self._champion_arms()
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
        log.info("versions as of revision %d", control.revision, extra={"action": "versions", "live": listed})

    def _champion_arms(self) -> Mapping[str, object]:
        if self.champion is None:
            return self.settings.arms
        try:
            return settings_of(self.settings, self.champion).arms
        except RagBanditError:  # whoever takes the champion over says so
            return self.settings.arms

    def _candidate(self, version: PolicyVersion, *, champion_arms: Mapping[str, object]) -> Candidate:
        limit_s = self.settings.rollout.time_limit_s
        runner = self._runners.setdefault(version.name, CandidateRunner(version.name, limit_s=limit_s))
        loaded, fault = self._loaded.get(version.name), None
        try:
            if loaded is None:
                loaded = self._loader.loaded(version.name, partial(self._load_one, version))
                self._loaded[version.name] = loaded
        except Exception as error:  # whatever a candidate's class does: it must not stop the others
            fault = f"it cannot be loaded: {error}"
            self._again_at = time.monotonic() + AGAIN_S
            facts = {"action": "candidate", "version": version.name, "reason": str(error)}
            log.error("a candidate cannot be loaded: the champion decides alone", extra=facts)
        settings = self.settings if loaded is None else loaded.settings
        added = [name for name in settings.arms if name not in champion_arms]
        return Candidate(
            version=version,
            settings=settings,
            serving=None if loaded is None else loaded.serving,
            unloaded=fault,
            runner=runner,
            added=tuple(map(ArmName, added)),
        )

    def _load_one(self, version: PolicyVersion) -> _LoadedCandidate:
        settings = settings_of(self.settings, version)
        snapshots = registered_follower(self.database, settings, files=self.files, encoder=self.encoder)
        return _LoadedCandidate(settings=settings, snapshots=snapshots, serving=snapshots.first())

    def _refresh(self) -> None:
        """Newer snapshots of the candidates."""
        for name, known in list(self._loaded.items()):
            try:
                known.snapshots.refresh(partial(self._serving_of, name), swap=partial(self._swap, name))
            except Exception as error:  # whatever a candidate's class does: it must not stop the others
                facts = {"action": "candidate", "version": name, "reason": str(error)}
                log.warning("a newer snapshot of a candidate cannot be loaded", extra=facts)

    def _serving_of(self, name: str) -> Serving:
        return self._loaded[name].serving

    def _swap(self, name: str, serving: Serving) -> None:
        self._loaded[name] = replace(self._loaded[name], serving=serving)
        with self._lock:
            newer = (replace(one, serving=serving) if one.version.name == name else one for one in self.live.candidates)
            self.live = replace(self.live, candidates=tuple(newer))


def _place(version: PolicyVersion) -> tuple[bool, float, str]:
    """Canaries first, then the oldest."""
    return version.state != "canary", version.since, version.name


def _in_order(candidates: "list[Candidate]") -> tuple[Candidate, ...]:
    """The live ones, the canary first; should there be two, the younger one is asked as if it were in shadow."""
    live = sorted((one for one in candidates if one.version.state in LIVE_STATES), key=lambda one: _place(one.version))
    return (*live[:1], *(replace(one, version=replace(one.version, state="shadow", weight=0.0)) for one in live[1:]))


Loaded = TypeVar("Loaded")


class CandidateLoader(Generic[Loaded]):
    """Loads by name. One thread for each name at most, however long it takes; what it loads late is there later."""

    def __init__(self, *, wait_s: float) -> None:
        """wait_s: how long what is asked for the first time is waited for."""
        self.wait_s = wait_s
        self._pending: dict[str, Future[Loaded]] = {}

    def loaded(self, name: str, load: Callable[[], Loaded]) -> Loaded:
        """What `load` gives. Raises what it raises, and NotReady while it has not come back; then ask again."""
        pending, wait_s = self._pending.get(name), 0.0
        if pending is None:
            pending, wait_s = Future(), self.wait_s
            self._pending[name] = pending
            threading.Thread(target=_run, args=(load, pending), name=f"ragbandit-load-{name}", daemon=True).start()
        wait([pending], wait_s)
        if not pending.done():
            raise NotReady(f"it has not been loaded within {self.wait_s:g} s, and is waited for")
        del self._pending[name]
        return pending.result()


def _run(load: Callable[[], Loaded], pending: "Future[Loaded]") -> None:
    try:
        loaded = load()
    except BaseException as error:
        pending.set_exception(as_fault(error))
    else:
        pending.set_result(loaded)


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
                log.error("the champion cannot be used here: the previous one keeps deciding", extra=facts)

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


#: seconds between two polls for new snapshots, awaited outcomes and the arms' health; a notification comes sooner
POLL_S = 1.0


class Updates:
    """Tells the parts of a router what is new: snapshots, versions, outcomes, the arms' health."""

    def __init__(
        self,
        jobs: Jobs,
        *,
        notifier: Notifier,
        service: RouteService,
        following: PolicyFollower,
        answers: PendingAnswers,
        savings: Savings,
    ) -> None:
        self._jobs, self._notifier = jobs, notifier
        self._service, self._following, self._answers = service, following, answers
        self._savings = savings
        outage = StoreOutage(
            action="poll",
            failing="polling the database failed; trying again",
            restored="polling the database works again",
            log="ragbandit.snapshots",
        )
        self._poll = Routine("follow", self._catch_up, every_s=POLL_S, at_once=False, outage=outage)
        self._poll_health_at = 0.0
        #: None before `start`
        self.listener: Subscription | None = None

    def start(self) -> None:
        """Start the threads that poll and listen."""
        self._poll.start()
        self.listener = self._jobs.listen(self.handle)

    def close(self) -> None:
        """End the threads."""
        self._poll.close()
        if self.listener is not None:
            self.listener.close()

    def wake(self) -> None:
        """Poll now instead of at the next interval."""
        self._poll.wake()

    def handle(self, notification: str) -> None:
        """Take what a worker or the learner says: "snapshot:<version>", "outcome:<decision id>"."""
        kind, _, key = notification.partition(":")
        if kind == "snapshot":
            self.wake()
        elif kind == "outcome":
            if self._answers.is_awaited(key):
                self._answers.deliver(self._service.store.outcomes_by_id([key]))
            else:
                self._answers.answered([key])

    def hears(self) -> bool:
        """Whether notifications arrive in this process; True before `start`."""
        return self.listener is None or self.listener.fault() is None

    def redis_fault(self) -> str | None:
        """What this process cannot do with Redis; None: nothing."""
        listener = None if self.listener is None else self.listener.fault()
        faults = (listener, self._notifier.fault())
        return "; ".join(fault for fault in faults if fault) or None

    def check_redis(self) -> None:
        """Raises QueueError where Redis cannot be reached, NotReady with the fault of `redis_fault`."""
        self._jobs.ping()
        fault = self.redis_fault()
        if fault is not None:
            raise NotReady(fault)

    def _catch_up(self) -> None:
        if time.monotonic() >= self._poll_health_at:
            self._poll_health_at = time.monotonic() + POLL_S
            self._service.poll_outcomes(more=self._following.versions.live.added)
        self._following.refresh()
        self._answers.poll()
        self._savings.refresh()
