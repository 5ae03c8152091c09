"""Rate limits: which one applies to a caller, and what the error contains."""

from ragbandit.router.api.security.rate_limiter import rate_of
from ragbandit.shared.types import Caller


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
