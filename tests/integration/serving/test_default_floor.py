"""The floor where the settings name none."""

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


def test_new_ledgers_explore_less_and_old_ones_go_on(make_world, tmp_path):
    """A ledger that begins now has the exploration of docs/mba.md; one that began with more keeps what it recorded."""
    new = make_world(data_dir=str(tmp_path / "new"))
    params = new.router.service.serving.policy.params
    assert (params["explore"], params["epsilon_min"]) == (1.0, 0.0)
    safe = make_world(data_dir=str(tmp_path / "safe"), policy={"incumbent": "single_step"})
    assert safe.router.service.serving.policy.inner.params["explore"] == 0.2
    safe.router.close()
    free = make_world(data_dir=str(tmp_path / "safe"))
    assert free.router.service.serving.policy.params["explore"] == 0.2
    former = {"policy": {"params": {"explore": 1.0, "epsilon_min": 0.02, "block": 1}}}
    old = make_world(data_dir=str(tmp_path / "old"), **former)
    old.router.close()
    again = make_world(data_dir=str(tmp_path / "old"))
    assert again.router.service.serving.policy.params == old.router.service.serving.policy.params
