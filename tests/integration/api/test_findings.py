"""Findings: what is wrong with real settings, a real database, a real Redis and this host is said, with what to do."""

import json
import re
import shutil
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.monitoring.sample_ratio import SETTLED_S
from ragbandit.router.learning.status import read_status
from ragbandit.router.operation import findings
from ragbandit.router.operation.findings import (
    findings_of_disk,
    findings_of_ledger,
    findings_of_parts,
    findings_of_processes,
    findings_of_settings,
    findings_of_store,
)
from ragbandit.router.policies import untrained_policy
from ragbandit.router.queue.jobs import connect_redis
from ragbandit.router.queue.presence import make_card, publish_card, running_processes, start_presence
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.sql.tables import arm_hours
from ragbandit.router.storage.totals import hour_of
from ragbandit.shared.types import Query
from tests.support import command
from tests.support.waiting import until


def told(findings, about=None):
    """Severity and line of each, or of those about one thing."""
    return [f"{one.severity} {one.line}" for one in findings if about in (None, one.about)]


@pytest.fixture
def stored(settings, make_world):
    """What the rows of the world's store say under these settings, by what it is about."""
    world = make_world(policy={"name": "uniform"})

    def look(about, *, now=None, **given):
        reported = findings_of_store(world.database, settings=settings(**given), now=now or time.time())
        return told(reported, about)

    look.world = world
    return look


@pytest.fixture
def running(settings, redis_client, redis_server):
    """The findings about Redis and about the running processes."""

    def look(about=None, **given):
        return told(findings_of_processes(settings(redis_url=redis_server, **given)), about)

    return look


def hosts(client, *changes, **common):
    """Cards of an answer worker and a learner for each host, and of a service."""
    for number, change in enumerate(changes):
        card = make_card(role="worker", threads={"answer": 1, "learn": 1}, retriever="bm25:aa")
        publish_card(client, replace(card, host=f"host{number}", **common, **change))
    publish_card(client, replace(make_card(role="service"), pid=1, host="host0"))


def test_nothing_is_found_where_all_is_well(settings, stored, running, redis_client):
    """A store that was used, with its processes there, has no finding."""
    hosts(redis_client, {})
    configuration = settings()
    stored.world.judged(3)
    stored.world.learn()
    state = read_status(stored.world.ledger, serving=None, rule=closing_rule(configuration.learning), now=time.time())
    assert (
        told([*findings_of_settings(configuration), *findings_of_disk(configuration), *findings_of_ledger(state)]) == []
    )
    assert stored(None) == running() == []


def test_parts_of_a_service():
    """A part that requests wait for is a problem, one that makes answers or learning late a warning."""
    found = findings_of_parts({"router": "ok", "database": "full", "redis": "down", "policy": "rebuilding"})
    assert told(found) == ["problem database: full", "warning policy: rebuilding", "warning redis: down"]


def test_ratings_that_favour_an_arm(stored):
    """One arm's answers are rated 61 %, the other's 9 %: a warning names them; an hour ago all was too new."""
    now, hour = time.time(), hour_of(time.time()) - 1
    for arm, count in {"premium": 305, "cheap": 45}.items():
        totals = {"decided": 500, "answered": 500, "learned": count, "judged_spread": 87.5}
        totals["judged_excess"] = count - 175.0
        stored.world.write(arm_hours.insert().values(policy="main", hour=hour, arm=arm, totals=json.dumps(totals)))
    (found,) = stored("sample ratio", now=now + SETTLED_S)
    assert "arm premium has 61 % of its answers rated and cheap 9 %" in found
    assert stored("sample ratio", now=now - SETTLED_S) == []


def test_a_router_that_earns_no_more_than_one_arm(stored, settings):
    """Where always one arm would have earned more, a warning names it; of few questions there is none."""
    world, best = stored.world, "single_step"
    for count, lines in ((100, 0), (300, 1)):
        for decision in [world.route() for _ in range(count)]:
            world.outcome(decision)
            world.feedback(decision, reward=float(decision.arm == best))
        world.learn()
        month = findings.month_report(world.database, settings=settings(), now=world.now + 1.0)
        reported = [line.partition(";")[0] for line in told(findings.findings_of_report(month))]
        assert reported == [f"advice routing: fix: always {best} earns as much"] * lines


