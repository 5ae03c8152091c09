"""Verbs: what moves a version, from which states, and who wins."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

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
        return {one.name: one.state for one in store.versions_of(connection, base=BASE)}


@on_sqlite
def test_a_promotion_and_its_rollback(database):
    """After a promotion the former champion retires and the evidence on others restarts; a rollback restores it."""
    assert [add(database).name, add(database).name] == ["v1", "v2"]
    do(database, "shadow", "v1")
    do(database, "shadow", "v2")
    promoted = do(database, "promote", "v2", force=True)
    assert (promoted.state, promoted.reason) == ("champion", "forced: because")
    assert states(database) == {"main": "retired", "v1": "shadow", "v2": "champion"}
    with database.read() as connection:
        assert store.version_named(connection, "v1", base=BASE).since == promoted.since
    do(database, "rollback", "v2")
    assert states(database) == {"main": "champion", "v1": "shadow", "v2": "retired"}
    with pytest.raises(Conflict, match="no previous one"):
        do(database, "rollback", "main")
    changes = [(one.action, one.target, one.facts.get("forced")) for one in entries(database)]
    assert ("policy.promote", "policy:v2", True) in changes
    assert ("policy.promote", "policy:main", None) in changes


@on_sqlite
def test_evidence_against_a_former_champion_promotes_nothing(database, monkeypatch):
    """If another version becomes champion while the evidence is read, the promotion is refused."""
    for name in ("v1", "v2"):
        add(database, name)
        do(database, "shadow", name)

    def promoted_meanwhile(*_, **__):
        do(database, "promote", "v2", force=True)
        return SimpleNamespace(comparison=SimpleNamespace(verdict="better"))

    monkeypatch.setattr(verbs, "evidence_on", promoted_meanwhile)
    with pytest.raises(Conflict, match="was changed meanwhile"):
        do(database, "promote", "v1")
    assert states(database) == {"main": "retired", "v1": "shadow", "v2": "champion"}


@on_sqlite
def test_every_verb_in_every_state(database):
    """What is not allowed in a state is a Conflict that names the state, and changes nothing."""
    add(database)
    for way in ((), ("shadow",), ("retire",)):
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


@on_sqlite
def test_two_operators_race(database):
    """One of two actions on the same revision succeeds, and one of two that would be the last in shadow."""

    def race(*acts, **more):
        with ThreadPoolExecutor(2) as pool:
            tried = [pool.submit(do, database, *act, **more) for act in acts]
        assert sorted(type(one.exception()).__name__ for one in tried) == ["Conflict", "NoneType"]

    seen = add(database, "v1")
    race(("shadow", "v1"), ("retire", "v1"), revision=seen.revision)
    for name in ("v2", "v3", "v4"):
        add(database, name)
    do(database, "shadow", "v2")
    if states(database)["v1"] == "shadow":
        do(database, "retire", "v1")
    race(("shadow", "v3"), ("shadow", "v4"))
    assert sorted(states(database).values()) == ["champion", "draft", "retired", "shadow", "shadow"]


@on_sqlite
def test_bounds_and_inputs(database):
    """The number of shadows is limited; names, reasons and sections are checked, with clear messages."""
    for name in ("v1", "v2", "v3"):
        add(database, name)
    do(database, "shadow", "v1")
    do(database, "shadow", "v2")
    with pytest.raises(Conflict, match="2 versions are in shadow already: v1, v2"):
        do(database, "shadow", "v3")
    with pytest.raises(NotFound):
        do(database, "shadow", "v9")
    with pytest.raises(InvalidInput, match="reason"):
        do(database, "retire", "v1", reason=" ")
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
