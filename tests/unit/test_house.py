"""What a reader of the code has to hold in mind does not grow in silence.

A number that rises fails a test here until its allowance rises in the same commit, whose message says why. A number
that falls lowers its allowance.
"""

import math

import pytest

from tests.support.house import STREETS, House

#: street -> (modules, hundreds of lines) that its start reaches, with imports inside functions
REACHED = {
    "library": (248, 365),
    "POST /v1/route": (272, 405),
    "POST /v1/feedback": (271, 400),
    "learner": (95, 155),
    "worker": (472, 715),
    "replay": (266, 395),
}
#: public names that two modules define, and why each may
TWO_MEANINGS = {
    "main": "what `python -m` runs; nothing imports it",
    "write": "one function for each form of a log, called by the name of the form",
}


@pytest.fixture(scope="module")
def house():
    return House()


@pytest.mark.parametrize("street", STREETS)
def test_a_street_reaches_no_more_than_allowed(house, street):
    """A street reaches the allowed number of modules and of lines, also by imports inside functions."""
    reached = house.street(STREETS[street])
    assert (len(reached), math.ceil(house.lines(reached) / 500) * 5) == REACHED[street]


def test_a_public_name_has_one_meaning(house):
    """No two modules define a function or class of one public name, except those named here with the reason."""
    assert {name: modules for name, modules in house.doubled().items() if name not in TWO_MEANINGS} == {}
    assert TWO_MEANINGS.keys() <= house.doubled().keys()


def test_a_comment_of_a_field_has_a_field(house):
    """Below each comment of a field, `#: ...`, stands the field."""
    assert house.dangling() == []
