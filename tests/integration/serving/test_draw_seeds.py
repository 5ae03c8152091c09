"""Seeds of draws: of the id and a secret of the store, so that a caller who names ids chooses no arm."""

import time

import pytest
from sqlalchemy import delete

from ragbandit.router.learning.audit.checks import seed_fault
from ragbandit.router.policies.draw import seed_of
from ragbandit.router.serving.deciding import service
from ragbandit.router.storage.access.shared_secrets import shared_secret
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, service_secrets, waiting

IDS = [f"mine-{number}" for number in range(8)]


@pytest.fixture
def new_world(make_world, settings, tmp_path, monkeypatch):
    """A factory of worlds that make a secret of their own; the same name is the same store."""
    monkeypatch.setattr(service, "shared_secret", shared_secret)  # other tests' stores all have the same

    def make(name):
        folder = str(tmp_path / name)
        if not (tmp_path / name).exists():
            database = Database(settings(data_dir=folder).database)
            with database.write() as connection:
                connection.execute(delete(service_secrets))
            database.close()
        return make_world(data_dir=folder, now=time.time() + 60.0)

    return make


def test_a_store_draws_the_same_and_another_store_does_not(new_world):
    """After a restart the same ids have the same seeds; seeds in another store, or without a secret, differ."""
    first, other = new_world("first"), new_world("other")
    seeds = [first.route(key=key).seed for key in IDS]
    first.write(delete(waiting))
    first.write(delete(decisions))  # as if no reply had come: the callers ask again
    first.close()
    again = new_world("first")
    assert [again.route(key=key).seed for key in IDS] == seeds
    assert set(seeds).isdisjoint(other.route(key=key).seed for key in IDS)
    assert set(seeds).isdisjoint(map(seed_of, IDS))


@pytest.mark.parametrize("secret", [None, b"t" * 32])
def test_a_seed_of_the_id_alone_is_a_fault(make_decision, secret):
    """The audit refuses a seed that a caller could compute, and one of another store's secret."""
    decision = make_decision("mine", seed=seed_of("mine", secret=secret))
    assert seed_fault(decision, secret=b"s" * 32) is not None
    ours = make_decision("mine", seed=seed_of("mine", secret=b"s" * 32))
    assert seed_fault(ours, secret=b"s" * 32) is None
