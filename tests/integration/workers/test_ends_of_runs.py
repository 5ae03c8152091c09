"""Runs that hang, ignore their end, or are under way when the process ends: nothing is lost, and nothing is kept."""

import asyncio
import contextlib
import os
import threading
import time
from dataclasses import replace

import httpx
import pytest
from sqlalchemy import select

from ragbandit.router.operation.findings import findings_of_store
from ragbandit.router.storage.access.spending import read_spending, spenders_of
from ragbandit.router.storage.sql.tables import jobs, outcomes
from ragbandit.shared.errors import StoreError
from ragbandit.shared.types import DecisionId
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.testing.openai_server import Reply, ScriptedServer
from ragbandit.workers.running import answer_job
from ragbandit.workers.running.context import THREADS
from tests.support.arms.answer_jobs import answer_next, decision_for, outcome_in, set_tries, tries_of
from tests.support.waiting import until

#: more runs than the event loop or the runs of a process have threads
HUNG = max(THREADS, min(32, (os.cpu_count() or 1) + 4)) + 1


class Hung(ScriptedGenerator):
    """Waits in a thread that nobody can cancel, as a function without a timeout does."""

    def __init__(self):
        super().__init__({"": "So the answer is: Bram Stoker."})
        self.entered, self.released = threading.Semaphore(0), threading.Event()

    async def complete(self, request):
        self.entered.release()
        await asyncio.to_thread(self.released.wait, 60)
        return await super().complete(request)


class Deaf(ScriptedGenerator):
    """Ignores its cancellation until it is released."""

    def __init__(self):
        super().__init__({"": "x"})
        self.released = False

    async def complete(self, request):
        while not self.released:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return replace(await super().complete(request), dollars=0.25)


def given(context, seconds):
    """Give every run so many seconds."""
    budget = context.settings.budget.model_copy(update={"seconds": seconds})
    context.settings = context.settings.model_copy(update={"budget": budget})
    return context


def hung(work, together, *, seconds):
    """A worker with HUNG runs that hang. Gives (context, generator, threads)."""
    generator = Hung()
    context = given(work(generator=generator), seconds)
    more = [replace(decision_for("single_step"), id=DecisionId(f"e{number}")) for number in range(HUNG - 1)]
    context.store.add_decisions(more)
    threads = together(context, HUNG)
    for _ in range(HUNG):
        assert generator.entered.acquire(timeout=20)
    return context, generator, threads


def cut_off(context, threads):
    """End the process as a second signal does."""
    context.ending.set()
    for _ in range(100):
        context.loop.interrupt()
        for thread in threads:
            thread.join(0.01)
        if not any(thread.is_alive() for thread in threads):
            return


def test_functions_that_hang_do_not_hold_up_outcomes(work, together):
    """The outcome of a run is stored at its deadline although its function still holds a thread of the loop."""
    context, generator, threads = hung(work, together, seconds=5.0)
    for thread in threads:
        thread.join(20)
    outcomes = context.store.outcomes_by_id(["d1"])
    assert outcomes["d1"].stop_reason == "budget_seconds"
    assert context.active_runs.claimed_ids() == []
    generator.released.set()


def test_functions_that_hang_are_given_back_at_a_second_signal(work, together):
    """Every question that is cut off is queued again, and its try does not count."""
    context, generator, threads = hung(work, together, seconds=60.0)
    cut_off(context, threads)
    assert set(tries_of(context).values()) == {0}
    generator.released.set()


@pytest.fixture
def deaf(work, monkeypatch):
    """A worker whose runs ignore their cancellation. Gives (context, generator)."""
    monkeypatch.setattr(answer_job, "MARGIN_S", 0.05)
    generator = Deaf()
    # The arm calls its generator within this time, also in a process that has just begun.
    yield given(work(generator=generator), 0.6), generator
    generator.released = True


def spent(context):
    tenant = decision_for("single_step").query.tenant
    with context.store.database.read() as connection:
        (total, *_) = read_spending(connection, spenders_of(tenant, key=None), now=time.time()).values()
    return total.month


def test_a_run_that_ignores_its_cancellation_fails_at_once(deaf):
    """After its time and a margin the run is left alone: its question fails, with its cost, and does not run again."""
    context, _ = deaf
    assert answer_next(context)
    outcome = outcome_in(context)
    assert (outcome.status, outcome.stop_reason, outcome.run_by) == ("failed", "abandoned", "worker")
    assert "the arm 'single_step' ran for 0.65 s and ignored its cancellation" in outcome.error
    assert (outcome.cost.seconds_total, outcome.made_by["arm"]) == (pytest.approx(0.65), "single_step")
    assert (context.active_runs.claimed_ids(), tries_of(context), answer_next(context)) == ([], {}, False)


def test_an_arm_that_ignores_its_cancellation_is_suspended(deaf):
    """After a few such runs the circuit breaker suspends the arm, and `status` says why."""
    context, _ = deaf
    more = [replace(decision_for("single_step"), id=DecisionId(f"e{number}")) for number in range(4)]
    context.store.add_decisions(more)
    while answer_next(context):
        pass
    (health,) = context.health.read(["single_step"], now=time.time())
    assert (health.state, health.failures) == ("open", 5)
    settings = context.settings.model_copy(update={"arms": {"single_step": {}}})
    reported = findings_of_store(context.store.database, settings=settings, now=time.time())
    (what,) = [each.what for each in reported if each.about == "arms.single_step"]
    assert what == "5 answers in the last hour ran on after budget.seconds and ignored their cancellation"


def test_what_an_abandoned_run_pays_later_is_booked(deaf):
    """The dollars that a run costs after it was abandoned count in the budgets, and those of its outcome count once."""
    context, generator = deaf
    assert answer_next(context)
    assert spent(context) == 0.0
    generator.released = True
    assert until(lambda: spent(context) == 0.25)


