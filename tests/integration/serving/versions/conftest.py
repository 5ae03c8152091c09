"""A world with three arms of the caller, whose versions draw alike."""

import pytest

from tests.integration.serving.versions.test_serving import ARMS, PATIENT


@pytest.fixture
def world(make_world, database_url):
    return make_world(arms=ARMS, database_url=database_url, policy={"name": "uniform"}, **PATIENT)
