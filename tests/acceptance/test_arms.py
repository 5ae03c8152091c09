"""Arms come and go by name while the service runs."""

import signal

import yaml

CALLER = {"run_by": "caller"}


def offered(system, arms) -> None:
    """Write these arms into the configuration and have the running API take them over."""
    tree = yaml.safe_load(system.config.read_text()) | {"arms": {arm: dict(CALLER) for arm in arms}}
    system.config.write_text(yaml.safe_dump(tree))
    system.processes["api-1"].send_signal(signal.SIGHUP)


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


def until_offered(client, arms) -> None:
    for _ in range(200):
        if set(client.route("who?")["pmf"]) == set(arms):
            return
    raise AssertionError(f"{arms} are not offered")


def test_arms_join_and_leave_a_running_service(make_system):
    """A new arm has a cold-start floor, is picked up when it is better, is gone when removed, comes back as it was.

    Replay of the ledger gives the live policy at every stage, and every pmf can be made again.
    """
    old = ["single_step", "multi_step"]
    system = make_system(
        arms={arm: dict(CALLER) for arm in old},
        policy={"cold_start_floor": 0.3, "cold_start_outcomes": 20, "floor": 0.01},
        learning={"lease_s": 2.0, "expire_s": 3600.0},
    )
    with system.client() as client:
        played(client, system, 120, good="single_step")  # each of the old arms has its twenty outcomes by then

        offered(system, [*old, "cached"])
        until_offered(client, [*old, "cached"])
        first = client.route("who?")
        assert first["pmf"]["cached"] >= 0.3
        assert raised(client, first) == {"cached": 0.3}
        grown = played(client, system, 150, good="cached")
        assert sum(d["arm"] == "cached" for d in grown[-40:]) >= 30
        assert raised(client, grown[-1]) is None

        offered(system, old)
        until_offered(client, old)
        gone = played(client, system, 40, good="single_step")
        assert all(d["arm"] != "cached" for d in gone)

        offered(system, [*old, "cached"])
        until_offered(client, [*old, "cached"])
        back = client.route("who?")
        assert raised(client, back) is None
        assert max(back["scores"], key=back["scores"].get) == "cached"

        offered(system, [])  # nothing can be offered: refused, and the service goes on as it was
        assert set(client.route("who?")["pmf"]) == {*old, "cached"}
    offered(system, [*old, "cached"])
    verified = system.ragbandit("verify", "--deep")
    assert verified.returncode == 0, verified.stdout + verified.stderr
