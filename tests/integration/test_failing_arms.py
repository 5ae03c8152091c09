"""The circuit breaker in a running router: what is offered, what the log tells, what operators see."""

import json
import logging
import time

import pytest
import typer
import yaml
from sqlalchemy import insert
from typer.testing import CliRunner

from router import watch
from router.cli import add_verbs
from router.cli_replay import add_replay_verb
from router.door import POLL_S
from router.edge import made_outcome
from router.health import LEFT_OUT
from router.meters import Meters
from router.replies import status_json
from router.rows import decision_row, outcome_row
from router.settings import HealthSettings
from router.tables import decisions, outcomes
from router.types import ArmName, Decision, Query
from tests.conftest import EPOCH, World

ARMS = ("no_retrieval", "single_step", "multi_step")
COOL_DOWN = 30.0


@pytest.fixture
def world(make_world, database_url):
    return make_world(database_url=database_url)


def end(world: World, decision: Decision, *, status: str = "failed") -> None:
    """A caller's outcome, and the look that follows it."""
    world.store.add_outcome(made_outcome(decision_id=decision.id, now=world.now, status=status, stop_reason="error"))
    world.router.service.look()


def drawn(world: World, arm: str, *, most: int = 2000) -> Decision:
    """A decision that drew this arm, which every question may be offered."""
    return next(made for made in (world.route() for _ in range(most)) if made.arm == arm)


def broken(world: World, *arms: str, failures: int = 5) -> None:
    """Make these arms fail that often, one after the other."""
    for arm in arms:
        for number in range(failures):
            made = world.router.submit(Query(text=f"which {number}?", arms=(arm,))).result(30)
            end(world, made)


def states(world: World) -> dict[str, str]:
    return {health.arm: health.state for health in world.router.service.healths()}


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
        assert made.facts[LEFT_OUT] == ["multi_step"]
    assert world.router.verify(deep=True).ok


def test_trial(world):
    """After the cool-down one question tries the arm while the others go without; its success brings it back."""
    broken(world, "multi_step")
    world.now += COOL_DOWN - 0.5
    assert world.route().arms == ("no_retrieval", "single_step")
    world.now += 0.5
    trial = drawn(world, "multi_step")
    assert trial.arms == ARMS
    assert LEFT_OUT not in trial.facts
    assert {made.arms for made in (world.route() for _ in range(30))} == {("no_retrieval", "single_step")}
    end(world, trial, status="answered")
    assert states(world)["multi_step"] == "closed"
    assert world.route().arms == ARMS
    assert world.router.verify(deep=True).ok


def test_trial_that_fails(world):
    """A trial that fails leaves the arm out for another cool-down."""
    broken(world, "multi_step")
    world.now += COOL_DOWN
    end(world, drawn(world, "multi_step"))
    assert states(world)["multi_step"] == "open"
    assert world.route().facts[LEFT_OUT] == ["multi_step"]
    world.now += COOL_DOWN
    assert states(world)["multi_step"] == "half_open"


def test_one_question_of_a_group(world):
    """Questions that come together in one group try a half-open arm one at a time."""
    broken(world, "multi_step")
    world.now += COOL_DOWN
    made = [future.result(30) for future in [world.router.submit(Query(text=f"question {n}")) for n in range(300)]]
    assert sum(one.arm == "multi_step" for one in made) == 1


def test_two_routers(make_world, database_url):
    """Two routers on one store leave out the same arm and take it back, whoever is told of the outcomes."""
    one, other = (make_world(database_url=database_url) for _ in range(2))
    broken(one, "single_step")
    give_up = time.monotonic() + 10 * POLL_S
    while states(other)["single_step"] != "open":  # by itself: nobody calls `look` on it
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert other.route().facts[LEFT_OUT] == one.route().facts[LEFT_OUT] == ["single_step"]
    for made in (one, other):
        made.now += COOL_DOWN
    end(other, drawn(other, "single_step"), status="answered")
    one.router.service.look()
    assert states(one) == states(other) == dict.fromkeys(ARMS, "closed")
    assert one.route().arms == other.route().arms == ARMS


def test_router_that_starts(make_world, database_url):
    """A router that starts knows from the store which arms fail."""
    now = time.time()
    broken(make_world(database_url=database_url, now=now), "multi_step")
    assert states(make_world(database_url=database_url, now=now))["multi_step"] == "open"


def test_all_fail(world, caplog):
    """Where every arm fails all are offered, the log says so once in a while, and the draws verify."""
    broken(world, *ARMS)
    with caplog.at_level(logging.WARNING, logger="ragbandit.service"):
        made = [world.route() for _ in range(5)]
    assert {one.arms for one in made} == {ARMS}
    assert all(LEFT_OUT not in one.facts for one in made)
    assert world.router.service.forced == 5
    (said,) = [record for record in caplog.records if record.name == "ragbandit.service"]
    assert (said.action, said.arms) == ("forced", ", ".join(ARMS))
    assert world.router.verify(deep=True).ok


def test_asked_for_by_name(world):
    """A caller who allows a failing arm alone gets it."""
    broken(world, "multi_step")
    made = world.router.submit(Query(text="which?", arms=("multi_step",))).result(30)
    assert (made.arm, made.pmf) == ("multi_step", (1.0,))


def test_repeated_id(world):
    """A repeated decision id gives the standing decision, whatever fails now."""
    first = world.route("who?", key="mine-1")
    broken(world, *[arm for arm in ARMS if arm != first.arm][:1])
    again = world.route("who?", key="mine-1")
    assert (again.arm, again.arms, again.pmf) == (first.arm, first.arms, first.pmf)


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
    assert made.pmf == pytest.approx((0.95, 0.05))
    assert world.router.verify(deep=True).ok


