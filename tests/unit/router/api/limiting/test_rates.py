"""Rates: which one holds for a caller, and what a caller is told of it."""

import pytest

from ragbandit.router.api.limiting.rate_limiter import Allowance, rate_of
from ragbandit.shared.types import Caller


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, b"0s"), (0.2, b"1s"), (59.1, b"1m0s"), (360, b"6m0s"), (3601, b"1h0m1s")]
)
def test_times_are_written_as_clients_read_them(seconds, text):
    """The time to the reset is written as OpenAI writes it."""
    assert dict(Allowance(limit=1, remaining=0, reset_s=seconds).headers())[b"x-ratelimit-reset-requests"] == text


def test_which_rate_holds():
    """The scope of the key comes before the rate of its role, that before the default; none of them is no limit."""
    rates = {"default": "1/minute", "app": "2/minute", "open": "3/minute"}
    held = {
        "scope": rate_of(Caller(key="k", role="app", scopes={"rate": "9/second"}), rates=rates),
        "role": rate_of(Caller(key="k", role="app"), rates=rates),
        "default": rate_of(Caller(key="k", role="rater"), rates=rates),
        "open": rate_of(Caller(), rates=rates),
    }
    assert {name: item.amount for name, item in held.items()} == {"scope": 9, "role": 2, "default": 1, "open": 3}
    assert rate_of(Caller(), rates={"default": "7/hour"}).amount == 7
    assert rate_of(Caller(), rates={"app": "7/hour"}) is None
    assert rate_of(Caller(key="k", role="app"), rates={}) is None
