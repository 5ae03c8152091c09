"""Tasks while processes are killed: every turn is answered and booked once, and every task is learned once."""

import itertools
import json
import random
import re
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from sqlalchemy import select

from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.access.spending import Spender, read_spending
from ragbandit.router.storage.rows.conversion import decision_value
from ragbandit.router.storage.rows.outcome_rows import LATE, LATER
from ragbandit.router.storage.sql.tables import decisions, outcomes, updates
from ragbandit.shared.types import MovedTurn
from ragbandit.testing.openai_server import Reply, ScriptedServer

from .conftest import running_systems
from .test_failover import stubborn

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
#: faults for which a server takes no money, and other arms are asked
FAULTS = ("none", "503", "429")
#: dollars of a token of a prompt
PRICE = 1e-6
#: kills of each process
KILLS = 5


class PaidModels:
    """The models of two arms. The number of tokens in a reply's usage is the number of the reply, so each outcome names
    the reply that it has paid. A question of the form "fault:NAME ..." fails so when it is asked first.
    """

    def __init__(self):
        self._lock, self._asked = threading.Lock(), Counter()
        #: number of a reply -> its question
        self.replies = {}
        self.server = ScriptedServer(self._reply)

    def _reply(self, sent):
        messages = sent["messages"]
        question = json.dumps(messages[-1]["content"])
        with self._lock:
            self._asked[question] += 1
            fault = re.search(r"fault:(\d+)", question)
            if fault and self._asked[question] == 1:
                return Reply(status=int(fault[1]), text="busy")
            number = len(self.replies) + 1
            self.replies[number] = question
        changes = {"usage": {"prompt_tokens": number, "completion_tokens": 1}}
        if sent.get("tools") and messages[-1]["role"] == "user":
            call = {"id": f"call_{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            return Reply(message={"tool_calls": [call]}, finish="tool_calls", changes=changes)
        return Reply(text="Paris", changes=changes)

    def asked_again(self, number):
        return self._asked[self.replies[number]] > 1

    def settings(self):
        def generator(name):
            prices = {"input": PRICE * 1e6, "output": 0.0}
            options = {"base_url": self.server.url, "retries": 0, "first_piece_s": 15.0}
            return {"name": "openai", "model": name, "token_prices": prices, "openai": options}

        return {
            "generator": generator("one"),
            "generators": {"two": generator("two")},
            "arms": {"one": {"class": "model"}, "two": {"class": "model", "generator": "two"}},
            "health": {"failures": 0},
            "budget": {"seconds": 60.0},
            "conversation": {"unit": "task", "idle_s": 120.0, "rewrite": {"by": "off"}},
            "reward": {"cost": {"dollars": 1.0}},
        }


class Tasks:
    """Callers that work on one task after the other, and judge each at its end. `judged` has their sessions, `made`
    the decisions of all turns: id -> session.
    """

    def __init__(self, system):
        self.system, self.over = system, threading.Event()
        self.judged, self.made = [], {}

    def work(self, number):
        ports = [*self.system.ports.values()]
        clients = [httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) for port in ports]
        with ThreadPoolExecutor(2) as pool:
            for count in itertools.takewhile(lambda _: not self.over.is_set(), itertools.count()):
                self._task(f"task-{number}-{count}", clients=clients, pool=pool, streams=number % 2 == 0)
        for client in clients:
            client.close()

    def _task(self, session, *, clients, pool, streams):
        """Two first turns at once, a turn with a tool, a turn on the other gateway, and the end with a judgement."""

        def turn(place, messages, *, client, **more):
            body = {"model": "auto", "messages": messages, "stream": streams, **more}
            client.headers["x-ragbandit-session-id"] = session
            key, message = stubborn(client, body, key=f"{session}-{place}")
            self.made[key] = session
            return message

        def question(place):
            fault = FAULTS[sum(map(ord, session + place)) % len(FAULTS)]
            return [{"role": "user", "content": f"fault:{fault} {session} {place}"}]

        first = [
            pool.submit(turn, place, question(place), client=client)
            for place, client in zip(("a", "b"), (clients[0], clients[-1]), strict=True)
        ]
        for each in first:
            each.result(90)
        messages = question("c")
        message = turn("c", messages, client=clients[-1], tools=[LOOK])
        assert "tool_calls" in message, f"{session}-c: {message}"
        messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": session}]
        turn("d", messages, client=clients[0], tools=[LOOK])
        turn("e", question("e"), client=clients[-1])
        self._judge(session, clients[0])

    def _judge(self, session, client):
        judgement = {"feedback_id": f"fb-{session}", "rating": True, "source": "code"}
        give_up = time.monotonic() + 60
        while True:
            assert time.monotonic() < give_up, session
            try:
                reply = client.post(f"/v1/sessions/{session}/end", json={"feedback": judgement})
            except httpx.TransportError:
                time.sleep(0.1)
                continue
            if reply.status_code == 200:
                break
            assert reply.status_code == 503, reply.text
            time.sleep(0.1)
        self.judged.append(session)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_kill_nine_while_tasks_run(tmp_path, request, database):
    """The API, the answer worker and the learner are killed in turn, on SQLite and on PostgreSQL. PostgreSQL has two
    gateways, the second one on another host whose clock is ahead.
    """
    chance, models, more = random.Random(5), PaidModels(), {}
    if database == "postgresql":
        more = {"apis": 2, "elsewhere": ["api-2"], "database_url": request.getfixturevalue("postgres_url")}
    with models.server, running_systems(tmp_path) as make, ThreadPoolExecutor(4) as pool:
        system = make(**models.settings(), **more)
        tasks = Tasks(system)
        working = [pool.submit(tasks.work, number) for number in range(4)]
        try:
            for name in (*system.ports, *system.queues) * KILLS:
                system.storm([name], chance=chance)
        finally:
            tasks.over.set()
        for each in working:
            each.result(120)
        state = system.wait_until(
            lambda found: found.unanswered == 0 and found.behind == 0 and found.counters.learned == len(tasks.judged)
        )
        assert len(tasks.judged) > 10
        assert state.counters.balanced
        assert (state.counters.decided, state.counters.quarantined) == (len(tasks.judged), 0)
        assert_whole(system, tasks, models)
        has_other_host = "the clock of other-host is" in system.ragbandit("status").output
        assert has_other_host == (database == "postgresql")
        system.verified()


