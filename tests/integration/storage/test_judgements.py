"""What waits for the judge, on SQLite and PostgreSQL: sampling, claims, the day's budget, and that nothing is lost."""

import json
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import select

from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.storage.access.shared_secrets import DRAWS, draw_number, shared_secret
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.jobs.scores import JudgeSample, is_judgeable
from ragbandit.router.storage.judgements import DayBudget, Refused, ScoreCost, ScoreJob, ScoreQueue, expire
from ragbandit.router.storage.sql.counters import next_day_start, row_counts, stored_counts
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.processes.this_process import this_process
from ragbandit.shared.types import Feedback, JudgeRequest
from tests.conftest import EPOCH
from tests.support.judge_days import judge_state
from tests.support.waiting import at_once

COST = ScoreCost(prompt_tokens=100, completion_tokens=10, dollars=0.25)


@pytest.fixture
def make_store(database):
    """A function that makes a store which samples."""

    def make(*, share=1.0, max_waiting=1000, first=0):
        sample = JudgeSample(share=share, max_waiting=max_waiting, first=first)
        return DecisionStore(database, label="main", judge=sample)

    return make


@pytest.fixture
def answered(make_decision, make_store):
    """A function that stores decisions with outcomes of a caller, and gives their ids."""

    def store(count=1, *, share=1.0, max_waiting=1000, first=0, **more):
        store = make_store(share=share, max_waiting=max_waiting, first=first)
        decisions = [make_decision() for _ in range(count)]
        store.add_decisions(decisions)
        outcome = {"status": "answered", "answer": "Paris", "steps": 1.0} | more
        store.add_outcomes([make_outcome(decision_id=each.id, now=EPOCH, **outcome) for each in decisions])
        return [decision.id for decision in decisions]

    return store


def judgements(database, *, expire_s=1e6, attempts=3, process=None, **budget):
    store, budget = DecisionStore(database, label="main"), DayBudget(**budget)
    return ScoreQueue(store, kind="judge", budget=budget, expire_s=expire_s, attempts=attempts, process=process)


def killed(database, **given):
    """A judge of this host that has ended, and leaves what it claims."""
    return judgements(database, process=replace(this_process(), started="1"), **given)


def refused(key, why):
    return Refused(decision_id=key, why=why)


def score(key, *, identity=None, value=0.75, **facts):
    return Feedback(
        id=identity or f"judge-{key[:40]}",
        decision_id=key,
        kind="rating",
        value=value,
        source="judge",
        received_at=EPOCH,
        rater="a-model",
        facts=facts,
    )


def waits(database):
    with database.read() as connection:
        return {
            row["decision_id"]: {**row, **json.loads(row["facts"])}
            for row in connection.execute(select(jobs)).mappings()
        }


def day(database, now=EPOCH):
    return {name: value for name, value in judge_state(database, now=now).today.items() if value}


def check_counted(database):
    """The counts that are kept are those of the tables."""
    with database.read() as connection:
        assert stored_counts(connection, label="main") == row_counts(connection, label="main")


def test_a_share_is_sampled(database, answered):
    """The decisions that wait for the judge follow from their ids and the store's secret, at the share of that time."""
    ids = answered(200, share=0.3)
    secret = shared_secret(database, name=DRAWS, now=EPOCH)
    wanted = {key for key in ids if draw_number("judge", key, secret=secret) < 0.3}
    assert wanted != {key for key in ids if draw_number("judge", key, secret=b"another") < 0.3}
    assert set(waits(database)) == wanted
    assert {row["share"] for row in waits(database).values()} == {0.3}
    assert 0 < len(wanted) < 200
    check_counted(database)


def test_a_draw_of_the_decision_decides(database, make_decision, make_store):
    """An answer waits for the judge if its decision was drawn for it, whatever the share, and else it does not."""
    facts = [{JudgeRequest.key: {"asked": asked, "draw": 0.5, "q": 0.6, "share": 0.1}} for asked in (True, False)]
    made = [make_decision(facts=each) for each in facts * 5]
    store = make_store(share=0.0)
    store.add_decisions(made)
    told = {"status": "answered", "answer": "Paris", "steps": 1.0}
    store.add_outcomes([make_outcome(decision_id=each.id, now=EPOCH, **told) for each in made])
    assert set(waits(database)) == {each.id for each in made[::2]}


