"""Learners of a policy's versions: they start and stop with their versions."""

import logging
import time
from collections.abc import Sequence

from ragbandit.router.learning.learner import Learner
from ragbandit.router.rollouts.version_settings import settings_of
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.ledgers.inheritance import retire
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import control_of, previous_champion, versions_of
from ragbandit.router.telemetry.routines import Routine
from ragbandit.shared.errors import Conflict, NotReady
from ragbandit.shared.types import PolicyVersion
from ragbandit.workers.chores.chore import Chore
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.learning import is_due

log = logging.getLogger("ragbandit.worker")


def learning_versions(versions: Sequence[PolicyVersion]) -> list[PolicyVersion]:
    """The versions that learn in ledgers of their own: champion, shadows, and the champion that a rollback restores."""
    last = previous_champion(versions)
    return [v for v in versions if v.label != v.base and (v.state in ("champion", "shadow") or v is last)]


class VersionLearning(Chore):
    """Starts and stops the learners of versions, and retires the ledgers of ended versions."""

    title = "look at which versions learn"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.every_s = context.settings.workers.sweep_interval_s
        self._running = dict[str, _VersionLearner]()
        self._retired = set[str]()
        context.wake_versions = self.wake

    def do(self) -> None:
        context, running = self.context, self._running
        with context.store.database.read() as connection:
            base = context.store.label
            has_versions = control_of(connection, base=base).revision > 0
            versions = versions_of(connection, base=base) if has_versions else []
        learning = {version.name: version for version in learning_versions(versions)}
        for name in set(running) - set(learning):
            running.pop(name).close()
        for name in set(learning) - set(running):
            running[name] = _VersionLearner(context, learning[name])
            running[name].start()
            self._retired.discard(name)
        for version in versions:
            has_ended = version.state == "retired" and version.label != version.base
            is_done = version.name in learning or version.name in self._retired
            if has_ended and not is_done and _retire_ledger(context, version):
                self._retired.add(version.name)

    def wake(self) -> None:
        for learner in list(self._running.values()):
            learner.wake()

    def end(self) -> None:
        for learner in self._running.values():
            learner.close()


def _retire_ledger(context: Context, version: PolicyVersion) -> bool:
    """Close the decisions that this version's ledger has not learned. Returns whether all are closed."""
    ledger = Ledger(context.store.database, label=version.label)
    if ledger.policy_row() is None:
        return True
    holder = f"retire-{context.ledger.label}-{id(context)}"
    lease_s = context.settings.learning.lease_s
    try:
        while not context.ending.is_set() and ledger.acquire(holder=holder, lease_s=lease_s):
            if retire(ledger, holder=holder, now=time.time()) == "done":
                log.info("the ledger of a version is retired", extra={"action": "retire", "version": version.name})
                return True
    except Conflict:  # another process has taken the lease, and retires the ledger
        pass
    finally:
        ledger.release(holder=holder)
    return False


class _VersionLearner(Routine):
    def __init__(self, context: Context, version: PolicyVersion) -> None:
        chore = f"learn for the version {version.name!r} (`ragbandit policy show {version.name}`)"
        super().__init__(chore, self._learn, every_s=context.settings.workers.sweep_interval_s)
        self._context, self._version = context, version
        self._ledger = Ledger(context.store.database, label=version.label)
        self._learner: Learner | None = None
        self._is_woken, self._published = False, False

    def wake(self) -> None:
        self._is_woken = True
        super().wake()

    def _learn(self) -> None:
        context = self._context
        if self._learner is None:
            settings = settings_of(context.settings, self._version)
            self._learner = make_learner(settings, self._ledger, jobs=context.jobs)
        woken, self._is_woken = self._is_woken, False
        if self._published and not woken and not is_due(context, self._ledger):
            return
        try:
            self._learner.drain()
            self._published = True
        except NotReady as error:  # no router has opened the version's ledger yet
            log.debug("a version cannot learn yet", extra={"action": "learn", "reason": str(error)})
