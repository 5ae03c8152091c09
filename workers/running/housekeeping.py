"""Housekeeping: jobs of the queue `learn`, and the background threads of a worker process."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.learner import Learner
from ragbandit.router.queue.streams import STREAM_NEWS
from ragbandit.router.reporting.paired_requests import request_of
from ragbandit.router.rollouts.overview import settings_of
from ragbandit.router.rollouts.verbs import previous_champion
from ragbandit.router.serving.setup.bootstrap import make_learner
from ragbandit.router.storage.cancellations import cancellations_of
from ragbandit.router.storage.ledgers.inheritance import is_inheriting, retire
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.policy_versions import control_of, versions_of
from ragbandit.router.storage.retention import Retention
from ragbandit.router.storage.sql.leases import lease_holder
from ragbandit.router.storage.totals import Extender
from ragbandit.router.telemetry.routines import Routine, StoreOutage
from ragbandit.shared.errors import Conflict, NotReady, SnapshotError, StoreError
from ragbandit.shared.processes.steady_clock import steady_clock
from ragbandit.shared.types import DecisionId, PolicyVersion
from ragbandit.workers.judge.reward_check import check_reward_check
from ragbandit.workers.running.clock_watch import watch_clock
from ragbandit.workers.running.context import Context
from ragbandit.workers.running.recovery import recover
from ragbandit.workers.running.retries import insist
from ragbandit.workers.running.scorers import Checking
from ragbandit.workers.running.scoring import check_answers

log = logging.getLogger("ragbandit.worker")

#: time for which a learner tries again while the store fails, seconds
LEARN_S: Final = 60.0
#: seconds between two exchanges of unsupported parameters with other processes
EXCHANGE_S: Final = 10.0
#: seconds between two looks for requests of paired comparisons
_PAIRED_S: Final = 3.0


def next_learn(context: Context, woken: bool) -> Callable[[], int] | None:  # noqa: FBT001 - as Consumer.look
    if woken:  # wait until 0.2 s after the last look, so that feedback of these 0.2 s is learned together
        context.ending.wait(context.looked_at + 0.2 - time.monotonic())
    context.looked_at = time.monotonic()
    return partial(learn, context) if woken or _is_due(context, context.ledger) else None


def learn(context: Context) -> int:
    """Learn all decisions that are ready, trying for LEARN_S if the store fails. Returns how many are closed."""
    assert context.learner is not None
    context.wake_versions()
    work = partial(drain, context, context.learner, patience_s=context.settings.learning.lease_s + 1)
    try:
        return insist(work, seconds=LEARN_S, ending=context.ending)
    except NotReady as error:
        log.info("nothing can be learned yet", extra={"action": "learn", "reason": str(error)})
    except (StoreError, SnapshotError):  # logged once per outage
        pass
    return 0


def drain(context: Context, learner: Learner, *, patience_s: float = 0.0) -> int:
    """Call Learner.drain. A failure of the store is logged once per outage, and raised again."""
    try:
        done = learner.drain(patience_s=patience_s)
    except (StoreError, SnapshotError) as error:
        context.learning.failed(error)
        raise
    context.learning.ended()
    return done


def learning_versions(versions: Sequence[PolicyVersion]) -> list[PolicyVersion]:
    """The versions that learn in ledgers of their own: champion, shadows, and the champion that a rollback restores."""
    last = previous_champion(versions)
    return [v for v in versions if v.label != v.base and (v.state in ("champion", "shadow") or v is last)]


def version_learning(context: Context) -> Routine:
    """The thread that starts and stops the learners of versions, and retires the ledgers of ended versions."""
    base = context.store.label
    running = dict[str, _VersionLearner]()
    retired = set[str]()

    def look() -> None:
        with context.store.database.read() as connection:
            has_versions = control_of(connection, base=base).revision > 0
            versions = versions_of(connection, base=base) if has_versions else []
        learning = {version.name: version for version in learning_versions(versions)}
        for name in set(running) - set(learning):
            running.pop(name).close()
        for name in set(learning) - set(running):
            running[name] = _VersionLearner(context, learning[name])
            running[name].start()
            retired.discard(name)
        for version in versions:
            has_ended = version.state == "retired" and version.label != version.base
            is_done = version.name in learning or version.name in retired
            if has_ended and not is_done and _retired(context, version):
                retired.add(version.name)

    def wake() -> None:
        for learner in list(running.values()):
            learner.wake()

    def close() -> None:
        for learner in running.values():
            learner.close()

    context.wake_versions = wake
    interval = context.settings.workers.sweep_interval_s
    return Routine("look at which versions learn", look, every_s=interval, at_end=close).start()


def _retired(context: Context, version: PolicyVersion) -> bool:
    """Close all decisions that wait for this version's ledger. Returns whether no such decision is left."""
    ledger = Ledger(context.store.database, label=version.label)
    if ledger.registered() is None:
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
        chore = f"learn for the version {version.name!r} (ragbandit policy show {version.name})"
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
            self._learner = make_learner(settings, database=context.store.database, jobs=context.jobs)
        woken, self._is_woken = self._is_woken, False
        if self._published and not woken and not _is_due(context, self._ledger):
            return
        try:
            self._learner.drain()
            self._published = True
        except NotReady as error:  # no router has opened the version's ledger yet
            log.debug("a version cannot learn yet", extra={"action": "learn", "reason": str(error)})


