"""What embeddings cost, and replies of a server without embeddings."""

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from http.client import HTTPConnection

import pytest
from sqlalchemy import text

from tests.support.servers.http_service import Keyed
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply
from tests.support.waiting import until

KEY = "sk-secret-of-the-server-123"
VECTORS = {"object": "list", "data": [{"index": 0, "embedding": [0.1]}]}
#: a text of four tokens, a dollar each
TEXTS = {"model": "small", "input": "abcdefghijklmnop"}


@pytest.fixture(scope="module")
def world(serve_module):
    """A service with a server of embeddings, whose replies a test sets as `server.replies`."""
    with ScriptedHttp(json_reply({}), answer=lambda _: server.replies()) as server:
        embeddings = {
            "base_url": f"{server.url}/v1",
            "api_key_env": "EMBEDDINGS_KEY",
            "token_prices": {"small": [1e6, 0.0]},
            "concurrency": 2,
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EMBEDDINGS_KEY", KEY)
            service = serve_module(
                embeddings=embeddings, tenants={"capped": {"dollars_per_day": 8.0, "budget_stop": True}}
            )
        yield Keyed(service), server
        service.close()


def dollars(keyed):
    """Dollars counted so far for keys and tenants."""
    with keyed.service.router.database.read() as connection:
        of_days = "SELECT sum(value) FROM counters WHERE label LIKE 'spent:%' AND name NOT LIKE '%+'"
        sums = connection.execute(text(of_days))
        return (sums.scalar() or 0) / 2e9


def used(**usage):
    return json_reply({**VECTORS, "usage": usage})


@pytest.mark.parametrize(
    ("reply", "status", "booked"),
    [
        (used(prompt_tokens=3, total_tokens=3), 200, 3.0),
        (used(total_tokens=3), 200, 3.0),
        (used(prompt_tokens=3, cost=0.5), 200, 0.5),
        (json_reply({**VECTORS, "providerMetadata": {"gateway": {"cost": "0.5"}}}), 200, 0.5),
        (used(prompt_tokens=-5, cost=-7), 200, 4.0),
        (json_reply({**VECTORS, "usage": [1]}), 200, 4.0),
        (json_reply(VECTORS), 200, 4.0),
        (Scripted(hang_up=True), 502, 4.0),
        (json_reply(VECTORS, status=503), 503, 0.0),
        (json_reply({"error": {"message": "no"}, "usage": {"cost": 1e9}}), 502, 0.0),
        (Scripted(body=b"<html>a gateway</html>"), 502, 0.0),
        (Scripted(body=b'{"data": [{"embedd'), 502, 4.0),
    ],
    ids=["usage", "total", "cost", "vercel", "negative", "list", "none", "hung", "error", "absurd", "page", "half"],
)
def test_embeddings_cost_what_they_used_or_an_estimate(world, reply, status, booked):
    """The usage is counted, else an estimate of the input; an error of the server costs nothing."""
    keyed, server = world
    server.replies = lambda: reply
    before = dollars(keyed)
    answer = keyed.client(tenant="other").post("/v1/embeddings", json=TEXTS)
    assert (answer.status_code, dollars(keyed) - before) == (status, pytest.approx(booked)), answer.text


def test_a_caller_who_leaves_pays_for_embeddings(world):
    """A caller who hangs up before the reply pays for it."""
    keyed, server = world
    has_left, client = threading.Event(), keyed.client(tenant="other")
    server.replies = lambda: json_reply(VECTORS, status=200 if has_left.wait(60) else 500)
    before, calls = dollars(keyed), len(server.seen)
    connection = HTTPConnection(client.base_url.host, client.base_url.port, timeout=30)
    headers = dict(client.headers) | {"content-type": "application/json"}
    connection.request("POST", "/v1/embeddings", json.dumps(TEXTS), headers)
    until(lambda: len(server.seen) > calls)
    connection.close()
    has_left.set()
    until(lambda: dollars(keyed) > before)
    assert dollars(keyed) - before == pytest.approx(4.0)


@pytest.mark.parametrize("model", ["dear", "SMALL", "small "])
def test_embeddings_of_a_model_without_a_price(world, model):
    """Where other models have a price, a model without one is a 404 that names the setting."""
    keyed, server = world
    calls = len(server.seen)
    answer = keyed.client(tenant="other").post("/v1/embeddings", json={**TEXTS, "model": model})
    assert (answer.status_code, len(server.seen)) == (404, calls)
    assert "embeddings.token_prices" in answer.text


@pytest.mark.parametrize(
    "reply",
    [
        {"error": {"message": f"the key {KEY} is wrong"}},
        {"message": f"the key {KEY} is wrong"},
        [1, 2],
        {"data": "text"},
        {"data": [[0.1]]},
        {"object": "list"},
        None,
    ],
    ids=["error", "message", "list", "text", "vectors", "no data", "null"],
)
def test_a_reply_without_embeddings_is_a_failure(world, reply):
    """A reply with status 200 and without embeddings is a 502, and never contains the server's key."""
    keyed, server = world
    server.replies = lambda: json_reply(reply)
    before = dollars(keyed)
    answer = keyed.client(tenant="other").post("/v1/embeddings", json=TEXTS)
    assert (answer.status_code, KEY in answer.text) == (502, False)
    assert dollars(keyed) == before


def test_many_embeddings_at_once_keep_a_budget(world):
    """With 40 requests at once, a budget of 8 dollars pays for two calls of 4 dollars, and the others are a 429."""
    keyed, server = world
    server.replies = lambda: Scripted(body=json.dumps(VECTORS).encode(), delay_s=0.1)
    client, calls, before = keyed.client(tenant="capped"), len(server.seen), dollars(keyed)
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/embeddings", json=TEXTS), range(40)))
    statuses = sorted(answer.status_code for answer in answers)
    assert (len(server.seen) - calls, statuses) == (2, [200] * 2 + [429] * 38)
    assert dollars(keyed) - before == pytest.approx(8.0)
    assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 429)


def test_embeddings_wait_only_in_a_short_queue(world):
    """The server gets `concurrency` requests at once, four times as many wait, and others are refused at once."""
    keyed, server = world
    is_open, client, calls = threading.Event(), keyed.client(tenant="other"), len(server.seen)
    server.replies = lambda: json_reply(VECTORS, status=200 if is_open.wait(20) else 500)
    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(client.post, "/v1/embeddings", json=TEXTS) for _ in range(16)]
        refused = [done.result() for done in itertools.islice(as_completed(waiting), 6)]
        until(lambda: len(server.seen) - calls >= 2)
        assert len(server.seen) - calls == 2
        is_open.set()
    assert [(answer.status_code, answer.headers["retry-after"]) for answer in refused] == [(429, "1")] * 6
    assert sorted(done.result().status_code for done in waiting) == [200] * 10 + [429] * 6


def test_late_embeddings_cost_the_estimate(world, monkeypatch):
    """A call that the time limit ends is a 504 and costs the estimate."""
    keyed, server = world
    router = keyed.service.router
    server.replies = lambda: Scripted(delay_s=20.0)
    limited = router.settings.budget.model_copy(update={"seconds": 2.0})
    monkeypatch.setattr(router, "settings", router.settings.model_copy(update={"budget": limited}))
    before = dollars(keyed)
    answer = keyed.client(tenant="other").post("/v1/embeddings", json=TEXTS)
    assert (answer.status_code, dollars(keyed) - before) == (504, pytest.approx(4.0)), answer.text
