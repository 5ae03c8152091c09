"""Services at the limits of a session while they are killed: no limit is passed, and every call is counted."""

import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import httpx
import pytest
from sqlalchemy import select

from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.access.spending import UNIT
from ragbandit.router.storage.access.turn_sums import session_spender, stored_sums, turn_difference
from ragbandit.router.storage.rows.outcome_rows import own_cost
from ragbandit.router.storage.sql.tables import decisions, jobs, outcomes
from ragbandit.testing.openai_server import Reply, ScriptedServer

from .conftest import running_systems, until

#: dollars of each answer, which is also its estimate: the tokens that a question allows, at the price of a token
DOLLARS = 0.05
TOKENS, PRICE = 100, DOLLARS / 100
#: limits of turns and of dollars: questions to `free` reach the first, and questions to `costly` the second
TURNS, MOST = 12, 8 * DOLLARS
ROUNDS = 3


def model(url, name, *, price):
    prices = {"input": 0.0, "output": price * 1e6}
    options = {"base_url": url, "retries": 0, "first_piece_s": 15.0}
    return {"name": "openai", "model": name, "token_prices": prices, "openai": options}


def settings(url):
    return {
        "queues": (),
        "generator": model(url, "free", price=1e-9),
        "generators": {"costly": model(url, "costly", price=PRICE)},
        "arms": {"free": {"class": "model"}, "costly": {"class": "model", "generator": "costly"}},
        "health": {"failures": 0},
        "conversation": {"session_limit": {"turns": TURNS, "dollars": MOST}, "rewrite": {"by": "off"}},
    }


def reply_to(sent):
    time.sleep(random.uniform(0.02, 0.2))  # some runs are under way when a service is killed
    return Reply(text="Paris", changes={"usage": {"prompt_tokens": 5, "completion_tokens": TOKENS}})


def turn(client, session, *, key):
    """The status of a turn that is sent until a service answers it or refuses it."""
    body = {"model": f"arm/{session.split('-')[0]}", "messages": [{"role": "user", "content": key}]}
    headers = {"idempotency-key": key, "x-ragbandit-session-id": session}
    give_up = time.monotonic() + 90
    while True:
        assert time.monotonic() < give_up, key
        try:
            reply = client.post("/v1/chat/completions", json=body | {"max_tokens": TOKENS}, headers=headers)
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        if reply.status_code in (200, 429) or "workers died over this question" in reply.text:
            return reply.status_code
        assert reply.status_code == 503, reply.text
        time.sleep(0.05)


def ask_beyond(system, session, *, number, over):
    """Send turns to one of the services until the limit is reached and no service is killed any more."""
    port = [*system.ports.values()][number % len(system.ports)]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        for place in count():
            if turn(client, session, key=f"{session}-{number}-{place}") == 429:
                if over.is_set():
                    return
                time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_kill_nine_at_a_limit(tmp_path, request, database):
    """Exactly the limit of turns is stored, and the answers cost at most the limit and one estimate after kills."""
    chance, more = random.Random(7), {}
    if database == "postgresql":  # two services; SQLite has one
        more = {"apis": 2, "database_url": request.getfixturevalue("postgres_url")}
    with ScriptedServer(reply_to) as server, running_systems(tmp_path) as make, ThreadPoolExecutor(8) as pool:
        system = make(**settings(server.url), **more)
        names = list(system.ports)
        for round_ in range(ROUNDS):
            over = threading.Event()
            asking = [
                pool.submit(ask_beyond, system, f"{arm}-{round_}", number=number, over=over)
                for arm in ("free", "costly")
                for number in range(4)
            ]
            for name in chance.choices(names, k=2):
                system.storm([name], chance=chance, pauses=(0.1, 0.5))
            over.set()
            for each in asking:
                each.result(120)
        system.wait_until(lambda found: found.unanswered == 0)
        asked = Counter(json.dumps(received.body["messages"])[-200:].split('"')[-2] for received in server.requests)
        lost = [assert_within(system, f"{arm}-{n}", asked=asked) for n in range(ROUNDS) for arm in ("free", "costly")]
        assert sum(lost) > 0  # some runs were killed, and their estimates charged
        system.verified()


def assert_within(system, session, *, asked):
    """Check the sum of a session. Returns the dollars that were charged for killed runs. asked: requests by question"""
    spender = session_spender("default", key=None, session=session)
    database = open_database(system.settings)
    until(lambda: not waiting(database), seconds=30)
    with database.read() as connection:
        stored = stored_sums(connection, [spender])[spender]
        assert turn_difference(connection, spender) is None
        columns = decisions.c.id, decisions.c.text, outcomes.c.cost
        rows = connection.execute(select(*columns).join(outcomes).where(decisions.c.session == session)).all()
    database.close()
    dollars = sum(own_cost(row.cost).dollars for row in rows)
    # Only the limit of dollars, or that of turns, is reached.
    if session.startswith("free"):
        assert stored.turns == len(rows) == TURNS
    else:
        assert stored.units * UNIT >= MOST - 1e-9
    assert stored.turns <= TURNS
    assert dollars < MOST + DOLLARS - 1e-9
    price = DOLLARS if session.startswith("costly") else TOKENS * 1e-9
    paid = price * sum(asked[row.text] for row in rows)
    assert stored.units * UNIT >= paid - 1e-9
    return stored.units * UNIT - dollars


def waiting(database):
    with database.read() as connection:
        return connection.execute(select(jobs.c.decision_id).where(jobs.c.kind == "answer")).all()
