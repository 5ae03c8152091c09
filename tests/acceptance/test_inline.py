"""Answers in the service's own process: no worker and no Redis, with the promises that hold for workers."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import httpx
import pytest
from sqlalchemy import func, select

from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.access.spending import Spender, read_spending
from ragbandit.router.storage.sql.counters import row_counts, stored_counts
from ragbandit.router.storage.sql.tables import decisions, jobs, outcomes
from ragbandit.shared.processes.this_process import ProcessIdentity
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.servers.faulty_models import DOORS, FaultyModels, asked, events_of, two_models

from .conftest import running_systems, until

#: most dollars that an answer of `two_models` is estimated at: 1,000 tokens, and a short prompt, at a dollar a million
ESTIMATE = 0.0011


def models(server, **more):
    """Settings of a service with two models behind one server, and with no worker."""
    return {"queues": ()} | two_models(server.url) | more


def client_of(system):
    return httpx.Client(base_url=f"http://127.0.0.1:{system.ports['api-1']}", timeout=30)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A service without workers and, from its start on, without Redis."""
    with FaultyModels() as server, running_systems(tmp_path_factory.mktemp("inline")) as make:
        system = make(**models(server))
        system.redis.stop()
        with client_of(system) as client:
            yield client, server, system


@pytest.mark.parametrize(("door", "stream"), DOORS)
def test_a_service_alone_answers(alone, door, stream):
    """Without a worker and without Redis a question is answered, in pieces if asked for, also by the second arm."""
    client, _, _ = alone
    for question in (f"plain {door} {stream}", f"fault:503 {door} {stream}"):
        status, text, key, error, _ = asked(client, question, door=door, stream=stream)
        assert (status, text) == (200, "Paris"), error
        record = client.get(f"/v1/decisions/{key.removeprefix('chatcmpl-')}").json()
        assert (record["outcome"]["answer"], record["outcome"]["run_by"]) == ("Paris", "worker")


def test_pieces_come_while_the_model_writes(tmp_path):
    """Without Redis a stream has the pieces of a slow model one by one."""
    with (
        ScriptedServer({"": Reply(text="one two three four", part_s=0.1)}) as server,
        running_systems(tmp_path) as make,
    ):
        system = make(**models(server))
        system.redis.stop()
        with client_of(system) as client:
            *_, reply = asked(client, "Count.", stream=True)
        pieces = [one["choices"][0]["delta"].get("content") for one in events_of(reply)]
        assert len([piece for piece in pieces if piece]) > 2
        assert "".join(filter(None, pieces)) == "one two three four"


def test_a_character_that_no_store_takes_is_replaced_for_the_caller_too(tmp_path):
    """A NUL in a model's text is the same replacement character in the store, in a reply and in a stream."""
    with ScriptedServer({"": Reply(text="one\0two", part_s=0.1)}) as server, running_systems(tmp_path) as make:
        system = make(**models(server))
        with client_of(system) as client:
            for stream in (False, True):
                status, text, key, error, _ = asked(client, f"Count {stream}.", stream=stream)
                assert (status, text) == (200, "one\ufffdtwo"), error
                record = client.get(f"/v1/decisions/{key.removeprefix('chatcmpl-')}").json()
                assert record["outcome"]["answer"] == text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("door", ["chat/completions", "messages", "responses"])
def test_a_caller_who_leaves_cancels_the_answer_and_pays(alone, door, stream):
    """A caller who closes the connection while the model is silent cancels the run and pays for the prompt."""
    client, server, system = alone
    question = f"always:silence leaves {door} {stream}"
    said = {"input": question} if door == "responses" else {"messages": [{"role": "user", "content": question}]}
    body = {"model": "arm/one", "stream": stream, "max_tokens": 9, **said}
    connection = HTTPConnection(client.base_url.host, client.base_url.port, timeout=30)
    connection.request("POST", f"/v1/{door}", json.dumps(body), {"content-type": "application/json"})
    until(lambda: server.requests_of(question))
    connection.close()
    database = open_database(system.settings)
    joined = select(outcomes.c.stop_reason, outcomes.c.cost).join(decisions).where(decisions.c.text == question)

    def ended():
        with database.read() as connection:
            return connection.execute(joined).first()

    until(ended, seconds=20)
    reason, cost = ended()
    assert (reason, json.loads(cost)["dollars"] > 0.0) == ("cancelled", True)
    assert len(server.requests_of(question)) == 1
    database.close()


