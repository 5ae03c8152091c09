"""The names and the cost of `import ragbandit`."""

import math
from dataclasses import fields, is_dataclass

import pytest

import ragbandit
from ragbandit.shared import errors, types
from ragbandit.shared.additions import additions
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import finite_json

ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RagBanditError)]


def test_public_names():
    """Each name of `ragbandit.__all__` is there, and in `dir`, before it is loaded too."""
    assert set(ragbandit.__all__) <= set(dir(ragbandit))
    deleted = set() if "advice" in additions() else {"advise"}
    assert all(getattr(ragbandit, name) is not None for name in ragbandit.__all__ if name not in deleted)


def test_help_describes_every_field():
    """What users make and read: the docstring has a line for each field, so that `help()` says what it is."""
    for kind in (ragbandit.Query, ragbandit.Decision, ragbandit.Outcome, ragbandit.Feedback):
        described = [line.strip().partition(":")[0] for line in kind.__doc__.splitlines() if ": " in line]
        assert {field.name for field in fields(kind)} <= set(described), kind


def test_a_router_shows_no_inner_calls():
    """`help(Router)` has what users call, and nothing that only the service's own parts do."""
    shown = {name for name in dir(ragbandit.Router) if not name.startswith("_")}
    inner = ("answer_place", "awaits", "check_admission", "check_charged", "end_waits", "forget")
    assert not shown.intersection(inner)


def test_unknown_name():
    """A missing name raises an AttributeError that names it."""
    with pytest.raises(AttributeError, match="no attribute 'Oracle'"):
        _ = ragbandit.Oracle


def test_errors_form_one_tree():
    """Every error is a RagBanditError, and at most about ten classes are."""
    assert all(issubclass(error, RagBanditError) for error in ERRORS)
    assert len(ERRORS) <= 16


def test_error_codes_are_unique():
    """No two errors share a code, and every code is upper case: clients branch on it."""
    codes = [error.code for error in ERRORS]
    assert len(set(codes)) == len(codes)
    assert all(code.isupper() and code.replace("_", "").isalpha() for code in codes)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_docstring_is_the_default_message(error):
    """An error raised without a message says its docstring."""
    assert error.__doc__
    assert str(error()) == error().message == error.__doc__
    assert error("other").message == "other"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_status_fits_the_kind(error):
    """An error is the caller's (4xx) or ours (5xx)."""
    assert error.status in (401, 403, 404, 409, 422, 429, 500, 503)


def test_error_text_has_field_and_remedy():
    """The text of an error is "field: message (remedy)"."""
    error = errors.InvalidInput("is empty", field="question", remedy="send text")
    assert str(error) == "question: is empty (send text)"
    assert str(errors.InvalidInput("is empty")) == "is empty"


def test_values_are_frozen_keyword_only_and_slotted():
    """Every domain value is a frozen, keyword-only, slotted dataclass."""
    for value in vars(types).values():
        if isinstance(value, type) and is_dataclass(value):
            assert value.__dataclass_params__.frozen, value
            assert all(field.kw_only for field in fields(value)), value
            assert "__slots__" in vars(value), value


def test_costs_add_up():
    """Two costs add field by field, and no cost is the neutral one."""
    cost = ragbandit.Cost(passages=2, llm_calls=1, seconds_total=0.5)
    assert cost + ragbandit.Cost() == cost
    assert cost + cost == ragbandit.Cost(passages=4, llm_calls=2, seconds_total=1.0)


def test_steps_are_rounds():
    """The papers' Step counts the rounds of a trace and nothing else."""
    trace = (types.Round(number=1), types.Branch(rule="x", value="y"), types.Round(number=2))
    assert types.count_steps(trace) == 2
    assert types.count_steps(()) == 0


def test_counters_balance():
    """Counters are balanced if the five places add up to decided; late feedback counts apart."""
    whole = {"decided": 15, "learned": 5, "defaulted": 4, "waiting": 3, "closed": 2, "quarantined": 1}
    assert ragbandit.Counters(**whole, feedback=9, late_feedback=9).balanced
    assert not ragbandit.Counters(**whole | {"closed": 3}, feedback=0, late_feedback=0).balanced


def test_no_json_holds_a_number_that_is_not_finite():
    """NaN and infinity are null at any depth; all else, also a whole number too large for a float, stays as it is."""
    value = {"a": math.nan, "b": [1.5, -math.inf, {"c": (math.inf, "nan", True, None)}], "d": 10**400}
    assert finite_json(value) == {"a": None, "b": [1.5, None, {"c": [None, "nan", True, None]}], "d": 10**400}
