"""The checks of policies' params."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbandit.router.errors import ConfigError
from ragbandit.router.policies.params import (
    check_arm,
    check_number,
    check_positive,
    check_text,
    check_whole,
    check_word,
    is_number,
    refused,
)


@given(value=st.floats() | st.integers(), ends=st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)))
def test_number_is_taken_between_its_ends(value, ends):
    """A number from least to most comes back as that float; all others, NaN among them, are refused."""
    least, most = min(ends), max(ends)
    if least <= value <= most:
        found = check_number("x", value, least=least, most=most)
        assert (type(found), found) == (float, float(value))
    else:
        with pytest.raises(ConfigError, match="a number from"):
            check_number("x", value, least=least, most=most)


@pytest.mark.parametrize("value", [0, 1, 2.5, 1e12])
def test_numbers_that_are_taken(value):
    """Without ends a number from 0 to 1e12 is taken."""
    assert check_number("x", value) == value


@pytest.mark.parametrize("value", [-1e-9, 1e13, 10**400, math.nan, math.inf, True, "1", None, [1.0], 1j])
def test_numbers_that_are_refused(value):
    """Without ends neither a negative number, one above 1e12, NaN, a bool nor another type is taken."""
    with pytest.raises(ConfigError):
        check_number("x", value)


@pytest.mark.parametrize(("value", "taken"), [(1e-12, True), (1, True), (1e12, True), (0, False), (1e-13, False)])
def test_positive_numbers(value, taken):
    """A positive number is taken from 1e-12 on, and 0 is not."""
    if taken:
        assert check_positive("x", value) == value
    else:
        with pytest.raises(ConfigError, match="from 1e-12 to"):
            check_positive("x", value)


@pytest.mark.parametrize("value", [2, 7])
def test_whole_numbers_that_are_taken(value):
    """An integer is taken with both ends."""
    assert check_whole("x", value, least=2, most=7) == value


@pytest.mark.parametrize("value", [1, 8, 3.0, True, "3", None])
def test_whole_numbers_that_are_refused(value):
    """An integer beyond an end, a float, a bool and text are refused."""
    with pytest.raises(ConfigError, match="a whole number from 2 to 7"):
        check_whole("x", value, least=2, most=7)


@pytest.mark.parametrize("value", ["c", "", None, 0, ["a"], True])
def test_words_that_are_refused(value):
    """Only one of the words is taken; the message lists them."""
    assert check_word("x", "b", known=("a", "b")) == "b"
    with pytest.raises(ConfigError, match="must be one of a, b, not"):
        check_word("x", value, known=("a", "b"))


@pytest.mark.parametrize("value", ["", None, 3, ["a"], b"a"])
def test_texts_that_are_refused(value):
    """Only text that is not empty is taken, as the name of an arm too."""
    assert (check_text("x", "a", wanted="a path"), check_arm("x", "a")) == ("a", "a")
    with pytest.raises(ConfigError, match="must be a path, not"):
        check_text("x", value, wanted="a path")
    with pytest.raises(ConfigError, match="must be the name of an arm, not"):
        check_arm("x", value)


@pytest.mark.parametrize(("value", "number"), [(1, True), (1.5, True), (math.nan, True), (True, False), ("1", False)])
def test_what_is_a_number(value, number):
    """Integers and floats are numbers, bools and text are not."""
    assert is_number(value) is number


def test_message():
    """The error names the param, what it must be, the value (cut short) and a remedy."""
    error = refused("ridge", "x" * 1000, wanted="a number", remedy="for example 1.0")
    assert str(error) == f"policy.params.ridge: must be a number, not '{'x' * 39} (for example 1.0)"
    assert refused("ridge", 0, wanted="a number").remedy == "leave it out for the default"
