"""Prices: the cost weight at which a question is decided, from its caller, aim, API key, tenant and budget."""

from collections.abc import Mapping
from typing import Any, Final

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.server import TenantSettings
from ragbandit.router.learning.monitoring.frontier import Frontier
from ragbandit.router.policies.base import Policy, serves_prices
from ragbandit.router.serving.checks.questions import AIMS, check_type
from ragbandit.shared.errors import Forbidden, InvalidInput
from ragbandit.shared.texts.formats import did_you_mean
from ragbandit.shared.types import MAX_WEIGHT, NO_TERMS, Json, Query, Terms

#: name of an aim -> name of its term in reward.cost, if the two differ
_COST_TERMS: Final = {"seconds": "seconds_total"}


def check_weight(weight: object, *, prices: Mapping[str, float]) -> None:
    names = ", ".join(prices) or "none is configured"
    if isinstance(weight, str):
        if weight not in prices:
            remedy = f"{did_you_mean(weight, prices)}use a name of the setting `cost_weights` ({names}), or a number"
            raise InvalidInput(f"unknown weight of cost {weight!r:.80}", field="cost_weight", remedy=remedy)
    elif isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.0 <= weight <= MAX_WEIGHT:
        remedy = f"send a number from 0 to {MAX_WEIGHT:g}, or a name of the setting `cost_weights` ({names})"
        raise InvalidInput(f"{weight!r:.80} is not a weight of cost", field="cost_weight", remedy=remedy)


def check_aim(query: Query) -> None:
    check_type(query.aim, Mapping, field="aim", wanted="a mapping")
    if query.cost_weight is not None:
        raise InvalidInput("the question has an aim and a weight of cost", field="aim", remedy="send one of the two")
    if len(query.aim) != 1 or not set(query.aim) <= AIMS.keys():
        remedy = f'send one of {", ".join(AIMS)}, such as {{"quality": 0.9}}'
        raise InvalidInput(f"{dict(query.aim)!r:.80} is not an aim", field="aim", remedy=remedy)
    ((name, value),) = query.aim.items()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value <= AIMS[name]:
        remedy = f"send a number above 0, {AIMS[name]:g} at most"
        raise InvalidInput(f"{value!r:.80} is out of range", field=f"aim.{name}", remedy=remedy)


def price_terms(scopes: Mapping[str, Json], *, tenant: TenantSettings, named: Mapping[str, float]) -> Terms:
    """The cost weights of an API key with these scopes and of its tenant.

    named: name of a cost weight -> its number (setting `cost_weights`)
    """
    if not scopes and tenant.cost_weight is None and tenant.cost_weights is None:
        return NO_TERMS
    given: dict[str, Any] = {name: scopes.get(name, getattr(tenant, name)) for name in ("cost_weight", "cost_weights")}
    default, bounds = given["cost_weight"], given["cost_weights"]
    weight = named.get(default) if isinstance(default, str) else default
    if isinstance(weight, int | float) and isinstance(bounds, list) and not bounds[0] <= weight <= bounds[1]:
        # A default outside the bounds is replaced by the nearest bound, which has no name.
        default = min(max(weight, bounds[0]), bounds[1])
    if bounds is None:
        return Terms(cost_weight=default)
    return Terms(
        cost_weight=default, cost_weights=tuple(bounds), narrowed_by="key" if "cost_weights" in scopes else "tenant"
    )


def _price(query: Query) -> Json:
    """The cost weight (number or name) that the caller sent, else the default of API key or tenant, if there is one."""
    return query.terms.cost_weight if query.cost_weight is None else query.cost_weight


def price_name(query: Query) -> str | None:
    """The name of the cost weight at which the query was decided; None if it has no name."""
    if query.aim or (query.cost_weight is None and not query.terms.has_prices):
        return None
    price = _price(query)
    return price if isinstance(price, str) else None


