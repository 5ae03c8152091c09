"""Prices of calls that servers report in their replies. Every form is a row of `FORMS`, with the vendor's unit."""

import logging
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from ragbandit.shared.reading.fields import finite_number

log = logging.getLogger("ragbandit.prices")

#: largest plausible price of one call, dollars. Larger prices are ignored
MAX_DOLLARS: Final = 1000.0
#: largest plausible ratio of a reported price to the listed one
MOST_TIMES: Final = 100.0
#: longest text that is read as a number, characters
_LONGEST: Final = 40

#: places of a price: the headers, the reply or one of its chunks, its `usage`, or a message or delta
Place = Literal["headers", "reply", "usage", "message"]
#: which price of a call counts if there are two: the one that the server reports, or the listed one
Preference = Literal["told", "listed"]


class PriceForm(NamedTuple):
    """A form in which servers report the price of a call.

    field: name; "a.b" is field b of the object a. per_dollar: number of the vendor's units in a dollar. own_key: field
    with what another vendor charges to the caller's own key in addition, if `is_byok` is true. dollars_if: (field,
    value) if only this value of the other field says that the price is in dollars
    """

    place: Place
    field: str
    per_dollar: float = 1.0
    own_key: str = ""
    dollars_if: tuple[str, str] | None = None


#: the first form in a reply counts. A field that is not here is no price, since its unit is not known
FORMS: Final = (
    # OpenRouter, and streams of LiteLLM. Without an own key, both fields of OpenRouter contain the same price.
    PriceForm("usage", "cost", own_key="cost_details.upstream_inference_cost"),
    PriceForm("usage", "cost.total_cost"),  # Perplexity
    PriceForm("usage", "cost_usd_total"),  # LLM Gateway, osmAPI
    PriceForm("usage", "cost_usd"),  # Otari
    PriceForm("usage", "cost_in_usd_ticks", per_dollar=1e10),  # xAI
    PriceForm("usage", "estimated_cost"),  # DeepInfra
    PriceForm("reply", "x_nanogpt_pricing.amount", dollars_if=("x_nanogpt_pricing.currency", "USD")),  # NanoGPT
    PriceForm("reply", "associated_dollar_cost"),  # UiPath
    PriceForm("reply", "copilot_usage.total_nano_aiu", per_dollar=1e11),  # GitHub Copilot: a credit is a cent
    PriceForm("reply", "provider_metadata.gateway.cost"),  # Vercel's AI Gateway, a text
    PriceForm("message", "provider_metadata.gateway.cost"),
    PriceForm("headers", "x-litellm-response-cost"),  # LiteLLM
    PriceForm("headers", "x-aimlapi-usd-spent"),  # AI/ML API
)
_BY_PLACE: Final[Mapping[str, tuple[PriceForm, ...]]] = {
    place: tuple(form for form in FORMS if form.place == place) for place in ("headers", "reply", "usage", "message")
}
#: place -> fields without one of which it has no price
_FIELDS: Final = {place: {form.field.partition(".")[0] for form in forms} for place, forms in _BY_PLACE.items()}


def told_dollars(source: Mapping[str, Any], *, place: Place) -> float | None:
    """The price of the call in dollars; None if there is none above 0 in a known form. source: what `place` names."""
    if place != "headers" and _FIELDS[place].isdisjoint(source):
        return None
    for form in _BY_PLACE[place]:
        if form.dollars_if is not None and _value(source, form.dollars_if[0]) != form.dollars_if[1]:
            continue
        amount = _number(_value(source, form.field))
        if form.own_key and source.get("is_byok") is True:
            amount += _number(_value(source, form.own_key))
        if 0.0 < (dollars := amount / form.per_dollar) <= MAX_DOLLARS:
            return dollars
    return None


def charged_dollars(
    told: float | None, *, listed: float | None, prefers: Preference = "told", model: str = "a model"
) -> float:
    """The price that is booked. told: the server's price; listed: the tokens' price; None without a price. model: for
    the log. A told price above MOST_TIMES the listed price does not count, unless the listed price is 0.
    """
    if listed is None or told is None:
        return told or listed or 0.0
    if 0.0 < MOST_TIMES * listed < told:
        message = "the server of %s told $%g for a call that costs $%g by token_prices: the list counts"
        log.warning(message, model, told, listed)
        return listed
    return listed if prefers == "listed" else told


def _value(source: Mapping[str, Any], field: str) -> Any:
    value: Any = source
    for name in field.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _number(value: Any) -> float:
    """A number, which may be text; 0.0 for anything else, also below 0."""
    if isinstance(value, str) and (not value.isascii() or "_" in value or len(value.strip()) > _LONGEST):
        return 0.0
    return max(0.0, finite_number(value) or 0.0)
