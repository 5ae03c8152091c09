"""The values that everybody passes on: what becomes of them in JSON."""

import math

from ragbandit.shared.types import finite_json


def test_no_json_holds_a_number_that_is_not_finite():
    """NaN and infinity are null at any depth; all else, also a whole number too large for a float, stays as it is."""
    value = {"a": math.nan, "b": [1.5, -math.inf, {"c": (math.inf, "nan", True, None)}], "d": 10**400}
    assert finite_json(value) == {"a": None, "b": [1.5, None, {"c": [None, "nan", True, None]}], "d": 10**400}
