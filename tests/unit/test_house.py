"""What a reader of the code has to hold in mind does not grow in silence.

A number that rises above its allowance fails a test here until the same commit raises it and says why. An allowance
that is far above its number is lowered.
"""

import pytest

from ragbandit.shared.additions import offered_places
from tests.support.house import STREETS, House

#: street -> (modules, lines) that its start may reach, with imports inside functions. Two modules of each
#: are for additions: their finder (shared/additions.py), and sections that they extend (router/config/section.py)
ALLOWED = {
    "library": (228, 33_455),
    "POST /v1/route": (256, 36_870),
    "POST /v1/feedback": (254, 36_330),
    "learner": (76, 11_890),
    "worker": (325, 46_000),
    "replay": (199, 30_940),
}
#: public names that two modules define, and why each may. The client imports nothing of the router, so it may have its
#: own of a name
TWO_MEANINGS = {
    "AnswerReader": "of the client: reads the events of a streamed answer; of strategies: takes the pieces of one",
    "Connection": "of the client: address, key and limits; of the store: a transaction",
    "JudgedArm": "of the client: the reply's type, whose name is in the OpenAPI schema; of the store: the same counts",
    "Task": "of the client and of the library: the same thing for their users",
    "new_id": "of the client and of the service: the same function",
    "main": "what `python -m` runs; nothing imports it",
    "write": "one function for each form of a log, called by the name of the form",
}


@pytest.fixture(scope="module")
def house():
    return House()


@pytest.mark.parametrize("street", STREETS)
def test_a_street_reaches_no_more_than_allowed(house, street):
    """A street reaches no more modules and lines than allowed, also by imports inside functions, and not far fewer."""
    reached, (modules, lines) = house.street(STREETS[street]), ALLOWED[street]
    assert modules - 10 < len(reached) <= modules
    assert lines - 1_000 < house.lines(reached) <= lines


@pytest.mark.parametrize("place", offered_places("dialects").values(), ids=offered_places("dialects"))
def test_a_dialect_of_an_addition_needs_no_heavy_module(house, place):
    """Every process has the dialects, so one imports nothing of other packages of ours than `ragbandit.shared`."""
    module = place.partition(":")[0]
    addition = module.rpartition(".")[0]
    reached = {name for name in house.street(module) if not name.startswith(addition)}
    assert {name.split(".")[1] for name in reached if "." in name} == {"shared", "additions"}


def test_a_public_name_has_one_meaning(house):
    """No two modules define a function or class of one public name, except those named here with the reason."""
    assert {name: modules for name, modules in house.doubled().items() if name not in TWO_MEANINGS} == {}
    assert TWO_MEANINGS.keys() <= house.doubled().keys()


def test_a_function_has_one_style_of_sql(house):
    """Statements of hot paths are texts with `?`, all others expressions of SQLAlchemy; no function has both."""
    assert house.two_styles() == []


def test_a_comment_of_a_field_has_a_field(house):
    """Below each comment of a field, `#: ...`, stands the field."""
    assert house.dangling() == []
