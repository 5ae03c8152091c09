"""`ragbandit doctor` finds what is wrong with a real database, a real Redis and this host, and says what to do."""

import contextlib
import json
import socket
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text, update
from typer.testing import CliRunner

from ragbandit.router.cli.doctor import files
from ragbandit.router.cli.doctor.checks import CHECKS, examine
from ragbandit.router.cli.doctor.findings import Installation, run_checks
from ragbandit.router.learning.monitoring.sample_ratio import SETTLED_S
from ragbandit.router.offline.logs.full_information import arm_rows
from ragbandit.router.offline.logs.ledger_transfer import take_in
from ragbandit.router.queue.jobs import RedisJobs, connect
from ragbandit.router.queue.listener import CHANNEL
from ragbandit.router.queue.presence import Presence, card_of, present, say
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.tables import arm_hours, policies
from ragbandit.router.storage.totals.rows import hour_of
from ragbandit.shared.types import PolicyLabel, Query, TableRow
from ragbandit.workers.cli import app
from tests.support.cases import every_case


@pytest.fixture
def doctor(settings, redis_client, redis_server, tmp_path):
    """Runs some checks on a store with these settings; the level and the words by check."""
    (tmp_path / "data").mkdir(mode=0o700)

    def look(*names, clock=time.time, **given):
        made = settings(redis_url=redis_server, **given)
        chosen = [each for each in CHECKS if not names or each[0] in names]
        found = run_checks(Installation(settings=made, clock=clock), chosen, limit_s=10.0)
        assert all(each.means and each.remedy for each in found if each.level != "ok")
        return {each.check: (each.level, f"{each.found} {each.means} {each.remedy}") for each in found}

    return look


def hosts(client, *changes, **common):
    """Cards of an answer worker and a learner for each host, and of a service."""
    for number, change in enumerate(changes):
        card = card_of(role="worker", threads={"answer": 1, "learn": 1}, retriever="bm25:aa")
        say(client, replace(card, host=f"host{number}", **common, **change))
    say(client, replace(card_of(role="service"), pid=1, host="host0"))


def test_a_whole_installation_is_fine(doctor, redis_client):
    """With the processes there and nothing waiting every check is ok."""
    hosts(redis_client, {})
    with listening(redis_client), listening(redis_client):
        found = doctor()
    assert {name: told for name, told in found.items() if told[0] != "ok" and name != "permissions"} == {}
    assert len(found) >= len(CHECKS)


@contextlib.contextmanager
def listening(client):
    """A subscription, as each process has one."""
    with client.pubsub() as subscription:
        subscription.subscribe(CHANNEL)
        assert subscription.get_message(timeout=5.0)["type"] == "subscribe"
        yield


def test_ratings_that_favour_an_arm(doctor, make_world):
    """One arm's answers are rated 61 %, the other's 9 %: a warning names them; an hour ago all was too new."""
    now, hour = time.time(), hour_of(time.time()) - 1
    rated = {"premium": 305, "cheap": 45}
    world = make_world()
    for arm, count in rated.items():
        totals = {"decided": 500, "answered": 500, "learned": count, "judged_spread": 87.5}
        totals["judged_excess"] = count - 175.0
        world.write(arm_hours.insert().values(policy="main", hour=hour, arm=arm, totals=json.dumps(totals)))
    level, told = doctor("sample ratio", clock=lambda: now + SETTLED_S)["sample ratio"]
    assert level == "warning"
    assert "arm premium has 61 % of its answers rated and cheap 9 %" in told
    assert doctor("sample ratio", clock=lambda: now - SETTLED_S)["sample ratio"][0] == "ok"


def test_a_process_that_does_not_listen(doctor, redis_client):
    """Fewer subscriptions than processes that need one are a warning; a learner needs none."""
    hosts(redis_client, {}, {"queues": ("learn",)})
    with listening(redis_client):
        level, told = doctor("listeners")["listeners"]
        assert level == "warning"
        assert "1 listen, of 2" in told
        with listening(redis_client):
            assert doctor("listeners")["listeners"][0] == "ok"


def test_data_of_somebody_else_in_redis(doctor, redis_client):
    """What stands in our keys and is not ours is a warning, and no check fails over it."""
    redis_client.set("rq:queue:ragbandit-answer", b"\xff")
    redis_client.hset("ragbandit:work", "answer:done", b"\xff")
    level, told = doctor("queues")["queues"]
    assert level == "warning"
    assert "counters, queues" in told


