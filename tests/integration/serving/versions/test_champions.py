"""Champions that follow each other while questions come in, and a configuration that is edited under them."""

import threading
import time

from ragbandit.router.policies.draw import draw_index
from ragbandit.router.queue.notifier import MemoryJobs
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import Query
from tests.conftest import on_sqlite
from tests.integration.serving.versions.test_serving import FIXED_TWO
from tests.support.rollouts import add, do, shadow

FIXED_THREE = {"policy": {"name": "fixed", "params": {"arm": "three"}}}


@on_sqlite
def test_a_promotion_while_questions_come_in(world):
    """Every decision is of one policy: its label, its probabilities and its version belong together, and all verify."""
    name = shadow(world, **FIXED_TWO)
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
            do(world.database, verb, name, force=True)
            world.router.refresh()
    finally:
        stop.set()
        asking.join(30)
    for one in [*made, world.route()]:
        version, _, _ = one.version.partition("-")
        sure = one.pmf[one.arms.index("two")] > 0.75
        assert (one.policy == version, sure) == (True, one.policy == "main.v1")
        assert one.arm == one.arms[draw_index(one.pmf, seed=one.seed)]
    assert {one.policy for one in made} >= {"main", "main.v1"}
    assert world.router.verify(deep=True).ok


@on_sqlite
def test_champions_give_way_and_come_back_in_turn(world):
    """A second promotion retires the first champion; each rollback lets the one before decide again. None of it needs a
    restart, and a router that starts follows the same champion.
    """
    first, second = add(world.database, **FIXED_TWO).name, add(world.database, **FIXED_THREE).name
    found = []
    ways = [("shadow", first), ("promote", first), ("shadow", second), ("promote", second)]
    for verb, name in [*ways, ("rollback", second), ("rollback", first)]:
        do(world.database, verb, name, force=True)
        world.router.refresh()
        with Router.open(world.settings, jobs=MemoryJobs()) as again:
            found.append((world.route().policy, again.submit(Query(text="?"), run_by="caller").result(30).policy))
    assert found == [(label, label) for label in ("main", "main.v1", "main.v1", "main.v2", "main.v1", "main")]
