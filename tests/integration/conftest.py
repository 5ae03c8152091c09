"""Fixtures of several rooms: services over a real uvicorn, and a store with a ledger."""

import pytest

from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.ledgers.inheritance import register_policy
from tests.support.servers.http_service import Service


@pytest.fixture
def serve(settings):
    """A factory of services; all are stopped at the end of the test."""
    running: list[Service] = []

    def start(*, jobs=None, inline=False, **given) -> Service:
        running.append(Service(settings(**given), jobs=jobs, inline=inline))
        return running[-1]

    yield start
    for service in running:
        service.close()


@pytest.fixture
def service(serve):
    return serve()


@pytest.fixture
def store(database):
    made = DecisionStore(database, label="main")
    register_policy(made.database, label=made.label, algorithm="uniform", params="{}", encoder_hash="", now=1.0)
    return made
