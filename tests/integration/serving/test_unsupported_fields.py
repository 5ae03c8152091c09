"""Parameters that a server does not support are left out for a day, if two callers received its refusal."""

import pytest

from ragbandit.router.api.findings import of_store
from ragbandit.router.config.settings import Settings
from ragbandit.router.serving.health.unsupported_fields import REMEMBERED_S, UnsupportedFields
from ragbandit.router.storage.access.audit_log import entries
from tests.integration.api.security.conftest import Keyed
from tests.support.servers.http_service import Service
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply

ONE, TWO = ("default", "k1"), ("other", None)


@pytest.fixture
def world(make_world):
    return make_world(policy={"name": "uniform"})


def fields_of(world, **changed):
    generator = world.settings.generator.model_copy(update=changed)
    return UnsupportedFields(world.database, generators={"default": generator})


def test_two_callers_within_a_day_are_needed(world):
    """One caller, however often, and two callers on different days change nothing."""
    fields = fields_of(world)
    for now in (0.0, 1.0, 2.0):
        fields.note("default", ["seed"], caller=ONE, now=now)
    fields.note("default", ["seed"], caller=TWO, now=REMEMBERED_S + 3.0)
    fields.note("default", ["top_p"], caller=TWO, now=REMEMBERED_S + 3.0)
    assert fields.of("default", now=REMEMBERED_S + 3.0) == frozenset()
    fields.note("default", ["seed", "not a name"], caller=ONE, now=REMEMBERED_S + 4.0)
    assert fields.of("default", now=REMEMBERED_S + 4.0) == {"seed"}
    assert fields.of("default", now=2.0 * REMEMBERED_S + 5.0) == frozenset()
    fields.note("unknown", ["seed"], caller=ONE, now=0.0)
    assert fields.of("unknown", now=0.0) == frozenset()


def test_other_processes_and_status_read_it_until_the_settings_change(world):
    """The audit log has one entry; `ragbandit status` shows it for a day, unless the generator changes."""
    fields, other, now = fields_of(world), fields_of(world), world.now
    for caller in (ONE, TWO, ONE):
        fields.note("default", ["seed"], caller=caller, now=now)
    for _ in range(2):
        fields.exchange(now=now)
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


def test_the_third_caller_pays_no_refused_request(tmp_path):
    """Requests of two keys are repeated without the parameter; then no request has it. Each reply names it."""
    refusal = {"error": {"message": "property 'seed' is unsupported", "type": "invalid_request_error"}}
    answer = {"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}], "usage": {}}

    def reply(body) -> Scripted:
        return json_reply(refusal, status=400) if "seed" in body else json_reply(answer)

    with ScriptedHttp(json_reply({}), answer=reply) as server:
        settings = {
            "data_dir": str(tmp_path),
            "encoder": {"model": "hashing", "dimension": 8},
            "generator": {"name": "openai", "model": "m", "openai": {"base_url": f"{server.url}/v1", "retries": 0}},
            "arms": {"one": {"class": "model"}},
            "policy": {"name": "uniform"},
        }
        keyed = Keyed(Service(Settings.model_validate(settings), inline=True))
        clients, sent = {tenant: keyed.client(tenant=tenant) for tenant in "abc"}, []
        for tenant in ("a", "a", "b", "c"):
            before = len(server.seen)
            body = {"model": "auto", "seed": 7, "messages": [{"role": "user", "content": f"{tenant} {before}"}]}
            got = clients[tenant].post("/v1/chat/completions", json=body).json()
            assert got["ragbandit"]["ignored"] == ["seed"]
            sent.append(len(server.seen) - before)
        keyed.close()
        keyed.service.close()
    assert sent == [2, 2, 2, 1]