def test_redis_that_is_down_is_told_once(settings, tmp_path):
    """Without Redis the other checks are made, and its absence is one finding that names what was left out."""
    made = settings(redis_url=f"unix://{tmp_path}/none.sock")
    found = examine(Installation(settings=made), limit_s=10.0)
    (gone,) = [each for each in found if "not reachable" in each.found]
    assert (gone.check, gone.level) == ("Redis", "problem")
    assert gone.means.startswith("skipped because of this: Redis memory, Redis writes, queues, ")
    assert {"schema", "learner", "disk"} <= {each.check for each in found if each.level == "ok"}


def test_a_library_needs_no_redis(settings, make_world, tmp_path):
    """Where no Redis is configured and `up` never ran, its absence is no problem; after `up` it is."""
    made = settings(redis_url=None)
    make_world()
    found = examine(Installation(settings=made), limit_s=10.0)
    assert [each.check for each in found if each.level == "problem"] == []
    assert [each.level for each in found if each.check == "Redis"] == ["ok"]
    assert "queues" not in {each.check for each in found}
    (tmp_path / "data" / "redis.log").touch()
    assert "problem" in [each.level for each in examine(Installation(settings=made), limit_s=10.0)]


def test_an_arm_with_another_name(doctor, make_world):
    """An arm that decided and is gone, beside one that never did, is a warning that names both; either alone is not."""
    make_world().router.route(Query(text="Who wrote Emma?", arms=("single_step",)))
    assert doctor("arms", arms={"single_step": {}, "new": {}})["arms"][0] == "ok"
    assert doctor("arms", arms={"no_retrieval": {}})["arms"][0] == "warning"
    level, told = doctor("arms", arms={"singl_step": {}})["arms"]
    assert level == "warning"
    assert "single_step decided lately and is not configured, singl_step is and never did" in told


def test_a_part_that_hangs_costs_its_limit_alone(settings):
    """A server that takes connections and says nothing is a problem within the limit; the others are looked at."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = settings(redis_url=f"redis://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        found = examine(Installation(settings=made), limit_s=0.5)
    assert time.monotonic() - began < 20
    levels = {each.check: each.level for each in found}
    assert levels["Redis"] == "problem" or any("no answer within" in each.found for each in found)
    assert levels["settings"] == "ok"


@pytest.mark.parametrize(
    ("revision", "level", "words"),
    [("0000", "problem", "ragbandit migrate"), ("9999", "warning", "older version"), (None, "problem", "no schema")],
)
def test_schema(doctor, settings, revision, level, words):
    """A schema that is too old, too new or not there is named with the command."""
    database = Database(settings().database)
    with database.write() as connection:
        change = "DROP TABLE alembic_version" if revision is None else "UPDATE alembic_version SET version_num = :at"
        connection.execute(text(change), {} if revision is None else {"at": revision})
    database.close()
    found = doctor("schema")["schema"]
    assert found[0] == level
    assert words in found[1]


def test_clock_of_the_database(doctor, postgres_url):
    """A host whose clock is ahead of PostgreSQL's is told by how much; one minute and more is a problem."""
    fine = doctor("clock of the database", database_url=postgres_url)["clock of the database"]
    ahead = doctor("clock of the database", database_url=postgres_url, clock=lambda: time.time() + 5)
    wrong = doctor("clock of the database", database_url=postgres_url, clock=lambda: time.time() - 90)
    assert fine[0] == "ok"
    assert ahead["clock of the database"][0] == "warning"
    assert "ahead" in ahead["clock of the database"][1]
    assert wrong["clock of the database"][0] == "problem"
    assert "behind" in wrong["clock of the database"][1]


def test_a_learner_that_does_not_run(doctor, make_world):
    """Feedback that has waited for more than ten minutes is a problem, with the command that learns."""
    world = make_world(now=time.time() - 1200)
    world.judged(3)
    found = doctor("learner")["learner"]
    assert found[0] == "problem"
    assert "--queue learn" in found[1]


def labelled(world, numbers):
    """Labels of three arms on some questions: 3 in 10 are right at no cost, 7 at 4 steps, 1 at 6."""
    right, steps = {"cheap": 3, "dear": 7, "worse": 1}, {"cheap": 0.0, "dear": 4.0, "worse": 6.0}
    rows = []
    for number in numbers:
        correct = {arm: float(number % 10 < count) for arm, count in right.items()}
        row = TableRow(id="", question=f"question {number}", correct=correct, steps=steps)
        rows += arm_rows(row, arms=tuple(right), features=None, encoder_hash="", settings=world.settings, now=world.now)
    take_in(world.ledger, rows, origin="table")


