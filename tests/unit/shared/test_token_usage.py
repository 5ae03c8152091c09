"""Counts of tokens by the names of each server, and what they cost."""

from contextlib import nullcontext
from datetime import datetime

import pytest

from ragbandit.router.config.sections import TokenPrices
from ragbandit.shared.model_servers.token_usage import MAX_TOKENS, Tokens, add_usage, tokens_of, used_tokens


def counted(*chunks, **estimates):
    usage = {}
    for chunk in chunks:
        add_usage(usage, chunk)
    return tokens_of(usage, **estimates)


def openai(**more):
    return {"usage": {"prompt_tokens": 1000, "completion_tokens": 100, **more}}


PLAIN = {"read": 1000, "written": 100}
SERVERS = {
    "openai": (openai(), PLAIN),
    "null details": (openai(prompt_tokens_details=None, completion_tokens_details=None), PLAIN),
    "openai, cached": (openai(prompt_tokens_details={"cached_tokens": 600}), PLAIN | {"cached": 600}),
    "openai, thoughts": (openai(completion_tokens_details={"reasoning_tokens": 40}), PLAIN | {"reasoning": 40}),
    "proxy of anthropic": (
        openai(
            cache_read_input_tokens=600, cache_creation_input_tokens=300, prompt_tokens_details={"cached_tokens": 0}
        ),
        PLAIN | {"cached": 600, "cache_write": 300},
    ),
    "dashscope": (
        openai(prompt_tokens_details={"cached_tokens": 0, "cache_creation_input_tokens": 300, "cache_type": "x"}),
        PLAIN | {"cache_write": 300},
    ),
    "dashscope, older": (
        openai(prompt_tokens_details={"cached_tokens": 600, "cache_creation": {"cache_creation_input_tokens": 300}}),
        PLAIN | {"cached": 600, "cache_write": 300},
    ),
    "litellm, writes for an hour": (
        openai(
            prompt_tokens_details={
                "cache_creation_tokens": 300,
                "cache_creation_token_details": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
            }
        ),
        PLAIN | {"cache_write": 300, "cache_write_hour": 200},
    ),
    "proxy without the cache": (
        openai(prompt_tokens=100, cache_read_input_tokens=600, cache_creation_input_tokens=300),
        PLAIN | {"cached": 600, "cache_write": 300},
    ),
    "proxy without the cache, by the total": (
        openai(prompt_tokens=700, cache_read_input_tokens=300, total_tokens=1100),
        PLAIN | {"cached": 300},
    ),
    "anthropic": (
        {
            "usage": {"input_tokens": 100, "output_tokens": 100, "cache_read_input_tokens": 600}
            | {"cache_creation_input_tokens": 300}
        },
        PLAIN | {"cached": 600, "cache_write": 300},
    ),
    "responses": (
        {"usage": {"input_tokens": 1000, "output_tokens": 100, "input_tokens_details": {"cached_tokens": 600}}},
        PLAIN | {"cached": 600},
    ),
    "deepseek": (openai(prompt_cache_hit_tokens=600, prompt_cache_miss_tokens=400), PLAIN | {"cached": 600}),
    "deepseek without the sum": (
        openai(prompt_tokens=None, prompt_cache_hit_tokens=600, prompt_cache_miss_tokens=400),
        PLAIN | {"cached": 600},
    ),
    "gemini": (
        {
            "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 60, "thoughtsTokenCount": 40}
            | {"totalTokenCount": 1100, "cachedContentTokenCount": 600}
        },
        PLAIN | {"cached": 600, "reasoning": 40},
    ),
    "gemini, other names": (
        {"usage": {"prompt_token_count": 1000, "candidates_token_count": 60, "thoughts_token_count": 40}},
        PLAIN | {"reasoning": 40},
    ),
    "thoughts in the total": (
        openai(completion_tokens=60, total_tokens=1100, completion_tokens_details={"reasoning_tokens": 40}),
        PLAIN | {"reasoning": 40},
    ),
    "more in the total": (openai(completion_tokens=60, total_tokens=1100), PLAIN),
    "more thoughts than words": (
        openai(completion_tokens=20, completion_tokens_details={"reasoning_tokens": 80}),
        PLAIN | {"reasoning": 80},
    ),
    "more thoughts than words, by an estimate of a proxy": (
        openai(total_tokens=1100, completion_tokens_details={"reasoning_tokens": 104}),
        PLAIN | {"reasoning": 100},
    ),
    "gemini, thoughts within the candidates": (
        {
            "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 100, "thoughtsTokenCount": 40}
            | {"totalTokenCount": 1100}
        },
        PLAIN | {"reasoning": 40},
    ),
    "xai, thoughts apart": (
        openai(completion_tokens=20, total_tokens=1100, completion_tokens_details={"reasoning_tokens": 80}),
        PLAIN | {"reasoning": 80},
    ),
    "deep": (openai(prompt_tokens_details={"a": {"b": {"cache_creation": {"ephemeral_1h_input_tokens": 9}}}}), PLAIN),
    "from the total": (openai(completion_tokens=None, total_tokens=1100), PLAIN),
    "llama.cpp": ({"timings": {"prompt_n": 400, "cache_n": 600, "predicted_n": 100}}, PLAIN | {"cached": 600}),
    "ollama": ({"prompt_eval_count": 1000, "eval_count": 100}, PLAIN),
    "cohere": ({"usage": {"tokens": {"input_tokens": 1000.0, "output_tokens": 100.0}}}, PLAIN),
    "groq": ({"x_groq": {"usage": {"prompt_tokens": 1000, "completion_tokens": 100}}}, PLAIN),
    "as text": (openai(prompt_tokens="1000", completion_tokens=" 100 "), PLAIN),
    "cached beyond the prompt": (openai(prompt_tokens_details={"cached_tokens": 5000}), PLAIN | {"cached": 1000}),
    "cached is no count": (openai(prompt_tokens_details={"cached_tokens": "many"}, cached_tokens=-5), PLAIN),
    "thoughts are no count": (openai(completion_tokens_details={"reasoning_tokens": -1}), PLAIN),
    "details are no object": (openai(prompt_tokens_details=[3], completion_tokens_details="x"), PLAIN),
}


