"""The circuit breaker in a running router: offered arms, log lines, and pages of operators."""

import logging
from typing import Any

import pytest
from sqlalchemy import insert

from ragbandit.router.api.metrics import Metrics
from ragbandit.router.config.settings import COUNTED_S, HealthSettings
from ragbandit.router.replies.status import status_json
from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.serving.deciding.steps.breaker import Breaker, UnhealthyArms
from ragbandit.router.serving.health import outcome_poller
from ragbandit.router.serving.health.circuit_breaker import ArmHealth
from ragbandit.router.serving.loading.live import LiveVersions
from ragbandit.router.serving.process import POLL_S
from ragbandit.router.storage.rows.conversion import decision_row
from ragbandit.router.storage.rows.outcome_rows import outcome_row
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.types import ArmName, Budget, Decision, PolicyControl, Query
from tests.conftest import EPOCH, World, on_sqlite
from tests.support import bad_policies
from tests.support.waiting import until

ARMS = ("no_retrieval", "single_step", "multi_step")
COOL_DOWN = 30.0
SERVICE_S = 20.0


def end(world: World, decision: Decision, *, ahead: float = 0.0, **changes: Any) -> None:
    """A caller's outcome, made by a clock that is that much ahead, and the look that follows it."""
    facts = {"status": "failed", "stop_reason": "error"} | changes
    world.store.add_outcome(make_outcome(decision_id=decision.id, now=world.now + ahead, **facts))
    world.router.service.refresh_steps()


def drawn(world: World, arm: str, *, most: int = 2000) -> Decision:
    """A decision that drew this arm, which every question may be offered."""
    return next(decision for decision in (world.route() for _ in range(most)) if decision.arm == arm)


def asked(world: World, arm: str, **more: Any) -> Decision:
    """A decision with this arm only."""
    return world.router.submit(Query(text="which?", arms=(ArmName(arm),), **more)).result(30)


def broken(world: World, *arms: str, failures: int = 5, **changes: Any) -> None:
    """Make these arms fail `times` times each."""
    for arm in arms:
        for _ in range(failures):
            end(world, asked(world, arm), **changes)


def health(world: World, arm: str) -> ArmHealth:
    return next(health for health in healths(world) if health.arm == arm)


def healths(world: World) -> list[ArmHealth]:
    service = world.router.service
    return service.step(Breaker).healths(service.arms, now=world.now)


def states(world: World) -> dict[str, str]:
    return {health.arm: health.state for health in healths(world)}


@on_sqlite
def test_arm_that_only_fails(world):
    """After five failures no decision offers the arm: the rest share the whole probability, and the log says why."""
    for number in range(5):
        assert states(world)["multi_step"] == "closed", number
        decision = world.route()
        assert decision.arms == ARMS
        broken(world, "multi_step", failures=1)
    assert states(world) == {"no_retrieval": "closed", "single_step": "closed", "multi_step": "open"}
    for decision in [world.route() for _ in range(40)]:
        assert decision.arms == ("no_retrieval", "single_step")
        assert sum(decision.pmf) == pytest.approx(1.0, abs=1e-12)
        assert decision.propensity == decision.pmf[decision.arms.index(decision.arm)]
        assert decision.facts[UnhealthyArms.key] == {"arms": ["multi_step"]}
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
    assert UnhealthyArms.key not in trial.facts
    assert {decision.arms for decision in (world.route() for _ in range(30))} == {("no_retrieval", "single_step")}
    end(world, trial, status="answered")
    assert states(world)["multi_step"] == "closed"
    assert world.route().arms == ARMS
    assert world.router.verify(deep=True).ok


@on_sqlite
def test_two_routers(make_world, database_url):
    """Two routers on one store suspend and restore the same arm, whichever of them gets the outcomes."""
    one, other = (make_world(database_url=database_url) for _ in range(2))
    broken(one, "single_step")
    # by itself: nobody calls `look` on it
    until(lambda: states(other)["single_step"] == "open", seconds=10 * POLL_S)
    assert other.route().facts[UnhealthyArms.key] == one.route().facts[UnhealthyArms.key] == {"arms": ["single_step"]}
    for world_of_router in (one, other):
        world_of_router.now += COOL_DOWN
    end(other, drawn(other, "single_step"), status="answered")
    one.router.service.refresh_steps()
    assert states(one) == states(other) == dict.fromkeys(ARMS, "closed")
    assert one.route().arms == other.route().arms == ARMS


@on_sqlite
def test_all_fail(world, caplog):
    """If every arm fails, all are offered, the log reports it from time to time, and the draws verify."""
    broken(world, *ARMS)
    with caplog.at_level(logging.WARNING, logger="ragbandit.service"):
        made = [world.route() for _ in range(5)]
    assert {one.arms for one in made} == {ARMS}
    assert all(one.facts[UnhealthyArms.key] == {"arms": list(ARMS), "offered": True} for one in made)
    assert status_json(world.router.state())["fail_opens"] == 5
    assert (
        "ragbandit_decisions_fail_open_total 5.0"
        in Metrics(world.router).exposition(None, budgets={}).decode().splitlines()
    )
    (said,) = [record for record in caplog.records if record.name == "ragbandit.service"]
    assert (said.action, said.arms) == ("fail_open", ", ".join(ARMS))
    assert world.router.verify(deep=True).ok


