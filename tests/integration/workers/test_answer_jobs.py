"""The job "answer" in a worker: counted, cancelled, given up, and questions that kill workers."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import delete

from ragbandit.router.storage.sql.tables import outcomes
from ragbandit.router.types import Cost, DecisionId
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.registry import make_arms
from ragbandit.workers import tasks
from tests.support.arms.answer_jobs import Held, Redis, cancel, decision_for, outcome_in, until


@pytest.fixture
def serve(work):
    """A function that delivers a decision to such a worker; gives outcome and context."""

    def deliver(*, deliveries=1, **parts):
        context = work(**parts)
        for _ in range(deliveries):
            tasks.answer(context, "d1")
        return outcome_in(context), context

    return deliver


def forget_outcomes(context):
    with context.store.database.write() as connection:
        connection.execute(delete(outcomes))


def test_an_answered_question_is_forgotten_by_the_count(serve):
    """A job runs the arm with the caps in force, keeps one outcome, and takes the count of tries back."""
    outcome, context = serve(deliveries=2)

    assert (outcome.status, outcome.answer, outcome.run_by) == ("answered", "Bram Stoker", "worker")
    assert (outcome.made_by["params"]["passages"], outcome.made_by["budget"]) == (2, {"seconds": 20})
    assert (context.jobs.begun, context.jobs.counted) == (1, 0)
    assert context.jobs.kept == ["d1"]


@pytest.mark.parametrize("tries", [0, tasks.MAX_TRIES - 1])
def test_a_question_is_tried_again_after_a_death(serve, tries):
    """Up to three tries in all are made."""
    assert serve(redis=Redis(tries=tries))[0].status == "answered"


def test_a_question_that_kills_its_workers_is_given_up(serve):
    """After three tries without an outcome it is failed as worker_died, at no cost, and the model is not asked."""
    redis = Redis(tries=tasks.MAX_TRIES)
    outcome, context = serve(redis=redis)

    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("failed", "worker_died", None)
    assert (outcome.cost, outcome.steps, outcome.trace) == (Cost(), 0.0, ())
    assert "3 workers died" in outcome.error
    assert outcome.made_by["arm"] == "single_step"
    assert context.generator.requests == []
    assert redis.kept == ["d1"]


def test_without_redis_nothing_is_counted(serve):
    """With Redis down the question is answered all the same."""
    assert serve(redis=Redis(broken=True))[0].status == "answered"


def test_redis_is_left_alone_after_a_failure(serve):
    """Of all the calls around a question only the first waits for a Redis that hangs; later ones try again."""
    outcome, context = serve(redis=Redis(broken=True))
    assert (outcome.status, context.jobs.calls) == ("answered", 1)
    context.jobs.broken, context.jobs.outage._failed_at = False, 0.0
    forget_outcomes(context)
    tasks.answer(context, "d1")
    assert context.jobs.kept == ["d1"]


def test_an_arm_taken_out_of_the_configuration_is_a_failure(serve):
    """A decision for an arm that this worker does not have is failed as unknown_arm, by the worker, made by nothing."""
    outcome, _ = serve(arm="gone")

    assert (outcome.status, outcome.stop_reason, outcome.run_by, outcome.made_by) == (
        "failed",
        "unknown_arm",
        "worker",
        {},
    )


def test_no_row_has_the_credentials_of_an_arm(work):
    """What the environment put into the address of an arm is in no table, also where the arm fails."""
    context = work(arm="far")
    params = {"class": "http", "url": "http://me:hunter2@127.0.0.1:9/x?token=hunter2&lang=en", "retries": 0}
    context.arms = make_arms({"far": params}, capabilities=frozenset())
    tasks.answer(context, "d1")

    outcome = outcome_in(context)
    assert (outcome.status, outcome.made_by["params"]["url"]) == (
        "failed",
        "http://127.0.0.1:9/x?token=[hidden]&lang=en",
    )
    with context.store.database.read() as connection:
        rows = list(connection.connection.driver_connection.iterdump())
    assert any("127.0.0.1:9" in row for row in rows)
    assert [row for row in rows if "hunter2" in row] == []


def test_clients_live_across_jobs_and_are_closed_on_their_loop(serve):
    """Generator and retriever see one loop in all jobs, and are closed on it once, even if one cannot be."""
    loops = []

    class Bound(ScriptedGenerator):
        async def complete(self, request):
            loops.append(asyncio.get_running_loop())
            return await super().complete(request)

        async def close(self):
            loops.append(asyncio.get_running_loop())
            raise OSError("the server is gone")

    generator = Bound({"": "x"})
    _, context = serve(generator=generator)
    forget_outcomes(context)
    tasks.answer(context, "d1")
    context.close()

    assert len(loops) == 3
    assert len(set(loops)) == 1
    assert context.retriever.closed


def test_a_decision_delivered_twice_at_once_runs_once(work, together):
    """While one thread runs a decision, another one that gets it too leaves it alone."""
    generator = Held()
    context = work(generator=generator)
    first, *_ = together(context, "d1")
    assert generator.entered.wait(10)
    tasks.answer(context, "d1")
    assert outcome_in(context) is None
    generator.free.set()
    first.join(20)
    assert (outcome_in(context).status, len(generator.requests)) == ("answered", 1)


@pytest.mark.parametrize(("tries", "most"), [(0, 3), (1, 3), (2, 1)])
def test_last_tries_run_one_at_a_time(work, together, tries, most):
    """First and second tries overlap; of questions that may fail with the next death one runs at a time."""
    generator = Held()
    context = work(generator=generator, redis=Redis(tries=tries))
    keys = ["d1", "d2", "d3"]
    context.store.add_decisions([replace(decision_for("single_step"), id=DecisionId(key)) for key in keys[1:]])
    context.jobs.count_try = lambda key: tries + 1
    threads = together(context, *keys)
    assert until(lambda: generator.inside == most)
    assert until(lambda: len(context.active_runs.ids()) == 3)
    generator.free.set()
    for thread in threads:
        thread.join(20)
    assert (generator.most, len(context.store.outcomes_by_id(keys))) == (most, 3)


def test_what_a_caller_runs_is_left_to_it(work, caplog):
    """A job for a decision that its caller runs, which nobody of ours queues, runs nothing and leaves no outcome."""
    context = work()
    theirs = replace(decision_for("single_step"), id=DecisionId("theirs"), run_by="caller")
    context.store.add_decisions([theirs])
    tasks.answer(context, theirs.id)
    assert context.store.outcomes_by_id([theirs.id]) == {}
    assert context.generator.requests == []
    assert "its caller runs" in caplog.records[-1].getMessage()


def test_what_another_worker_runs_is_left_to_it(work):
    """A cancelled decision that another worker runs is not failed by whoever is brought it: its cost is not known."""
    context = work()
    cancel(context)
    context.jobs.elsewhere = True
    tasks.answer(context, "d1")
    assert outcome_in(context) is None
    context.jobs.elsewhere = False
    tasks.answer(context, "d1")
    assert outcome_in(context).stop_reason == "cancelled"
