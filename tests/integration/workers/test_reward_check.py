"""Checks as rewards, on real stores and with real processes: scores, silence, crashes, hangs, claims and erasure."""

import os
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from sqlalchemy import select, update

from ragbandit.router.config.settings import Settings
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs.scores import CHECK_EXPIRE_S
from ragbandit.router.storage.judgements import ScoreJob
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Source
from ragbandit.workers.chores.exchanges import renew_claims
from ragbandit.workers.chores.recovery import recover
from ragbandit.workers.chores.reward_checks import RewardChecks
from ragbandit.workers.judge.reward_check import CheckFailed, CheckProcess, check_reward_check
from ragbandit.workers.running.context import Context
from ragbandit.workers.scoring.jobs import check_answers
from ragbandit.workers.scoring.scorers import Checking
from tests.conftest import on_sqlite
from tests.support.cases import every_case
from tests.support.waiting import runs, until

#: a check whose behaviour the answer chooses
MODULE = """
import asyncio, os, sys, time

def scripted(*, answer, question, sources, extra=1.0):
    print("to standard output, which is no reply")
    match answer.split():
        case ["say", value]: return eval(value)
        case ["sources"]: return len(sources) / 10 if sources[0]["url"] == "https://s" else 0.0
        case ["question"]: return question == "Who wrote Dracula?"
        case ["extra"]: return extra
        case ["raise"]: raise LookupError("no such word")
        case ["exit"]: os._exit(3)
        case ["quit"]: sys.exit()
        case ["hang"]: time.sleep(60)
        case ["count"]:
            scripted.calls = getattr(scripted, "calls", 0) + 1
            return scripted.calls / 10

async def later(answer, question, sources):
    await asyncio.sleep(0)
    return True

def narrow(answer): return True
"""


@pytest.fixture(scope="module", autouse=True)
def module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_checks.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    yield str(folder)
    sys.path.remove(str(folder))


def reward(check="own_checks:scripted", **given):
    return Settings(reward={"check": check, **given}).reward


def test_what_a_check_says_is_a_number_or_nothing():
    """A check may return numbers, bools or None; other values, crashes and hangs are faults; the next call works."""
    process = CheckProcess(reward(check_s=5.0, check_params={"extra": 0.25}))
    long = Source(id="a", title="t", text="x" * 200_000, url="https://s")

    def score(answer, **given):
        return process.score(**{"answer": answer, "question": "Who wrote Dracula?", "sources": [long] * 3} | given)

    says = [("say 1", 1.0), ("say True", 1.0), ("say False", 0.0), ("say .5", 0.5), ("say None", None)]
    says += [("sources", 0.3), ("question", 1.0), ("extra", 0.25), ("count", 0.1), ("count", 0.2)]
    wrong = [(f"say {value}", "expected a number from 0 to 1") for value in ("2", "-.1", "float('nan')", "'1'")]
    wrong += [("say [1]", "TypeError"), ("raise", "LookupError: no such word")]
    wrong += [("exit", "ended its process"), ("quit", "ended its process")]
    with every_case() as case:
        for answer, value in says:
            with case(answer):
                assert score(answer) == value
        for answer, fault in wrong:
            with case(answer):
                with pytest.raises(CheckFailed, match=fault):
                    score(answer)
                assert score("say 1") == 1.0
    process.end()
    hasty = CheckProcess(reward(check_s=0.05))
    with pytest.raises(CheckFailed, match=r"did not end within 0\.05 s, and was killed"):
        hasty.score(answer="hang", question="", sources=[])
    hasty.end()


def test_a_check_that_cannot_be_called_is_refused():
    """A module or a function that is not there, other arguments, parameters that it does not take; and lost texts."""
    check_reward_check(reward("own_checks:later"))
    cases = [
        (reward("own_checks:nothing"), "cannot be imported"),
        (reward(check_params={"other": 1}), "unexpected keyword argument 'other'"),
        (reward(check_params={"extra": date(2026, 1, 1)}), "date is not JSON"),
    ]
    for settings, fault in cases:
        with pytest.raises(ConfigError, match=fault) as caught:
            check_reward_check(settings)
        assert caught.value.field == "reward.check"
    with pytest.raises(ValueError, match=r"reward\.check: it reads questions"):
        Settings(reward={"check": "a:b"}, log={"text": "none"})