def test_questions_without_room_wait_for_the_service(tmp_path):
    """With room for two answers at once, twelve questions at once are all answered, each by one request."""
    with FaultyModels() as server, running_systems(tmp_path) as make:
        system = make(**models(server, workers={"inline": 2, "sweep_interval_s": 0.5}))
        with client_of(system) as client, ThreadPoolExecutor(12) as pool:
            replies = list(pool.map(lambda number: asked(client, f"question {number}")[:2], range(12)))
        assert set(replies) == {(200, "Paris")}
        assert len(server.asked) == 12


def test_a_killed_service_loses_no_answer(tmp_path):
    """Answers under way when the service is killed are given once, and what the killed runs may cost is charged."""
    with FaultyModels() as server, running_systems(tmp_path) as make:
        system = make(**models(server))
        questions = [f"kill:503 {number}" for number in range(4)]
        with client_of(system) as client, ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(asked, client, question) for question in questions]
            until(lambda: all(len(server.requests_of(question)) == 2 for question in questions), seconds=20)
            system.kill("api-1")
            assert all(isinstance(one.exception(10), httpx.TransportError) for one in waiting)
        system.start_process("api-1")
        database = open_database(system.settings)

        def left():
            count = select(func.count()).select_from(jobs).where(jobs.c.kind == "answer")
            with database.read() as connection:
                return connection.execute(count).scalar()

        until(lambda: left() == 0, seconds=30)
        with database.read() as connection:
            states = connection.execute(select(decisions.c.text, outcomes.c.status).join(outcomes)).all()
            assert sorted(map(tuple, states)) == sorted((q, s) for q in questions for s in ("answered", "failed"))
            assert stored_counts(connection, label="main") == row_counts(connection, label="main")
            costs = [
                json.loads(cost).get("dollars", 0.0) for cost in connection.execute(select(outcomes.c.cost)).scalars()
            ]
            sums = read_spending(connection, [Spender("tenant", "default")], now=time.time())
            day = sums[Spender("tenant", "default")]
            assert day.day - day.other == pytest.approx(sum(costs))
            assert 0.0 < day.other <= len(questions) * ESTIMATE  # the runs that the kill ended
        database.close()


def test_a_question_that_ends_two_processes_fails_and_harms_nobody(tmp_path):
    """A question whose run ended the service runs once more, in a process of its own, and fails if that ends too."""
    question = "always:silence ends processes"
    with FaultyModels() as server, running_systems(tmp_path) as make:
        system = make(**models(server))
        database = open_database(system.settings)

        def holder():
            with database.read() as connection:
                claim = connection.execute(select(jobs.c.claimed_by).where(jobs.c.kind == "answer")).scalar()
            return None if claim is None else ProcessIdentity.from_key(claim)

        with client_of(system) as client, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(asked, client, question)
            until(lambda: server.requests_of(question), seconds=20)
            service = holder()
            system.kill("api-1")
            assert isinstance(waiting.exception(10), httpx.TransportError)
        system.start_process("api-1")
        until(lambda: len(server.requests_of(question)) == 2, seconds=30)
        apart = holder()
        assert apart.pid != service.pid
        os.kill(apart.pid, signal.SIGKILL)

        def ended():
            with database.read() as connection:
                return connection.execute(select(outcomes.c.status, outcomes.c.stop_reason)).first()

        until(ended, seconds=30)
        with client_of(system) as client:
            assert asked(client, "plain")[:2] == (200, "Paris")
        assert (tuple(ended()), len(server.requests_of(question))) == (("failed", "worker_died"), 2)
        database.close()
