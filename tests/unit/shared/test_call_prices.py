"""Prices that servers report: each documented form, and what does not count."""

import logging

import pytest

from ragbandit.shared.dialects.chat.replies import ModelReply
from ragbandit.shared.model_servers.call_prices import FORMS, charge, named_tier, told_dollars
from ragbandit.shared.model_servers.token_usage import Tokens
from ragbandit.shared.types import Cost

LITELLM = "x-litellm-response-cost"
UPSTREAM = {"upstream_inference_cost": 0.02}
PARTS = {"upstream_inference_prompt_cost": 0.005, "upstream_inference_completions_cost": 0.015}


@pytest.mark.parametrize("place", ["usage", "reply", "message", "headers"])
@pytest.mark.parametrize("as_text", [False, True])
def test_every_form_is_read_in_its_unit(place, as_text):
    """The vendor's units become dollars, also if the number is text."""
    for form in (form for form in FORMS if form.place == place):
        source, units = {}, 0.25 * form.per_dollar
        others = ((field, values[0]) for field, values in form.only_if.items() if values[0] is not None)
        for field, value in ((form.field, str(units) if as_text else units), *others):
            *outer, name = field.split(".") if place != "headers" else [field]
            inside = source
            for one in outer:
                inside = inside.setdefault(one, {})
            inside.setdefault(name, value)
        assert told_dollars(source, place=place) == pytest.approx(0.25), form


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        ({"cost": 0.001, "is_byok": True, "cost_details": UPSTREAM}, 0.021),
        ({"cost": 0, "is_byok": True, "cost_details": UPSTREAM}, 0.02),
        ({"cost": None, "is_byok": True, "cost_details": {"upstream_inference_cost": "0.02"}}, 0.02),
        ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": None}}, 0.001),
        ({"cost": 0.001, "is_byok": True, "cost_details": None}, 0.001),
        ({"cost": 0, "is_byok": True, "cost_details": PARTS}, 0.02),
        ({"cost": 0, "is_byok": True, "cost_details": PARTS | UPSTREAM}, 0.02),
        ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": -1}}, 0.001),
        ({"cost": 0.02, "is_byok": False, "cost_details": UPSTREAM}, 0.02),
        ({"cost": 0.02, "is_byok": None, "cost_details": UPSTREAM}, 0.02),
        ({"cost_details": UPSTREAM}, None),
    ],
)
def test_a_key_of_ones_own_costs_the_fee_and_the_call(usage, dollars):
    """What the other vendor charges is added if the caller's own key was used; otherwise `cost` contains it."""
    assert told_dollars(usage, place="usage") == (dollars and pytest.approx(dollars))


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        ({"cost": 0.5}, 0.5),
        ({"cost": {"input_tokens_cost": 1, "total_cost": 2}}, 2.0),
        ({"cost": 0, "estimated_cost": 0.1}, 0.1),
        ({"cost": 0.5, "cost_in_usd_ticks": 7}, 0.5),
        ({"price": 0.5, "cost_cents": 7, "total_cost": 1}, None),
        ({"cost": -1, "estimated_cost": 0.1}, 0.1),
        *(({"cost": no}, None) for no in (None, 0, True, {"total_cost": []}, [1])),
        *(({"cost": no}, None) for no in ("", "free", "$0.5", "1_0", "\u0665", "0" * 99)),
    ],
)
def test_only_a_price_in_a_known_form_counts(usage, dollars):
    """Anything else, and a field whose unit is not known, is as no price."""
    assert told_dollars(usage, place="usage") == dollars


@pytest.mark.parametrize("cost", [-1, 1e9, float("nan"), float("inf"), 10**400, "-1", "inf", "nan", "1e999"])
@pytest.mark.parametrize(("lists", "dollars"), [({}, 0.0), ({"m": (2.0, 2.0)}, 0.002)])
def test_an_implausible_price_does_not_count_and_is_noted(cost, lists, dollars):
    """Below 0, above 1,000 dollars, or not finite: the list counts, and the cost has the number of the server."""
    told = told_dollars({"cost": cost}, place="usage")
    made = charge(Tokens(read=1000, written=0), quoted=told, model="m", lists=lists)
    assert made.dollars == pytest.approx(dollars)
    assert float(made.price["refused"]) == pytest.approx(told, nan_ok=True)


def test_a_plausible_price_stays_before_an_implausible_one():
    """Only a plausible price in the body replaces the one in the headers. Without one, an implausible price is kept."""
    assert told_dollars({"cost": -1}, place="usage", before=0.01) == 0.01
    assert told_dollars({"cost": 0.02}, place="usage", before=0.01) == 0.02
    assert told_dollars({"cost": -1}, place="usage") == -1


