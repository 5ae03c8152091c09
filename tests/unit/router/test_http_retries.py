"""Retries of HTTP calls: which statuses are tried again, and how Retry-After is read."""

import email.utils
import time

import pytest

from ragbandit.router.http_retries import is_retryable, retry_after_s


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503, 529])
def test_statuses_worth_another_attempt(status):
    """Timeouts, conflicts, limits and server errors may pass."""
    assert is_retryable(status)


@pytest.mark.parametrize("status", [200, 400, 401, 404, 422])
def test_statuses_that_stay(status):
    """A wrong request stays wrong."""
    assert not is_retryable(status)


def test_a_quota_that_is_used_up_stays():
    """OpenAI's code tells a used-up quota from a rate limit, which have the same status."""
    assert not is_retryable(429, code="insufficient_quota")
    assert is_retryable(429, code="rate_limit_exceeded")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, 0.0), ("2", 2.0), ("0.5", 0.5), ("-3", 0.0), ("soon", 0.0), ("", 0.0), ("nan", 0.0)],
)
def test_retry_after_as_a_number(header, seconds):
    """A number is seconds; no header, a past time or anything unreadable asks for no pause."""
    assert retry_after_s(header) == seconds


def test_retry_after_as_a_date():
    """A date is the time until it; one that has passed asks for no pause."""
    assert 55 < retry_after_s(email.utils.formatdate(time.time() + 60, usegmt=True)) <= 60
    assert retry_after_s(email.utils.formatdate(time.time() - 60, usegmt=True)) == 0.0
