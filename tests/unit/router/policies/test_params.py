"""Params of policies: the types of their fields, and what is refused."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from ragbandit.router.policies.base import (
    ArmParam,
    Count,
    HasParams,
    Number,
    PolicyParams,
    Positive,
    Share,
    Text,
    Whole,
    read_params,
)
from ragbandit.shared.errors import ConfigError
from tests.support.cases import every_case


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample(PolicyParams):
    """One field of every type."""

    arm: ArmParam
    number: Number = 1.0
    positive: Positive = 1.0
    share: Share = 0.5
    whole: Whole = 0
    count: Count = 1
    text: Text = "x"
    maybe: Number | None = None

    arms_named: ClassVar[tuple[str, ...]] = ("arm",)


def read(**given):
    return read_params(Sample, given={"arm": "a"} | given)


@pytest.mark.parametrize("field", ["number", "positive", "share"])
def test_numbers_that_are_refused(field):
    """Neither a number out of range, NaN, a bool nor another type is a number."""
    with every_case() as case:
        for value in (-1e-9, 1e13, 10**400, math.nan, math.inf, True, "1", None, [1.0], 1j):
            with case(f"{value!r:.30}"):
                with pytest.raises(ConfigError) as caught:
                    read(**{field: value})
                assert caught.value.field == f"policy.params.{field}"
                assert caught.value.remedy


@pytest.mark.parametrize(
    ("field", "value", "taken"),
    [
        ("positive", 1e-12, True),
        ("positive", 0, False),
        ("positive", 1e-13, False),
        ("share", 0, True),
        ("share", 1, True),
        ("share", 1.0001, False),
        ("whole", 0, True),
        ("whole", -1, False),
        ("whole", 3.0, False),
        ("whole", True, False),
        ("whole", 10**9, True),
        ("whole", 10**9 + 1, False),
        ("count", 1, True),
        ("count", 0, False),
        ("text", "a", True),
        ("text", "", False),
        ("text", None, False),
        ("text", b"a", False),
        ("arm", "", False),
        ("arm", 3, False),
        ("maybe", None, True),
        ("maybe", 3, True),
        ("maybe", -1, False),
    ],
)
def test_ends_of_ranges(field, value, taken):
    """A range takes its ends and nothing beyond them; types are taken literally."""
    if taken:
        assert getattr(read(**{field: value}), field) == value
    else:
        with pytest.raises(ConfigError, match=f"policy.params.{field}: .* cannot be used"):
            read(**{field: value})


def test_unknown_and_needed_params_are_refused():
    """An unknown param is refused without its value, which may be a secret; one without default is needed."""
    with pytest.raises(ConfigError) as caught:
        read(api_key="sk-secret")
    assert "sk-secret" not in str(caught.value)
    assert caught.value.field == "policy.params.api_key"
    assert "number, positive" in caught.value.remedy
    with pytest.raises(ConfigError, match=r"policy\.params\.arm: is needed"):
        read_params(Sample, given={})


def test_params_and_arms_named():
    """A policy records every field after defaults, and the arms that its params name."""
    policy = HasParams(read(number=3))
    recorded = {"arm": "a", "number": 3.0, "positive": 1.0, "share": 0.5, "whole": 0, "count": 1, "text": "x"}
    assert policy.params == recorded | {"maybe": None}
    assert policy.arms_named == {"arm": "a"}