def test_weight_against_the_labels(doctor, make_world, tmp_path, monkeypatch):
    """A weight beyond a factor of 2, or a dear arm that is worse, is a warning from 50 labels an arm on.

    Labels at other prices are of another unit of cost. `validate` says the same.
    """
    world = make_world(policy={"name": "uniform"})

    def look(weight, *, arms=("cheap", "dear"), **reward):
        given = {"reward": {"weight": weight, **reward}, "arms": {name: {"run_by": "caller"} for name in arms}}
        return doctor("reward.weight", **given)["reward.weight"]

    labelled(world, range(49))
    assert look(0.5)[0] == "ok"
    assert "once two arms have 50 labels: cheap 49, dear 49" in look(0.5)[1]
    labelled(world, range(49, 200))
    cases = (
        (0.05, "ok", "half the slope from cheap to dear is 0.05 (standard error"),
        (0.2, "warning", "the weight 0.2 is above it by more than a factor of 2"),
        (0.2, "warning", "always cheap is the best fixed arm"),
        (0.2, "warning", "dear 80.0, and adds 40.0"),
        (0.2, "warning", "if nobody can say, to 0.05"),
        (0.01, "warning", "the weight 0.01 is below it"),
    )
    with every_case() as case:
        for weight, level, words in cases:
            with case(weight, words):
                found = look(weight)
                assert found[0] == level
                assert words in found[1]
        with case("worse"):
            level, told = look(0.05, arms=("cheap", "worse"))
            assert level == "warning"
            assert "drop worse, unless" in told
        with case("other prices"):
            assert "cheap 0, dear 0" in look(0.2, cost={"steps": 2.0})[1]
        with case("validate"):
            arms = "arms: {cheap: {run_by: caller}, dear: {run_by: caller}}\n"
            (tmp_path / "c.yaml").write_text(f"{arms}policy: {{name: uniform}}\ndata_dir: {tmp_path / 'data'}\n")
            monkeypatch.setenv("RAGBANDIT_REWARD__WEIGHT", "0.2")
            told = CliRunner().invoke(app, ["validate", "-c", str(tmp_path / "c.yaml")]).stdout
            assert "reward.weight: one unit of cost is worth 0.2 right answers" in told
            assert "reward.weight: half the slope from cheap to dear is 0.05" in told
            assert "dear 80.0, and adds 40.0" in told


def test_dollar_budgets(doctor, make_world, tmp_path):
    """A spent budget of a tenant or a key is a warning with its end; so is what keeps the price from pacing it."""
    world, now = make_world(), time.time()
    keys = KeyStore(world.database)
    key = keys.create(
        name="k", role="app", tenant="acme", scopes={"dollars_per_month": 0.5}, now=now, actor="cli:t"
    ).key
    world.now = now
    decision = world.router.submit(Query(text="q", tenant="acme", api_key=key.public_id), run_by="caller").result(30)
    world.outcome(decision, cost={"dollars": 0.6})

    def look(dollars, **given):
        tenants = {"acme": {"dollars_per_day": dollars, "budget_stop": True}, "other": {"dollars_per_day": 1.0}}
        return doctor("dollar budgets", tenants=tenants, reward={"cost": {"dollars": 1.0}, "weight": 10.0}, **given)

    assert f"key {key.public_id} has spent 120 % of its 0.5 dollars of the month" in look(9.0)["dollar budgets"][1]
    keys.revoke(key.public_id, actor="cli:t", now=now)
    assert look(9.0)["dollar budgets"][:1] == ("ok",)
    level, told = look(0.5)["dollar budgets"]
    assert level == "warning"
    assert "tenant acme has spent 120 % of its 0.5 dollars of the day (UTC)" in told
    assert "are refused (429) until" in told
    assert "uniform has one weight of cost" in look(9.0, policy={"name": "uniform"})["dollar budgets"][1]
    lines = "tenants: {acme: {dollars_per_day: 9}}\nreward: {weight: 0}\n"
    (tmp_path / "b.yaml").write_text(f"{lines}encoder: {{model: hashing}}\ndata_dir: {tmp_path / 'none'}\n")
    told = CliRunner().invoke(app, ["validate", "-c", str(tmp_path / "b.yaml")]).stdout
    assert "tenants: reward.weight is 0" in told
    assert "tenants: reward.cost prices no dollars" in told


