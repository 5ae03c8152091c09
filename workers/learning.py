"""Learning: jobs of the queue `learn`, and the learners of versions.

Each version learns in a ledger of its own, on a thread of its own, so that none holds up another.
A version learns while it is in shadow or canary, paused, or champion; the champion before this one goes on too, since
it may have to decide again. The ledgers of others are retired: no decision waits for them any more.
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.learner import Learner
from ragbandit.router.rollouts.overview import settings_of
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.ledgers.inheritance import is_inheriting, retire
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import control_of, versions_of
from ragbandit.shared.errors import Conflict, NotReady, SnapshotError, StoreError
from ragbandit.shared.types import PolicyVersion
from ragbandit.workers.context import Context
from ragbandit.workers.outages import Routine, insist

log = logging.getLogger("ragbandit.worker")

_LEARNING: Final = frozenset({"shadow", "canary", "paused", "champion"})
#: versions that learn at once: those in shadow beyond it are never more than `rollout.shadows`
MOST: Final = 32
#: how long a learner that was woken tries again while the store fails; after that it looks as often as ever
LEARN_S: Final = 60.0


def next_learn(context: Context, woken: bool) -> Callable[[], int] | None:  # noqa: FBT001 - as Consumer.look
    """Learning, where a wake-up came or the ledger has something ready."""
    return partial(learn, context) if woken or _is_due(context, context.ledger) else None


def learn(context: Context) -> int:
    """Learn everything that is ready in this ledger; the number of decisions closed."""
    learner = context.learner
    assert learner is not None
    context.wake_versions()
    return _drained(context, learner)


def _drained(context: Context, learner: Learner) -> int:
    """The number of decisions closed, 0 if nothing can be learned now. While the store fails, tried for LEARN_S."""
    drained = partial(drain, context, learner, patience_s=context.settings.learning.lease_s + 1)
    try:
        return insist(drained, seconds=LEARN_S, ending=context.ending)
    except NotReady as error:
        log.info("nothing can be learned yet", extra={"action": "learn", "reason": str(error)})
    except (StoreError, SnapshotError):  # logged once per outage
        pass
    return 0


def drain(context: Context, learner: Learner, *, patience_s: float = 0.0) -> int:
    """As Learner.drain. A store that fails is logged once per outage, and /ready shows it. Raises what drain raises."""
    outage, label = context.learning, learner.ledger.label
    failing = outage.lasts
    try:
        done = learner.drain(patience_s=patience_s)
    except (StoreError, SnapshotError) as error:
        outage.failed(error)
        reason = str(error)
        context.notifier.attempt(lambda: context.jobs.set_learner_fault(label, reason))
        raise
    if failing:
        outage.ended()
        context.notifier.attempt(lambda: context.jobs.set_learner_fault(label, None))
    return done


def learning_versions(versions: Sequence[PolicyVersion]) -> list[PolicyVersion]:
    """Those that learn in a ledger beside the configuration's own."""
    former = [one for one in versions if one.state == "retired" and one.former == "champion"]
    last = max(former, key=lambda one: one.since, default=None)
    learning = [one for one in versions if one.label != one.base and (one.state in _LEARNING or one is last)]
    return sorted(learning, key=lambda one: (one.state != "champion", one.state != "canary", one.since))[:MOST]


def version_learning(context: Context) -> Routine:
    """The thread that keeps a learner for each version that learns."""
    learners = VersionLearners(context)
    context.wake_versions = learners.wake
    interval = context.settings.workers.sweep_interval_s
    return Routine("look at which versions learn", learners.look, every_s=interval, at_end=learners.close)


class VersionLearners:
    """The learners of versions, each in a thread of its own."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._running: dict[str, _VersionLearner] = {}
        self._retired: set[str] = set()

    def look(self) -> None:
        """Begin to learn for the versions that do now, end it for the others, and retire the ledgers of those over."""
        versions = _versions(self._context)
        wanted = {one.name: one for one in learning_versions(versions)}
        for name in set(self._running) - set(wanted):
            self._running.pop(name).close()
        for name in set(wanted) - set(self._running):
            self._running[name] = _VersionLearner(self._context, wanted[name])
            self._retired.discard(name)
        for version in versions:
            over = version.state in ("rolled_back", "retired") and version.label != version.base
            done = version.name in wanted or version.name in self._retired
            if over and not done and _retired(self._context, version):
                self._retired.add(version.name)

    def wake(self) -> None:
        """There may be something to learn."""
        for one in list(self._running.values()):
            one.wake()

    def close(self) -> None:
        """End all of them."""
        for one in self._running.values():
            one.close()


def _versions(context: Context) -> list[PolicyVersion]:
    base = context.store.label
    with context.store.database.read() as connection:
        any_made = control_of(connection, base=base).revision
        return versions_of(connection, base=base) if any_made else []


def _retired(context: Context, version: PolicyVersion) -> bool:
    """Let no decision wait for this version's ledger; whether that is done. A ledger that never began is."""
    ledger = Ledger(context.store.database, label=version.label)
    if ledger.registered() is None:
        return True
    holder, learning = f"retire-{context.ledger.label}-{id(context)}", context.settings.learning
    try:
        while not context.ending.is_set() and ledger.acquire(holder=holder, lease_s=learning.lease_s):
            if retire(ledger, holder=holder, now=time.time()) == "done":
                log.info("the ledger of a version is retired", extra={"action": "retire", "version": version.name})
                return True
    except Conflict:  # the lease was lost: its next holder does it
        pass
    finally:
        ledger.release(holder=holder)
    return False


class _VersionLearner:
    """Learns for one version."""

    def __init__(self, context: Context, version: PolicyVersion) -> None:
        self._context, self._version = context, version
        self._ledger = Ledger(context.store.database, label=version.label)
        self._learner: Learner | None = None
        self._woken, self._published = False, False
        self._routine = Routine(
            f"learn for the version {version.name!r} (ragbandit policy show {version.name})",
            self._learn,
            every_s=context.settings.workers.sweep_interval_s,
            at_end=self._end,
        )
        self.close = self._routine.close

    def wake(self) -> None:
        """There may be something to learn."""
        self._woken = True
        self._routine.wake()

    def _learn(self) -> None:
        context = self._context
        if self._learner is None:
            settings = settings_of(context.settings, self._version)
            self._learner = make_learner(settings, database=context.store.database, jobs=context.jobs)
        woken, self._woken = self._woken, False
        if not (woken or not self._published or _is_due(context, self._ledger)):
            return
        try:
            self._learner.drain()
        except NotReady as error:  # no router has opened its ledger yet
            log.debug("a version cannot learn yet", extra={"action": "learn", "reason": str(error)})
        else:
            self._published = True

    def _end(self) -> None:
        if self._learner is not None:
            self._learner.close()


def _is_due(context: Context, ledger: Ledger) -> bool:
    """The ledger has something ready."""
    rule = closing_rule(context.settings.learning)
    return bool(is_inheriting(ledger) or ledger.ready(rule, now=time.time(), limit=1))
