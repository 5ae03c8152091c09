"""What servers tell of tokens, and what they cost."""

from types import SimpleNamespace

import pytest

from ragbandit.router.config.sections import TokenPrices
from ragbandit.shared.openai_client import Tokens


def usage(**more):
    return SimpleNamespace(prompt_tokens=1000, completion_tokens=100, **more)


@pytest.mark.parametrize(
    ("more", "cached", "cache_write", "reasoning"),
    [
        ({}, 0, 0, None),
        ({"prompt_tokens_details": None, "completion_tokens_details": None}, 0, 0, None),
        ({"prompt_tokens_details": SimpleNamespace(cached_tokens=600)}, 600, 0, None),
        ({"cache_read_input_tokens": 600, "cache_creation_input_tokens": 300}, 600, 300, None),
        ({"prompt_tokens_details": SimpleNamespace(cached_tokens=0, cache_creation_tokens=300)}, 0, 300, None),
        ({"completion_tokens_details": SimpleNamespace(reasoning_tokens=40)}, 0, 0, 40),
        ({"prompt_tokens_details": SimpleNamespace(cached_tokens=5000)}, 1000, 0, None),
        ({"prompt_tokens_details": SimpleNamespace(cached_tokens="many")}, 0, 0, None),
        ({"completion_tokens_details": SimpleNamespace(reasoning_tokens=-1)}, 0, 0, None),
    ],
)
def test_usage_is_read_by_the_names_of_openai_and_anthropic(more, cached, cache_write, reasoning):
    """Counts of caches and thoughts are parts of what was read and written; what is no count is left out."""
    assert Tokens.of(usage(**more)) == Tokens(
        read=1000, written=100, cached=cached, cache_write=cache_write, reasoning=reasoning
    )


def test_dollars_are_those_of_the_bill():
    """100 plain tokens at 3, 600 cached at .3, 300 put into the cache at 3.75; 60 words at 15, 40 thoughts at 10."""
    used = Tokens(read=1000, written=100, cached=600, cache_write=300, reasoning=40)
    prices = TokenPrices(input=3.0, output=15.0, cached_input=0.3, cache_write=3.75, reasoning=10.0)
    assert used.dollars(prices.in_order) == pytest.approx((100 * 3 + 600 * 0.3 + 300 * 3.75 + 60 * 15 + 40 * 10) / 1e6)


def test_a_missing_price_is_that_of_input_or_output():
    """Two prices are the bill of all tokens; one more price leaves the others."""
    used = Tokens(read=1000, written=100, cached=600, cache_write=300, reasoning=40)
    assert used.dollars((3.0, 15.0)) == pytest.approx((1000 * 3 + 100 * 15) / 1e6)
    assert TokenPrices(input=3.0, output=15.0).in_order == (3.0, 15.0)
    assert TokenPrices(input=3.0, output=15.0, cached_input=0.3).in_order == (3.0, 15.0, 0.3, 3.0, 15.0)