def test_off(make_world):
    """With health.failures = 0 a failing arm is offered for ever."""
    world = make_world(health={"failures": 0})
    broken(world, "multi_step", failures=20)
    assert world.route().arms == ARMS
    assert states(world)["multi_step"] == "closed"


def test_changes_are_logged(world, caplog):
    """The log says when an arm is left out, tried, and offered again, once each."""
    with caplog.at_level(logging.INFO, logger="ragbandit.health"):
        broken(world, "multi_step")
        world.router.service.look()
        world.now += COOL_DOWN
        world.router.service.look()
        end(world, drawn(world, "multi_step"), status="answered")
    said = [(record.arm, record.state) for record in caplog.records]
    assert list(dict.fromkeys(said)) == [("multi_step", "open"), ("multi_step", "half_open"), ("multi_step", "closed")]


def test_outcome_committed_late(world):
    """An outcome that another process commits seconds after it was made is read all the same, and counts once."""
    made = [world.router.submit(Query(text=f"{n}?", arms=("multi_step",))).result(30) for n in range(5)]
    for one in made[:4]:
        end(world, one)
    late = made_outcome(decision_id=made[4].id, now=world.now, status="failed", stop_reason="error")
    world.now += watch.OVERLAP_S - 0.5
    world.router.service.look()
    world.store.add_outcome(late)
    for _ in range(3):
        world.router.service.look()
    (health,) = [one for one in world.router.service.healths() if one.arm == "multi_step"]
    assert (health.state, health.failures) == ("open", 5)


def test_clock_that_was_set_back(world):
    """Outcomes made after the router's clock was set back are read at the next look."""
    world.now -= 1000.0
    made = world.router.submit(Query(text="which?", arms=("multi_step",))).result(30)
    reader = watch.Watch(world.database, settings=HealthSettings())
    reader.read([], now=EPOCH)
    world.store.add_outcome(made_outcome(decision_id=made.id, now=world.now, status="failed"))
    (health,) = reader.read([ArmName("multi_step")], now=world.now)
    assert health.failures == 1


def test_status(world):
    """The service's status and its metrics show every arm on offer."""
    broken(world, "multi_step")
    shown = status_json(world.router)["arms"]
    assert shown == {
        "no_retrieval": {"state": "closed", "offered": True, "failures": 0, "since": None},
        "single_step": {"state": "closed", "offered": True, "failures": 0, "since": None},
        "multi_step": {"state": "open", "offered": False, "failures": 5, "since": EPOCH},
    }
    json.dumps(shown)
    meters = Meters(world.router)
    lines = meters.text(world.router).decode().splitlines()
    assert 'ragbandit_arm_offered{arm="multi_step"} 0.0' in lines
    assert 'ragbandit_arm_offered{arm="single_step"} 1.0' in lines
    world.router.offer({"single_step": {}})
    lines = meters.text(world.router).decode().splitlines()
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
    app = typer.Typer()
    add_verbs(app, check=lambda _: None)
    add_replay_verb(app)
    shown = CliRunner().invoke(app, ["status", "--json"])
    assert shown.exit_code == 0, shown.output
    arms = json.loads(shown.stdout)["arms"]
    assert {arm: (one["state"], one["failures"]) for arm, one in arms.items()} == {
        "no_retrieval": ("closed", 2),
        "single_step": ("closed", 0),
        "multi_step": ("closed", 0),
    }
    assert "no_retrieval: closed, 2 failed since " in CliRunner().invoke(app, ["status"]).stdout
    verdict = CliRunner().invoke(app, ["verify", "--deep", "--json"])
    assert verdict.exit_code == 0, verdict.output
    assert "--mixed-arms" in CliRunner().invoke(app, ["replay", "--json"]).stderr
    judged = CliRunner().invoke(app, ["replay", "--mixed-arms", "--json"])
    assert judged.exit_code == 0, judged.output
    assert json.loads(judged.stdout)["rows"] == 60


def test_reading_uses_the_index(database):
    """No database walks all outcomes to find the newest."""
    word = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
    query = watch.newest(after=1.0).compile(database.engine, compile_kwargs={"literal_binds": True})
    with database.read() as connection:
        if not database.is_sqlite:  # of an empty table PostgreSQL would rather walk all
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = "\n".join(str(row) for row in connection.exec_driver_sql(f"{word} {query}"))
    assert "outcomes_made_at" in plan


@pytest.mark.parametrize(("most", "failures", "since"), [(1000, 5, EPOCH + 2.0), (3, 3, EPOCH + 4.0)])
def test_reading_is_bounded(database, make_decision, monkeypatch, most, failures, since):
    """The first reading goes back an hour, and every reading takes the newest outcomes up to a number."""
    monkeypatch.setattr(watch, "MOST", most)
    made = make_decision("d1", arm="multi_step")
    ended = made_outcome(decision_id="d1", now=EPOCH, status="failed")
    keys = [f"k{n:02}" for n in range(7)]
    with database.write() as connection:
        connection.execute(insert(decisions), [decision_row(made) | {"id": key} for key in keys])
        rows = [outcome_row(ended) | {"decision_id": key, "made_at": EPOCH + n} for n, key in enumerate(keys)]
        connection.execute(insert(outcomes), rows)
    reader = watch.Watch(database, settings=HealthSettings())
    (health,) = reader.read([ArmName("multi_step")], now=EPOCH + watch.FIRST_S + 1.0)
    assert (health.failures, health.since) == (failures, since)
