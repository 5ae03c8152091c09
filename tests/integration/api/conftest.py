"""Fixtures of the HTTP tests: services over a real uvicorn, one shared by those that only send what is refused."""

import contextlib

import pytest

from tests.conftest import made_settings
from tests.support.servers.http_service import Service
from tests.support.servers.visitors import visit, with_keys

__all__ = ["visit", "with_keys"]


@pytest.fixture
def http(service):
    return service.http


@pytest.fixture(scope="package")
def shared(tmp_path_factory, sqlite_template):
    """One service for the tests that only send what is refused."""
    given = {"data_dir": str(tmp_path_factory.mktemp("shared"))}
    given["server"] = {"max_body_bytes": 262_144}  # longer texts than the longest that is taken come through
    with contextlib.closing(Service(made_settings(given, template=sqlite_template))) as running:
        yield running


@pytest.fixture
def unmoved(shared):
    """The shared service's client; whatever the test sends must leave no decision and no feedback."""
    counters = shared.router.status().counters
    yield shared.http
    assert shared.router.status().counters == counters
