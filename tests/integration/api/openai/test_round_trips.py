"""What a question costs in the store: round trips to PostgreSQL; write transactions, statements and steps of SQLite."""

import re

import pytest
from sqlalchemy import event

from ragbandit.testing.openai_server import Reply, ScriptedServer

#: chats that are counted, and chats before them, in which connections prepare their statements
COUNTED, WARM_UP = 12, 8
#: a message that psycopg sends and then waits for the server, or the begin of a write transaction of SQLite
WAIT = re.compile(rb"\tF\t\d+\t(?:Sync|Query)\b|BEGIN IMMEDIATE")


@pytest.mark.parametrize(
    ("database_url", "most"),
    [("postgresql", 4), ("sqlite", 2)],
    indirect=["database_url"],
    ids=["postgresql", "sqlite"],
)
def test_round_trips_of_a_chat(database_url, most, tmp_path, serve):
    """A chat with a budget and a judge takes four round trips to PostgreSQL, or two write transactions of SQLite."""
    file = tmp_path / "trace"
    with ScriptedServer({"": Reply(text="Paris")}) as server, file.open("wb", buffering=0) as trace:

        def record(driver, _record):
            if hasattr(driver, "pgconn"):
                driver.pgconn.trace(trace.fileno())
            else:
                driver.set_trace_callback(lambda statement: trace.write(statement.encode()))

        generator = {"name": "openai", "model": "small", "openai": {"base_url": server.url}}
        arms = {"small": {"class": "model"}, "large": {"class": "model", "generator": "large"}}
        service = serve(
            inline=True,
            database_url=database_url,
            generator=generator,
            generators={"large": generator | {"model": "large"}},
            arms=arms,
            judge={"generator": generator},
            tenants={"default": {"dollars_per_day": 100.0}},
        )
        event.listen(service.router.database.engine, "connect", record)
        service.router.database.close()  # routines of the service have connections already
        counts = []
        for number in range(WARM_UP + COUNTED):
            before = file.stat().st_size
            chat = {"messages": [{"role": "user", "content": f"What is {number}?"}], "stream": number % 2 == 1}
            service.http.post("/v1/chat/completions", json={"model": "auto", **chat}).raise_for_status()
            counts.append(len(WAIT.findall(file.read_bytes()[before:])))
        service.close()
    # Routines of the service read the store meanwhile, on a busy machine in most chats, but not in all.
    assert min(counts[WARM_UP:]) == most


def listened(service, listen):
    """Let `listen` see each connection that the service makes from now on."""
    event.listen(service.router.database.engine, "connect", lambda driver, _: listen(driver))
    service.router.database.close()  # routines of the service have connections already


def test_without_limits_no_statement_is_about_a_limit(serve):
    """A chat without limits takes the 24 statements that it took before limits were sums, and reads no sum of turns."""
    seen, chats = [], []
    with ScriptedServer({"": Reply(text="Paris")}) as server:
        generator = {"name": "openai", "model": "small", "openai": {"base_url": server.url}}
        service = serve(
            inline=True, generator=generator, arms={"small": {"class": "model"}, "large": {"class": "model"}}
        )
        listened(service, lambda driver: driver.set_trace_callback(seen.append))
        for number in range(WARM_UP + COUNTED):
            seen.clear()
            chat = {"model": "auto", "messages": [{"role": "user", "content": f"What is {number}?"}]}
            service.http.post("/v1/chat/completions", json=chat).raise_for_status()
            chats.append([*seen])
        service.close()
    fewest = min(chats[WARM_UP:], key=len)  # the other chats have statements of the service's routines
    assert len(fewest) == 24, "\n".join(fewest)
    assert not [statement for statement in fewest if "'turns'" in statement]


def test_a_question_of_a_long_session_reads_no_more(serve):
    """A question in a session of 2,000 turns takes no more steps of SQLite than one in a session of a few."""
    steps = [0]

    def step():
        steps[0] += 1

    service = serve(
        arms={name: {"run_by": "caller"} for name in ("small", "large")},
        conversation={"session_limit": {"turns": 9_000, "dollars": 1.0}},
        server={"max_wait_s": 60.0},  # a batch of 500 waits for its turn, also on a busy machine
    )
    for _ in range(4):
        items = [{"question": "Who?", "session_id": "long"} for _ in range(500)]
        replies = service.http.post("/v1/route/batch", json={"items": items}).json()["items"]
        assert all("arm" in reply for reply in replies)
    listened(service, lambda driver: driver.set_progress_handler(step, 10))

    def fewest(session):
        counts = []
        for _ in range(WARM_UP + COUNTED):
            steps[0] = 0
            service.http.post("/v1/route", json={"question": "Who?", "session_id": session}).raise_for_status()
            counts.append(steps[0])
        return min(counts[2:])

    short, long = fewest("short"), fewest("long")
    assert 0 < long < 1.2 * short + 5
