"""Parameters that a server does not support are left out for a day, if two callers received its refusal."""

from unittest.mock import Mock

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.operation.findings import of_store
from ragbandit.router.serving.health.unsupported_fields import MOST, REMEMBERED_S, UnsupportedFields
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.shared.errors import StoreError
from ragbandit.shared.types import Query
from ragbandit.workers.chores.exchanges import UnsupportedExchange
from tests.integration.api.security.conftest import Keyed
from tests.support.servers.http_service import Service
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply
from tests.support.waiting import until

#: tenant, key and question of a refused request
ONE, TWO = ("default", "k1", "x"), ("other", None, "x")


@pytest.fixture
def world(make_world):
    return make_world(policy={"name": "uniform"})


def fields_of(world, **changed):
    generator = world.settings.generator.model_copy(update=changed)
    return UnsupportedFields(world.database, generators={"default": generator})


def exchanged(fields, names, *signs, now):
    for sign in signs:
        fields.note("default", names, sign=sign, now=now)
    fields.exchange(now=now)
    return fields.of("default", now=now)


def test_two_callers_within_a_day_are_needed(world):
    """One caller, however often, and two callers on different days change nothing."""
    fields, later = fields_of(world), world.now + REMEMBERED_S + 3.0
    assert exchanged(fields, ["seed"], ONE, ONE, ONE, now=world.now) == frozenset()
    assert exchanged(fields, ["seed", "top_p"], TWO, now=later) == frozenset()
    assert exchanged(fields, ["seed", "not a name"], ONE, now=later + 1.0) == {"seed"}
    assert fields.of("default", now=later + REMEMBERED_S + 2.0) == frozenset()
    fields.note("unknown", ["seed"], sign=ONE, now=later)
    assert fields.of("unknown", now=later) == frozenset()


@pytest.mark.parametrize(
    ("others", "expected"), [([], {"seed"}), ([{"tenant": "b"}], set()), ([{"api_key": "k"}], set())]
)
def test_one_caller_of_several_decides_nothing(world, others, expected):
    """Two questions of one key are enough only if no other key asked in the last hour, as for models that are gone."""
    for caller in others:
        world.router.submit(Query(text="who?", **caller), run_by="worker").result(30)
    one = [("default", None, question) for question in "xy"]
    assert exchanged(fields_of(world), ["seed"], *one, now=world.now) == expected


def test_entries_are_bounded_and_end(world):
    """At most MOST parameters of a generator are left out, for a day at most, and former ones are forgotten."""
    fields, other, now = fields_of(world), fields_of(world), world.now
    names = [f"p{number}" for number in range(MOST)]
    assert exchanged(fields, names, ONE, TWO, now=now) == frozenset(names)
    assert exchanged(fields, ["new"], ONE, TWO, now=now + 1.0) >= {"new"}
    assert len(fields.of("default", now=now + 1.0)) == MOST
    other.exchange(now=now + 1.0)
    assert len(other._until["default"]) == MOST
    assert exchanged(other, ["next"], ONE, TWO, now=now + 2.0 * REMEMBERED_S) == {"next"}
    assert list(other._until["default"]) == ["next"]
    flooded = fields_of(world)
    for number in range(1000):
        flooded.note("default", [f"q{number}"], sign=("default", "k1", str(number)), now=now)
        flooded.note("default", ["q"], sign=("default", "k1", str(number)), now=now)
    assert len(flooded._signs["default"]) <= MOST
    assert max(map(len, flooded._signs["default"].values())) < 20


def test_a_failing_store_loses_no_refusal(world, monkeypatch):
    """If the store fails, the refusals are decided at the next exchange."""
    fields = fields_of(world)
    for sign in (ONE, TWO):
        fields.note("default", ["seed"], sign=sign, now=world.now)
    with monkeypatch.context() as patch:
        patch.setattr(world.database, "write", Mock(side_effect=StoreError("away")))
        with pytest.raises(StoreError):
            fields.exchange(now=world.now)
    assert fields.of("default", now=world.now) == frozenset()
    fields.exchange(now=world.now)
    assert fields.of("default", now=world.now) == {"seed"}


def test_other_processes_and_status_read_it_until_the_settings_change(world):
    """The audit log has one entry; `ragbandit status` shows it for a day, unless the generator changes."""
    fields, other, now = fields_of(world), fields_of(world), world.now
    for signs in ((ONE, TWO), (ONE,), ()):
        exchanged(fields, ["seed"], *signs, now=now)
    other.exchange(now=now)
    assert other.of("default", now=now) == {"seed"}
    assert [entry.action for entry in entries(world.database)].count("generator.unsupported") == 1
    changed = fields_of(world, model="another")
    changed.exchange(now=now)
    assert changed.of("default", now=now) == frozenset()
    assert fields_of(world).read(now=now + REMEMBERED_S + 1.0) == {}
    shown = [one.line for one in of_store(world.database, settings=world.settings, now=now) if "seed" in one.what]
    assert len(shown) == 1
    assert "generator default: its server does not support seed" in shown[0]


def tool(**more):
    return {
        "type": "function",
        "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}, **more},
    }


@pytest.mark.parametrize(
    ("message", "given", "name", "is_sent"),
    [
        ("property 'seed' is unsupported", {"seed": 7}, "seed", lambda body: "seed" in body),
        (
            "tools.1.function.defer: Extra inputs are not permitted",
            {"tools": [tool(), tool(defer=True)]},
            "tools.function.defer",
            lambda body: any("defer" in one["function"] for one in body.get("tools", ())),
        ),
    ],
)
def test_the_third_caller_pays_no_refused_request(tmp_path, monkeypatch, caplog, message, given, name, is_sent):
    """Requests of two tenants are repeated without the parameter, or the field inside one; then no request has it. Each
    reply names it.
    """
    monkeypatch.setattr(UnsupportedExchange, "every_s", 0.05)
    refusal = {"error": {"message": message, "type": "invalid_request_error"}}
    answer = {"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}], "usage": {}}

    def reply(body) -> Scripted:
        return json_reply(refusal, status=400) if is_sent(body) else json_reply(answer)

    with ScriptedHttp(json_reply({}), answer=reply) as server:
        settings = {
            "data_dir": str(tmp_path),
            "encoder": {"model": "hashing", "dimension": 8},
            "generator": {"name": "openai", "model": "m", "openai": {"base_url": f"{server.url}/v1", "retries": 0}},
            "arms": {"one": {"class": "model"}},
            "policy": {"name": "uniform"},
        }
        keyed = Keyed(Service(Settings.model_validate(settings), inline=True))
        try:
            clients, sent = {tenant: keyed.client(tenant=tenant) for tenant in "abc"}, []
            for tenant in ("c", "a", "a", "b", "c"):
                if len(sent) == 4:
                    until(lambda: "it is left out" in caplog.text)
                before, more = len(server.seen), given if sent else {}
                body = {"model": "auto", "messages": [{"role": "user", "content": f"{tenant} {before}"}], **more}
                got = clients[tenant].post("/v1/chat/completions", json=body).json()
                assert got["ragbandit"].get("ignored", []) == ([name] if more else [])
                sent.append(len(server.seen) - before)
        finally:
            keyed.close()
            keyed.service.close()
    assert sent == [1, 2, 2, 2, 1]