def test_dollar_budgets(stored, settings):
    """A spent budget of a tenant or a key is a warning with its end; so is what keeps the price from pacing it."""
    world, now = stored.world, time.time()
    keys = KeyStore(world.database)
    scopes = {"dollars_per_month": 0.5}
    key = keys.create(name="k", role="app", tenant="acme", scopes=scopes, now=now, actor="cli:t").key
    world.now = now
    decision = world.router.submit(Query(text="q", tenant="acme", api_key=key.public_id), run_by="caller").result(30)
    world.outcome(decision, cost={"dollars": 0.6})

    def look(dollars):
        tenants = {"acme": {"dollars_per_day": dollars, "budget_stop": True}, "other": {"dollars_per_day": 1.0}}
        return "".join(stored("dollar budgets", tenants=tenants))

    assert f"the key {key.name} has spent 120 % of its 0.5 dollars of the month" in look(9.0)
    keys.revoke(key.public_id, actor="cli:t", now=now)
    assert look(9.0) == ""
    assert "tenant acme has spent 120 % of its 0.5 dollars of the day (UTC)" in look(0.5)
    assert "are refused (429) until" in look(0.5)
    unpaced = settings(tenants={"acme": {"dollars_per_day": 9}}, reward={"weight": 0}, policy={"name": "uniform"})
    assert "uniform has one weight of cost" in "".join(told(findings_of_settings(unpaced), "tenants"))


def test_an_alias_of_an_arm_under_a_dollar_budget(stored, settings):
    """An alias that names an arm is a warning if a tenant or a key with a budget asks for it: its requests get 403."""
    aliases = {"claude-haiku-*": "arm/no_retrieval", "claude-*": "auto"}
    given = settings(server={"model_aliases": aliases}, tenants={"acme": {"dollars_per_day": 9.0}})
    (finding,) = told(findings_of_settings(given), "server.model_aliases")
    assert "claude-haiku-* is arm/no_retrieval" in finding
    assert "the tenant acme may not choose an arm" in finding
    assert "scope forced=true" in finding
    assert told(findings_of_settings(settings(server={"model_aliases": aliases})), "server.model_aliases") == []
    keys, now = KeyStore(stored.world.database), time.time()
    for name, scopes in (("agents", {"dollars_per_day": 1.0}), ("trusted", {"dollars_per_day": 1.0, "forced": True})):
        keys.create(name=name, role="app", scopes=scopes, now=now, actor="cli:t")
    (finding,) = stored("server.model_aliases", server={"model_aliases": aliases})
    assert "the key agents may not choose" in finding
    assert "trusted" not in finding


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("arm/single_step", ""),
        ("ragbandit/single_step", ""),
        ("ragbandit/auto", ""),
        ("auto:thrifty", ""),
        ("arm/single_stop", "did you mean arm/single_step?"),
        ("arm/mine", "no worker answers"),
        ("auto:thirsty", "did you mean auto:thrifty?"),
        ("single_step", "every request for it gets 404"),
    ],
)
def test_an_alias_of_a_model_that_does_not_exist(settings, name, words):
    """An alias of an arm that no worker answers, or of a price without a name, is a problem with its remedy."""
    arms = {"single_step": {}, "multi_step": {}, "mine": {"run_by": "caller"}}
    given = settings(server={"model_aliases": {"claude-*": name}}, cost_weights={"thrifty": 0.5}, arms=arms)
    lines = told(findings_of_settings(given), "server.model_aliases")
    assert (words in "".join(lines), len(lines)) == (True, bool(words))


def test_a_learner_that_does_not_run(make_world):
    """Feedback that has waited for ten minutes is a problem, if the ledger has a policy that learns."""
    world = make_world(now=time.time() - 1200)
    world.judged(3)
    rule = closing_rule(world.settings.learning)
    serving = untrained_policy(world.settings.policy_definition)
    (reported,) = told(findings_of_ledger(read_status(world.ledger, serving=serving, rule=rule, now=time.time())))
    assert told(findings_of_ledger(read_status(world.ledger, serving=None, rule=rule, now=time.time()))) == []
    assert reported.startswith("problem learner: feedback has waited for 20")
    assert "--queue learn" in reported


def test_processes_that_are_missing(running, redis_client):
    """A missing learner or answer worker is a problem; arms of callers need no answer worker, and those that
    the service runs need none either.
    """
    mine = {"arms": {"mine": {"run_by": "caller"}}}
    service, learner = running("processes", **mine)
    assert service.startswith("warning processes: no service runs")
    assert learner.startswith("problem processes: no worker for the queue learn")
    hosts(redis_client, {"queues": ("learn",)})
    assert running("processes", **mine) == []
    (found,) = running("processes")
    assert "--queue answer" in found
    publish_card(redis_client, make_card(role="service", threads={"answer": 0}))
    assert running("processes") == []  # the service answers itself


