"""Fixtures of several rooms: services over a real uvicorn, and a store with a ledger."""

import pytest

from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers.inheritance import register_policy
from tests.support.servers.http_service import Keyed, services


@pytest.fixture
def serve(settings):
    """A factory of services; all are stopped at the end of the test."""
    with services(settings) as start:
        yield start


@pytest.fixture(scope="module")
def serve_module(module_settings):
    """The same for services that all tests of a module share."""
    with services(module_settings) as start:
        yield start


@pytest.fixture
def service(serve):
    return serve()


@pytest.fixture
def keyed(serve):
    """A factory of services with an admin's key in their store, called with settings."""
    return lambda **given: Keyed(serve(**given))


@pytest.fixture
def store(database):
    made = DecisionStore(database, label="main")
    register_policy(made.database, label=made.label, algorithm="uniform", params="{}", encoder_hash="", now=1.0)
    return made
