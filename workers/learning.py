"""Learning: jobs of the queue `learn`, and the learners of versions.

Each version learns in a ledger of its own, on a thread of its own, so that none holds up another.
A version learns while it is in shadow or canary, paused, or champion; the champion before this one goes on too, since
it may have to decide again. The ledgers of others are retired: no decision waits for them any more.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.learner import Learner
from ragbandit.router.rollouts.served import settings_of
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.ledgers.inheritance import Pace, is_inheriting, retire
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import control_of, versions_of
from ragbandit.shared.errors import Conflict, NotReady, SnapshotError, StoreError
from ragbandit.shared.types import PolicyVersion
from ragbandit.workers.context import Context, StoreOutage

log = logging.getLogger("ragbandit.worker")

_LEARNING: Final = frozenset({"shadow", "canary", "paused", "champion"})
#: versions that learn at once: those in shadow beyond it are never more than `rollout.shadows`
MOST: Final = 32
#: how long a thread that is to end is waited for, seconds
JOIN_S: Final = 5.0
#: how long a learner that was woken tries again while the store fails; after that it looks as often as ever
LEARN_S: Final = 60.0
#: longest pause between two of these attempts
LEARN_PAUSE_S: Final = 10.0


def next_learn(context: Context, rang: bool) -> Callable[[], int] | None:  # noqa: FBT001 - as Consumer.look
    """Learning, where a bell rang or the ledger has something ready."""
    rule = closing_rule(context.settings.learning)
    due = rang or is_inheriting(context.ledger) or context.ledger.ready(rule, now=time.time(), limit=1)
    return partial(learn, context) if due else None


def learn(context: Context) -> int:
    """Learn everything that is ready in this ledger; the number of decisions closed."""
    learner = context.learner
    assert learner is not None
    context.wake_versions()
    return _drained(context, learner)


def _drained(context: Context, learner: Learner) -> int:
    """The number of decisions closed, 0 if nothing can be learned now. While the store fails, tried for LEARN_S."""
    give_up, pause = time.monotonic() + LEARN_S, 0.25
    while True:
        try:
            return drain(context, learner, patience_s=context.settings.learning.lease_s + 1)
        except NotReady as error:
            log.info("nothing can be learned yet", extra={"action": "learn", "reason": str(error)})
            return 0
        except (StoreError, SnapshotError):  # logged once per outage
            if context.ending.is_set() or time.monotonic() >= give_up:
                return 0
        pause = min(LEARN_PAUSE_S, 2 * pause)
        context.ending.wait(min(pause, max(0.0, give_up - time.monotonic())))


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
    found = [one for one in versions if one.label != one.base and (one.state in _LEARNING or one is last)]
    return sorted(found, key=lambda one: (one.state != "champion", one.state != "canary", one.since))[:MOST]


def learn_versions(context: Context, stop: threading.Event) -> None:
    """Keep a learner for each version that learns, until `stop` is set."""
    interval = context.settings.workers.sweep_interval_s
    running: dict[str, _VersionLearner] = {}
    retired: set[str] = set()

    def wake() -> None:
        for one in list(running.values()):
            one.wake()

    context.wake_versions = wake
    outage = StoreOutage(
        action="versions",
        failing="cannot look at which versions learn; trying again. Those that learn go on",
        restored="can look at which versions learn again",
    )
    while not stop.wait(interval):
        try:
            versions = _versions(context)
            wanted = {one.name: one for one in learning_versions(versions)}
            for name in set(running) - set(wanted):
                running.pop(name).close()
            for name in set(wanted) - set(running):
                running[name] = _VersionLearner(context, wanted[name])
                retired.discard(name)
            for version in versions:
                over = version.state in ("rolled_back", "retired") and version.label != version.base
                if over and version.name not in wanted and version.name not in retired and _retired(context, version):
                    retired.add(version.name)
            outage.ended()
        except Exception as error:  # most often a StoreError; the thread must live on
            outage.failed(error)
    for one in running.values():
        one.close()


def _versions(context: Context) -> list[PolicyVersion]:
    base = context.store.label
    with context.store.database.read() as connection:
        made = control_of(connection, base=base).revision
        return versions_of(connection, base=base) if made else []


def _retired(context: Context, version: PolicyVersion) -> bool:
    """Let no decision wait for this version's ledger; whether that is done. A ledger that never began is."""
    ledger = Ledger(context.store.database, label=version.label)
    if ledger.registered() is None:
        return True
    holder, pace, learning = f"retire-{context.ledger.label}-{id(context)}", Pace(), context.settings.learning
    try:
        while not context.ending.is_set() and ledger.acquire(holder=holder, lease_s=learning.lease_s):
            step = retire(ledger, holder=holder, now=time.time(), pace=pace)
            if step == "done":
                log.info("the ledger of a version is retired", extra={"action": "retire", "version": version.name})
                return True
            pace.rest(step)
    except Conflict:  # the lease was lost: its next holder does it
        pass
    finally:
        ledger.release(holder=holder)
    return False


class _VersionLearner:
    """The thread that learns for one version."""

    def __init__(self, context: Context, version: PolicyVersion) -> None:
        self._context, self._version = context, version
        self._ledger = Ledger(context.store.database, label=version.label)
        self._learner: Learner | None = None
        self._wake, self._ending = threading.Event(), threading.Event()
        self._woken, self._published = False, False
        self._outage = StoreOutage(
            action="learn",
            failing=f"the version {version.name!r} cannot learn; trying again, and nothing is lost. "
            f"See: ragbandit policy show {version.name}",
            restored=f"the version {version.name!r} learns again",
        )
        self._thread = threading.Thread(target=self._run, name=f"ragbandit-learn-{version.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There may be something to learn."""
        self._woken = True
        self._wake.set()

    def close(self) -> None:
        """End the thread; one that is in the middle of learning gets JOIN_S for it."""
        self._ending.set()
        self._wake.set()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        interval = self._context.settings.workers.sweep_interval_s
        while not self._ending.is_set():
            try:
                self._learn()
                self._outage.ended()
            except NotReady as error:  # no router has opened its ledger yet
                log.debug("a version cannot learn yet", extra={"action": "learn", "reason": str(error)})
            except BaseException as error:  # whatever a candidate's class does: its thread must live on
                self._outage.failed(error)
            self._wake.wait(interval)
            self._wake.clear()
        if self._learner is not None:
            self._learner.close()

    def _learn(self) -> None:
        context = self._context
        if self._learner is None:
            settings = settings_of(context.settings, self._version)
            self._learner = make_learner(settings, database=context.store.database, jobs=context.jobs)
        woken, self._woken = self._woken, False
        if woken or not self._published or self._is_due():
            self._learner.drain()
            self._published = True

    def _is_due(self) -> bool:
        rule = closing_rule(self._context.settings.learning)
        return bool(is_inheriting(self._ledger) or self._ledger.ready(rule, now=time.time(), limit=1))