@pytest.mark.parametrize("server", SERVERS)
def test_usage_is_read_by_the_names_of_each_server(server):
    """What a server counts is read by its names, parts as parts, and what it counts apart as read or written too."""
    reply, expected = SERVERS[server]
    assert counted(reply) == Tokens(**expected)


@pytest.mark.parametrize(
    "count", [None, -1, 0, True, 2.5, "n/a", float("nan"), float("inf"), 10**30, MAX_TOKENS + 1, [7]]
)
def test_a_count_that_cannot_be_is_estimated_and_marked(count):
    """A count that is missing, negative, no whole number or beyond any request is unknown; the other one stands."""
    broken = openai(prompt_tokens=count)
    assert counted(broken) is None
    assert counted(broken, read=7, written=9) == Tokens(read=7, written=100, estimated=True)
    expected = 0 if count == 0 and count is not True and count is not False else 9
    assert counted(openai(completion_tokens=count), read=7, written=9).written == expected


@pytest.mark.parametrize("usage", [None, "n/a", {}, [], {"prompt_tokens": 0, "completion_tokens": 0}])
def test_a_usage_without_counts_is_estimated(usage):
    """Without any count both are estimates, and without estimates there is nothing."""
    assert counted({"usage": usage}) is None
    assert counted({"usage": usage}, read=7, written=9) == Tokens(read=7, written=9, estimated=True)


def test_later_chunks_add_what_they_count():
    """Counts grow from chunk to chunk; null, zeros and other types take nothing back."""
    chunks = [
        {"usage": {"prompt_tokens": 1000}},
        openai(completion_tokens=7, prompt_tokens_details={"cached_tokens": 3}),
    ]
    chunks += [{"usage": None}, {"usage": {"completion_tokens": 100, "prompt_tokens": 0}}, {"usage": "x"}]
    chunks += [{"usage": {"prompt_tokens_details": {"cached_tokens": None}, "completion_tokens": None}}]
    assert counted(*chunks) == Tokens(read=1000, written=100, cached=3)


