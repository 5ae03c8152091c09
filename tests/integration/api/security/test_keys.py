"""API keys over HTTP: which requests come in, and for how long."""

import itertools
import time

import pytest

from ragbandit.router.api.door import Door
from ragbandit.router.api.doors import DOORS
from ragbandit.shared.errors import StoreError
from tests.support import command
from tests.support.servers.http_service import QUESTION, Keyed, refused, routed

SECRET = "a" * 43


def test_a_key_opens_and_nothing_else_does(keyed):
    """With a key in the store only requests with a valid one are answered; probes answer everybody."""
    world = keyed()
    routed(world.client())
    reply = world.service.http.post("/v1/route", json={"question": QUESTION})
    error = refused(reply, 401, "UNAUTHORIZED", field="Authorization")
    assert reply.headers["www-authenticate"] == 'Bearer realm="ragbandit"'
    assert "Authorization: Bearer rb_" in error["remedy"]
    assert world.service.http.get("/health").status_code == 200
    assert world.service.http.get("/ready").status_code in (200, 503)  # busy, as others may keep it, is an answer


def test_other_headers_are_refused(keyed):
    """A header that holds no valid key is 401 in our shape, and the reply repeats nothing of it."""
    world = keyed()
    for header in (
        "",
        "Bearer",
        "Basic dXNlcjpwYXNz",
        f"rb_0123456789_{SECRET}",
        f"Bearer rb_0123456789_{SECRET}",
        f"Bearer sk-{SECRET}",
        "Bearer " + "x" * 10_000,
        "Bearer " + "é" * 40,
        b"Bearer \xff\xfe\xfd",
        f"Bearer rb_0123456789_{SECRET}, Bearer rb_0123456789_{SECRET}",
        "Bearer rb_0123456789_' OR 1=1 --",
    ):
        raw = header if isinstance(header, bytes) else header.encode("latin-1")
        reply = world.with_header(raw).get("/v1/status")
        refused(reply, 401, "UNAUTHORIZED", field="Authorization")
        assert SECRET not in reply.text


def test_a_key_in_the_url_is_refused(keyed):
    """A key in the query string is refused, also with a valid header, since proxies log addresses."""
    world = keyed()
    for separator, client in itertools.product(("_", "%5f", "%5F"), (world.client("reader"), world.service.http)):
        text = world.key("reader").text.replace("_", separator)
        reply = client.get(f"/v1/status?api_key={text}")
        error = refused(reply, 401, "UNAUTHORIZED")
        assert "URL" in error["message"]
        assert text[-43:] not in reply.text


def test_a_revoked_key_ends_within_a_second(keyed):
    """A service refuses a revoked key a second later, without being told."""
    world = keyed()
    new = world.key("reader")
    client = world.with_header(f"Bearer {new.text}")
    assert client.get("/v1/status").status_code == 200
    world.keys.revoke(new.key.public_id, actor="cli:test", now=time.time())
    time.sleep(1.05)
    assert "not valid" in refused(client.get("/v1/status"), 401, "UNAUTHORIZED")["message"]


def test_the_first_key_closes_the_service_and_the_last_does_not_open_it(serve):
    """An open service asks for keys once there is one, and goes on to when all of them are revoked."""
    world = Keyed(serve(), admin=False)
    assert world.service.http.get("/v1/status").status_code == 200
    new = world.key("reader")
    refused(world.service.http.get("/v1/status"), 401, "UNAUTHORIZED")
    world.keys.revoke(new.key.public_id, actor="cli:test", now=time.time())
    world.forget()
    refused(world.service.http.get("/v1/status"), 401, "UNAUTHORIZED")


@pytest.fixture
def broken(monkeypatch):
    """A function that makes the keys of a store unreadable, as with a database that is away."""

    def cut(world):
        def failing(*, now):
            raise StoreError("the database failed: connection refused")

        monkeypatch.setattr(world.service.app.state.gate.ring._store, "in_force", failing)

    return cut


def test_without_a_database_nobody_is_let_in(keyed, broken):
    """Keys that were read within the second are taken; after it requests are 503, with a valid key and without one."""
    world = keyed(server={"max_wait_s": 5.0})
    client = world.client("reader")
    assert client.get("/openapi.json").status_code == 200
    broken(world)
    time.sleep(1.05)
    for each in (client, world.service.http):
        reply = each.get("/openapi.json")
        assert "keys cannot be checked" in refused(reply, 503, "NOT_READY")["message"]
        assert reply.headers["retry-after"] == "1"
    assert world.service.http.get("/health").status_code == 200
    assert client.get("/metrics").status_code == 200  # the numbers of an outage are read in an outage
    refused(world.service.http.get("/metrics"), 401, "UNAUTHORIZED")


def test_the_command_line_sends_a_key(keyed, monkeypatch):
    """The verbs take the key from RAGBANDIT_API_KEY, or from the variable that --key-env names."""
    world = keyed()

    def run(*more):
        return command.run("route", QUESTION, "--url", world.service.url, *more)

    done = run()
    assert (done.exit_code, "UNAUTHORIZED" in done.stderr) == (2, True)
    monkeypatch.setenv("MY_KEY", world.key().text)
    assert run("--key-env", "MY_KEY").exit_code == 0
    monkeypatch.setenv("RAGBANDIT_API_KEY", world.key().text)
    assert run().exit_code == 0
    done = run("--key-env", "ANOTHER_KEY")
    assert (done.exit_code, "ANOTHER_KEY is not set" in done.stderr) == (2, True)
    secret = world.key().text
    done = run("--key-env", secret)  # the key itself instead of its variable's name
    assert (done.exit_code, secret in done.output) == (2, False)


@pytest.mark.parametrize("named", [True, False])
def test_a_door_names_the_header_of_its_clients_keys(keyed, monkeypatch, named):
    """A valid key in the header that a door names lets its caller in, at every endpoint; without the door it does not.

    Two keys in two headers are refused.
    """
    if named:
        monkeypatch.setitem(DOORS, "lines", Door(place=200, endpoints=(), key_headers=("x-line-key",)))
    world = keyed()
    key, http = world.key("app").text, world.service.http
    for headers, is_in in (
        ([("x-line-key", key)], named),
        ([("x-line-key", "rb_no")], False),
        ([("x-line-key", key), ("x-api-key", key)], not named),
    ):
        assert (http.get("/v1/models", headers=headers).status_code == 200) == is_in, headers
