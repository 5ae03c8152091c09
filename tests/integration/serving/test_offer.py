"""Arms that are added and removed between starts of a Router: changes, constants, and stored rows."""

import threading
from dataclasses import replace

import pytest

from ragbandit.shared.types import Query

BOTH = ("caller", "worker")
POLICY = {"cold_start_floor": 0.2, "cold_start_outcomes": 4, "floor": 0.02}


@pytest.fixture
def world(make_world):
    return make_world(policy=POLICY)


def learned(world, count, *, key):
    """This many rounds of decisions and rewards, learned one by one."""
    made, learner = [], world.learner()
    for number in range(count):
        decision = world.route(key=f"{key}-{number}")
        world.feedback(decision, reward=0.5)
        assert learner.drain() == 1
        world.router.refresh()
        made.append(decision)
    return made


def test_new_arm_has_its_data_floor_until_it_is_known(world):
    """An arm has cold_start_floor until cold_start_outcomes of it are learned, and the row names the raised floors."""
    decisions = learned(world, 24, key="a")
    for decision in decisions:
        raised = decision.facts.get("cold_start_floor", {})
        assert all(share == 0.2 for share in raised.values())
        for arm, p in zip(decision.arms, decision.pmf, strict=True):
            assert p >= (0.2 if arm in raised else 0.02) - 1e-12
    assert set(decisions[0].facts["cold_start_floor"]) == set(decisions[0].arms)
    assert "cold_start_floor" not in decisions[-1].facts
    assert world.router.verify(deep=True).ok


def test_offered_arm_is_drawn_and_a_removed_one_is_not(world):
    """Decisions are made over the arms of the configuration; the ledger's rows keep the arms of their time."""
    learned(world, 8, key="a")
    arms = world.settings.arms
    world.restart(arms={**arms, "cached": {"run_by": "caller"}})
    new = learned(world, 20, key="b")
    assert all("cached" in decision.arms for decision in new)
    assert sum(decision.arm == "cached" for decision in new) >= 4
    world.restart(arms={name: params for name, params in arms.items() if name != "multi_step"})
    assert all(set(d.arms) == {"no_retrieval", "single_step"} for d in learned(world, 4, key="c"))
    seen = world.router.service.serving.policy.seen
    assert seen["cached"] >= 4
    assert seen["multi_step"] > 0
    assert world.sha256(world.replayed()) == world.sha256(world.router.service.serving.policy)
    assert world.router.verify(deep=True).ok


def test_a_queued_request_keeps_the_arms_it_was_checked_with(world):
    """Arms that go while a request waits for its group do not break it, nor the others of its group."""
    held = threading.Event()
    encode = world.router.encoder.encode
    world.router.encoder.encode = lambda texts: (held.wait(10), encode(texts))[1]
    first = world.router.submit(Query(text="holds the thread"))
    waiting = [world.router.submit(Query(text=f"waits {n}"), run_by=run_by) for n, run_by in enumerate(BOTH)]
    fewer = world.settings.model_copy(update={"arms": {"single_step": {"run_by": "caller"}}})
    serving = replace(world.router.service.serving, settings=fewer)
    world.router.service.take_over(serving)  # like a new champion
    held.set()
    assert len(first.result(10).arms) == 3
    assert [len(one.result(10).arms) for one in waiting] == [3, 3]
    assert world.route().arms == ("single_step",)
