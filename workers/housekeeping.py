"""Housekeeping: learning, and the threads that a worker process runs in addition to its jobs."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.learner import Learner
from ragbandit.router.queue.streams import STREAM_NEWS
from ragbandit.router.rollouts.evaluator import Evaluator
from ragbandit.router.rollouts.overview import settings_of
from ragbandit.router.serving import pending
from ragbandit.router.serving.pending import recover
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.ledgers.inheritance import is_inheriting, retire
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import control_of, versions_of
from ragbandit.router.storage.retention import Retention
from ragbandit.router.storage.totals import Extender
from ragbandit.router.telemetry.routines import Routine
from ragbandit.shared.child_process import lease_holder
from ragbandit.shared.errors import Conflict, NotReady, SnapshotError, StoreError
from ragbandit.shared.steady_clock import steady_clock
from ragbandit.shared.types import DecisionId, PolicyVersion
from ragbandit.workers.check_process import check_reward_check
from ragbandit.workers.context import Checking, Context
from ragbandit.workers.scoring import check_answers
from ragbandit.workers.threads import insist

log = logging.getLogger("ragbandit.worker")

_LEARNING: Final = frozenset({"shadow", "canary", "paused", "champion"})
#: versions that learn at once: those in shadow beyond it are never more than `rollout.shadows`
MOST: Final = 32
#: how long a learner that was woken tries again while the store fails; after that it looks as often as ever
LEARN_S: Final = 60.0
#: least time between two wake-ups of the learner that are heeded, seconds: what comes meanwhile is learned together
GATHER_S: Final = 0.2
#: how often versions of the policy are looked at, seconds
WATCH_S: Final = 5.0


def next_learn(context: Context, woken: bool) -> Callable[[], int] | None:  # noqa: FBT001 - as Consumer.look
    """Learning, if a wake-up came or the ledger has something ready."""
    if woken:
        context.ending.wait(context.looked_at + GATHER_S - time.monotonic())
    context.looked_at = time.monotonic()
    return partial(learn, context) if woken or _is_due(context, context.ledger) else None


def learn(context: Context) -> int:
    """Learn everything that is ready in this ledger; the number of decisions closed, 0 if nothing can be learned now.

    While the store fails it is tried for LEARN_S.
    """
    learner = context.learner
    assert learner is not None
    context.wake_versions()
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
    """The thread that keeps a learner for each version that learns, and retires the ledgers of those that are over."""
    running, retired = dict[str, _VersionLearner](), set[str]()

    def look() -> None:
        versions = _versions(context)
        wanted = {one.name: one for one in learning_versions(versions)}
        for name in set(running) - set(wanted):
            running.pop(name).close()
        for name in set(wanted) - set(running):
            running[name] = _VersionLearner(context, wanted[name])
            running[name].start()
            retired.discard(name)
        for version in versions:
            over = version.state in ("rolled_back", "retired") and version.label != version.base
            done = version.name in wanted or version.name in retired
            if over and not done and _retired(context, version):
                retired.add(version.name)

    def wake() -> None:
        for one in list(running.values()):
            one.wake()

    def close() -> None:
        for one in running.values():
            one.close()

    context.wake_versions = wake
    interval = context.settings.workers.sweep_interval_s
    return Routine("look at which versions learn", look, every_s=interval, at_end=close).start()


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


class _VersionLearner(Routine):
    """Learns for one version."""

    def __init__(self, context: Context, version: PolicyVersion) -> None:
        chore = f"learn for the version {version.name!r} (ragbandit policy show {version.name})"
        interval = context.settings.workers.sweep_interval_s
        super().__init__(chore, self._learn, every_s=interval)
        self._context, self._version = context, version
        self._ledger = Ledger(context.store.database, label=version.label)
        self._learner: Learner | None = None
        self._due, self._published = False, False

    def wake(self) -> None:
        """There may be something to learn."""
        self._due = True
        super().wake()

    def _learn(self) -> None:
        context = self._context
        if self._learner is None:
            settings = settings_of(context.settings, self._version)
            self._learner = make_learner(settings, database=context.store.database, jobs=context.jobs)
        due, self._due = self._due, False
        if not (due or not self._published or _is_due(context, self._ledger)):
            return
        try:
            self._learner.drain()
        except NotReady as error:  # no router has opened its ledger yet
            log.debug("a version cannot learn yet", extra={"action": "learn", "reason": str(error)})
        else:
            self._published = True


def _is_due(context: Context, ledger: Ledger) -> bool:
    """The ledger has something ready."""
    rule = closing_rule(context.settings.learning)
    return bool(is_inheriting(ledger) or ledger.ready(rule, now=steady_clock().now(), limit=1))


#: how often a process renews its claims and looks for those of processes that have ended, seconds
CLAIMS_S: Final = 0.5
#: how often a worker looks in SQL for runs that were cancelled, seconds, at most
CANCELLED_S: Final = 5.0
#: how often answers to check are looked for, seconds
CHECK_S: Final = 1.0
#: decisions that a log line names
SHOWN: Final = 5
#: how often the hourly totals are extended, seconds
TOTALS_S: Final = 5.0
#: how often it is looked whether decisions are old enough to leave, or too many, seconds
RETENTION_S: Final = 60.0
#: longest step of it, and its pause while there is more to read
TOTALS_STEP_S: Final = 2.0


def handle_notification(context: Context, notification: str) -> None:
    """At "cancel:<id>" of a run that is active here, find in the database which runs are to be stopped.

    At "stream:<id>" of one, it gives its answer out from now on.
    """
    kind, _, key = notification.partition(":")
    if kind == STREAM_NEWS and context.streams is not None:
        context.streams.wanted(DecisionId(key))
    if kind == "cancel" and key in context.active_runs.ids():
        stop_cancelled(context)


def routines_of(context: Context) -> list[Routine]:
    """Start the threads of this process.

    Every worker stops cancelled runs and renews its claims. A worker that learns also does what one process per store
    does at a time: lost notifications, hourly totals, versions, retention, checks of answers.
    """
    settings, database = context.settings, context.store.database
    sweep_s = settings.workers.sweep_interval_s
    if context.learner is not None:
        check_reward_check(settings.reward)
    routines = [
        Routine("look for cancelled runs", partial(stop_cancelled, context), every_s=min(sweep_s, CANCELLED_S)).start(),
        Routine("renew the claims of what runs here", partial(keep_claims, context), every_s=CLAIMS_S).start(),
    ]
    if context.learner is None:
        return routines
    extender = Extender(database, holder=lease_holder("totals"), weight=settings.reward.weight)
    evaluator = Evaluator(database, settings=settings)

    def wake_again() -> None:
        recover(database, jobs=context.jobs, settings=settings, now=steady_clock().now())

    def extend_totals() -> float:
        return TOTALS_STEP_S if extender.extend(seconds=TOTALS_STEP_S) else TOTALS_S

    def watch_rollouts() -> None:
        evaluator.evaluate(now=time.time())

    routines += [
        Routine("look for unfinished decisions", wake_again, every_s=sweep_s).start(),
        Routine("extend the hourly totals", extend_totals, every_s=TOTALS_S, at_end=extender.release).start(),
        Routine("look at policy versions", watch_rollouts, every_s=WATCH_S, at_end=evaluator.close).start(),
        version_learning(context),
    ]
    if limits := settings.retention.model_dump(exclude_none=True):
        retention = Retention(database, holder=lease_holder("retention"), **limits)
        chore = "let old decisions leave the store"
        routines.append(Routine(chore, retention.step, every_s=RETENTION_S, at_end=retention.release).start())
    return routines if settings.reward.check is None else [*routines, checking_routine(context)]


def checking_routine(context: Context) -> Routine:
    """The thread that checks answers, one at a time; several workers that learn check several."""
    context.checking = checking = Checking(context.settings.reward, store=context.store)
    check, close = partial(check_answers, context), checking.process.end
    return Routine("check answers", check, every_s=CHECK_S, at_end=close).start()


def stop_cancelled(context: Context) -> None:
    """Stop the runs here that their callers have cancelled, as the database says."""
    for key in pending.requested(context.store.database, ids=context.active_runs.ids()):
        if context.active_runs.stop(key):
            log.info("a run was cancelled by its caller", extra={"action": "cancel", "decision": key})


def keep_claims(context: Context) -> None:
    """Renew the claims of what runs here, and let be claimed again what processes ran that have ended."""
    for claims, active in context.claimed():
        claims.renew(active.ids())
        lost = claims.free_lost(held=active.ids())
        if lost:
            facts = {"action": "requeue", "count": len(lost), "decisions": ", ".join(lost[:SHOWN])}
            log.warning("a worker process ended while it ran decisions; they are queued again, in front", extra=facts)
        if claims is context.queue:
            context.notifier.request_answers(lost)
