"""Prices that servers report: each documented form, and what does not count."""

import logging

import pytest

from ragbandit.shared.model_servers.told_prices import FORMS, charged_dollars, told_dollars

UPSTREAM = {"upstream_inference_cost": 0.02}


@pytest.mark.parametrize("place", ["usage", "reply", "message", "headers"])
@pytest.mark.parametrize("as_text", [False, True])
def test_every_form_is_read_in_its_unit(place, as_text):
    """The vendor's units become dollars, also if the number is text."""
    for form in (form for form in FORMS if form.place == place):
        source, units = {}, 0.25 * form.per_dollar
        for field, value in ((form.field, str(units) if as_text else units), form.dollars_if or (form.field, units)):
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
        *(({"cost": no}, None) for no in (None, 0, -1, True, 1e9, float("nan"), {"total_cost": []}, [1], 10**400)),
        *(({"cost": no}, None) for no in ("", "free", "$0.5", "-1", "inf", "nan", "1e999", "1_0", "\u0665", "0" * 99)),
    ],
)
def test_only_a_plausible_price_in_a_known_form_counts(usage, dollars):
    """Anything else, and a field whose unit is not known, is as no price."""
    assert told_dollars(usage, place="usage") == dollars


@pytest.mark.parametrize("currency", [None, "EUR", "XNO"])
def test_a_price_in_another_currency_is_no_price(currency):
    """NanoGPT names the currency of its price."""
    assert told_dollars({"x_nanogpt_pricing": {"amount": 1, "currency": currency}}, place="reply") is None


@pytest.mark.parametrize(
    ("told", "listed", "prefers", "dollars"),
    [
        (0.5, 0.2, "told", 0.5),
        (0.5, 0.2, "listed", 0.2),
        (0.5, None, "listed", 0.5),
        (None, 0.2, "told", 0.2),
        (None, None, "told", 0.0),
        (0.2, 0.002, "told", 0.2),
        (0.21, 0.002, "told", 0.002),
        (0.5, 0.0, "told", 0.5),
        (0.5, 0.0, "listed", 0.0),
    ],
)
def test_which_price_counts(told, listed, prefers, dollars):
    """The server's price counts, unless the list is preferred, or the server's is implausibly high."""
    assert charged_dollars(told, listed=listed, prefers=prefers) == dollars


def test_an_implausible_price_is_logged(caplog):
    """A price of more than 100 times the listed one is named in the log, with the model."""
    with caplog.at_level(logging.WARNING):
        charged_dollars(5.0, listed=0.01, model="grand")
    assert "the server of grand told $5 for a call that costs $0.01" in caplog.text