def test_the_first_answers_are_all_judged(database, answered):
    """Until the ledger has learned `first` decisions, or as many wait for the judge, every answer waits for it."""
    early = [*answered(5, share=0.0, first=8), *answered(5, share=0.0, first=8)]
    answered(5, share=0.0, first=8)
    assert set(waits(database)) == set(early)
    assert {row["share"] for row in waits(database).values()} == {1.0}


@pytest.mark.parametrize(
    ("changes", "judged"),
    [
        ({}, True),
        ({"answer": " \n"}, True),
        ({"answer": None, "run_by": "caller"}, False),
        ({"answer": None, "status": "exhausted", "run_by": "caller"}, True),
        ({"answer": None, "status": "failed", "stop_reason": "error"}, True),
        ({"answer": None, "status": "failed", "stop_reason": "cancelled"}, False),
        ({"answer": None, "status": "failed", "stop_reason": "unknown_arm"}, False),
        ({"answer": " ", "stop_reason": "no_text"}, False),  # images
        ({"answer": "Paris", "stop_reason": "no_text", "run_by": "caller"}, True),
        ({"answer": "Paris", "stop_reason": "imported", "made_by": {"imported": "jsonl"}}, False),
        ({"answer": "Paris", "stop_reason": "imported", "run_by": "caller"}, True),  # a caller's word
    ],
)
def test_what_can_be_judged(changes, judged):
    """Answers and failures of the arm can be judged; cancelled, imported and unreported ones cannot."""
    outcome = make_outcome(decision_id="d", now=EPOCH, status="answered", answer="Paris", steps=1.0)
    assert is_judgeable(replace(outcome, **{"run_by": "worker", **changes})) == judged


def test_no_more_wait_than_there_is_room_for(database, answered):
    """Beyond max_waiting decisions are not sampled, and counted; when one is done there is room again."""
    first = answered(5, max_waiting=3)
    assert len(waits(database)) == 3
    assert set(waits(database)) <= set(first)
    assert day(database) == {"skipped": 2}
    found = judgements(database)
    claim = found.claim(now=EPOCH)
    assert found.store_score(claim, feedback=score(claim.decision_id), cost=COST)
    answered(2, max_waiting=3)
    assert len(waits(database)) == 3
    check_counted(database)


def test_a_dead_judge_is_late_no_more(database, answered):
    """Its claim is taken away: another judge takes the decision, the try counts, and the score comes once."""
    (key,) = answered()
    found = judgements(database)
    dead = killed(database).claim(now=EPOCH)
    assert found.claim(now=EPOCH) is None
    assert found.claims.free_lost(held=[]) == [key]
    second = found.claim(now=EPOCH)
    assert (dead.attempt, second.attempt) == (1, 2)
    assert found.store_score(second, feedback=score(key), cost=COST)
    assert not found.store_score(dead, feedback=score(key, value=0.1), cost=COST)
    (kept_score,) = found.store.record(key).feedback
    assert kept_score.value == 0.75
    assert day(database)["prompt_tokens"] == 200  # both were paid for
    check_counted(database)


def test_a_judge_claims_nothing_of_a_check(database, make_store, make_decision):
    """Jobs of two kinds of one decision are claimed, renewed and taken away one without the other."""
    store, decision = make_store(), make_decision()
    store.check = True
    store.add_decisions([decision])
    store.add_outcome(make_outcome(decision_id=decision.id, now=EPOCH, status="answered", answer="x", steps=1.0))
    judge, dead = judgements(database), this_process()
    check = ScoreQueue(store, kind="check", attempts=3, expire_s=1e6, process=replace(dead, started="1"))
    assert check.claim(now=EPOCH).decision_id == judge.claim(now=EPOCH).decision_id == decision.id
    assert judge.claims.free_lost(held=[decision.id]) == []
    assert check.claims.free_lost(held=[]) == [decision.id]
    assert check.claim(now=EPOCH).attempt == 2
    check_counted(database)


def test_a_try_that_fails_is_tried_again_later_and_given_up_at_last(database, answered):
    """The pause doubles; after the last attempt the decision waits no more."""
    (key,) = answered()
    found = judgements(database, attempts=3)
    now, pauses = EPOCH, []
    for _ in range(3):
        claim = found.claim(now=now)
        told = found.fail(claim, cost=COST, now=now, pause_s=10)
        pauses.append(waits(database)[key]["due_at"] - now if told == "later" else told)
        now += 100
    assert pauses == [10, 20, "given_up"]
    assert day(database)["failed"] == 3
    assert day(database)["given_up"] == 1
    assert waits(database) == {}
    check_counted(database)


