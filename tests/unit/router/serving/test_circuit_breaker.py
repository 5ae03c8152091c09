"""The circuit breaker against a model that knows every outcome by heart, and its corners one by one."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ragbandit.router.config.settings import COUNTED_S, HealthSettings
from ragbandit.router.serving.health.circuit_breaker import REMEMBERED, ArmHealth, CircuitBreaker, OutcomeSignal
from tests.support.examples import steady

FAILURES, COOL_DOWN = 3, 10.0
SETTINGS = HealthSettings(failures=FAILURES, cool_down_s=COOL_DOWN)
ARMS = ("one", "two", "three")

signals = st.builds(
    lambda place, arm, status, reason, empty, short_deadline, at: OutcomeSignal(
        arm=arm,
        decision_id=f"d{place:03}",
        status=status,
        stop_reason=reason,
        empty=empty,
        short_deadline=short_deadline,
        made_at=at,
    ),
    st.integers(0, 400),
    st.sampled_from(ARMS),
    st.sampled_from(["failed", "failed", "failed", "answered", "exhausted", "exhausted"]),
    st.sampled_from(["error", "cancelled", "question_too_long", "unreadable", "worker_died", *["budget_seconds"] * 2]),
    st.booleans(),
    st.booleans(),
    st.one_of(st.integers(0, 60), st.integers(3500, 3700)).map(float),
)


def failed(key: str, at: float, *, arm: str = "one", **changes: Any) -> OutcomeSignal:
    values = {"arm": arm, "decision_id": key, "status": "failed", "stop_reason": "error", "made_at": at}
    return OutcomeSignal(**{"empty": True, "short_deadline": False} | values | changes)


def opened(*, settings: HealthSettings = SETTINGS) -> CircuitBreaker:
    """A breaker whose arm "one" failed for the last time at 2.0."""
    breaker = CircuitBreaker(settings)
    breaker.record([failed(f"f{n}", float(n)) for n in range(FAILURES)])
    return breaker


def health(breaker: CircuitBreaker, now: float, *, arm: str = "one") -> ArmHealth:
    (found,) = breaker.healths([arm], now=now)
    return found


def modelled(known: list[OutcomeSignal], arm: str, now: float) -> tuple[str, int, float | None]:
    """State, failures and since, by walking back through all outcomes of the arm."""
    run: list[float] = []
    for one in sorted(known, key=lambda one: (one.made_at, one.decision_id), reverse=True):
        if one.arm != arm or one.made_at <= now - COUNTED_S:
            continue
        ran_out = (one.status, one.stop_reason, one.empty) == ("exhausted", "budget_seconds", True)
        if one.status == "failed":
            counts = one.stop_reason not in ("cancelled", "question_too_long", "unreadable")
        elif ran_out:
            counts = not one.short_deadline
        else:
            break
        if counts:
            run.append(one.made_at)
    if len(run) < FAILURES:
        return "closed", len(run), run[-1] if run else None
    return "open" if now < run[0] + COOL_DOWN else "half_open", len(run), run[-1]


@given(
    st.lists(signals, max_size=60, unique_by=lambda one: one.decision_id),
    st.lists(st.integers(1, 20)),
    st.randoms(use_true_random=False),
    st.one_of(st.floats(0, 90), st.floats(3500, 3800)),
)
def test_model(known, cuts, random, now):
    """Whatever the order in which outcomes are read, and read again, the arms stand as all outcomes say."""
    breaker, left = CircuitBreaker(SETTINGS), list(known)
    random.shuffle(left)
    for cut in [*cuts, len(left)]:
        breaker.record(left[:cut] + random.sample(known, len(known) // 3) if cut < len(left) else left)
        left = left[cut:]
    for one in breaker.healths(ARMS, now=now):
        state, failures, since = modelled(known, one.arm, now)
        assert (one.state, one.failures, one.since) == (state, failures, since)
        assert one.offered is (state != "open")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(1, 12)),
        st.tuples(st.just("ask"), st.lists(st.sets(st.sampled_from(ARMS), min_size=1), min_size=1, max_size=4)),
        st.tuples(st.just("end"), st.sampled_from(["failed", "failed", "answered", "cancelled"])),
    ),
    max_size=60,
)


@given(steps)
def test_walk(walk):
    """Over any walk a question is offered what it may have, and a half-open arm is never on two trials at once."""
    breaker, now = CircuitBreaker(SETTINGS), 0.0
    known: list[OutcomeSignal] = []
    drawn: list[tuple[str, str, float, bool]] = []
    for action, value in walk:
        if action == "pass":
            now += value
        elif action == "end" and drawn:
            key, arm, _, _ = drawn.pop(0)
            status, reason = ("failed", "cancelled") if value == "cancelled" else (value, "error")
            known.append(failed(key, now, arm=arm, status=status, stop_reason=reason))
            breaker.record(known[-1:])
        elif action == "ask":
            states = {arm: modelled(known, arm, now)[0] for arm in ARMS}
            trials = {arm for _, arm, at, probe in drawn if probe and now < at + COOL_DOWN}
            wanted = [tuple(sorted(arms)) for arms in value]
            taken: set[str] = set()
            for arms, healthy in zip(wanted, breaker.healthy(wanted, now=now), strict=True):
                fit = [arm for arm in arms if states[arm] == "closed" or (states[arm] == "half_open")]
                fit = [arm for arm in fit if states[arm] == "closed" or arm not in trials | taken]
                assert healthy == tuple(fit)
                taken |= {arm for arm in fit if states[arm] == "half_open"}
                key, arm = f"d{len(known) + len(drawn):04}", (healthy or arms)[-1]
                breaker.record_probe(arm, decision_id=key, now=now)
                probe = states[arm] == "half_open" and arm not in trials
                trials |= {arm} if probe else set()
                drawn.append((key, arm, now, probe))


@pytest.mark.parametrize("most", [3, REMEMBERED + 50])
def test_bounded(most):
    """An arm's past is bounded, and always long enough to open it."""
    breaker = CircuitBreaker(HealthSettings(failures=most))
    breaker.record(failed(f"f{n:04}", float(n)) for n in range(1000))
    arm_health = health(breaker, 1000.0)
    assert (arm_health.state, arm_health.failures) == ("open", max(REMEMBERED, most))