def test_dollars_are_those_of_the_bill():
    """100 plain tokens at 3, 600 cached at .3, 300 put into the cache at 3.75; 60 words at 15, 40 thoughts at 10."""
    used = Tokens(read=1000, written=100, cached=600, cache_write=300, reasoning=40)
    prices = TokenPrices(input=3.0, output=15.0, cached_input=0.3, cache_write=3.75, reasoning=10.0)
    assert used.dollars(prices.in_order) == pytest.approx((100 * 3 + 600 * 0.3 + 300 * 3.75 + 60 * 15 + 40 * 10) / 1e6)


LONG = [{"above": 1000, "input": 2.0, "output": 4.0}, {"above": 5000, "input": 8.0, "output": 16.0, "reasoning": 1.0}]


@pytest.mark.parametrize(
    ("read", "calls", "dollars"),
    [
        (1000, 1, 1000 * 1 + 100 * 2),
        (1001, 1, 1001 * 2 + 100 * 4),
        (5001, 1, 5001 * 8 + 60 * 16 + 40 * 1),
        (5001, 5, 5001 * 2 + 100 * 4),
        (5000, 5, 5000 * 1 + 100 * 2),
    ],
)
def test_a_long_prompt_makes_the_whole_call_more_expensive(read, calls, dollars):
    """Above a limit of prompt tokens all tokens have the prices of the row; calls count by their mean prompt."""
    used = Tokens(read=read, written=100, reasoning=40)
    prices = TokenPrices.model_validate({"input": 1.0, "output": 2.0, "rows": LONG})
    assert used.dollars(prices.in_order, calls=calls) == pytest.approx(dollars / 1e6)


HALF = {"input": 0.5, "output": 0.5}
NIGHT = HALF | {"hours": "16:30-00:30"}
PEAK = HALF | {"hours": "09:00-12:00, 14:00-18:00", "zone": "Asia/Shanghai"}


@pytest.mark.parametrize(
    ("row", "tier", "time", "is_met"),
    [
        (HALF | {"tier": "Flex"}, "flex", None, True),
        (HALF | {"tier": "flex"}, "priority", None, False),
        (HALF | {"tier": "flex"}, "", "12:00", False),
        (NIGHT, "", "16:30", True),
        (NIGHT, "flex", "00:29", True),
        (NIGHT, "", "00:30", False),
        (NIGHT, "", "16:29", False),
        (NIGHT, "", None, False),
        (PEAK, "", "01:00", True),
        (PEAK, "", "04:00", False),
        (PEAK, "", "09:59", True),
        (PEAK, "", "12:00", False),
        (HALF | {"hours": "22:00-24:00", "zone": "Europe/Berlin"}, "", "20:00", True),
        (NIGHT | {"tier": "flex"}, "", "17:00", False),
        (NIGHT | {"tier": "flex", "above": 999}, "flex", "17:00", True),
        (NIGHT | {"tier": "flex", "above": 1000}, "flex", "17:00", False),
    ],
)
def test_a_row_counts_if_all_its_conditions_hold(row, tier, time, is_met):
    """A tier is compared in small letters, and hours are those of the time zone, without their end."""
    prices = TokenPrices.model_validate({"input": 1.0, "output": 1.0, "rows": [row]})
    at = None if time is None else datetime.fromisoformat(f"2026-07-01T{time}:59+00:00").timestamp()
    dollars = Tokens(read=1000, written=0).dollars(prices.in_order, tier=tier, end=at)
    assert dollars == pytest.approx((500 if is_met else 1000) / 1e6)


