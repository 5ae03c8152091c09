"""The answer queue in both databases: turns, claims, and claims of processes that have ended."""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, update

from ragbandit.router.serving.checks.reports import unrun_outcome
from ragbandit.router.storage.cancellations import cancel
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.erasure import Selection, erase
from ragbandit.router.storage.jobs import answers
from ragbandit.router.storage.jobs.answers import AnswerQueue, waiting_ids
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.processes.this_process import this_process
from ragbandit.shared.types import Conversation, DecisionId, Query
from tests.conftest import on_sqlite

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells of processes in /proc")


@pytest.fixture
def store(database):
    return DecisionStore(database, label="main")


@pytest.fixture
def queue(database):
    return AnswerQueue(database)


@pytest.fixture
def ask(store, make_decision):
    """A function that stores decisions with these ids for our workers, together."""

    def ask(*ids, tenant="default", run_by="worker"):
        decisions = [
            make_decision(id=DecisionId(key), run_by=run_by, query=Query(text="q", tenant=tenant), made_at=time.time())
            for key in ids
        ]
        assert [each.id for each in store.add_decisions(decisions)] == list(ids)

    return ask


def taken(queue, count):
    return [queue.claim().decision_id for _ in range(count)]


def claimed(database):
    """The decisions that are run now."""
    with database.read() as connection:
        query = select(jobs.c.decision_id).where(jobs.c.claimed_by.is_not(None))
        return list(connection.execute(query).scalars())


def elsewhere(**changes):
    """A process of another host."""
    return replace(this_process(), host="other", pid_space="another", **changes)


def run_out(database):
    """What time does."""
    with database.write() as connection:
        connection.execute(update(jobs).values(claimed_until=0.0))


def test_what_workers_are_to_run_waits(ask, queue):
    """A decision of our workers waits from the transaction that stores it on; one that a caller runs never does."""
    ask("theirs", run_by="caller")
    ask("d1")
    ask("d1")
    assert waiting_ids(queue._database, limit=10) == ["d1"]
    assert queue.claim().decision_id == "d1"
    assert queue.claim() is None


def test_tenants_take_turns(ask, queue):
    """A tenant that floods the queue delays the next question of another by one, and its own as before."""
    ask(*(f"flood-{number:02}" for number in range(20)), tenant="flood")
    assert taken(queue, 5) == [f"flood-{number:02}" for number in range(5)]
    ask("calm-1", tenant="calm")
    assert set(taken(queue, 2)) == {"flood-05", "calm-1"}
    ask("calm-2", "calm-3", tenant="calm")
    assert set(taken(queue, 4)) == {"flood-06", "calm-2", "flood-07", "calm-3"}
    assert taken(queue, 2) == ["flood-08", "flood-09"]


def test_claims_exclude_each_other(ask, database):
    """Many threads that claim at once get different decisions, and every decision is claimed once."""
    ids = [f"d-{number:02}" for number in range(24)]
    ask(*ids)
    together = threading.Barrier(8)

    def claim_all(number):
        mine = AnswerQueue(database, process=elsewhere(pid=number))
        together.wait(10)
        claimed = []
        while (one := mine.claim()) is not None:
            claimed.append(one.decision_id)
        return claimed

    with ThreadPoolExecutor(8) as pool:
        found = [key for keys in pool.map(claim_all, range(8)) for key in keys]
    # A row that another transaction is at is passed over: what was left so is there for the next look.
    found += taken(AnswerQueue(database), len(ids) - len(found))
    assert sorted(found) == ids


def test_an_outcome_ends_the_wait(ask, store, queue):
    """With its outcome a decision leaves the queue, claimed or not."""
    ask("d1", "d2")
    queue.claim()
    for key in ("d1", "d2"):
        store.add_outcome(unrun_outcome(DecisionId(key), now=1.0, stop_reason="x", error="x"))
    assert (queue.claim(), claimed(queue._database)) == (None, [])


def test_tries_are_counted(ask, queue):
    """A claim counts one try, unless it is given back; a claim can ask for what has run before, or for the rest."""
    ask("d1")
    assert queue.claim().tries == 0
    queue.give_back("d1")
    assert queue.claim().tries == 0
    queue.free_lost(held=["d1"])
    run_out(queue._database)
    assert queue.free_lost(held=[]) == ["d1"]
    assert queue.has_interrupted()
    assert queue.claim(has_run=False) is None
    assert queue.claim(has_run=True).tries == 1