class Bench:
    """A store whose outcomes wait for a check, and what runs it."""

    def __init__(self, database, make_decision, **given):
        settings = Settings(reward={"check": "own_checks:scripted", **given})
        self.database, self.make_decision = database, make_decision
        self.store = DecisionStore(database, label="main", check=True)
        ledger = Ledger(database, label="main")
        self.context = Context(settings=settings, store=self.store, ledger=ledger, jobs=MemoryJobs())
        self.checking = Checking(settings.reward, store=self.store)
        self.context.scorers.append(self.checking)

    def run(self):
        check_answers(self.context, self.checking)

    def killed(self):
        """Claim the next answer as a worker of this host that has ended; its claim is taken away."""
        queue = self.checking.queue
        alive, queue.claims.process = queue.claims.process, replace(queue.claims.process, started="1")
        job = queue.claim(now=time.time())
        queue.claims.process = alive
        return job

    def answered(self, answer, **more):
        decision = self.make_decision(run_by=more.get("run_by", "caller"))
        self.store.add_decisions([decision])
        given = {"status": "answered", "answer": answer, "steps": 1.0}
        given |= {name: value for name, value in more.items() if name in ("status", "error", "answer")}
        outcome = make_outcome(decision_id=decision.id, now=time.time(), **given)
        changed = {name: more[name] for name in ("run_by", "sources") if name in more}
        self.store.add_outcomes([replace(outcome, **changed)])
        return decision.id

    def due(self):
        with self.database.read() as connection:
            return {row["decision_id"]: row for row in connection.execute(select(jobs)).mappings()}

    def later(self):
        with self.database.write() as connection:
            connection.execute(update(jobs).values(due_at=0.0))

    def score(self, key):
        return [(item.source, item.kind, item.value) for item in self.store.record(key).feedback]


@pytest.fixture
def bench(database, make_decision):
    made = []

    def make(**given):
        made.append(Bench(database, make_decision, **given))
        return made[-1]

    yield make
    for one in made:
        one.checking.process.end()


@on_sqlite
def test_answers_of_callers_and_workers_are_scored_once(bench):
    """A score is feedback of source code; no answer is 0 without a call; None ends the wait; nothing is done twice."""
    it = bench()
    source = Source(id="s", title="", text="", url="https://s")
    theirs = it.answered("say .5")
    ours = it.answered("sources", run_by="worker", sources=(source, source))
    failed = it.answered(None, status="failed", error="broken", run_by="worker")
    silent = it.answered("say None")
    it.run()
    assert [it.score(key) for key in (theirs, ours, failed, silent)] == [
        [("code", "rating", 0.5)], [("code", "rating", 0.2)], [("code", "rating", 0.0)], []
    ]  # fmt: skip
    assert it.due() == {}
    feedback = it.store.record(theirs).feedback[0]
    assert (feedback.rater, feedback.facts["check"]) == ("own_checks:scripted", "own_checks:scripted")
    assert it.store.record(failed).feedback[0].facts["no_answer"] == ""
    it.run()
    assert len(it.score(theirs)) == 1


@on_sqlite
def test_what_fails_is_tried_again_and_given_up(bench, caplog):
    """A crash is tried again later, three times; the recovery ends what waits too long. Others are checked."""
    it = bench()
    broken = it.answered("exit")
    good = it.answered("say 1")
    for attempt in (1, 2):
        it.run()
        assert it.due()[broken]["tries"] == attempt
        assert it.due()[broken]["due_at"] > time.time()
        it.later()
    it.run()
    assert it.due() == {}
    assert (it.score(broken), len(it.score(good))) == ([], 1)
    deadly = it.answered("say 1")
    for _ in range(3):
        assert isinstance(it.killed(), ScoreJob)
        renew_claims(it.context)
    it.run()
    assert (it.due(), it.score(deadly)) == ({}, [])
    assert "workers died over an answer that they scored" in caplog.text
    old = it.answered("say 1")
    recover(it.database, jobs=it.context.jobs, settings=it.context.settings.judge, now=time.time() + CHECK_EXPIRE_S + 1)
    assert (it.due(), it.score(old)) == ({}, [])


@on_sqlite
def test_a_worker_that_learns_checks_answers(bench):
    """Its routine finds what comes in; when it is closed, the check's process has ended."""
    it = bench()
    routine = RewardChecks(it.context).start()
    key = it.answered("say 1")
    until(lambda: it.score(key))
    child = next(iter(Path(f"/proc/{os.getpid()}/task/{routine._thread.native_id}/children").read_text().split()))
    routine.close()
    assert not runs(child)