def test_the_last_row_that_a_call_meets_counts():
    """A call with two conditions has the prices of the later row."""
    flex = HALF | {"tier": "flex"}
    prices = TokenPrices.model_validate({"input": 1.0, "output": 1.0, "rows": [LONG[0], flex]}).in_order
    assert Tokens(read=2000, written=0).dollars(prices, tier="flex") == pytest.approx(1000 / 1e6)
    assert Tokens(read=2000, written=0).dollars(prices) == pytest.approx(4000 / 1e6)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (LONG[::-1], "row 1 is never used"),
        ([LONG[0], LONG[0]], "row 1 is never used"),
        ([HALF | {"hours": "09:00-10:00"}, HALF | {"hours": "09:00-10:00", "zone": "UTC"}], "row 1 is never used"),
        ([HALF | {"tier": "flex", "above": 5}, HALF | {"tier": "flex"}], "row 1 is never used"),
        ([HALF | {"tier": "flex"}, HALF | {"above": 5}], None),
        ([NIGHT, PEAK], None),
        ([HALF | {"hours": "09:00-10:00", "zone": "Asia/Shanghai"}, HALF | {"hours": "09:00-10:00"}], None),
        ([HALF], "needs a condition"),
        ([HALF | {"zone": "UTC"}], "needs a condition"),
        ([HALF | {"hours": "9-12"}], "hours such as"),
        ([HALF | {"hours": "25:00-26:00"}], "hours such as"),
        ([NIGHT | {"zone": "Atlantis"}], "no time zone 'Atlantis'"),
        ([NIGHT | {"zone": "../passwd"}], "no time zone"),
        ([{"above": 5, "input": 1.0}], "output"),
    ],
)
def test_a_row_that_cannot_be_meant_is_refused(rows, words):
    """A row that no call gets, that has no condition, or hours or a time zone that cannot be read."""
    with nullcontext() if words is None else pytest.raises(ValueError, match=words):
        TokenPrices.model_validate({"input": 1.0, "output": 1.0, "rows": rows})


@pytest.mark.parametrize(("prices", "hour"), [((3.0, 15.0), 6.0), ((3.0, 15.0, 0.3, 3.75, 15.0, 5.0), 5.0)])
def test_a_write_for_an_hour_costs_twice_the_input_or_its_price(prices, hour):
    """Anthropic's usage has the part of the writes that is kept for an hour."""
    parts = {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200}
    usage = {"input_tokens": 10, "output_tokens": 0, "cache_creation_input_tokens": 300, "cache_creation": parts}
    used = counted({"usage": usage})
    assert (used.cache_write, used.cache_write_hour) == (300, 200)
    write = prices[3] if len(prices) > 3 else prices[0]
    assert used.dollars(prices) == pytest.approx((10 * 3 + 100 * write + 200 * hour) / 1e6)


def test_a_missing_price_is_that_of_input_or_output():
    """Two prices are the bill of all tokens; one more price leaves the others."""
    used = Tokens(read=1000, written=100, cached=600, cache_write=300, reasoning=40)
    assert used.dollars((3.0, 15.0)) == pytest.approx((1000 * 3 + 100 * 15) / 1e6)
    assert TokenPrices(input=3.0, output=15.0).in_order == (3.0, 15.0)
    assert TokenPrices(input=3.0, output=15.0, cached_input=0.3).in_order == (3.0, 15.0, 0.3, 3.0, 15.0, 6.0)


@pytest.mark.parametrize(
    ("usage", "read", "written", "calls"),
    [
        ({"read": 1000, "written": 100}, 1000, 100, 0),
        ({"read": 1000, "written": 0}, 1000, 0, 0),
        ({"read": 0, "written": 100}, 7, 100, 1),
        ({"read": 1000}, 1000, 3, 1),
        ({}, 7, 3, 1),
    ],
)
def test_tokens_are_estimated_only_if_the_server_reports_too_little(usage, read, written, calls):
    """Estimates are made only for a count that is missing, and then `estimated` is true."""
    made = []
    tokens = used_tokens(usage, estimates=lambda: made.append(1) or (7, 3))
    assert tokens == Tokens(read=read, written=written, estimated=bool(calls))
    assert len(made) == calls
