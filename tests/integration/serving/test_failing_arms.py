"""The circuit breaker in a running router: what is offered, what the log tells, what operators see."""

import json
import logging
import time
from dataclasses import replace
from typing import Any

import pytest
import yaml
from sqlalchemy import insert, update
from typer.testing import CliRunner

from ragbandit.router.api.metrics import Metrics
from ragbandit.router.api.schemas.replies import status_json
from ragbandit.router.config.settings import COUNTED_S, HealthSettings
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows, take_in
from ragbandit.router.serving.checks.reports import made_outcome
from ragbandit.router.serving.following.versions import POLL_S
from ragbandit.router.serving.health import circuit_breaker
from ragbandit.router.serving.health.circuit_breaker import EXCLUDED_ARMS, REMEMBERED, ArmHealth
from ragbandit.router.storage.rows.conversion import decision_row
from ragbandit.router.storage.rows.outcome_rows import outcome_row
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.types import IMPORTED, ArmName, Budget, Decision, Query
from ragbandit.workers.cli import app
from tests.conftest import EPOCH, World, on_sqlite

ARMS = ("no_retrieval", "single_step", "multi_step")
COOL_DOWN = 30.0
SERVICE_S = 20.0


@pytest.fixture
def world(make_world, database_url):
    return make_world(database_url=database_url)


def end(world: World, decision: Decision, *, ahead: float = 0.0, **changes: Any) -> None:
    """A caller's outcome, made by a clock that is that much ahead, and the look that follows it."""
    facts = {"status": "failed", "stop_reason": "error"} | changes
    world.store.add_outcome(made_outcome(decision_id=decision.id, now=world.now + ahead, **facts))
    world.router.service.poll_outcomes()


def drawn(world: World, arm: str, *, most: int = 2000) -> Decision:
    """A decision that drew this arm, which every question may be offered."""
    return next(made for made in (world.route() for _ in range(most)) if made.arm == arm)


def asked(world: World, arm: str, **more: Any) -> Decision:
    """A decision that may draw this arm alone."""
    return world.router.submit(Query(text="which?", arms=(ArmName(arm),), **more)).result(30)


def broken(world: World, *arms: str, failures: int = 5, **changes: Any) -> None:
    """Make these arms fail that often, one after the other."""
    for arm in arms:
        for _ in range(failures):
            end(world, asked(world, arm), **changes)


def health(world: World, arm: str) -> ArmHealth:
    (found,) = [one for one in world.router.service.healths() if one.arm == arm]
    return found


def states(world: World) -> dict[str, str]:
    return {health.arm: health.state for health in world.router.service.healths()}


@on_sqlite
def test_arm_that_only_fails(world):
    """After five failures no decision offers the arm: the rest share the whole probability, and the log says why."""
    for number in range(5):
        assert states(world)["multi_step"] == "closed", number
        made = world.route()
        assert made.arms == ARMS
        broken(world, "multi_step", failures=1)
    assert states(world) == {"no_retrieval": "closed", "single_step": "closed", "multi_step": "open"}
    for made in [world.route() for _ in range(40)]:
        assert made.arms == ("no_retrieval", "single_step")
        assert sum(made.pmf) == pytest.approx(1.0, abs=1e-12)
        assert made.propensity == made.pmf[made.arms.index(made.arm)]
        assert made.facts[EXCLUDED_ARMS] == ["multi_step"]
    assert world.router.verify(deep=True).ok


@on_sqlite
def test_trial(world):
    """After the cool-down one question tries the arm while the others go without; its success brings it back."""
    broken(world, "multi_step")
    world.now += COOL_DOWN - 0.5
    assert world.route().arms == ("no_retrieval", "single_step")
    world.now += 0.5
    trial = drawn(world, "multi_step")
    assert trial.arms == ARMS
    assert EXCLUDED_ARMS not in trial.facts
    assert {made.arms for made in (world.route() for _ in range(30))} == {("no_retrieval", "single_step")}
    end(world, trial, status="answered")
    assert states(world)["multi_step"] == "closed"
    assert world.route().arms == ARMS
    assert world.router.verify(deep=True).ok


def test_two_routers(make_world, database_url):
    """Two routers on one store leave out the same arm and take it back, whoever is told of the outcomes."""
    one, other = (make_world(database_url=database_url) for _ in range(2))
    broken(one, "single_step")
    give_up = time.monotonic() + 10 * POLL_S
    while states(other)["single_step"] != "open":  # by itself: nobody calls `look` on it
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert other.route().facts[EXCLUDED_ARMS] == one.route().facts[EXCLUDED_ARMS] == ["single_step"]
    for made in (one, other):
        made.now += COOL_DOWN
    end(other, drawn(other, "single_step"), status="answered")
    one.router.service.poll_outcomes()
    assert states(one) == states(other) == dict.fromkeys(ARMS, "closed")
    assert one.route().arms == other.route().arms == ARMS