def test_a_server_that_fails_takes_no_attempt_away(database, answered):
    """However often the server fails, the decision is tried again; calls that cost nothing are none of the budget."""
    (key,) = answered()
    found = judgements(database, attempts=2, judgements=3)
    now = EPOCH
    for number in range(12):
        claim = found.claim(now=now)
        assert (claim.attempt, claim.failures) == (1, number)
        found.put_back(claim, due_at=now, pause_s=1)
        now = waits(database)[key]["due_at"]
    assert day(database) == {"failed": 12}
    assert now - EPOCH == sum(2.0**number for number in range(12))


@pytest.mark.parametrize("budget", [{"judgements": 2}, {"tokens": 220}, {"dollars": 0.5}])
def test_beyond_the_days_budget_everything_waits_for_the_next_day(database, answered, budget):
    """What would begin beyond the budget is due when the next day begins, by UTC, and is judged then."""
    ids = sorted(answered(4))
    found = judgements(database, **budget)
    for key in ids[:2]:
        claim = found.claim(now=EPOCH)
        assert claim.decision_id == key
        assert found.store_score(claim, feedback=score(key), cost=COST)
    assert found.claim(now=EPOCH) == refused(ids[2], "budget")
    midnight = next_day_start(EPOCH)
    assert {row["due_at"] for row in waits(database).values()} == {midnight}
    assert found.claim(now=midnight - 1) is None
    claim = found.claim(now=midnight)
    assert (claim.decision_id, claim.attempt) == (ids[2], 1)
    assert day(database, midnight) == {"begun": 1}


def test_what_waited_too_long_is_not_judged(database, answered):
    """A decision beyond expire_s is dropped when a judge comes to it, or by the sweep, and counted."""
    first, second = sorted(answered(2))
    found = judgements(database, expire_s=100)
    assert found.claim(now=EPOCH + 100) == refused(first, "expired")
    assert expire(database, kind="judge", before=EPOCH - 1, now=EPOCH + 100) == 0
    assert expire(database, kind="judge", before=EPOCH, now=EPOCH + 100) == 1
    assert waits(database) == {}
    assert day(database) == {"expired": 2}
    assert second not in waits(database)
    check_counted(database)


def test_erasure_ends_the_wait(database, answered):
    """An erased decision waits for no judge, and a score that comes after that is not stored."""
    (key,) = answered()
    found = judgements(database)
    claim = found.claim(now=EPOCH)
    erase(database, Selection(decision=key), features=False, actor="cli:me", now=EPOCH)
    assert waits(database) == {}
    assert not found.store_score(claim, feedback=score(key, reason="it says Paris"), cost=COST)
    assert found.store.record(key).feedback == ()
    assert day(database)["prompt_tokens"] == 100
    check_counted(database)


def judge_all(database, ids):
    """Claim all of these, and fail, put back or keep what was claimed, in turn."""
    found = judgements(database, attempts=2, judgements=60)
    for number, _ in enumerate(ids):
        claim = found.claim(now=EPOCH)
        if not isinstance(claim, ScoreJob):
            continue
        if number % 3 == 0:
            found.fail(claim, cost=COST, now=EPOCH, pause_s=0.001)
        elif number % 3 == 1:
            found.put_back(claim, due_at=EPOCH, pause_s=0.001)
        else:
            found.store_score(claim, feedback=score(claim.decision_id), cost=COST)


def sweep(database, times):
    for _ in range(times):
        expire(database, kind="judge", before=EPOCH - 1, now=EPOCH)
        judgements(database).claims.free_lost(held=[])


def erase_all(database, ids):
    for key in ids:
        erase(database, Selection(decision=key), features=False, actor="cli:me", now=EPOCH)


def test_judges_outcomes_and_erasure_at_once(database_url, database, answered):
    """Judges, outcomes, the sweep and an erasure at the same time: no deadlock, and the counters are the tables'."""
    ids, faults = answered(40), []

    def run(work, given):
        own = Database(database_url)
        try:
            work(own, given)
        except Exception as error:
            faults.append(error)
        finally:
            own.close()

    works = [(judge_all, ids[number:] + ids[:number]) for number in range(3)]
    works += [(sweep, 50), (erase_all, ids[::5])]
    at_once(*(partial(run, *each) for each in works), partial(answered, 20))
    assert faults == []
    assert not set(ids[::5]) & set(waits(database))
    check_counted(database)
