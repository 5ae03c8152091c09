"""Scopes: what a key is narrowed to beyond its role and tenant."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.formats import known_choices
from ragbandit.shared.types import MAX_WEIGHT, RATE_PATTERN, Json

_RATE: Final = re.compile(RATE_PATTERN)


def _names(value: Json) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 100 and all(isinstance(name, str) and name for name in value)


def _dollars(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < math.inf


def _flag(value: Json) -> bool:
    return isinstance(value, bool)


def _weight(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= MAX_WEIGHT


def _range(value: Json) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_weight, value)) and value[0] <= value[1]


#: scope -> whether a value is one of it, and what it should be
SCOPES: Final[Mapping[str, tuple[Callable[[Json], bool], str]]] = {
    # the only arms that its questions may be given to
    "arms": (_names, "a list of names of arms"),
    # whether it may choose the arm of a question itself; without it: where neither it nor its tenant has a budget
    "forced": (_flag, "true or false"),
    # weight of cost of its questions that want none of their own; goes before the tenant's
    "cost_weight": (
        lambda value: _weight(value) or (isinstance(value, str) and 0 < len(value) <= 32),
        "a number from 0 on, or a name of the setting `prices`",
    ),
    # the weights of cost that its questions may have; goes before the tenant's
    "cost_weights": (_range, "[least, largest], two numbers from 0 on"),
    # how many requests may come with it; counts instead of server.rate_limits
    "rate": (lambda value: isinstance(value, str) and bool(_RATE.fullmatch(value)), 'a rate, for example "600/minute"'),
    # what its answers may cost in a day and a month (UTC), and whether its questions are refused beyond
    "dollars_per_day": (_dollars, "a number of dollars above 0"),
    "dollars_per_month": (_dollars, "a number of dollars above 0"),
    "budget_stop": (_flag, "true or false"),
}


def check_scopes(scopes: Mapping[str, Json]) -> None:
    """Refuse scopes that are not known, and values that they cannot have. Raises InvalidInput."""
    for name, value in scopes.items():
        if name not in SCOPES:
            raise InvalidInput(f"unknown scope {name!r:.80}", field="scopes", remedy=known_choices(SCOPES, given=name))
        fits, wanted = SCOPES[name]
        if not fits(value):
            raise InvalidInput(f"the scope {name} is not {wanted}", field=f"scopes.{name}", remedy=f"give {wanted}")
    default, among = scopes.get("cost_weight"), scopes.get("cost_weights")
    if isinstance(default, int | float) and isinstance(among, list) and not among[0] <= default <= among[1]:
        remedy = "give a default within the range"
        raise InvalidInput(f"{default:g} is not in {among}", field="scopes.cost_weight", remedy=remedy)


def is_known(scopes: Mapping[str, Json]) -> bool:
    """Whether this version knows all of them: a newer one may have narrowed the key in a way that is not seen here."""
    return all(name in SCOPES and SCOPES[name][0](value) for name, value in scopes.items())