def assert_whole(system, tasks, models):
    """Every task is one decision that was learned once, its turns have its arm, and every reply was paid once."""
    database = open_database(system.settings)
    with database.read() as connection:
        rows = {row["id"]: row for row in connection.execute(select(decisions)).mappings()}
        costs = {
            row.decision_id: (row.status, json.loads(row.cost))
            for row in connection.execute(select(outcomes.c["decision_id", "status", "cost"]))
        }
        learned = connection.execute(select(*updates.c["decision_id", "quality"])).all()
        tenant = Spender("tenant", "default")
        sums = read_spending(connection, [tenant], now=time.time())[tenant]
    database.close()
    assert {key: rows[key]["session"] for key in tasks.made} == tasks.made
    firsts = {row["session"]: key for key, row in rows.items() if row["turn_of"] is None}
    assert set(firsts) == set(tasks.judged)
    # The judgement of a task counts for the arm that was drawn, also if another one answered the first turn.
    assert sorted(map(tuple, learned)) == sorted((key, 1.0) for key in firsts.values())
    assert set(costs) == set(rows)
    assert_arms(rows)
    own = {key: cost.get("dollars", 0.0) - cost.get(LATER, {}).get("dollars", 0.0) for key, (_, cost) in costs.items()}
    # The outcome of a task has the dollars of its turns; those that came after it was learned are stored apart.
    whole = [
        costs[key][1].get("dollars", 0.0) + costs[key][1].get(LATE, {}).get("dollars", 0.0) for key in firsts.values()
    ]
    assert sum(whole) == pytest.approx(sum(own.values()))
    assert sums.day - sums.other == pytest.approx(sum(own.values()))
    paid = Counter(round(dollars / PRICE) for dollars in own.values() if dollars > 0.0)
    assert set(paid.values()) == {1}
    assert {key for key, dollars in own.items() if dollars <= 0.0} == {
        key for key, (status, _) in costs.items() if status == "failed"
    }
    assert set(paid) <= set(models.replies)
    # The rest are replies to processes that were killed: another process has asked again.
    unpaid = set(models.replies) - set(paid)
    assert [number for number in unpaid if not models.asked_again(number)] == []
    assert (sums.other > 0.0) or not unpaid


def assert_arms(rows):
    """A turn has the arm of its decision, or of a turn that moved or that another arm answered after a failure."""
    arms = defaultdict(set)
    for key, row in rows.items():
        request = json.loads(row["request"] or "{}").get("edge", {})
        if row["turn_of"] is None or "failover" in request or MovedTurn.of(decision_value(row).facts) is not None:
            arms[row["turn_of"] or key].add(row["arm"])
    assert [key for key, row in rows.items() if row["arm"] not in arms[row["turn_of"] or key]] == []
