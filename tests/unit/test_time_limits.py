"""A test and its fixtures have time limits of their own."""

import signal

import pytest

from tests.support.time_limits import FIXTURES_S


def remaining_s():
    """Seconds until the limit that runs now ends this test."""
    return signal.getitimer(signal.ITIMER_REAL)[0]


@pytest.fixture
def remaining_in_fixtures():
    return remaining_s()


def test_fixtures_do_not_count_in_the_limit_of_a_test(remaining_in_fixtures):
    """Fixtures have a longer limit than a test, whose limit begins after them."""
    assert 120.0 < remaining_in_fixtures <= FIXTURES_S
    assert 0.0 < remaining_s() <= 120.0


@pytest.mark.timeout(900)
def test_a_longer_limit_of_a_test_is_that_of_its_fixtures(remaining_in_fixtures):
    """A test that may take longer has fixtures that may."""
    assert FIXTURES_S < remaining_in_fixtures <= 900.0
    assert FIXTURES_S < remaining_s() <= 900.0
