"""Champions that follow each other while questions come in, and a configuration that is edited under them."""

import threading
import time

import pytest

from ragbandit.router.policies.draw import choose
from tests.conftest import on_sqlite
from tests.integration.serving.versions.test_serving import ARMS, FIXED_TWO, PATIENT, add, canary, do

FIXED_THREE = {"policy": {"name": "fixed", "params": {"arm": "three"}}}


@pytest.fixture
def world(make_world, database_url):
    return make_world(arms=ARMS, database_url=database_url, policy={"name": "uniform"}, **PATIENT)


def test_a_promotion_while_questions_come_in(world):
    """Every decision is of one policy: its label, its probabilities and its version belong together, and all verify."""
    name = canary(world, **FIXED_TWO)
    stop, made = threading.Event(), []

    def ask():
        while not stop.is_set():
            made.append(world.route())

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for verb in ("promote", "rollback"):
            before = len(made)
            while len(made) < before + 15:
                assert asking.is_alive()
                time.sleep(0.005)
            do(world.database, verb, name, now=float(len(made) + 5), force=True)
            world.router.refresh()
    finally:
        stop.set()
        asking.join(30)
    for one in [*made, world.route()]:
        version, _, _ = one.version.partition("-")
        sure = one.pmf[one.arms.index("two")] > 0.75
        assert (one.policy == version, sure) == (True, one.policy == "main.v1")
        assert one.arm == one.arms[choose(one.pmf, seed=one.seed)]
    assert {one.policy for one in made} >= {"main", "main.v1"}
    assert world.router.verify(deep=True).ok


@on_sqlite
def test_champions_give_way_and_come_back_in_turn(world):
    """A second promotion retires the first champion; each rollback lets the one before decide again, as it was."""
    first, second = add(world.database, **FIXED_TWO).name, add(world.database, **FIXED_THREE).name
    found = []
    for now, (verb, name) in enumerate(
        [("shadow", first), ("promote", first), ("shadow", second), ("promote", second), ("rollback", second)], 10
    ):
        do(world.database, verb, name, now=float(now), force=True)
        world.router.refresh()
        found.append(world.route().policy)
    do(world.database, "rollback", first, now=20.0)
    world.router.refresh()
    assert [*found, world.route().policy] == ["main", "main.v1", "main.v1", "main.v2", "main.v1", "main"]
