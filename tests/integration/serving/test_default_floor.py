"""Floor and exploration where the settings name none."""

from ragbandit.router.config.settings import FLOOR


def floor_of(world):
    decision = world.route()
    assert min(decision.pmf) >= decision.floor - 1e-12
    return decision.floor


def test_another_floor_is_not_taken_over(make_world, tmp_path):
    """A floor that the settings named before, and name no more, gives way to the default."""
    old = make_world(data_dir=str(tmp_path), policy={"floor": 0.1})
    old.route()
    old.router.close()
    assert floor_of(make_world(data_dir=str(tmp_path))) == FLOOR


def test_with_an_incumbent_it_explores_less(make_world, tmp_path):
    """The exploration of docs/mba.md, and less of it while an incumbent is set."""
    free = make_world(data_dir=str(tmp_path / "free"))
    params = free.router.service.serving.policy.params
    assert (params["explore"], params["epsilon_min"]) == (1.0, 0.0)
    safe = make_world(data_dir=str(tmp_path / "safe"), policy={"incumbent": "single_step"})
    assert safe.router.service.serving.policy.inner.params["explore"] == 0.2