def test_to_the_front(ask, database, queue):
    """A decision to be cancelled is claimed next, unless it is claimed already; a new tenant still gets its turn."""
    ask("d1", "d2", "d3")
    assert queue.claim().decision_id == "d1"
    for key in ("d3", "d1"):
        assert cancel(database, decision_id=DecisionId(key), now=1.0).cancelled is None
    ask("new-1", "new-2", tenant="new")
    assert taken(queue, 4) == ["d3", "d2", "new-1", "new-2"]


@pytest.fixture
def sleeper():
    """Another process of this host, and how a claim names it."""
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    started = "".join(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19:20])
    yield process, replace(this_process(), pid=process.pid, started=started)
    process.kill()
    process.wait(10)
    process.stdout.close()


@linux
def test_what_a_killed_process_of_this_host_ran_is_free_at_once(ask, database, queue, sleeper):
    """The first sweep after a worker's death finds its decisions; they keep their turn, and the attempt counts."""
    process, named = sleeper
    ask("d1", "d2", "d3")
    taken(AnswerQueue(database, process=named), 2)
    assert queue.free_lost(held=[]) == []
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie: its parent has not asked yet
    assert sorted(queue.free_lost(held=[])) == ["d1", "d2"]
    again = queue.claim()
    assert (again.decision_id, again.tries) == ("d1", 1)


@linux
def test_a_process_id_that_is_used_again_is_another_process(ask, database, queue):
    """A process with the id of a dead one, begun at another time, does not keep its claims alive."""
    ask("d1")
    AnswerQueue(database, process=replace(this_process(), started="1")).claim()
    assert queue.free_lost(held=[]) == ["d1"]


def test_a_claim_from_another_host_runs_out(ask, database, queue):
    """For a process on another host only the last renewal of its claim is known."""
    ask("d1", "d2")
    theirs = AnswerQueue(database, process=elsewhere())
    taken(theirs, 2)
    run_out(database)
    theirs.renew(["d1"])
    assert queue.free_lost(held=[]) == ["d2"]
    assert claimed(database) == ["d1"]


def test_arms_are_passed_over(store, make_decision, queue):
    """Without some arms the first decision of another arm is claimed."""
    decisions = [
        make_decision(id=DecisionId(key), run_by="worker", made_at=time.time()) for key in ("a", "b", "c", "d")
    ]
    store.add_decisions([replace(each, arm=arm) for each, arm in zip(decisions, ("s", "s", "t", "s"), strict=True)])
    assert queue.claim(except_arms=["s", "t"]) is None
    assert queue.claim(within=["another"]) is None
    claimed = queue.claim(except_arms=["s"])
    assert (claimed.decision_id, claimed.arm) == ("c", "t")
    assert queue.claim(except_arms=["s"]) is None
    assert taken(queue, 3) == ["a", "b", "d"]


def test_cost_does_not_grow(ask, database, queue):
    """With 20,000 decisions in the queue storing one and claiming one reads an index: no query walks the table."""
    row = {"kind": "answer", "tenant": "filler", "arm": "a", "made_at": 0.0, "due_at": 0.0, "tries": 0, "facts": "{}"}
    with database.write() as connection:
        rows = [row | {"decision_id": f"filled-{number:05}", "turn": number} for number in range(20_000)]
        connection.execute(insert(jobs), rows)
        if not database.is_sqlite:
            connection.exec_driver_sql("ANALYZE jobs")

    def best(work):
        seconds = []
        for number in range(12):
            began = time.perf_counter()
            work(number)
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    with database.read() as connection:
        whole = best(lambda _: connection.execute(select(func.sum(jobs.c.tries + jobs.c.turn))).all())
        read = best(lambda _: connection.execute(select(jobs).limit(1)).all())
    slow = whole + 20 * read
    assert best(lambda _: queue.claim()) < max(slow, 0.05)
    assert best(lambda number: ask(f"new-{number}")) < max(slow, 0.05)


