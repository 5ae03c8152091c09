"""What a call of a model's server costs: by the price that the server reports in its reply, else by a list of prices.

Every form of a reported price is a row of `FORMS`, with the vendor's unit.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

from ragbandit.shared.model_servers.token_usage import PRICES, Preference, Tokens, met_row
from ragbandit.shared.types import Cost

log = logging.getLogger("ragbandit.prices")

#: largest plausible price of one call, dollars
MAX_DOLLARS: Final = 1000.0
#: largest plausible ratio of a reported price to the listed one
MOST_TIMES: Final = 100.0
#: longest text that is read as a number, and longest name of a tier, characters
_LONGEST: Final = 40
#: where replies name the tier of service: OpenAI, Groq and Anthropic, Bedrock, Vertex AI, Gemini
_TIERS: Final = ("service_tier", "serviceTier", "traffic_type", "trafficType", "x-gemini-service-tier")

#: places of a price: the headers, the reply or one of its chunks, its `usage`, or a message or delta
Place = Literal["headers", "reply", "usage", "message"]


class PriceForm(NamedTuple):
    """A form in which servers report the price of a call.

    field: name; "a.b" is field b of the object a. per_dollar: number of the vendor's units in a dollar. own_key: fields
    with charges to the caller's own key, added if `is_byok` is true: the whole, then its parts, used without a whole.
    only_if: other field -> its values with which the price is whole and in dollars; None if it may be missing
    """

    place: Place
    field: str
    per_dollar: float = 1.0
    own_key: tuple[str, ...] = ()
    only_if: Mapping[str, tuple[str | None, ...]] = {}


#: `PriceForm.own_key` of OpenRouter: the whole, then its parts in chats and in responses
_UPSTREAM: Final = tuple(
    f"cost_details.upstream_inference_{one}cost" for one in ("", "prompt_", "completions_", "input_", "output_")
)
_IN_DOLLARS: Final = dict.fromkeys(("currency", "cost_currency", "cost.currency"), (None, "USD", "usd"))
_VERCEL: Final = ("provider_metadata", "providerMetadata")
#: LiteLLM's changes of a price. The header "-original" lacks them, so it is valid only without changes
_UNCHANGED: Final = {f"x-litellm-response-cost-{one}-amount": (None, "0", "0.0") for one in ("discount", "margin")}
#: the first form in a reply counts. A field that is not here is no price, since its unit is not known
FORMS: Final = (
    # OpenRouter, and streams of LiteLLM. Without an own key, both fields of OpenRouter contain the same price.
    PriceForm("usage", "cost", own_key=_UPSTREAM, only_if=_IN_DOLLARS),
    PriceForm("usage", "cost.total_cost", only_if=_IN_DOLLARS),  # Perplexity, Bifrost
    PriceForm("usage", "cost_usd_total"),  # LLM Gateway, osmAPI
    PriceForm("usage", "cost_usd"),  # Otari
    PriceForm("usage", "cost_in_usd_ticks", per_dollar=1e10),  # xAI
    PriceForm("usage", "estimated_cost", only_if=_IN_DOLLARS),  # DeepInfra
    PriceForm("usage", "tensorzero_cost", only_if={"tensorzero_currency": (None, "USD")}),  # TensorZero
    PriceForm("reply", "x_nanogpt_pricing.amount", only_if={"x_nanogpt_pricing.currency": ("USD",)}),  # NanoGPT
    PriceForm("reply", "associated_dollar_cost"),  # UiPath
    PriceForm("reply", "copilot_usage.total_nano_aiu", per_dollar=1e11),  # GitHub Copilot: a credit is a cent
    PriceForm("reply", "meta.usage.usd_spent"),  # AI/ML API
    *(PriceForm("reply", f"{name}.gateway.cost") for name in _VERCEL),  # Vercel's AI Gateway, a text
    *(PriceForm("message", f"{name}.gateway.cost") for name in _VERCEL),
    PriceForm("headers", "x-litellm-response-cost"),  # LiteLLM
    PriceForm("headers", "x-litellm-response-cost-original", only_if=_UNCHANGED),  # LiteLLM's /v1/messages
    PriceForm("headers", "x-aimlapi-usd-spent"),  # AI/ML API
    PriceForm("headers", "x-nr-request-cost"),  # nRouter
)
#: place -> its forms; and the first names of their fields: without any of these names there is no price at the place
_BY_PLACE: Final = {place: [form for form in FORMS if form.place == place] for place in get_args(Place)}
_FIELDS: Final = {place: {form.field.partition(".")[0] for form in forms} for place, forms in _BY_PLACE.items()}


def told_dollars(source: Mapping[str, Any], *, place: Place, before: float | None = None) -> float | None:
    """The price of the call in dollars; None if there is none in a known form, or 0. It may be implausible: above
    MAX_DOLLARS, below 0 or not finite. before: the price in an earlier place, which only a plausible price replaces.
    """
    if place != "headers" and _FIELDS[place].isdisjoint(source):
        return before
    implausible = None
    for form in _BY_PLACE[place]:
        if any(_value(source, name) not in values for name, values in form.only_if.items()):
            continue
        amount = _number(_value(source, form.field))
        if form.own_key and source.get("is_byok") is True:
            whole, *parts = (max(0.0, _number(_value(source, name))) for name in form.own_key)
            amount += whole or sum(parts)
        dollars = amount / form.per_dollar
        if 0.0 < dollars <= MAX_DOLLARS:
            return dollars
        implausible = dollars or implausible
    return implausible if before is None else before


def told_in_reply(reply: Mapping[str, Any], *, before: float | None) -> float | None:
    """The price in a reply, or in its `usage`; None without one. before: see `told_dollars`."""
    if isinstance(usage := reply.get("usage"), dict):
        before = told_dollars(usage, place="usage", before=before)
    return told_dollars(reply, place="reply", before=before)


def is_plausible(quoted: float, *, listed: float) -> bool:
    """Whether a reported price counts. listed: the listed price; 0.0 without one."""
    return 0.0 < quoted <= MAX_DOLLARS and not 0.0 < MOST_TIMES * listed < quoted


def named_tier(source: Mapping[str, Any]) -> str:
    """The tier of service that the headers, the reply or its usage names, in small letters; "" if it names none."""
    if source.get("speed") == "fast":  # Anthropic
        return "fast"
    if "extra_properties" in source:  # Vertex AI
        source = google if isinstance(google := _value(source, "extra_properties.google"), Mapping) else source
    named = (value for name in _TIERS if isinstance(value := source.get(name), str))
    return next(named, "").strip().lower()[:_LONGEST]


def charge(
    tokens: Tokens,
    *,
    quoted: float | None,
    model: str,
    lists: Mapping[str, Sequence[Any]],
    named: str | None = None,
    tier: str = "",
    prefers: Preference = "told",
    assumed: Sequence[Any] = (),
) -> Cost:
    """The tokens, the dollars and the price of a call that ends now. A plausible price that the server reported
    (`quoted`) takes precedence over a listed one, unless the list is preferred.

    quoted: see `told_dollars`. lists: model -> listed prices. model: the configured model. named: the reply's model
    tier: see `named_tier`. assumed: prices that are assumed for a call without a price; () for none
    """
    listing = named if named is not None and named in lists else model
    prices, at = lists.get(listing), time.time()
    price: dict[str, Any] = {"tier": tier} if tier else {}
    listed = None if prices is None else tokens.dollars(prices, tier=tier, end=at)
    quoted = None if listed is not None and prefers == "listed" else quoted
    is_told = quoted is not None and is_plausible(quoted, listed=listed or 0.0)
    if quoted is not None and not is_told:
        log.warning("the server of %s reported $%g for a call, which is implausible: it does not count", model, quoted)
        price["refused"] = f"{quoted:g}"
    row = None if is_told else met_row(prices or (), prompt=tokens.read, tier=tier, end=at)
    price |= {"by": "told"} if is_told else {} if listing == model else {"model": listing}
    price |= {} if row is None else {"row": {name: row[name] for name in row if name not in PRICES}}
    is_assumed = not is_told and prices is None and len(assumed) > 0
    return Cost(
        prompt_tokens=tokens.read,
        completion_tokens=tokens.written,
        cached_tokens=tokens.cached,
        cache_write_tokens=tokens.cache_write,
        reasoning_tokens=tokens.reasoning or 0,
        dollars=(quoted if is_told else listed) or 0.0,
        assumed_dollars=tokens.dollars(assumed, tier=tier, end=at) if is_assumed else 0.0,
        price=price,
    )


def _value(source: Mapping[str, Any], field: str) -> Any:
    value: Any = source
    for name in field.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _number(value: Any) -> float:
    """A number, which may be text, or not finite; 0.0 for anything else."""
    is_text = isinstance(value, str)
    if is_text and (not value.isascii() or "_" in value or len(value.strip()) > _LONGEST):
        return 0.0
    try:
        return float(value) if is_text or (isinstance(value, int | float) and not isinstance(value, bool)) else 0.0
    except ValueError:
        return 0.0
    except OverflowError:
        return math.inf