def _is_due(context: Context, ledger: Ledger) -> bool:
    rule = closing_rule(context.settings.learning)
    return bool(is_inheriting(ledger) or ledger.ready(rule, now=steady_clock().now(), limit=1))


def handle_notification(context: Context, notification: str) -> None:
    """Handle "cancel:<id>", which stops a run, and "stream:<id>", which makes a run send its answer while it runs."""
    kind, _, key = notification.partition(":")
    if kind == STREAM_NEWS and context.streams is not None:
        context.streams.wanted(DecisionId(key))
    if kind == "cancel" and key in context.active_runs.ids():
        stop_cancelled(context)


def routines_of(context: Context) -> list[Routine]:
    """Start the background threads of this process. Most of them run only in a process that learns."""
    settings, database = context.settings, context.store.database
    sweep_s = settings.workers.sweep_interval_s
    if context.learner is not None:
        check_reward_check(settings.reward)

    def exchange_unsupported() -> None:
        context.unsupported.exchange(now=time.time())

    routines = [
        Routine("look for cancelled runs", partial(stop_cancelled, context), every_s=min(sweep_s, 5.0)).start(),
        Routine("renew the claims of what runs here", partial(keep_claims, context), every_s=0.5).start(),
        Routine("exchange unsupported parameters", exchange_unsupported, every_s=EXCHANGE_S).start(),
    ]
    if context.learner is None:
        return routines
    extender = Extender(database, holder=lease_holder("totals"), weight=settings.reward.weight)

    def wake_again() -> None:
        recover(database, jobs=context.jobs, settings=settings.judge, now=context.deadlines.for_deletion())

    def extend_totals() -> float:
        return 2.0 if extender.extend(seconds=2.0) else 5.0  # seconds until the next call

    routines += [
        Routine("look for unfinished decisions", wake_again, every_s=sweep_s).start(),
        watch_clock(context.deadlines),
        Routine("extend the hourly totals", extend_totals, every_s=5.0, at_end=extender.release).start(),
        version_learning(context),
    ]
    for name, source in settings.ratings.items():
        from ragbandit.workers.running.ratings import RatingPoller  # it loads the command line

        poller = RatingPoller(name, source, context=context)
        end = partial(poller.lease.release, holder=poller.holder)
        common: dict[str, Any] = {"every_s": source.every_s, "outage": poller.outage}
        routines.append(Routine(f"fetch ratings.{name}", poller.poll, at_end=end, **common).start())
    if settings.learning.golden is not None:
        from ragbandit.workers.evaluation.golden import ask_golden  # it takes 40 MB

        holder = lease_holder("golden")
        ask = partial(ask_golden, settings, ledger=context.ledger, holder=holder, clock=context.deadlines.now)
        failing = "cannot ask the golden questions; trying again. Check learning.golden, the arms and the database"
        outage = StoreOutage(action="golden", failing=failing, restored="the golden questions are asked again")
        routines.append(Routine("ask the golden questions", ask, every_s=60.0, outage=outage).start())
    routines.append(paired_requests(context))
    days = settings.retention.days
    if days is not None:
        clock = context.deadlines.for_deletion
        retention = Retention(database, holder=lease_holder("retention"), days=days, clock=clock)
        chore = "let old decisions leave the store"
        routines.append(Routine(chore, retention.step, every_s=60.0, at_end=retention.release).start())
    return routines if settings.reward.check is None else [*routines, checking_routine(context)]


def paired_requests(context: Context) -> Routine:
    """The thread that carries out requests for paired comparisons."""

    def look() -> None:
        with context.store.database.read() as connection:
            if not request_of(connection, label=context.ledger.label).is_open:
                return
        from ragbandit.workers.pairs.requested import carry_out  # it takes 40 MB

        carry_out(context.settings, ledger=context.ledger, ending=context.ending)

    failing = "cannot ask the questions of a paired comparison; trying again. Check the database"
    outage = StoreOutage(action="decide", failing=failing, restored="paired comparisons go on")
    return Routine("ask paired questions", look, every_s=_PAIRED_S, outage=outage).start()


def checking_routine(context: Context) -> Routine:
    context.checking = checking = Checking(context.settings.reward, store=context.store)
    check, close = partial(check_answers, context), checking.process.end
    return Routine("check answers", check, every_s=1.0, at_end=close).start()


def stop_cancelled(context: Context) -> None:
    for key in cancellations_of(context.store.database, ids=context.active_runs.ids()):
        if context.active_runs.stop(key):
            log.info("a run was cancelled by its caller", extra={"action": "cancel", "decision": key})


def keep_claims(context: Context) -> None:
    """Renew the claims of this process, and queue decisions again that ended processes had claimed."""
    for claims, active in context.claimed():
        claims.renew(active.held())
        freed = claims.free_lost(held=active.held())
        if freed:
            extra = {"action": "requeue", "count": len(freed), "decisions": ", ".join(freed[:5])}
            log.warning("a process ended while it ran decisions; each of them runs once more, alone", extra=extra)
        if claims is context.queue:
            context.notifier.request_answers(freed)