def test_counters_that_do_not_add_up(doctor, make_world):
    """Rows that were moved from outside are named with recount."""
    world = make_world()
    world.judged(2)
    world.learn()
    world.write(text("UPDATE counters SET value = value + 1 WHERE name = 'decided'"))
    found = doctor("counters")["counters"]
    assert found[0] == "problem"
    assert "recount" in found[1]


def test_a_lease_of_a_wrong_clock(doctor, postgres_url):
    """A lease that is held for hours is named with its holder."""
    database = Database(postgres_url)
    Lease(database=database, name="learn:main").acquire(holder="host-7", lease_s=86_400)
    database.close()
    found = doctor("leases", database_url=postgres_url)["leases"]
    assert found[0] == "problem"
    assert "host-7" in found[1]


def test_redis_that_evicts(doctor, redis_client):
    """A Redis that throws entries away when it is full is a warning, one that is nearly full a problem."""
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    redis_client.config_set("maxmemory", "1gb")
    try:
        evicts = doctor("Redis memory")["Redis memory"]
        redis_client.config_set("maxmemory", redis_client.info("memory")["used_memory"])
        full = doctor("Redis memory")["Redis memory"]
    finally:
        redis_client.config_set("maxmemory", 0)
        redis_client.config_set("maxmemory-policy", "noeviction")
    assert evicts[0] == "warning"
    assert "noeviction" in evicts[1]
    assert full[0] == "problem"
    assert "maxmemory" in full[1]


def test_a_replica_of_redis(doctor, redis_client):
    """A Redis that only follows another one is a problem: nothing can be queued there."""
    redis_client.replicaof("127.0.0.1", "1")
    try:
        found = doctor("Redis writes")["Redis writes"]
    finally:
        redis_client.replicaof("NO", "ONE")
    assert found[0] == "problem"
    assert "replica" in found[1]


def test_jobs_that_nobody_takes(doctor, redis_client):
    """What waits in a queue without a worker is a problem; with one it is a number."""
    RedisJobs(redis_client).enqueue_learn(PolicyLabel("main"))
    alone = doctor("queues")["queues"]
    hosts(redis_client, {})
    assert alone[0] == "problem"
    assert "1 wait in learn" in alone[1]
    assert doctor("queues")["queues"][0] == "ok"


def test_processes_that_are_missing(doctor, redis_client):
    """A missing learner and a missing answer worker are problems; arms of callers need no answer worker."""
    found = doctor("processes", arms={"mine": {"run_by": "caller"}})["processes"]
    assert found[0] == "problem"
    assert "--queue learn" in found[1]
    hosts(redis_client, {"queues": ("learn",)})
    assert doctor("processes", arms={"mine": {"run_by": "caller"}})["processes"][0] == "ok"
    assert "--queue answer" in doctor("processes")["processes"][1]


@pytest.mark.parametrize(
    ("check", "change", "words"),
    [
        ("versions", {"version": "0.0.1"}, "ragbandit: "),
        ("versions", {"packages": {"numpy": "1.0"}}, "numpy: "),
        ("clocks of the hosts", {"ahead_s": 7.0}, "host1"),
        ("indexes", {"retriever": "bm25:bb"}, "bm25:bb on host1"),
    ],
)
def test_hosts_that_differ(doctor, redis_client, check, change, words):
    """Another version, clock or index on one of two hosts is told with the host."""
    first = {"ahead_s": 0.0}
    hosts(redis_client, first, change)
    if "ahead_s" in change:  # `say` measures it
        (key,) = redis_client.keys("ragbandit:process:host1:*")
        redis_client.set(key, json.dumps(json.loads(redis_client.get(key)) | change))
    level, told = doctor(check)[check]
    assert level == ("problem" if check == "indexes" else "warning")
    assert words in told


def test_containers_that_share_a_host_name_and_process_id(doctor, redis_client):
    """Each of two workers is listed, and one that ends takes away its own card alone."""
    made = [replace(card_of(role="worker", threads={queue: 1}), host="host", pid=1) for queue in ("answer", "learn")]
    for card in made:
        say(redis_client, card)
    assert "no service is there" in doctor("processes")["processes"][1]  # and nothing else is amiss
    Presence(client=redis_client, card=made[0]).close()
    assert [card.queues for card in present(redis_client)] == [("learn",)]