@pytest.mark.parametrize(
    ("source", "tier"),
    [
        ({"service_tier": "Flex"}, "flex"),
        ({"service_tier": None, "trafficType": "ON_DEMAND_PRIORITY"}, "on_demand_priority"),
        ({"x-gemini-service-tier": " standard "}, "standard"),
        ({"service_tier": "standard", "speed": "fast"}, "fast"),
        ({"service_tier": {"type": "flex"}, "speed": "standard"}, ""),
        ({"service_tier": "x" * 99}, "x" * 40),
        ({"extra_properties": {"google": {"traffic_type": "ON_DEMAND_FLEX"}}}, "on_demand_flex"),
        ({"extra_properties": {"google": "x"}, "service_tier": "flex"}, "flex"),
        ({"extra_properties": None, "service_tier": "flex"}, "flex"),
        ({}, ""),
    ],
)
def test_the_tier_that_a_server_names(source, tier):
    """OpenAI and others name it in the reply, Anthropic in its usage, Gemini in a header."""
    assert named_tier(source) == tier


@pytest.mark.parametrize(
    ("place", "source", "dollars"),
    [
        *(("reply", {"x_nanogpt_pricing": {"amount": 1, "currency": no}}, None) for no in (None, "EUR", "XNO")),
        ("usage", {"cost": 1, "currency": "EUR"}, None),
        *(("usage", {"cost": 1, "currency": unit}, 1.0) for unit in ("USD", "usd", None)),
        ("usage", {"cost": {"total_cost": 1, "currency": "CNY"}}, None),
        ("usage", {"cost": {"total_cost": 1, "currency": "USD"}}, 1.0),
        ("usage", {"estimated_cost": 1, "cost_currency": ["EUR"]}, None),
        ("usage", {"tensorzero_cost": 1, "tensorzero_currency": "EUR"}, None),
        ("usage", {"tensorzero_cost": 1, "tensorzero_currency": "USD"}, 1.0),
        ("headers", {f"{LITELLM}-original": "1", f"{LITELLM}-discount-amount": "0.0"}, 1.0),
        ("headers", {f"{LITELLM}-original": "1", f"{LITELLM}-discount-amount": "0.1"}, None),
        ("headers", {f"{LITELLM}-original": "1", f"{LITELLM}-margin-amount": "0.1"}, None),
        ("headers", {f"{LITELLM}-original": "1", f"{LITELLM}-discount-amount": "0.1", LITELLM: "0.9"}, 0.9),
        ("headers", {f"{LITELLM}-discount-amount": "1", f"{LITELLM}-margin-percent": "5"}, None),
    ],
)
def test_a_price_counts_only_whole_and_in_dollars(place, source, dollars):
    """Some servers name the currency of a price, or what is not in it yet."""
    assert told_dollars(source, place=place) == dollars


def test_a_repeated_call_has_no_price_of_the_call_before():
    """Headers of the next reply replace what those of a broken one have told."""
    reply = ModelReply()
    reply.take_headers({LITELLM: "0.5", "x-gemini-service-tier": "flex"})
    reply.take_headers({})
    assert (reply.dollars, reply.tier) == (None, "")


@pytest.mark.parametrize(
    ("told", "listed", "prefers", "dollars", "price"),
    [
        (0.5, 0.2, "told", 0.5, {"by": "told"}),
        (0.5, 0.2, "listed", 0.2, {}),
        (0.5, None, "listed", 0.5, {"by": "told"}),
        (None, 0.2, "told", 0.2, {}),
        (None, None, "told", 0.0, {}),
        (0.2, 0.002, "told", 0.2, {"by": "told"}),
        (0.21, 0.002, "told", 0.002, {"refused": "0.21"}),
        (0.21, 0.002, "listed", 0.002, {}),
        (0.5, 0.0, "told", 0.5, {"by": "told"}),
        (0.5, 0.0, "listed", 0.0, {}),
    ],
)
def test_which_price_counts(told, listed, prefers, dollars, price):
    """The server's price counts, unless the list is preferred, or the server's is implausibly high."""
    lists = {} if listed is None else {"m": (1e3 * listed, 0.0)}
    made = charge(Tokens(read=1000, written=0), quoted=told, model="m", lists=lists, prefers=prefers)
    assert (made.dollars, made.price) == (pytest.approx(dollars), price)


def test_a_charge_names_the_list_and_its_row():
    """The cost of a call names another model that answered, the tier of service, and the conditions of the row."""
    lists = {"m": (1.0, 1.0), "n": (1.0, 1.0, {"tier": "flex", "input": 0.5, "output": 0.5})}
    made = charge(Tokens(read=1000, written=0), quoted=None, model="m", named="n", tier="flex", lists=lists)
    price = {"tier": "flex", "model": "n", "row": {"tier": "flex"}}
    assert made == Cost(prompt_tokens=1000, dollars=0.0005, price=price)


def test_an_implausible_price_is_logged(caplog):
    """A price of more than 100 times the listed one is named in the log, with the model."""
    with caplog.at_level(logging.WARNING):
        charge(Tokens(read=1000, written=0), quoted=5.0, model="grand", lists={"grand": (10.0, 0.0)})
    assert "the server of grand reported $5 for a call" in caplog.text