def test_a_decision_that_is_made_again_counts_once(make_world):
    """Failing arms that are offered and faults of the policy are counted by stored decisions, not by tries."""
    world = make_world(policy={"name": f"{bad_policies.__name__}:WrongPmf"})
    broken(world, *ARMS)
    service = world.router.service
    faults, service.versions.live = service.faults, LiveVersions(control=PolicyControl(revision=-1))
    world.route()
    assert (service.step(Breaker).fail_opens, service.faults - faults) == (1, 1)


@on_sqlite
def test_outcome_committed_late(world):
    """An outcome that another process commits seconds after it was made is read all the same, and counts once."""
    made = [world.router.submit(Query(text=f"{n}?", arms=("multi_step",))).result(30) for n in range(5)]
    for one in made[:4]:
        end(world, one)
    late = make_outcome(decision_id=made[4].id, now=world.now, status="failed", stop_reason="error")
    world.now += outcome_poller.OVERLAP_S - 0.5
    world.router.service.refresh_steps()
    world.store.add_outcome(late)
    for _ in range(3):
        world.router.service.refresh_steps()
    arm_health = health(world, "multi_step")
    assert (arm_health.state, arm_health.failures) == ("open", 5)


@pytest.mark.parametrize(("asked_s", "failures"), [(None, 5), (SERVICE_S, 5), (SERVICE_S - 1, 0)])
def test_hanging_arm(make_world, asked_s, failures):
    """No answer within the service's seconds is a failure; a caller who asks for fewer cannot leave an arm out."""
    world = make_world(budget={"seconds": SERVICE_S})
    for _ in range(5):
        made = asked(world, "multi_step", budget=Budget(seconds=asked_s))
        end(world, made, status="exhausted", stop_reason="budget_seconds")
    arm_health = health(world, "multi_step")
    assert (arm_health.failures, arm_health.state) == (failures, "open" if failures else "closed")


def test_reading_uses_the_index(database):
    """No database walks all outcomes to find the newest."""
    word = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
    query = outcome_poller.select_newest(after=1.0, until=2.0).compile(
        database.engine, compile_kwargs={"literal_binds": True}
    )
    with database.read() as connection:
        if not database.is_sqlite:  # PostgreSQL scans an empty table instead of its index
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = "\n".join(str(row) for row in connection.exec_driver_sql(f"{word} {query}"))
    assert "outcomes_made_at" in plan


@pytest.mark.parametrize(("most", "failures", "since"), [(1000, 5, EPOCH + 2.0), (3, 3, EPOCH + 4.0)])
@on_sqlite
def test_reading_is_bounded(database, make_decision, monkeypatch, most, failures, since):
    """The first reading goes back an hour, and every reading takes the newest outcomes up to a number."""
    monkeypatch.setattr(outcome_poller, "MOST", most)
    outcome = make_decision("d1", arm="multi_step")
    ended = make_outcome(decision_id="d1", now=EPOCH, status="failed")
    keys = [f"k{n:02}" for n in range(7)]
    with database.write() as connection:
        connection.execute(insert(decisions), [decision_row(outcome) | {"id": key} for key in keys])
        rows = [outcome_row(ended) | {"decision_id": key, "made_at": EPOCH + n} for n, key in enumerate(keys)]
        connection.execute(insert(outcomes), rows)
    reader = outcome_poller.OutcomePoller(database, settings=HealthSettings(), seconds=120.0)
    (found,) = reader.read([ArmName("multi_step")], now=EPOCH + COUNTED_S + 1.0)
    assert (found.failures, found.since) == (failures, since)


@on_sqlite
def test_one_tenant_cannot_take_an_arm_from_others(world, caplog):
    """Six failures reported by one tenant suspend the arm only for this tenant."""
    for _ in range(6):
        end(world, asked(world, "multi_step", tenant="teamA"))
    end(world, asked(world, "multi_step", tenant="teamB"), status="answered", stop_reason="answer")
    of_a, of_b, of_c = (
        world.router.submit(Query(text="which?", tenant=tenant)).result(30) for tenant in ("teamA", "teamB", "teamC")
    )
    assert "multi_step" not in of_a.arms
    assert of_a.facts[UnhealthyArms.key] == {"arms": ["multi_step"]}
    assert of_b.arms == of_c.arms == ARMS
    assert states(world)["multi_step"] == "closed"
    assert [record.tenant for record in caplog.records if "for one tenant" in record.getMessage()] == ["teamA"]
