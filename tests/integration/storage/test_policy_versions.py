"""Policy versions in the database: one change wins, everything is audited, and routers see that there is news."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from ragbandit.router.rollouts import verbs
from ragbandit.router.storage import policy_versions as store
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import PolicyLabel, PolicyVersion

BASE = PolicyLabel("main")


def draft(name="v1", **changes):
    values = {
        "name": name,
        "base": BASE,
        "label": PolicyLabel(f"main.{name}"),
        "state": "draft",
        "former": None,
        "changes": {"policy": {"name": "linucb"}},
        "revision": 1,
        "reason": "tried",
        "made_by": "cli:ann@host",
        "made_at": 5.0,
        "since": 5.0,
    }
    return PolicyVersion(**values | changes)


def add(database, version):
    with database.write() as connection:
        return store.add_version(connection, version)


def move(database, seen, state, **more):
    with database.write() as connection:
        return store.change_version(
            connection, seen, action="policy.move", actor="cli:ann@host", now=9.0, state=state, reason="why", **more
        )


def test_the_first_version_brings_the_configuration(database):
    """The configuration becomes the champion under its own name when the first version is added."""
    with database.read() as connection:
        assert store.control_of(connection, base=BASE).revision == 0
    add(database, draft())
    with database.read() as connection:
        main, v1 = store.versions_of(connection, base=BASE)
        assert store.control_of(connection, base=BASE).revision == 1
    assert (main.name, main.label, main.state) == ("main", "main", "champion")
    assert v1 == draft()
    with pytest.raises(Conflict, match="v1"):
        add(database, draft())


def test_switch_and_change_lock_in_one_order(database):
    """A switch that waits for a change of a version has locked nothing that the change waits for."""
    seen = add(database, draft())

    def kill():
        verbs.kill(database, base=BASE, arm=None, offered=(), actor="a", reason="r", now=7.0)

    with ThreadPoolExecutor(1) as pool:
        with database.write() as connection:
            store.lock_versions(connection, base=BASE)
            killed = pool.submit(kill)
            with suppress(TimeoutError):
                killed.result(0.3)
            store.change_version(connection, seen, action="a", actor="a", now=9.0, state="shadow", reason="why")
        killed.result(30)
