"""Retries: which statuses are tried again, how Retry-After is read, and the pause before another attempt."""

import email.utils
import time

import pytest

from ragbandit.shared.model_servers.outbound import retry_pause
from ragbandit.shared.model_servers.waits import retry_after_s


@pytest.mark.parametrize(
    ("header", "seconds"), [(None, 0.0), ("2", 2.0), ("0.5", 0.5), ("-3", 0.0), ("soon", 0.0), ("", 0.0)]
)
def test_retry_after_as_a_number(header, seconds):
    """A number is seconds; no header, a past time or anything unreadable asks for no pause."""
    assert retry_after_s(header) == seconds


@pytest.mark.parametrize(
    "header",
    [
        *("nan", "inf", "1e999", "a", "1 2 3", "\x00"),
        "Mon, 01 Jan 0001 00:00:00 +2359",
        "Mon, 01 Jan 9999 00:00:00 -2359",
        "Mon, 01 Jan 2026 00:00:00 +99999999999999999",
        "Mon, 99999999999 Jan 2026 00:00:00 GMT",
    ],
)
def test_a_header_that_cannot_be_read_is_none(header):
    """No server can make a wait without an end, or an error, of a Retry-After header."""
    assert 0.0 <= retry_after_s(header) < 1e12


def test_retry_after_as_a_date():
    """A date is the time until it; one that has passed asks for no pause."""
    assert 55 < retry_after_s(email.utils.formatdate(time.time() + 60, usegmt=True)) <= 60
    assert retry_after_s(email.utils.formatdate(time.time() - 60, usegmt=True)) == 0.0


@pytest.mark.parametrize(("attempts", "most"), [(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (2000, 5.0)])
def test_pauses_grow_to_a_limit_and_are_random(attempts, most):
    """The pause is random between 0 and a limit that doubles with every attempt up to the longest."""
    pauses = [retry_pause(attempts, base_s=1.0, longest_s=5.0) for _ in range(200)]
    assert 0.0 <= min(pauses) < 0.2 * most
    assert 0.8 * most < max(pauses) <= most


def test_a_pause_fits_into_the_time_left():
    """Where the pause would outlast the time left there is no further attempt."""
    assert retry_pause(1, base_s=0.0, longest_s=5.0, asked_s=2.0, left_s=2.0) is None
    assert retry_pause(1, base_s=0.0, longest_s=5.0, asked_s=2.0, left_s=2.1) == 2.0
