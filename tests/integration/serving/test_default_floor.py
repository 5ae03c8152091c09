"""The floor where the settings name none."""

import pytest

from ragbandit.router.config.settings import FLOORS


def floor_of(world):
    decision = world.route()
    assert min(decision.pmf) >= decision.floor - 1e-12
    return decision.floor


def test_another_floor_is_not_taken_over(make_world, tmp_path):
    """A floor that the settings named before, and name no more, gives way to the default."""
    old = make_world(data_dir=str(tmp_path), policy={"floor": 0.1})
    old.route()
    old.router.close()
    assert floor_of(make_world(data_dir=str(tmp_path))) == pytest.approx(FLOORS / 3)