def served_weight(
    query: Query,
    *,
    reward: RewardSettings,
    named: Mapping[str, float],
    policy: Policy,
    rebuilding: bool = False,
    frontier: Frontier | None = None,
) -> float | None:
    """The cost weight (>= 0) at which a checked query is decided; None for the setting reward.weight.

    named: name of a cost weight -> its number. rebuilding: whether an interim policy decides, for which no cost weight
    is refused. frontier: turns an aim into a weight. Raises InvalidInput for a weight that the policy or the tenant
    forbids, Forbidden if the API key forbids it.
    """
    terms = query.terms
    if query.cost_weight is None and not query.aim and terms == NO_TERMS:
        return None  # the usual case, answered early to save time
    factor = terms.budget_factor
    default, price = reward.weight, _price(query)
    if query.aim:
        aimed = _aimed_weight(query.aim, frontier=frontier, prices=reward.cost)
        price = price if aimed is None else aimed
    weight = default if price is None else _number_of_weight(price, named=named)
    bounds = terms.cost_weights
    if bounds is not None:
        if query.cost_weight is not None and not bounds[0] <= weight <= bounds[1]:
            holder, allowed = terms.narrowed_by, f"from {bounds[0]:g} to {bounds[1]:g}"
            message = f"this {holder} may have weights of cost {allowed}, not {weight:g}"
            remedy = f"send one {allowed}, or leave cost_weight out"
            raise (Forbidden if holder == "key" else InvalidInput)(message, field="cost_weight", remedy=remedy)
        weight = min(max(weight, bounds[0]), bounds[1])
    is_default = price is None and weight == default
    if is_default and not query.aim and (factor == 1.0 or not serves_prices(policy)):
        return None
    if not serves_prices(policy) and not rebuilding:
        field = "aim" if query.aim else "cost_weight"
        message = f"the policy {policy.algorithm} has one weight of cost for all questions"
        remedy = f"leave {field} out, or set policy.name to one that keeps quality and cost apart, such as mba"
        raise InvalidInput(message, field=field, remedy=remedy)
    if is_default and factor == 1.0:  # the query has an aim, but no frontier turns it into a weight yet
        return None
    # A weight below the default grows by the same amount as the default: a multiple of a tiny weight saves nothing.
    return min(weight + (factor - 1.0) * max(weight, default), MAX_WEIGHT)


def is_mean_cost(aim: str, *, terms: Mapping[str, float]) -> bool:
    """Whether only the cost term of the aim has a price, so that its mean is also a mean cost."""
    return [name for name, price in terms.items() if price > 0.0] == [_COST_TERMS.get(aim, aim)]


def _aimed_weight(aim: Mapping[str, float], *, frontier: Frontier | None, prices: Mapping[str, float]) -> float | None:
    """The weight at which the policy reaches a checked aim; None without a frontier. prices: cost term -> price."""
    ((name, value),) = aim.items()
    term = _COST_TERMS.get(name, name)
    if name != "quality" and not is_mean_cost(name, terms=prices):
        message = f"a mean of {name} can be held only if reward.cost prices {term} and nothing else"
        remedy = f"aim at a quality, or set reward.cost to {{{term}: 1}}"
        raise InvalidInput(message, field=f"aim.{name}", remedy=remedy)
    if frontier is None:
        return None
    return frontier.weight_of(quality=value) if name == "quality" else frontier.weight_of(cost=value * prices[term])


def _number_of_weight(price: Json, *, named: Mapping[str, float]) -> float:
    """A cost weight, a number or a name, as a number. Raises InvalidInput for a default that left `cost_weights`."""
    if isinstance(price, str):
        if price not in named:
            remedy = "add it to the setting, or give the key or tenant another default"
            message = f"the default cost weight {price!r:.80} is not in the setting `cost_weights`"
            raise InvalidInput(message, field="cost_weight", remedy=remedy)
        return named[price]
    assert isinstance(price, int | float)
    return float(price)