def test_dollars_of_an_abandoned_run_without_an_outcome_count_once(deaf, monkeypatch):
    """If the outcome of an abandoned run is never stored, what the run has cost until its end counts once."""
    monkeypatch.setattr(answer_job, "KEEP_S", 0.0)
    context, generator = deaf

    def refuse(*_given, **_more):
        generator.released = True
        assert until(lambda: spent(context) == 0.25)
        raise StoreError("the value is out of range")

    monkeypatch.setattr(context.store, "add_outcome", refuse)
    with pytest.raises(StoreError):
        answer_next(context)
    assert spent(context) == 0.25


@pytest.mark.parametrize("tries", [0, 1])
def test_a_question_that_is_read_as_the_process_ends_is_given_back(work, together, monkeypatch, tries):
    """A second signal during the read of the decision cuts off nothing half done: the try does not count."""
    context = work()
    set_tries(context, tries)
    read, entered, released = context.store.decision_to_answer, threading.Event(), threading.Event()

    def slow(key):
        entered.set()
        assert released.wait(20)
        return read(key)

    monkeypatch.setattr(context.store, "decision_to_answer", slow)
    threads = together(context)
    assert entered.wait(20)
    context.ending.set()
    context.loop.interrupt()
    released.set()
    cut_off(context, threads)
    assert tries_of(context) == {"d1": tries}
    assert context.queue.has_free_job()


def test_an_outcome_that_is_never_stored_is_charged(work, monkeypatch):
    """If the store refuses an outcome for KEEP_S, its dollars count in the budgets all the same."""
    monkeypatch.setattr(answer_job, "KEEP_S", 0.0)
    context = work()
    run = answer_job.AnswerJob.run_arm

    async def paid(job, arm, *, reader):
        outcome = await run(job, arm, reader=reader)
        job.account.cost = replace(job.account.cost, dollars=0.5)
        return outcome

    def refuse(*_given, **_more):
        raise StoreError("the value is out of range")

    monkeypatch.setattr(answer_job.AnswerJob, "run_arm", paid)
    monkeypatch.setattr(context.store, "add_outcome", refuse)
    with pytest.raises(StoreError):
        answer_next(context)
    assert spent(context) == 0.5


@pytest.fixture
def gateway(serve):
    """A service that runs two arms of the class `model` itself, and the server of their model."""
    with ScriptedServer({"fail": Reply(status=500, text="no"), "": Reply(text="Paris")}) as server:
        options = {"base_url": server.url, "retries": 0}
        generator = {"name": "openai", "model": "m", "openai": options}
        service = serve(inline=True, generator=generator, arms={"a": {"class": "model"}, "b": {"class": "model"}})
        yield service, server
        service.close()


def ask(service, question="Where?"):
    """Send a chat whose reply may never come."""
    chat = {"model": "auto", "messages": [{"role": "user", "content": question}]}

    def send():
        with contextlib.suppress(httpx.HTTPError):
            httpx.post(f"{service.url}/v1/chat/completions", json=chat, timeout=60)

    threading.Thread(target=send, daemon=True).start()


def jobs_of(service):
    with service.router.database.read() as connection:
        return [tuple(row) for row in connection.execute(select(jobs.c.tries, jobs.c.claimed_by))]


def test_a_question_that_a_service_claims_as_it_ends_is_given_back(gateway, monkeypatch):
    """It has no outcome, and its try does not count."""
    service, _ = gateway
    queue = service.router.service.inline._context.queue
    claim, inside, released = queue.claim, threading.Event(), threading.Event()

    def slow(**given):
        claimed = claim(**given)
        if claimed is not None:
            inside.set()
            assert released.wait(20)
        return claimed

    monkeypatch.setattr(queue, "claim", slow)
    decision = replace(service.router.route("Where?"), id=DecisionId("w1"), run_by="worker")
    service.router.store.add_decisions([decision])
    assert inside.wait(20)
    service.router.service.inline._context.ending.set()
    released.set()
    until(lambda: jobs_of(service) == [(0, None)])
    assert service.router.store.outcomes_by_id(["w1"]) == {}


def test_a_hand_over_is_not_cut_off_as_a_service_ends(gateway, monkeypatch):
    """The outcome of the failed arm is stored, and the decision that takes over waits for another process."""
    service, _ = gateway
    find, inside, released = answer_job.AnswerJob.successor, threading.Event(), threading.Event()

    def slow(job, outcome):
        inside.set()
        assert released.wait(20)
        return find(job, outcome)

    monkeypatch.setattr(answer_job.AnswerJob, "successor", slow)
    ask(service, "fail")
    assert inside.wait(20)
    threading.Timer(0.2, released.set).start()
    service.router.service.inline.close()
    until(lambda: jobs_of(service) == [(0, None)])
    with service.router.database.read() as connection:
        assert connection.execute(select(outcomes.c.status)).scalars().all() == ["failed"]


def test_a_service_ends_although_outcomes_cannot_be_stored(gateway, monkeypatch):
    """More answers than the service's loop has threads wait for the store, and hold up neither requests nor the end."""
    service, server = gateway

    def refuse(*_given, **_more):
        raise StoreError("the database is down")

    monkeypatch.setattr(service.router.store, "add_outcome", refuse)
    monkeypatch.setattr(service.router.process.outcomes, "_work", refuse)
    for _ in range(HUNG):
        ask(service)
    until(lambda: len(server.requests) == HUNG)
    reply = asyncio.run_coroutine_threadsafe(asyncio.to_thread(lambda: "served"), service._loop)
    assert reply.result(20) == "served"
    service.close()
    assert not service._thread.is_alive()