def test_router_that_starts(make_world):
    """A router that starts knows from the store which arms fail."""
    now = time.time()
    broken(make_world(now=now), "multi_step")
    assert states(make_world(now=now))["multi_step"] == "open"


@on_sqlite
def test_all_fail(world, caplog):
    """Where every arm fails all are offered, the log says so once in a while, and the draws verify."""
    broken(world, *ARMS)
    with caplog.at_level(logging.WARNING, logger="ragbandit.service"):
        made = [world.route() for _ in range(5)]
    assert {one.arms for one in made} == {ARMS}
    assert all(EXCLUDED_ARMS not in one.facts for one in made)
    assert status_json(world.router.state())["fail_opens"] == 5
    assert "ragbandit_decisions_fail_open_total 5.0" in Metrics(world.router).own_text().decode().splitlines()
    (said,) = [record for record in caplog.records if record.name == "ragbandit.service"]
    assert (said.action, said.arms) == ("fail_open", ", ".join(ARMS))
    assert world.router.verify(deep=True).ok


def test_fallback_left_out(make_world):
    """A policy that breaks while its fallback arm is left out plays another arm, with the true propensity."""
    world = make_world(policy={"fallback": "single_step"})
    broken(world, "single_step")

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    world.router.service.serving.policy.pmf = fails
    made = world.route()
    assert made.fault == "RuntimeError: broken"
    assert made.arms == ("no_retrieval", "multi_step")
    assert made.pmf == pytest.approx((0.98, 0.02))
    assert world.router.verify(deep=True).ok


@on_sqlite
def test_changes_are_logged(world, caplog):
    """The log says when an arm is left out, tried, and offered again, once each."""
    with caplog.at_level(logging.INFO, logger="ragbandit.health"):
        broken(world, "multi_step")
        world.router.service.poll_outcomes()
        world.now += COOL_DOWN
        world.router.service.poll_outcomes()
        end(world, drawn(world, "multi_step"), status="answered")
    said = [(record.arm, record.state) for record in caplog.records]
    assert list(dict.fromkeys(said)) == [("multi_step", "open"), ("multi_step", "half_open"), ("multi_step", "closed")]


def test_outcome_committed_late(world):
    """An outcome that another process commits seconds after it was made is read all the same, and counts once."""
    made = [world.router.submit(Query(text=f"{n}?", arms=("multi_step",))).result(30) for n in range(5)]
    for one in made[:4]:
        end(world, one)
    late = made_outcome(decision_id=made[4].id, now=world.now, status="failed", stop_reason="error")
    world.now += circuit_breaker.OVERLAP_S - 0.5
    world.router.service.poll_outcomes()
    world.store.add_outcome(late)
    for _ in range(3):
        world.router.service.poll_outcomes()
    found = health(world, "multi_step")
    assert (found.state, found.failures) == ("open", 5)


def test_writers_that_waited(world):
    """Outcomes that lay behind a lock, or are stamped by a clock that is behind, are read within seconds."""
    world.router.service.poll_outcomes()
    made = [asked(world, "multi_step") for _ in range(5)]
    late = [made_outcome(decision_id=one.id, now=world.now, status="failed") for one in made]
    for _ in range(int(circuit_breaker.LATE_S)):
        world.now += 1.0
        world.router.service.poll_outcomes()
    for outcome in late:
        world.store.add_outcome(outcome)
    for _ in range(int(circuit_breaker.THOROUGH_EVERY_S)):
        world.now += 1.0
        world.router.service.poll_outcomes()
    assert health(world, "multi_step").failures == 5


@on_sqlite
def test_clock_that_is_ahead(world):
    """A worker whose clock is ahead keeps its arm open no longer than another, however often its outcomes are read."""
    broken(world, "multi_step", ahead=120.0)
    assert states(world)["multi_step"] == "open"
    for _ in range(int(COOL_DOWN)):
        assert states(world)["multi_step"] == "open"
        world.now += 1.0
        world.router.service.poll_outcomes()
    assert states(world)["multi_step"] == "half_open"
    end(world, drawn(world, "multi_step"), status="answered")
    assert states(world)["multi_step"] == "closed"