@pytest.mark.parametrize(
    ("about", "change", "words"),
    [
        ("versions", {"version": "0.0.1"}, "warning versions: ragbandit: "),
        ("versions", {"packages": {"numpy": "1.0"}}, "numpy: "),
        ("clocks", {"ahead_s": 7.0}, "warning clocks: the clock of host1 is 7.0 s ahead"),
        ("indexes", {"retriever": "bm25:bb"}, "bm25:bb on host1"),
        ("snapshots", {}, "problem snapshots: 2 hosts"),
    ],
)
def test_hosts_that_differ(running, redis_client, about, change, words):
    """A version, clock, index or snapshot that differs between two hosts is a finding that names the host."""
    hosts(redis_client, {}, change)
    if "ahead_s" in change:  # `say` measures it
        (key,) = redis_client.keys("ragbandit:process:host1:*")
        redis_client.set(key, json.dumps(json.loads(redis_client.get(key)) | change))
    assert words in " ".join(running(about))
    assert running("snapshots", snapshots="/shared") == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"server": {"host": "0.0.0.0", "open_metrics": True}}, "server.open_metrics: other machines"),
        ({"redis_url": "redis://elsewhere:6379"}, "redis_url: it is on another host"),
        ({"database_url": "postgresql+psycopg://db/x", "redis_url": None}, "redis_url: it is not set"),
        ({"arms": {"fast": {"run_by": "caller"}}}, "arms: fast is the only arm"),
    ],
)
def test_settings_that_contradict_each_other(settings, given, words):
    """Every finding is one warning that names the setting."""
    (reported,) = told(findings_of_settings(settings(**given)))
    assert reported.startswith(f"warning {words}")


def test_a_process_is_listed_while_it_is_there(redis_client, redis_server):
    """A card appears if the thread starts and disappears if it is closed; other values in Redis are left out."""
    presence = start_presence(connect_redis(redis_server), make_card(role="service"))
    until(lambda: running_processes(redis_client), seconds=10)
    redis_client.zadd("ragbandit:processes", {"ragbandit:process:x": time.time()})
    redis_client.set("ragbandit:process:x", "[]")
    assert [card.role for card in running_processes(redis_client)] == ["service"]
    presence.close()
    assert running_processes(redis_client) == []


def test_the_command(settings, make_world, redis_server, redis_client, monkeypatch, tmp_path):
    """`status` prints the findings and what to do, or JSON; exit code 1 with a problem. It makes the line of --line."""
    world = make_world()
    world.now = time.time() - 60.0
    for number in range(10):
        world.outcome(world.route(f"question {number}?"), cost={"dollars": 0.01})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", settings().data_dir)
    monkeypatch.setenv("REDIS_URL", redis_server)
    done = command.run("status", "--json")
    found = [one["what"] for one in json.loads(done.stdout)["findings"] if one["severity"] == "problem"]
    assert (done.exit_code, "no worker for the queue learn runs" in found) == (1, True)
    printed = " ".join(command.run("status").stdout.split())
    assert "do: start `ragbandit worker --queue learn`" in printed
    hosts(redis_client, {"pid": 2})
    line = command.run("status", "--line").stdout
    assert re.fullmatch(r"(\w+ \d+ %(, |; )){1,3}dollars against always \w+: not known yet, n 10; reward .*\n", line)
    mended = command.run("status")
    assert mended.exit_code == 0, mended.stdout


def test_a_stopped_up_beside_a_library(settings):
    """A library without a service has no finding. If `ragbandit up` ran here once, its absence is a warning that
    excepts programs that decide by themselves.
    """
    stopped = settings()
    Path(stopped.data_dir).mkdir(exist_ok=True)
    assert findings_of_processes(stopped) == []
    Path(stopped.data_dir, "redis.log").touch()
    (line,) = told(findings_of_processes(stopped), "processes")
    assert line.startswith("warning processes: `ragbandit up` does not run here")
    assert "Router.open() decides and learns by itself" in line


def test_a_schema_of_another_version(stored):
    """A schema that this version may use, and was not written for, is a warning."""
    stored.world.write(text("UPDATE alembic_version SET version_num = '9999'"))
    (found,) = stored("schema")
    assert found.startswith("warning schema: it is 9999")


def test_redis_that_evicts(running, redis_client):
    """A Redis that throws entries away when it is full is a warning."""
    hosts(redis_client, {})
    before = {name: redis_client.config_get(name)[name] for name in ("maxmemory", "maxmemory-policy")}
    try:
        redis_client.config_set("maxmemory-policy", "allkeys-lru")
        redis_client.config_set("maxmemory", "100mb")
        (found,) = running()
        assert found.startswith("warning Redis: maxmemory-policy is allkeys-lru")
    finally:
        for name, value in before.items():
            redis_client.config_set(name, value)


def test_a_disk_that_is_nearly_full(settings, monkeypatch):
    """Below two gigabytes it is a warning, below 200 MB a problem."""
    usage, levels = namedtuple("usage", "total used free"), []
    for free in (10**12, 10**9, 10**8):
        monkeypatch.setattr(shutil, "disk_usage", lambda _place, free=free: usage(10**12, 0, free))
        levels.append([one.severity for one in findings_of_disk(settings())])
    assert levels == [[], ["warning"], ["problem"]]
