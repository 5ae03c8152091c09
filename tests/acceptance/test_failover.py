"""Failover while processes are killed; tests/integration/api/openai/test_failover.py has the rest."""

import itertools
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from sqlalchemy import func, select

from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.access.spending import Spender, read_spending
from ragbandit.router.storage.sql.counters import row_counts, stored_counts
from ragbandit.router.storage.sql.tables import decisions, jobs, outcomes
from tests.support.servers.faulty_models import FaultyModels, asked, events_of, two_models

from .conftest import running_systems, until


def test_a_worker_is_killed_between_the_two_arms(tmp_path):
    """If a worker is killed while the second arm answers, another worker answers it, and every row is there once."""
    settings = {"workers": {"inline": 0, "sweep_interval_s": 0.5}, "queues": ("answer",)}
    with FaultyModels() as server, running_systems(tmp_path) as make, ThreadPoolExecutor(1) as pool:
        system = make(**two_models(server.url), **settings)
        database = open_database(system.settings)
        for stream in (False, True):
            question = f"kill:503 {stream}"
            client = httpx.Client(base_url=f"http://127.0.0.1:{system.ports['api-1']}", timeout=60)
            waiting = pool.submit(asked, client, question, stream=stream)
            until(lambda asked=question: len(server.requests_of(asked)) == 2, seconds=20)
            system.restart("answer")
            status, text, key, error, _ = waiting.result(80)
            client.close()
            assert (status, text) == (200, "Paris"), error
            assert len(server.requests_of(question)) == 3
            with database.read() as connection:
                rows = connection.execute(select(decisions.c.id, outcomes.c.status, outcomes.c.cost).join(outcomes))
                ended = [row for row in rows.all() if row.id in connection_ids(connection, question)]
                assert sorted(row.status for row in ended) == ["answered", "failed"]
                assert key.removeprefix("chatcmpl-") in {row.id for row in ended}
        database.close()
        assert_booked(system)


def connection_ids(connection, question):
    return set(connection.execute(select(decisions.c.id).where(decisions.c.text == question)).scalars())


def assert_booked(system):
    """Nothing waits, the counters are those of the rows, and every dollar of an outcome is booked once."""
    database = open_database(system.settings)
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(jobs).where(jobs.c.kind == "answer")).scalar() == 0
        assert stored_counts(connection, label="main") == row_counts(connection, label="main")
        rows = connection.execute(select(decisions.c.request, outcomes.c.cost).join(outcomes)).all()
        # The outcome of the first decision of a loop has the cost of its turns.
        costs = [json.loads(row.cost) for row in rows if "tool_turn" not in (row.request or "")]
        sums = read_spending(connection, [Spender("tenant", "default")], now=time.time())
        dollars = sum(cost.get("dollars", 0.0) for cost in costs)
        day = sums[Spender("tenant", "default")]
        assert day.day - day.other == pytest.approx(dollars)  # the rest: runs that a kill ended
    database.close()


def stubborn(client, body, *, key):
    """(id, message) of a completion that is asked for under this id until a service answers.

    A question whose runs were killed twice fails for good, as a deadly one does: a caller asks again under another id.
    """
    give_up = time.monotonic() + 60
    while True:
        assert time.monotonic() < give_up, key
        try:
            reply = client.post("/v1/chat/completions", json=body, headers={"idempotency-key": key})
        except httpx.TransportError:
            time.sleep(0.1)
            continue
        if "workers died over this question" in reply.text:
            key = f"{key}-again"
            continue
        if reply.status_code == 200 and not body.get("stream"):
            return reply.json()["id"].removeprefix("chatcmpl-"), reply.json()["choices"][0]["message"]
        if reply.status_code == 200 and "data: [DONE]" in reply.text:
            chunks = events_of(reply)
            deltas = [one["choices"][0]["delta"] for one in chunks if one["choices"]]
            message = {"role": "assistant", "content": "".join(one.get("content") or "" for one in deltas) or None}
            calls = [call for one in deltas for call in one.get("tool_calls") or []]
            return chunks[0]["id"].removeprefix("chatcmpl-"), message | ({"tool_calls": calls} if calls else {})
        assert reply.status_code in (200, 503), reply.text  # 200: a stream that ended with an error
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_nine_while_arms_fail_and_loops_run(tmp_path):
    """Every question and every turn of a loop is answered, stored and booked once, however often processes are killed.

    The API, the answer worker and the learner are killed in turn while the drawn arm of most questions fails.
    """
    chance, over, answers = random.Random(3), threading.Event(), {}
    look = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    faults = ("none", "reset", "429", "503", "empty-body", "role-only")

    def ask(number):
        with httpx.Client(base_url=f"http://127.0.0.1:{system.ports['api-1']}", timeout=30) as client:
            for count in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
                key = f"storm-{number}-{count}"
                messages = [{"role": "user", "content": f"fault:{faults[count % len(faults)]} {key}"}]
                body = {"model": "auto", "messages": messages, "stream": number % 2 == 0}
                body |= {"tools": [look]} if count % 2 else {}
                decision, message = stubborn(client, body, key=key)
                if calls := message.get("tool_calls"):
                    messages += [message, {"role": "tool", "tool_call_id": calls[0]["id"], "content": "7"}]
                    decision, message = stubborn(client, body, key=f"{key}-2")
                answers[decision] = message["content"]

    with FaultyModels() as server, running_systems(tmp_path) as make, ThreadPoolExecutor(4) as pool:
        system = make(**two_models(server.url, first_piece_s=15.0))  # however busy the machine is
        asking = [pool.submit(ask, number) for number in range(4)]
        try:
            for name in ("api-1", "answer", "learn") * 7:
                system.storm([name], chance=chance)
        finally:
            over.set()
        for each in asking:
            each.result(120)
        system.wait_until(lambda found: found.unanswered == 0)
        assert len(answers) > 40
        assert set(answers.values()) == {"Paris"}
        assert_booked(system)
        database = open_database(system.settings)
        with database.read() as connection:
            rows = {row.decision_id: row for row in connection.execute(select(outcomes))}
            assert set(connection.execute(select(decisions.c.id)).scalars()) == set(rows)
        database.close()
        assert {rows[key].answer for key in answers} == {"Paris"}
        successors = [json.loads(row.made_by).get("successor") for row in rows.values() if row.status == "failed"]
        assert len(successors) > 10
        assert {rows[key].status for key in successors} == {"answered"}
        system.verified()