@steady
@given(
    ours=st.lists(signals, max_size=30),
    theirs=st.lists(st.tuples(signals, st.sampled_from(["b", "c"])), max_size=60),
    now=st.integers(0, 3800).map(float),
)
def test_nobody_moves_an_arm_of_another_tenant(ours, theirs, now):
    """Whatever other tenants report, in whatever order, a tenant is offered what our workers' outcomes alone allow."""
    quiet, loud = CircuitBreaker(SETTINGS), CircuitBreaker(SETTINGS)
    quiet.record(ours)
    loud.record([*ours, *(replace(one, decision_id=f"{who}-{one.decision_id}", reporter=who) for one, who in theirs)])
    wanted = [ARMS] * 3
    assert loud.healthy(wanted, now=now, tenants=["a"] * 3) == quiet.healthy(wanted, now=now, tenants=["a"] * 3)


@steady
@given(known=st.lists(signals, max_size=40), now=st.integers(0, 3800).map(float), data=st.data())
def test_one_tenant_sees_its_reports_and_our_workers_together(known, now, data):
    """For a tenant an outcome counts the same whether our workers ran the arm or its own stack did."""
    known = list({one.decision_id: one for one in known}.values())
    mixed = [replace(one, reporter=data.draw(st.sampled_from([None, "a"]))) for one in known]
    plain, split = CircuitBreaker(SETTINGS), CircuitBreaker(SETTINGS)
    plain.record(known)
    split.record(mixed)
    assert split.healthy([ARMS], now=now, tenants=["a"]) == plain.healthy([ARMS], now=now)


def test_probe_of_one_tenant():
    """A half-open arm is offered to one question of the tenant; the outcome ends or continues the suspension."""
    breaker = CircuitBreaker(SETTINGS)
    breaker.record([failed(f"f{n}", float(n), reporter="a") for n in range(FAILURES)])
    later = 3.0 + COOL_DOWN
    assert breaker.healthy([ARMS] * 3, now=later, tenants=["a", "a", "b"]) == [ARMS, ARMS[1:], ARMS]
    breaker.record_probe("one", decision_id="probe", now=later, tenant="a")
    assert breaker.healthy([ARMS], now=later, tenants=["a"]) == [ARMS[1:]]
    breaker.record([failed("probe", later, status="answered", reporter="a")])
    assert breaker.healthy([ARMS], now=later, tenants=["a"]) == [ARMS]


def test_our_workers_failures_share_one_probe():
    """Where our workers' outcomes keep an arm from everybody, one question of all tenants may try it."""
    breaker = opened()
    breaker.record([failed("f", 2.5, reporter="a")])
    later = 3.0 + COOL_DOWN
    assert breaker.healthy([ARMS] * 3, now=later, tenants=["a", "b", "a"]) == [ARMS, ARMS[1:], ARMS[1:]]
    breaker.record_probe("one", decision_id="probe", now=later, tenant="a")
    assert breaker.healthy([ARMS], now=later, tenants=["b"]) == [ARMS[1:]]


def test_a_failure_that_suspends_by_itself():
    """A refused connection or a Retry-After opens the circuit at once and for its own time; one success closes it."""
    breaker = CircuitBreaker(SETTINGS)
    breaker.record([failed("dead", 1.0, suspends_s=25.0), failed("later", 2.0)])
    assert [health(breaker, at).state for at in (2.0, 25.9, 26.1)] == ["open", "open", "half_open"]
    breaker.record([failed("ok", 26.0, status="answered")])
    assert health(breaker, 26.1).state == "closed"
    off = CircuitBreaker(HealthSettings(failures=0))
    off.record([failed("dead", 1.0, suspends_s=25.0)])
    assert health(off, 2.0).state == "closed"
