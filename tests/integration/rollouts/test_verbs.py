"""Verbs: what moves a version, from which states, and who wins."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from ragbandit.router.config.sections import RolloutSettings
from ragbandit.router.rollouts import verbs
from ragbandit.router.storage import policy_versions as store
from ragbandit.router.storage.access.audit_log import entries
from ragbandit.shared.errors import Conflict, InvalidInput, NotFound
from ragbandit.shared.types import PolicyLabel
from tests.conftest import on_sqlite
from tests.support.rollouts import BASE, add, do

SETTINGS = RolloutSettings(shadows=2)
do = partial(do, settings=SETTINGS)


def states(database):
    with database.read() as connection:
        return {one.name: (one.state, one.weight) for one in store.versions_of(connection, base=BASE)}


@on_sqlite
def test_the_way_to_champion_and_back(database):
    """After a promotion the former champion retires and other candidates restart in shadow; a rollback restores it."""
    assert add(database).name == "v1"
    assert add(database).name == "v2"
    do(database, "shadow", "v1")
    do(database, "shadow", "v2")
    assert [do(database, "canary", "v1", weight=weight).weight for weight in (None, 0.5)] == [0.05, 0.5]
    with pytest.raises(Conflict, match="has the weight"):
        do(database, "canary", "v1", weight=0.5)
    with pytest.raises(Conflict, match="there is one at a time"):
        do(database, "canary", "v2")
    with pytest.raises(Conflict, match="does not show that 'v2' is better"):
        do(database, "promote", "v2")
    promoted = do(database, "promote", "v2", force=True)
    assert (promoted.state, promoted.weight, promoted.reason) == ("champion", 1.0, "forced: because")
    assert states(database) == {"main": ("retired", 0.0), "v1": ("shadow", 0.0), "v2": ("champion", 1.0)}
    with database.read() as connection:
        assert store.version_named(connection, "v1", base=BASE).since == promoted.since
    do(database, "rollback", "v2")
    assert states(database) == {"main": ("champion", 1.0), "v1": ("shadow", 0.0), "v2": ("rolled_back", 0.0)}
    with pytest.raises(Conflict, match="no previous one"):
        do(database, "rollback", "main")
    told = [(one.action, one.target) for one in entries(database)]
    assert ("policy.promote", "policy:v2") in told
    assert ("policy.promote", "policy:main") in told


@pytest.mark.parametrize("state", ["shadow", "canary"])
@on_sqlite
def test_a_paused_version_comes_back_to_its_state(database, state):
    """Resumed, a canary has the smallest weight again, or the one that is given; nobody else may be there meanwhile."""
    add(database)
    do(database, "shadow", "v1")
    if state == "canary":
        do(database, "canary", "v1", weight=0.25)
    paused = do(database, "pause", "v1")
    assert (paused.state, paused.former, paused.weight) == ("paused", state, 0.0)
    with pytest.raises(Conflict, match="possible now: resume, rollback, retire"):
        do(database, "canary", "v1")
    back = do(database, "resume", "v1")
    assert (back.state, back.former, back.weight) == (state, None, 0.05 if state == "canary" else 0.0)


@on_sqlite
def test_every_verb_in_every_state(database):
    """What is not allowed in a state is a Conflict that names the state, and changes nothing."""
    add(database)
    for way in ((), ("shadow",), ("shadow", "canary"), ("shadow", "pause"), ("shadow", "rollback"), ("retire",)):
        name = add(database, f"x{'_'.join(way)}").name
        for verb in way:
            do(database, verb, name)
        with database.read() as connection:
            seen = store.version_named(connection, name, base=BASE)
        for verb in set(verbs.TRANSITIONS) - set(verbs.verbs_of(seen)):
            with pytest.raises(Conflict, match=f"{verb} is not possible while"):
                do(database, verb, name)
        with database.read() as connection:
            assert store.version_named(connection, name, base=BASE) == seen
        if seen.state not in ("retired",):
            do(database, "retire", name)


def test_two_operators_race(database):
    """One of two actions on the same revision succeeds, and one of two canaries that are opened at the same time."""
    for name in ("v1", "v2"):
        add(database, name)
        seen = do(database, "shadow", name)

    def race(*acts, **more):
        with ThreadPoolExecutor(2) as pool:
            tried = [pool.submit(do, database, *act, **more) for act in acts]
        assert sorted(type(one.exception()).__name__ for one in tried) == ["Conflict", "NoneType"]

    race(("canary", "v2"), ("rollback", "v2"), revision=seen.revision)
    do(database, "shadow", "v2")
    race(("canary", "v1"), ("canary", "v2"))
    assert sorted(state for state, _ in states(database).values()) == ["canary", "champion", "shadow"]


@on_sqlite
def test_bounds_and_inputs(database):
    """The number of shadows is limited; names, reasons, weights and sections are checked, with clear messages."""
    for name in ("v1", "v2", "v3"):
        add(database, name)
    do(database, "shadow", "v1")
    do(database, "shadow", "v2")
    with pytest.raises(Conflict, match="2 versions are in shadow already: v1, v2"):
        do(database, "shadow", "v3")
    with pytest.raises(NotFound):
        do(database, "shadow", "v9")
    with pytest.raises(InvalidInput, match="weight"):
        do(database, "canary", "v1", weight=0.6)
    with pytest.raises(InvalidInput, match="reason"):
        do(database, "canary", "v1", reason=" ")
    with pytest.raises(InvalidInput, match="name"):
        add(database, "V 1")
    with pytest.raises(Conflict, match="v1"):
        add(database, "v1")
    add(database, arms={"deep": {"rounds": 3}})
    add(database, arms={"deep": {"rounds": 3}, "deeper": {"rounds": 9}})
    with pytest.raises(Conflict, match="'v4' offers an arm of this name"):
        add(database, arms={"deep": {"rounds": 5}})
    grid = add(database, arms={"wide": {"grid": {"passages": [4, 8]}}})
    assert {name: arm["passages"] for name, arm in grid.changes["arms"].items()} == {"wide": 4, "wide.passages-8": 8}
    assert add(database, base=PolicyLabel("other")).name == "v7"  # a name stands for one in the store
    with pytest.raises(InvalidInput, match="'encoder' cannot be changed"):
        add(database, encoder={"model": "hashing"})


@pytest.mark.parametrize("address", ["http://me:hunter2@host/x", "http://host/x?token=hunter2"])
def test_a_version_with_credentials_in_an_address_is_refused(database, address):
    """Versions are stored as they are given: the field is named, and nothing is stored."""
    with pytest.raises(InvalidInput) as refused:
        add(database, arms={"far": {"class": "http", "url": address}})
    assert refused.value.field == "arms.far.url"
    assert "hunter2" not in str(refused.value)
    assert states(database) == {}
    add(database, arms={"far": {"class": "http", "url": "http://host/x?lang=en"}})
