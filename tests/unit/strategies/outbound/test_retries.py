"""The pause before another attempt."""

import pytest

from ragbandit.strategies.outbound.retries import pause_before_retry


@pytest.mark.parametrize(("attempts", "most"), [(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (2000, 5.0)])
def test_pauses_grow_to_a_limit_and_are_random(attempts, most):
    """The pause is random between 0 and a limit that doubles with every attempt up to the longest."""
    pauses = [pause_before_retry(attempts, base_s=1.0, longest_s=5.0) for _ in range(200)]
    assert 0.0 <= min(pauses) < 0.2 * most
    assert 0.8 * most < max(pauses) <= most


def test_the_server_is_obeyed():
    """No pause is shorter than the server asks for, and a server that asks for more than the longest has refused."""
    assert 3.0 <= pause_before_retry(1, base_s=1.0, longest_s=5.0, asked_s=3.0) <= 4.0
    assert pause_before_retry(1, base_s=1.0, longest_s=5.0, asked_s=5.1) is None


def test_a_pause_fits_into_the_time_left():
    """Where the pause would outlast the time left there is no further attempt."""
    assert pause_before_retry(1, base_s=0.0, longest_s=5.0, asked_s=2.0, left_s=2.0) is None
    assert pause_before_retry(1, base_s=0.0, longest_s=5.0, asked_s=2.0, left_s=2.1) == 2.0
