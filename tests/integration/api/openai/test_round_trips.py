"""What a chat costs in the store: round trips to PostgreSQL, and write transactions of SQLite."""

import re

import pytest
from sqlalchemy import event

from ragbandit.router.config.settings import Settings
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.servers.http_service import Service

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
def test_round_trips_of_a_chat(database_url, most, tmp_path):
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
        settings = {
            "data_dir": str(tmp_path),
            "database_url": database_url,
            "encoder": {"model": "hashing", "dimension": 8},
            "generator": generator,
            "generators": {"large": generator | {"model": "large"}},
            "arms": arms,
            "judge": {"generator": generator},
            "tenants": {"default": {"dollars_per_day": 100.0}},
        }
        service = Service(Settings.model_validate(settings), inline=True)
        try:
            event.listen(service.router.database.engine, "connect", record)
            service.router.database.close()  # routines of the service have connections already
            counts = []
            for number in range(WARM_UP + COUNTED):
                before = file.stat().st_size
                chat = {"messages": [{"role": "user", "content": f"What is {number}?"}], "stream": number % 2 == 1}
                service.http.post("/v1/chat/completions", json={"model": "auto", **chat}).raise_for_status()
                counts.append(len(WAIT.findall(file.read_bytes()[before:])))
        finally:
            service.close()
    # Routines of the service read the store meanwhile, on a busy machine in most chats, but not in all.
    assert min(counts[WARM_UP:]) == most