@on_sqlite  # PostgreSQL's plans for few rows depend on chance
def test_the_next_position_is_read_in_indexes(database):
    """A new decision's position is found in indexes of free and of claimed jobs, however many jobs there are."""
    with database.read() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {answers._POSITIONS['sqlite']}", ("tenant",)).all()
    assert {row[3].split(" INDEX ")[1].split(" ")[0] for row in plan if " INDEX " in row[3]} == {
        "jobs_next",
        "jobs_claimed",
        "jobs_of_tenant",
    }


def test_a_decision_is_stored_with_its_claim(store, queue, database, make_decision):
    """A decision that is stored with a claim belongs to that process, and to another one once the claim runs out."""
    decisions = [
        make_decision(id=DecisionId(key), run_by="worker", query=Query(text="q"), made_at=time.time())
        for key in ("here", "waits")
    ]
    other = elsewhere()
    store.add_decisions(decisions, claims={DecisionId("here"): other.key})

    assert claimed(database) == ["here"]
    assert queue.claim().decision_id == "waits"
    assert queue.claim() is None
    assert queue.free_lost(held=["waits"]) == []
    run_out(database)
    assert queue.free_lost(held=["waits"]) == ["here"]
    again = queue.claim(within=["a", "b", decisions[0].arm])
    assert (again.decision_id, again.tries) == ("here", 1)


def test_a_claimed_decision_has_no_turn_and_goes_first_if_it_is_given_back(store, queue, make_decision, monkeypatch):
    """A decision that its process runs asks for no turn; a returned decision goes before all waiting ones, whose
    order stays.
    """

    def stored(*keys, claims=()):
        made = [
            make_decision(id=DecisionId(key), run_by="worker", query=Query(text="q"), made_at=time.time())
            for key in keys
        ]
        store.add_decisions(made, claims=dict.fromkeys(map(DecisionId, claims), queue.process.key))

    stored("a", "b")
    sent, send = [], answers.send
    monkeypatch.setattr(answers, "send", lambda *asked: sent.append(asked[1]) or send(*asked))
    stored("mine", claims=["mine"])
    assert len(sent) == 1
    assert "upcoming" not in sent[0]
    stored("c", "mine too", "d", claims=["mine too"])
    queue.give_back(DecisionId("mine too"))
    assert taken(queue, 5) == ["mine too", "a", "b", "c", "d"]


def test_jobs_of_another_kind_are_not_claimed(database, queue):
    """A decision that waits only for the judge is not claimed by workers."""
    row = {"kind": "judge", "decision_id": "d1", "turn": 0, "made_at": 0.0, "due_at": 0.0, "tries": 0, "facts": "{}"}
    with database.write() as connection:
        connection.execute(insert(jobs), [row])
    assert not queue.has_free_job()
    assert queue.claim() is None


def test_erasure_blanks_the_chat_of_a_waiting_decision(database, store, queue, make_decision):
    """The job of an erased decision keeps its turn, without the texts of its chat."""
    query = Query(
        id=DecisionId("d1"),
        text="q",
        conversation=Conversation(fields={"messages": [{"role": "user", "content": "secret"}]}),
    )
    store.add_decisions([make_decision("d1", run_by="worker", query=query)])
    erase(database, Selection(decision="d1"), features=False, actor="cli:me", now=1.0)
    assert not queue.claim().conversation


EARLIER = {"messages": [], "anthropic_headers": {"anthropic-beta": "b"}}


@pytest.mark.parametrize(
    ("facts", "read"),
    [
        (None, Conversation(fields={"messages": []}, dialect="messages", headers={"anthropic-beta": "b"})),
        ({"chat": EARLIER}, Conversation(fields={"messages": []}, dialect="messages", headers={"anthropic-beta": "b"})),
        ({"chat": {"messages": []}}, Conversation(fields={"messages": []})),
    ],
    ids=["this commit", "messages of earlier commits", "chats of earlier commits"],
)
def test_a_conversation_waits_in_its_dialect(database, store, queue, make_decision, facts, read):
    """A job has the fields, dialect and headers of a conversation, and those of stores of earlier commits are read."""
    query = Query(id=DecisionId("d1"), text="q", conversation=read)
    store.add_decisions([make_decision("d1", run_by="worker", query=query)])
    if facts is not None:
        with database.write() as connection:
            connection.execute(update(jobs).values(facts=json.dumps(facts)))
    assert queue.claim().conversation == read
