"""The job "answer" that is cancelled, cut off, or cannot reach its database."""

import sqlite3
import threading
import time
from concurrent.futures import CancelledError
from dataclasses import replace

import pytest

from ragbandit.router.errors import StoreError
from ragbandit.router.serving import cancellation
from ragbandit.router.types import CallFailed, Cost, DecisionId
from ragbandit.workers import housekeeping, tasks
from tests.support.arms.answer_jobs import Held, Redis, cancel, decision_for, outcome_in, until


def test_what_was_cancelled_before_it_began_never_runs(work):
    """A worker that is brought a cancelled decision fails it as cancelled, at no cost, and says so."""
    context = work()
    assert cancel(context).cancelled is None
    tasks.answer(context, "d1")

    outcome = outcome_in(context)
    assert (outcome.status, outcome.stop_reason, outcome.error) == ("failed", "cancelled", "cancelled by the caller")
    assert (outcome.cost, outcome.trace, context.generator.requests) == (Cost(), (), [])
    assert context.jobs.kept == ["d1"]


@pytest.mark.parametrize("told", [True, False])
def test_a_run_that_is_cancelled_ends_within_a_second(work, together, told):
    """Told of it, or by looking when Redis says nothing, the worker cuts the arm off; the outcome has the true cost."""
    generator = Held()
    context = work(generator=generator, redis=Redis(broken=not told))
    thread, *_ = together(context, "d1")
    assert generator.entered.wait(10)
    began = time.monotonic()
    cancel(context)
    stop = threading.Event()
    if told:
        housekeeping.handle_notification(context, "cancel:another")
        housekeeping.handle_notification(context, "cancel:d1")
    else:
        keeper = threading.Thread(target=housekeeping.keep_house, args=(context, stop))
        keeper.start()
    thread.join(20)
    stop.set()

    outcome = outcome_in(context)
    assert time.monotonic() - began < 1
    assert (outcome.status, outcome.stop_reason) == ("failed", "cancelled")
    assert (outcome.cost.retriever_calls, outcome.cost.llm_calls) == (1, 1)
    assert outcome.cost.seconds_total >= outcome.cost.seconds_generate > 0
    assert isinstance(outcome.trace[-1], CallFailed)
    assert outcome.made_by["arm"] == "single_step"
    assert cancel(context).cancelled is True


def test_the_news_of_a_cancellation_is_checked(work, together):
    """News stops nothing that SQL does not say was cancelled."""
    generator = Held()
    context = work(generator=generator)
    thread, *_ = together(context, "d1")
    assert generator.entered.wait(10)
    housekeeping.handle_notification(context, "cancel:d1")
    generator.free.set()
    thread.join(20)
    assert outcome_in(context).status == "answered"


@pytest.mark.parametrize("ending", [True, False])
def test_a_run_that_is_cut_off_writes_no_outcome(work, ending):
    """A run cut off because its process ends has no outcome, was no try, is queued again; an arm's own end was one."""
    generator = Held()
    context = work(generator=generator, redis=Redis(tries=1))
    raised = []
    if ending:
        threading.Timer(0.1, context.ending.set).start()

    def deliver():
        try:
            tasks.answer(context, "d1")
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=deliver)
    thread.start()
    assert generator.entered.wait(10)
    assert not ending or context.ending.wait(10)
    context.loop.interrupt()
    thread.join(20)
    assert [type(error) for error in raised] == ([] if ending else [CancelledError])
    assert context.jobs.counted == (1 if ending else 2)
    assert context.jobs.queued == ([("d1", True)] if ending else [])
    assert outcome_in(context) is None
    assert context.active_runs.ids() == []


@pytest.mark.parametrize("ending", [True, False])
def test_a_question_that_waits_for_its_turn_can_be_ended(work, together, ending):
    """While one that was tried before runs, another one can be cancelled, and begins nothing once the worker ends."""
    generator = Held()
    context = work(generator=generator, redis=Redis(tries=2))
    context.store.add_decisions([replace(decision_for("single_step"), id=DecisionId("d2"))])
    first, *_ = together(context, "d1")
    assert generator.entered.wait(10)
    second, *_ = together(context, "d2")
    assert until(lambda: len(context.active_runs.ids()) == 2)
    if ending:
        context.ending.set()
    else:
        cancellation.request(context.store.database, decision_id=DecisionId("d2"), now=1.0)
        housekeeping.handle_notification(context, "cancel:d2")
    second.join(2)
    assert not second.is_alive()
    generator.free.set()
    first.join(20)
    found = context.store.outcomes_by_id(["d1", "d2"])
    assert {key: each.stop_reason for key, each in found.items() if key == "d2"} == (
        {} if ending else {"d2": "cancelled"}
    )
    assert (found["d1"].status, len(generator.requests), context.jobs.begun) == ("answered", 1, 1)


@pytest.fixture
def locked(work, monkeypatch):
    """A worker whose database somebody else is writing to, and that writer's connection."""
    monkeypatch.setattr("ragbandit.router.storage.sql.database.LOCK_WAIT_S", 0.05)
    context = work()
    writer = sqlite3.connect(context.store.database.engine.url.database, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    yield context, writer
    writer.close()


def test_an_answer_waits_for_the_database(locked, together, caplog):
    """An answer that the database does not take at once is offered again, with a warning, and not made anew."""
    context, writer = locked
    thread, *_ = together(context, "d1")
    assert until(lambda: "cannot write an outcome" in caplog.text)
    assert context.active_runs.ids() == ["d1"]
    writer.execute("ROLLBACK")
    thread.join(10)
    assert (outcome_in(context).status, len(context.generator.requests)) == ("answered", 1)
    assert context.jobs.kept == ["d1"]


@pytest.mark.parametrize(("ending", "counted"), [(True, 0), (False, 1)])
def test_an_answer_waits_for_the_database_only_so_long(locked, monkeypatch, ending, counted):
    """After KEEP_S the answer is given up and was a try; when the process ends it is given up at once and was none."""
    context, _ = locked
    monkeypatch.setattr(tasks, "KEEP_S", 60.0 if ending else 0.1)
    threading.Timer(0.2, context.ending.set).start()
    if not ending:
        context.ending = threading.Event()
    began = time.monotonic()
    with pytest.raises(StoreError, match="locked"):
        tasks.answer(context, "d1")
    assert time.monotonic() - began < 2
    assert (context.jobs.counted, len(context.generator.requests)) == (counted, 1)


def test_marks_do_not_depend_on_the_database(work, monkeypatch):
    """What runs stays marked as running while the database is away."""
    context = work()
    context.active_runs.begin(decision_for("single_step"))
    monkeypatch.setattr(context, "store", None)
    stop = threading.Event()
    keeper = threading.Thread(target=housekeeping.keep_leases, args=(context, stop))
    keeper.start()
    context.jobs.broken = True
    time.sleep(0.1)
    context.jobs.broken, context.jobs.outage._failed_at = False, 0.0
    assert until(lambda: len(context.jobs.marked) >= 2)
    stop.set()
    keeper.join(10)
    monkeypatch.undo()
    context.active_runs.end(DecisionId("d1"))


def test_news_of_a_cancellation_renews_the_mark(work):
    """Whoever runs a decision that is to be cancelled says so before anything else: Redis may have forgotten it."""
    context = work()
    context.active_runs.begin(decision_for("single_step"))
    housekeeping.handle_notification(context, "cancel:d1")
    assert context.jobs.marked == ["d1"]
    context.active_runs.end(DecisionId("d1"))