@on_sqlite
def test_many_outcomes_ahead(world):
    """Old failures of a clock that is ahead do not come back when they are read again."""
    for key in ("f1", "f2", "f3", "f4", "f5"):
        end(world, world.router.submit(Query(text="?", id=key, arms=("multi_step",))).result(30), ahead=100.0)
    world.now += 1.0
    made = [world.router.submit(Query(text="?", id=f"a{n}", arms=("multi_step",))) for n in range(REMEMBERED)]
    for one in made:
        outcome = made_outcome(decision_id=one.result(30).id, now=world.now + 100.0, status="answered")
        world.store.add_outcome(outcome)
    for _ in range(12):
        world.router.service.poll_outcomes()
        assert health(world, "multi_step").failures == 0
        world.now += 1.0


@on_sqlite
def test_clock_that_was_set_back(world):
    """After the router's clock was set back, new outcomes are read and old ones do not outlast them."""
    reader = circuit_breaker.OutcomePoller(world.database, settings=HealthSettings(), seconds=120.0)
    broken(world, "multi_step")
    (found,) = reader.read([ArmName("multi_step")], now=EPOCH)
    assert found.state == "open"
    world.now -= 1000.0
    made = asked(world, "multi_step")
    world.store.add_outcome(made_outcome(decision_id=made.id, now=world.now, status="failed"))
    (found,) = reader.read([ArmName("multi_step")], now=world.now)
    assert (found.state, found.failures) == ("closed", 1)


@pytest.mark.parametrize(
    ("asked_s", "failures"), [(None, 5), (SERVICE_S, 5), (SERVICE_S + 1, 5), (SERVICE_S - 1, 0), (0.001, 0)]
)
def test_hanging_arm(make_world, asked_s, failures):
    """No answer within the service's seconds is a failure; a caller who asks for fewer cannot leave an arm out."""
    world = make_world(budget={"seconds": SERVICE_S})
    for _ in range(5):
        made = asked(world, "multi_step", budget=Budget(seconds=asked_s))
        end(world, made, status="exhausted", stop_reason="budget_seconds")
    found = health(world, "multi_step")
    assert (found.failures, found.state) == (failures, "open" if failures else "closed")


@pytest.mark.parametrize("budget", ["{", "[]", '{"seconds":"many"}'])
def test_broken_row(world, budget):
    """A decision whose row is broken proves nothing of its arm, and keeps nobody from reading the others."""
    made = asked(world, "multi_step")
    world.write(update(decisions).where(decisions.c.id == made.id).values(budget=budget))
    end(world, made, status="exhausted", stop_reason="budget_seconds")
    broken(world, "multi_step", failures=1)
    assert health(world, "multi_step").failures == 1


def test_imported(make_world, tmp_path):
    """Outcomes that came with an imported log say nothing of how an arm is; what a caller names so does."""
    now = time.time()
    here = make_world(data_dir=str(tmp_path / "here"), now=now)
    log = make_world(data_dir=str(tmp_path / "log"), now=now + 0.5)
    for arm in ("multi_step", "single_step"):
        log.feedback(asked(log, arm), reward=1.0)
        broken(here, arm, failures=2)
    log.learn()
    here.now += 1.0
    assert take_in(here.ledger, ledger_rows(log.ledger), origin="jsonl").added == 2
    end(here, asked(here, "single_step"), status="answered", stop_reason=IMPORTED)
    assert (health(here, "multi_step").failures, health(here, "single_step").failures) == (2, 0)


def test_status(world):
    """The service's status and its metrics show every arm on offer."""
    broken(world, "multi_step")
    shown = status_json(world.router.state())["arms"]
    assert shown == {
        "no_retrieval": {"state": "closed", "offered": True, "failures": 0, "since": None},
        "single_step": {"state": "closed", "offered": True, "failures": 0, "since": None},
        "multi_step": {"state": "open", "offered": False, "failures": 5, "since": EPOCH},
    }
    json.dumps(shown)
    metrics = Metrics(world.router)
    lines = metrics.state_text(world.router.state()).decode().splitlines()
    assert 'ragbandit_arm_offered{arm="multi_step"} 0.0' in lines
    assert 'ragbandit_arm_offered{arm="single_step"} 1.0' in lines
    world.restart(arms={"single_step": {}})
    lines = Metrics(world.router).state_text(world.router.state()).decode().splitlines()
    assert [line for line in lines if line.startswith("ragbandit_arm_offered{")] == [
        'ragbandit_arm_offered{arm="single_step"} 1.0'
    ]