def test_snapshots_that_one_host_has(doctor, redis_client, tmp_path):
    """Two hosts with snapshots under data_dir are a problem; with a place of their own they are not."""
    hosts(redis_client, {}, {})
    assert doctor("snapshots over hosts")["snapshots over hosts"][0] == "problem"
    assert doctor("snapshots over hosts", snapshots=str(tmp_path))["snapshots over hosts"][0] == "ok"


def test_an_encoder_that_the_ledger_does_not_know(doctor, redis_client, make_world):
    """A service that encodes otherwise than the ledger was learned is a problem."""
    world = make_world()
    say(redis_client, card_of(role="service", encoder=world.router.service.encoder.hash))
    assert doctor("encoder")["encoder"][0] == "ok"
    world.write(update(policies).values(encoder_hash="f" * 64))
    level, told = doctor("encoder")["encoder"]
    assert level == "problem"
    assert "f" * 12 in told


def test_a_public_service_without_keys(doctor, settings):
    """A service that other machines reach without keys is a problem until there is a key."""
    public = {"server": {"host": "0.0.0.0"}}
    assert doctor("API keys", **public)["API keys"][0] == "problem"
    database = Database(settings().database)
    KeyStore(database).create(name="me", role="admin", now=time.time(), actor="cli:me")
    database.close()
    assert doctor("API keys", **public)["API keys"][0] == "ok"
    open_metrics = doctor("API keys", server={"host": "0.0.0.0", "open_metrics": True})
    assert open_metrics["API keys"][0] == "warning"


def test_settings_that_contradict_each_other(doctor):
    """A budget of time beyond the one after which a worker counts as dead is told."""
    level, told = doctor("settings", budget={"seconds": 1000})["settings"]
    assert level == "warning"
    assert told


def test_a_disk_that_is_nearly_full(doctor, monkeypatch):
    """Below two gigabytes it is a warning, below 200 MB a problem."""
    usage = namedtuple("usage", "total used free")
    levels = []
    for free in (10**12, 10**9, 10**8):
        monkeypatch.setattr(files.shutil, "disk_usage", lambda _place, free=free: usage(10**12, 0, free))
        levels.append(doctor("disk")["disk"][0])
    assert levels == ["ok", "warning", "problem"]


def test_files_that_others_may_read(doctor, settings, monkeypatch):
    """A database with a wide mode is named with the command that narrows it."""
    file = Path(settings().database.removeprefix("sqlite:///"))
    monkeypatch.setattr(files, "_shielded", lambda _place: False)  # pytest's own folders are private
    file.parent.chmod(0o700)
    file.chmod(0o600)
    assert doctor("permissions")["permissions"][0] == "ok"
    file.chmod(0o644)
    level, told = doctor("permissions")["permissions"]
    assert level == "warning"
    assert f"chmod go= {file}" in told


def test_files_in_a_private_folder(doctor, settings):
    """What lies in a folder that is closed to others may have any mode."""
    file = Path(settings().database.removeprefix("sqlite:///"))
    file.parent.chmod(0o700)
    file.chmod(0o644)
    assert doctor("permissions")["permissions"][0] == "ok"


def test_a_process_is_listed_while_it_is_there(redis_client, redis_server):
    """A card appears when the thread starts and is gone when it is closed; what is no card is left out."""
    presence = Presence(client=connect(redis_server), card=card_of(role="service", encoder="e")).start()
    give_up = time.monotonic() + 10
    while not present(redis_client) and time.monotonic() < give_up:
        time.sleep(0.01)
    redis_client.zadd("ragbandit:processes", {"ragbandit:process:x": time.time()})
    redis_client.set("ragbandit:process:x", "[]")
    assert [card.role for card in present(redis_client)] == ["service"]
    presence.close()
    assert present(redis_client) == []


def test_the_command(settings, redis_server, redis_client, monkeypatch, tmp_path):
    """The command prints every check with what to do, or JSON; exit code 1 with a problem."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAGBANDIT_DATA_DIR", settings().data_dir)
    monkeypatch.setenv("REDIS_URL", redis_server)
    done = CliRunner().invoke(app, ["doctor", "--json"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["level"]) == (1, "problem"), told
    said = CliRunner().invoke(app, ["doctor"])
    assert "do: start `ragbandit worker --queue learn`" in said.stdout
    hosts(redis_client, {"pid": 2})
    mended = CliRunner().invoke(app, ["doctor"])
    assert mended.exit_code == 0, mended.stdout
