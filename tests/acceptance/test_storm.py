"""One service whose callers run the arms: feedback as the world sends it, and arms that come and go by name."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from ragbandit.shared.errors import Conflict, NotFound

from .conftest import running_systems

CALLER, OLD = {"run_by": "caller"}, ["single_step", "multi_step"]


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """An API and a learner, which both tests share."""
    with running_systems(tmp_path_factory.mktemp("callers")) as make:
        yield make(
            queues=("learn",),
            arms={arm: dict(CALLER) for arm in OLD},
            policy={"cold_start_floor": 0.3, "cold_start_outcomes": 10, "floor": 0.01},
            learning={"lease_s": 2.0, "expire_s": 3600.0},
        )


def offered(system, arms) -> None:
    """Write these arms into the configuration and start the API again."""
    tree = yaml.safe_load(system.config.read_text()) | {"arms": {arm: dict(CALLER) for arm in arms}}
    system.config.write_text(yaml.safe_dump(tree))
    system.processes["api-1"].terminate()
    system.processes["api-1"].wait(30)
    system.start_process("api-1")
    system.wait_ready()


def played(client, system, count: int, *, good: str) -> list[dict]:
    """Decisions with their reward: 1 for the good arm, 0.2 for others; all learned when this returns."""
    made = []
    before = system.wait_until(lambda s: True).counters.learned
    for _ in range(count):
        decision = client.route("who wrote it?")
        client.feedback(decision["decision_id"], reward=1.0 if decision["arm"] == good else 0.2)
        made.append(decision)
    system.wait_until(lambda s: s.counters.learned >= before + count)
    return made


def raised(client, decision) -> dict | None:
    """The cold-start floors in a decision's row."""
    return client.decision(decision["decision_id"])["facts"].get("cold_start_floor")


@pytest.mark.slow
def test_arms_join_and_leave_from_start_to_start(system):
    """A new arm has a cold-start floor, is picked up when it is better, is gone when removed, comes back as it was.

    Replay of the ledger gives the live policy at every stage, and every pmf can be made again.
    """
    with system.client() as client:
        played(client, system, 90, good="single_step")  # each of the old arms has its ten outcomes by then

        offered(system, [*OLD, "cached"])
        first = client.route("who?")
        assert first["pmf"]["cached"] >= 0.3
        assert raised(client, first) == {"cached": 0.3}
        for _ in range(4):  # each learned before the next, however busy the machine is
            grown = played(client, system, 40, good="cached")
        assert sum(d["arm"] == "cached" for d in grown) >= 30
        assert raised(client, grown[-1]) is None

        offered(system, OLD)
        gone = played(client, system, 20, good="single_step")
        assert all(d["arm"] != "cached" for d in gone)

        offered(system, [*OLD, "cached"])
        back = client.route("who?")
        assert raised(client, back) is None
        assert max(back["scores"], key=back["scores"].get) == "cached"
    system.verified()


@pytest.mark.timeout(120)
def test_storm(system):
    """With duplicated, reordered and conflicting feedback every decision learns the first body once."""
    count, before = 30, system.wait_until(lambda s: True).counters
    with system.client() as client:
        ids = [
            client.route(f"What is the capital of country {n}?", decision_id=f"storm-{n}")["decision_id"]
            for n in range(count)
        ]
        calls = []
        for key in ids:
            calls += [("outcome", key, {"answer": "Paris", "steps": 1})] * 3
            calls += [("feedback", key, {"feedback_id": f"fb-{key}", "label": ["Paris"]})] * 5
            calls += [("conflict", key, {"feedback_id": f"fb-{key}", "label": ["Madrid"]})] * 2
            calls += [("unknown", f"no-{key}", {"feedback_id": f"un-{key}", "rating": True})]
        random.Random(3).shuffle(calls)

        def send(call):
            kind, key, body = call
            try:
                reply = client.outcome(key, **body) if kind == "outcome" else client.feedback(key, **body)
            except (Conflict, NotFound) as error:
                return kind, key, body.get("label"), type(error)
            return kind, key, body.get("label"), "duplicate" if reply["duplicate"] else "new"

        with ThreadPoolExecutor(16) as pool:
            results = list(pool.map(send, calls))
    found = system.wait_until(lambda s: s.counters.learned == before.learned + count and s.behind == 0)
    assert found.counters.balanced
    assert found.counters.feedback == before.feedback + count
    by_key: dict[str, list] = {}
    for kind, key, label, result in results:
        if kind == "unknown":
            assert result is NotFound
        elif kind == "outcome":
            by_key.setdefault(f"o:{key}", []).append((None, result))
        else:
            by_key.setdefault(key, []).append((tuple(label), result))
    for key in ids:
        assert sorted(str(r) for _, r in by_key[f"o:{key}"]) == ["duplicate", "duplicate", "new"]
        winner = next(label for label, result in by_key[key] if result == "new")
        for label, result in by_key[key]:
            assert result in ("new", "duplicate") if label == winner else result is Conflict
        assert sum(result == "new" for _, result in by_key[key]) == 1
    with system.client() as client:
        for key in ids[:10]:
            record = client.decision(key)
            right = record["feedback"][0]["value"] == ["Paris"]
            assert record["state"] == "learned"
            assert record["reward"]["quality"] == float(right)
    system.verified()
