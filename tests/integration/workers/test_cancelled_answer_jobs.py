"""The job "answer" that is cancelled, cut off, or cannot reach its database."""

import sqlite3
import threading
import time
from concurrent.futures import CancelledError
from dataclasses import replace

import pytest
from sqlalchemy import update

from ragbandit.router.storage.jobs.answers import waiting_ids
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.types import CallFailed, Cost, DecisionId
from ragbandit.workers.chores import start_chores
from ragbandit.workers.chores.exchanges import renew_claims
from ragbandit.workers.processes.worker import handle_notification
from ragbandit.workers.running.queued import next_answer
from tests.support.arms.answer_jobs import (
    Held,
    Redis,
    answer_next,
    cancel,
    decision_for,
    outcome_in,
    set_tries,
    tries_of,
)
from tests.support.claims import claims
from tests.support.waiting import until


def test_what_was_cancelled_before_it_began_never_runs(work):
    """A worker ends a cancelled decision as failed and cancelled, at no cost, and logs it."""
    context = work()
    assert cancel(context).cancelled is None
    answer_next(context)
    outcome = outcome_in(context)
    assert (outcome.status, outcome.stop_reason, outcome.error) == ("failed", "cancelled", "cancelled by the caller")
    assert (outcome.cost, outcome.trace, context.arms["single_step"].generator.requests) == (Cost(), (), [])
    assert context.jobs.published == ["outcome:d1"]


@pytest.mark.parametrize("told", [True, False])
def test_a_run_that_is_cancelled_ends_soon(work, together, told):
    """Told of it, or by looking when Redis says nothing, the worker cuts the arm off; the outcome has the true cost."""
    generator = Held()
    context = work(generator=generator, redis=Redis(broken=not told))
    thread, *_ = together(context)
    assert generator.entered.wait(10)
    began = time.monotonic()
    cancel(context)
    routines = []
    if told:
        handle_notification(context, "cancel:another")
        handle_notification(context, "cancel:d1")
    else:
        routines = start_chores(context)
    thread.join(20)
    for routine in routines:
        routine.close()
    outcome = outcome_in(context)
    assert time.monotonic() - began < 15
    assert (outcome.status, outcome.stop_reason) == ("failed", "cancelled")
    assert (outcome.cost.retriever_calls, outcome.cost.llm_calls) == (1, 1)
    assert outcome.cost.seconds_total >= outcome.cost.seconds_generate > 0
    assert isinstance(outcome.trace[-1], CallFailed)
    assert outcome.made_by["arm"] == "single_step"
    assert cancel(context).cancelled is True


@pytest.mark.parametrize("ending", [True, False])
def test_a_run_that_is_cut_off_writes_no_outcome(work, ending):
    """A run cut off because its process ends has no outcome, was no try, is queued again; an arm's own end was one."""
    generator = Held()
    context = work(generator=generator)
    set_tries(context, 1)
    raised = []

    def deliver():
        try:
            answer_next(context)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=deliver)
    thread.start()
    assert generator.entered.wait(10)
    if ending:
        context.ending.set()
    context.loop.interrupt()
    thread.join(20)
    assert [type(error) for error in raised] == ([] if ending else [CancelledError])
    assert tries_of(context) == {"d1": 1 if ending else 2}
    assert context.jobs.queued == (["d1"] if ending else [])
    assert waiting_ids(context.store.database, limit=1) == (["d1"] if ending else [])
    assert outcome_in(context) is None
    assert context.active_runs.running_ids() == []


@pytest.fixture
def locked(work, monkeypatch):
    """A worker with a claimed question, and the connection of another writer that blocks the database."""
    context = work()
    job = next_answer(context)
    monkeypatch.setattr("ragbandit.router.storage.sql.database.LOCK_WAIT_S", 0.05)
    writer = sqlite3.connect(context.store.database.engine.url.database, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    yield context, writer, job
    writer.close()


def test_an_answer_waits_for_the_database(locked, caplog):
    """An answer that cannot be stored at once is stored later, with a warning, and not generated again."""
    context, writer, job = locked
    thread = threading.Thread(target=job)
    thread.start()
    assert until(lambda: "cannot write an outcome" in caplog.text)
    assert context.active_runs.running_ids() == ["d1"]
    writer.execute("ROLLBACK")
    thread.join(10)
    assert (outcome_in(context).status, len(context.arms["single_step"].generator.requests)) == ("answered", 1)
    assert context.jobs.published == ["outcome:d1"]


def test_a_claim_is_kept_while_it_is_run(work, together):
    """What runs stays claimed however long it runs; when its thread has lost it, it is free again when that ran out."""
    generator = Held()
    context = work(generator=generator)
    (thread,) = together(context)
    assert generator.entered.wait(10)
    run_out(context)
    renew_claims(context)
    assert list(claims(context.store.database)) == ["d1"]
    generator.free.set()
    thread.join(20)
    assert outcome_in(context).status == "answered"
    context.store.add_decisions([replace(decision_for("single_step"), id=DecisionId("d2"))])
    assert context.queue.claim().decision_id == "d2"
    run_out(context)
    renew_claims(context)
    assert waiting_ids(context.store.database, limit=1) == context.jobs.queued == ["d2"]


def run_out(context):
    """What time does."""
    with context.store.database.write() as connection:
        connection.execute(update(jobs).values(claimed_until=0.0))