def test_commands(make_world, tmp_path, monkeypatch):
    """`ragbandit status` shows the arms from the database, and `ragbandit replay` takes a log with an episode."""
    world = make_world(now=time.time())
    world.judged(40)
    broken(world, "multi_step")
    world.judged(20)
    world.now += COOL_DOWN
    end(world, drawn(world, "multi_step"), status="answered")
    broken(world, "no_retrieval", failures=2)
    world.learn()
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump({"data_dir": world.settings.data_dir, "encoder": {"model": "hashing", "dimension": 8}})
    )
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["status", "--json"])
    assert shown.exit_code == 0, shown.output
    arms = json.loads(shown.stdout)["arms"]
    assert {arm: (one["state"], one["failures"]) for arm, one in arms.items()} == {
        "no_retrieval": ("closed", 2),
        "single_step": ("closed", 0),
        "multi_step": ("closed", 0),
    }
    assert "no_retrieval: healthy, 2 failures in a row since " in CliRunner().invoke(app, ["status"]).stdout
    verdict = CliRunner().invoke(app, ["verify", "--deep", "--json"])
    assert verdict.exit_code == 0, verdict.output
    assert "--mixed-arms" in CliRunner().invoke(app, ["replay", "--json"]).stderr
    judged = CliRunner().invoke(app, ["replay", "--mixed-arms", "--json"])
    assert judged.exit_code == 0, judged.output
    assert json.loads(judged.stdout)["rows"] == 60


def test_reading_uses_the_index(database):
    """No database walks all outcomes to find the newest."""
    word = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
    query = circuit_breaker.newest(after=1.0, until=2.0).compile(
        database.engine, compile_kwargs={"literal_binds": True}
    )
    with database.read() as connection:
        if not database.is_sqlite:  # of an empty table PostgreSQL would rather walk all
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = "\n".join(str(row) for row in connection.exec_driver_sql(f"{word} {query}"))
    assert "outcomes_made_at" in plan


@pytest.mark.parametrize(("most", "failures", "since"), [(1000, 5, EPOCH + 2.0), (3, 3, EPOCH + 4.0)])
@on_sqlite
def test_reading_is_bounded(database, make_decision, monkeypatch, most, failures, since):
    """The first reading goes back an hour, and every reading takes the newest outcomes up to a number."""
    monkeypatch.setattr(circuit_breaker, "MOST", most)
    made = make_decision("d1", arm="multi_step")
    ended = made_outcome(decision_id="d1", now=EPOCH, status="failed")
    keys = [f"k{n:02}" for n in range(7)]
    with database.write() as connection:
        connection.execute(insert(decisions), [decision_row(made) | {"id": key} for key in keys])
        rows = [outcome_row(ended) | {"decision_id": key, "made_at": EPOCH + n} for n, key in enumerate(keys)]
        connection.execute(insert(outcomes), rows)
    reader = circuit_breaker.OutcomePoller(database, settings=HealthSettings(), seconds=120.0)
    (found,) = reader.read([ArmName("multi_step")], now=EPOCH + COUNTED_S + 1.0)
    assert (found.failures, found.since) == (failures, since)


@on_sqlite
def test_one_tenant_cannot_take_an_arm_from_others(world, caplog):
    """Six failures that one tenant reports for its own questions keep the arm from that tenant alone."""
    for _ in range(6):
        end(world, asked(world, "multi_step", tenant="teamA"))
    end(world, asked(world, "multi_step", tenant="teamB"), status="answered", stop_reason="answer")
    of_a, of_b, of_c = (
        world.router.submit(Query(text="which?", tenant=tenant)).result(30) for tenant in ("teamA", "teamB", "teamC")
    )
    assert "multi_step" not in of_a.arms
    assert of_a.facts[EXCLUDED_ARMS] == ["multi_step"]
    assert of_b.arms == of_c.arms == ARMS
    assert states(world)["multi_step"] == "closed"
    assert [record.tenant for record in caplog.records if "for one tenant" in record.getMessage()] == ["teamA"]


@on_sqlite
def test_what_our_workers_ran_counts_for_all(world):
    """Failures of our workers keep the arm from every tenant, whoever asked."""
    for _ in range(5):
        made = asked(world, "multi_step", tenant="teamA")
        ended = made_outcome(decision_id=made.id, now=world.now, status="failed", stop_reason="error")
        world.store.add_outcome(replace(ended, run_by="worker"))
    world.router.service.poll_outcomes()
    assert states(world)["multi_step"] == "open"
    assert "multi_step" not in world.router.submit(Query(text="which?", tenant="teamB")).result(30).arms
