"""Calls of a model are booked on the tenant that asked, however they end."""

import json
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import select, text

from ragbandit.router.serving.setup.bootstrap import open_database
from ragbandit.router.storage.sql.tables import jobs, outcomes
from ragbandit.shared.additions import additions
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.additions import marked
from tests.support.waiting import until

#: the usage in each piece of a stream, the first one too: 30 dollars
USED = {"prompt_eval_count": 20, "eval_count": 10}
REPLIES = {
    "silent": Reply(seconds=30.0),
    "writing": Reply(text="word " * 400, part_s=0.02),
    "used": Reply(text="word " * 400, part_s=0.02, changes=USED),
    "slow": Reply(text="word", seconds=0.6),
    "half": Reply(body=b'{"choices": [{"message": {"content": "Par'),
    "": Reply(status=400),
}


def service_of(server, serve):
    prices = {"input": 1e6, "output": 1e6}
    generator = {"name": "openai", "model": "m", "openai": {"base_url": server.url}, "token_prices": prices}
    return serve(inline=True, generator=generator, arms={"model": {}}, budget={"seconds": 20.0})


@pytest.fixture(scope="module")
def world(serve_module):
    with ScriptedServer(REPLIES) as server:
        service = service_of(server, serve_module)
        yield service, server
        service.close()


def dollars(database):
    with database.read() as connection:
        sums = connection.execute(text("SELECT sum(value) FROM counters WHERE label LIKE 'spent:%'"))
        return (sums.scalar() or 0) * 1e-9


def asked(service, server, question, *, seconds=None):
    """Ask a question whose answer does not come, until its model has been asked. Returns the decision's id."""
    calls = len(server.requests)
    body = {"question": question, **({} if seconds is None else {"budget": {"seconds": seconds}})}
    reply = service.http.post("/v1/answer?wait_s=0", json=body)
    until(lambda: len(server.requests) > calls, seconds=10)
    return reply.json()["decision_id"]


def ended(service, decision_id):
    until(lambda: service.router.decision(decision_id).outcome is not None, seconds=10)
    return service.router.decision(decision_id).outcome


@pytest.mark.parametrize(
    ("end", "question", "least"),
    [
        ("cancel", "silent", 1.0),
        ("late", "silent", 1.0),
        ("late", "used", 30.0),
        ("broken", "half", 1.0),
        ("refused", "an error", 0.0),
    ],
)
def test_a_call_that_ends_early_is_booked(world, end, question, least):
    """A call that is cancelled, late or broken costs its usage, else an estimate; an error of the server is free."""
    service, server = world
    before = dollars(service.router.database)
    key = asked(service, server, f"{question}?", seconds=2.0 if end == "late" else None)
    if end == "cancel":
        assert service.http.post(f"/v1/decisions/{key}/cancel").status_code == 202
    cost = ended(service, key).cost
    assert dollars(service.router.database) - before == pytest.approx(cost.dollars)
    assert (cost.dollars >= least, cost.dollars > 0.0) == (True, least > 0.0)


@pytest.mark.parametrize(
    "path", marked(["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/answer?stream=true"])
)
def test_a_stream_that_the_caller_leaves_is_booked(world, path):
    """A caller who reads the first pieces of a stream and hangs up pays the usage that came."""
    service, _ = world
    said = {"messages": [{"role": "user", "content": "used"}], "max_tokens": 500}
    body = {"/v1/responses": {"input": "used"}, "/v1/answer?stream=true": {"question": "used"}}.get(path, said)
    before, stopped = dollars(service.router.database), outcomes_of(service)
    model = {} if "answer" in path else {"model": "auto", "stream": True}
    with httpx.Client(base_url=service.url) as client, client.stream("POST", path, json=body | model) as reply:
        next(line for line in reply.iter_lines() if "word" in line)
    until(lambda: outcomes_of(service) > stopped, seconds=20)
    assert dollars(service.router.database) - before == pytest.approx(30.0)


WHOLE = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/answer?wait_s=9"]


@pytest.mark.parametrize("path", marked([*WHOLE, *(["/mcp"] if "mcp" in additions() else [])]))
def test_a_whole_answer_that_the_caller_leaves_is_booked(world, path):
    """A caller who hangs up before a whole answer, or before the reply to its tool's call, pays for it."""
    service, server = world
    said = {"model": "auto", "messages": [{"role": "user", "content": "slow"}], "max_tokens": 500}
    tool = {"name": "answer", "arguments": {"question": "slow"}, "_meta": {"progressToken": 1}}
    body = {
        "/v1/responses": {"model": "auto", "input": "slow"},
        "/v1/answer?wait_s=9": {"question": "slow"},
        "/mcp": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool},
    }.get(path, said)
    before, stopped, calls = dollars(service.router.database), outcomes_of(service), len(server.requests)
    headers = {"accept": "application/json, text/event-stream"}
    if path == "/mcp":  # its first request imports the package
        service.http.post(path, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}, headers=headers)
    address = urlsplit(service.url)
    connection = HTTPConnection(address.hostname, address.port, timeout=30)
    connection.request("POST", path, json.dumps(body), headers | {"content-type": "application/json"})
    until(lambda: len(server.requests) > calls, seconds=20)
    connection.close()
    assert len(server.requests) == calls + 1
    until(lambda: outcomes_of(service) > stopped, seconds=20)
    assert dollars(service.router.database) - before >= 1.0


def outcomes_of(service):
    with service.router.database.read() as connection:
        return len(connection.execute(select(outcomes.c.decision_id)).all())


def test_a_run_that_the_end_of_the_process_interrupts_is_booked(serve):
    """A service that ends during a call books the call and gives the question back, which is asked again later."""
    with ScriptedServer(REPLIES) as server:
        service = service_of(server, serve)
        settings = service.router.settings
        asked(service, server, "writing?")
        service.close()
    database = open_database(settings)
    with database.read() as connection:
        left = connection.execute(select(jobs.c.kind)).scalars().all(), connection.execute(select(outcomes)).all()
    assert (left, dollars(database) >= 1.0) == ((["answer"], []), True)
    database.close()
