"""The job "answer" in a worker: counted, cancelled, given up, and questions that kill workers."""

import asyncio
import time
from dataclasses import replace

import pytest
from sqlalchemy import select, update

from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.types import Cost, DecisionId
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.workers.chores.exchanges import renew_claims
from ragbandit.workers.running.answer_job import MAX_TRIES
from ragbandit.workers.running.event_loop import LoopEnded
from ragbandit.workers.running.queued import next_answer
from ragbandit.workers.running.second_runs import SecondRuns
from tests.support.arms.answer_jobs import Held, answer_next, decision_for, outcome_in, set_tries, tries_of
from tests.support.arms.loaded_arms import loaded_arms
from tests.support.waiting import until


@pytest.fixture
def serve(work):
    """A function that delivers a decision to such a worker; gives outcome and context."""

    def deliver(*, tries=0, **parts):
        context = work(**parts)
        set_tries(context, tries)
        assert answer_next(context)
        return outcome_in(context), context

    return deliver


def ask_again(context):
    """Another decision waits."""
    context.store.add_decisions([replace(decision_for("single_step"), id=DecisionId("again"))])


def test_an_answered_question_waits_no_more(serve):
    """A job runs the arm with the caps in force, keeps one outcome and tells of it, and nothing is left to claim."""
    outcome, context = serve()
    assert (outcome.status, outcome.answer, outcome.run_by) == ("answered", "Bram Stoker", "worker")
    assert (outcome.made_by["params"]["passages"], outcome.made_by["budget"]) == (2, {"seconds": 20})
    assert not answer_next(context)
    assert tries_of(context) == {}
    assert context.jobs.published == ["outcome:d1"]


def test_a_question_that_kills_its_workers_is_given_up(serve):
    """After two tries without an outcome it is failed as worker_died, at no cost, and the model is not asked."""
    outcome, context = serve(tries=MAX_TRIES)
    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("failed", "worker_died", None)
    assert (outcome.cost, outcome.steps, outcome.trace) == (Cost(), 0.0, ())
    assert "2 workers died" in outcome.error
    assert outcome.made_by["arm"] == "single_step"
    assert context.arms["single_step"].generator.requests == []
    assert context.jobs.published == ["outcome:d1"]


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
    context.arms = loaded_arms({"far": params}, generator=ScriptedGenerator({}))
    answer_next(context)
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
    ask_again(context)
    answer_next(context)
    context.close()
    assert len(loops) == 3
    assert len(set(loops)) == 1
    assert context.arms["single_step"].retriever.closed


@pytest.mark.parametrize(("tries", "most"), [(0, 3), (1, 1)])
def test_a_question_whose_run_ended_a_process_runs_alone(work, together, tries, most):
    """First tries overlap; while a second try runs, this process runs nothing else."""
    generator = Held()
    context = work(generator=generator)
    keys = ["d1", "d2", "d3"]
    context.store.add_decisions([replace(decision_for("single_step"), id=DecisionId(key)) for key in keys[1:]])
    set_tries(context, tries)
    threads = together(context, most)
    assert until(lambda: generator.inside == most)
    if most < len(keys):
        context.store.add_decisions([replace(decision_for("single_step"), id=DecisionId("new"))])
        assert not answer_next(context)
    generator.free.set()
    for thread in threads:
        thread.join(20)
    while answer_next(context):
        pass
    assert (generator.most, len(context.store.outcomes_by_id(keys))) == (most, 3)


@pytest.mark.parametrize(("age_s", "place"), [(0.0, 2), (60.0, 0)])
def test_a_question_whose_run_ended_a_process_waits_behind_others(work, age_s, place):
    """It runs after all questions that have not run, unless it has waited for long."""
    context, order, fresh = work(), [], ["fresh-1", "fresh-2"]
    set_tries(context, 1)
    with context.store.database.write() as connection:
        connection.execute(update(jobs).values(due_at=time.time() - age_s))
    for key in fresh:
        context.store.add_decisions([replace(decision_for("single_step"), id=DecisionId(key))])
    for _ in range(3):
        context.second_runs = SecondRuns()
        assert answer_next(context)
        order += [key for key in context.store.outcomes_by_id(["d1", *fresh]) if key not in order]
    assert (order.index("d1"), [key for key in order if key != "d1"]) == (place, fresh)


def test_second_runs_take_at_most_half_of_the_time(work):
    """After a second run, new questions have as much time as that run took, however many second runs wait."""
    now, runs, again, fresh = [100.0], [], ["d1", "d2", "d3"], ["fresh-1", "fresh-2"]

    class Slow(ScriptedGenerator):
        async def complete(self, request):
            runs.extend(context.active_runs.running_ids())
            now[0] += 11.0 if runs[-1] in again else 6.0
            return await super().complete(request)

    context = work(generator=Slow({"": "x"}))
    context.store.add_decisions([replace(decision_for("single_step"), id=DecisionId(key)) for key in again[1:]])
    set_tries(context, 1)
    context.store.add_decisions([replace(decision_for("single_step"), id=DecisionId(key)) for key in fresh])
    context.second_runs = SecondRuns(now=lambda: now[0])
    while answer_next(context):
        pass
    assert runs == ["d1", "fresh-1", "fresh-2", "d2", "d3"]


def test_a_second_run_waits_for_the_runs_of_its_worker_within_its_share(work, together):
    """The time in which a worker takes no new question, to be empty for a second run, counts as that run's time."""
    generator, now = Held(), [100.0]
    context = work(generator=generator)
    context.second_runs = SecondRuns(now=lambda: now[0])
    (first,) = together(context, 1)
    assert generator.entered.wait(20)
    context.store.add_decisions([replace(decision_for("single_step"), id=DecisionId(key)) for key in ("again", "new")])
    with context.store.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.decision_id == "again").values(tries=1))
    now[0] += 1.0
    assert not answer_next(context)
    now[0] += 30.0
    generator.free.set()
    first.join(20)
    assert answer_next(context)
    assert sorted(context.store.outcomes_by_id(["d1", "again", "new"])) == ["again", "d1"]
    assert not context.second_runs.are_due(context.queue)
    now[0] += 29.0
    set_tries(context, 1)
    assert not context.second_runs.are_due(context.queue)
    now[0] += 2.0
    assert context.second_runs.are_due(context.queue)


def test_a_worker_whose_event_loop_has_ended_claims_nothing(work, monkeypatch):
    """Until it ends, it takes no further question, and gives back one that it has just claimed."""
    context = work()
    job = next_answer(context)
    context.loop.close()
    with pytest.raises(LoopEnded):
        job()
    assert (tries_of(context), context.active_runs.claimed_ids()) == ({"d1": 0}, [])
    assert next_answer(context) is None


def test_what_waits_to_begin_is_no_lost_claim(work):
    """The claim of a decision that has not begun here is renewed after it expired, and the decision is not freed."""
    context, key = work(), DecisionId("d1")
    claimed = context.queue.claim()
    context.active_runs.claim([claimed.decision_id], most=1)
    with context.store.database.write() as connection:
        connection.execute(update(jobs).values(claimed_until=0.0))
    renew_claims(context)
    with context.store.database.read() as connection:
        holder, until_s = connection.execute(select(jobs.c.claimed_by, jobs.c.claimed_until)).one()
    assert (holder, until_s > 0.0) == (context.queue.process.key, True)
    context.active_runs.unclaim([key])
    with context.store.database.write() as connection:
        connection.execute(update(jobs).values(claimed_until=0.0))
    renew_claims(context)
    assert context.queue.claim().decision_id == key
