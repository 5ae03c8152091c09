"""Scopes: what a key is narrowed to beyond its role and tenant."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import RATE_PATTERN, Json

_RATE: Final = re.compile(RATE_PATTERN)


def _names(value: Json) -> bool:
    return isinstance(value, list) and 0 < len(value) <= 100 and all(isinstance(name, str) and name for name in value)


def _dollars(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 < value < math.inf


def _flag(value: Json) -> bool:
    return isinstance(value, bool)


#: scope -> whether a value is one of it, and what it should be
SCOPES: Final[Mapping[str, tuple[Callable[[Json], bool], str]]] = {
    # the only arms that its questions may be given to
    "arms": (_names, "a list of names of arms"),
    # whether it may choose the arm of a question itself; without it: where neither it nor its tenant has a budget
    "forced": (_flag, "true or false"),
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
            remedy = f"known: {', '.join(SCOPES)}"
            raise InvalidInput(f"unknown scope {name!r:.80}", field="scopes", remedy=remedy)
        fits, wanted = SCOPES[name]
        if not fits(value):
            raise InvalidInput(f"the scope {name} is not {wanted}", field=f"scopes.{name}", remedy=f"give {wanted}")


def is_known(scopes: Mapping[str, Json]) -> bool:
    """Whether this version knows all of them: a newer one may have narrowed the key in a way that is not seen here."""
    return all(name in SCOPES and SCOPES[name][0](value) for name, value in scopes.items())
