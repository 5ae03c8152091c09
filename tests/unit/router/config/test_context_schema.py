"""The schema of the context: what may be declared, and which values callers may send under it."""

import pytest

from ragbandit.router.config.context_schema import ContextKey, check_columns, check_declared, plain_schema
from ragbandit.router.config.loading import load
from ragbandit.router.policies.context import read_schema
from ragbandit.shared.errors import ConfigError, InvalidInput

DECLARED = {
    "age_days": {"type": "number"},
    "asked_by": {"type": "tenant"},
    "customer": {"type": "category", "hashed": 64},
    "premium": {"type": "boolean"},
    "tags": {"type": "words", "hashed": 32, "most": 2},
    "tier": {"type": "category", "values": ["free", "pro"]},
}


def refused(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, environ={})
    return caught.value


def test_a_schema_is_read_and_recorded_in_one_order(tmp_path):
    """A configuration's schema is the same JSON whatever the order of its keys."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "context:\n  tier: {type: category, values: [free, pro]}\n  premium: {type: boolean}\n"
        "  customer: {type: category, hashed: 64}\n  tags: {type: words, hashed: 32, most: 2}\n"
        "  age_days: {type: number}\n  asked_by: {type: tenant}\n"
    )
    found = load(file, environ={}).settings.context
    assert plain_schema(found) == DECLARED
    assert list(plain_schema(found)) == sorted(DECLARED)
    assert read_schema(DECLARED) == found


@pytest.mark.parametrize(
    ("declared", "field", "said"),
    [
        ("tier: {type: categories}", "context.tier.type", "number"),
        ("tier: {values: [a]}", "context.tier.type", "is needed"),
        ("tier: {type: category}", "context.tier", "needs its values"),
        ("tier: {type: category, values: []}", "context.tier.values", "at least 1"),
        ("tier: {type: category, values: [a, a]}", "context.tier", "twice"),
        ("tier: {type: category, values: [a], hashed: 8}", "context.tier", "not both"),
        ("tier: {type: category, values: [1]}", "context.tier.values.0", "string"),
        ("tier: {type: category, hashed: 1}", "context.tier.hashed", "at least 2"),
        ("tier: {type: category, hashed: 100000}", "context.tier.hashed", "256"),
        ("age: {type: number, hashed: 8}", "context.age", "has no hashed"),
        ("age: {type: number, most: 8}", "context.age", "has no most"),
        ("age: {type: number, scale: 8}", "context.age.scale", "unknown"),
        ("age: number", "context.age", "mapping"),
        ('"": {type: number}', "context", "the key '' is invalid"),
        (", ".join(f"k{n}: {{type: number}}" for n in range(65)), "context", "65 keys"),
        ("a: {type: category, hashed: 200}, b: {type: category, hashed: 100}", "context", "302 columns"),
    ],
)
def test_a_schema_that_cannot_be_learned_is_refused(tmp_path, declared, field, said):
    """An unknown type, a category without values, and too many columns raise a ConfigError that names the key."""
    error = refused(tmp_path, f"context: {{{declared}}}")
    assert error.field == field
    assert said in f"{error.message} {error.remedy}"
    assert error.remedy


@pytest.mark.parametrize(
    ("context", "field"),
    [
        ({"age_days": "12"}, "context.age_days"),
        ({"age_days": True}, "context.age_days"),
        ({"age_days": float("nan")}, "context.age_days"),
        ({"age_days": float("inf")}, "context.age_days"),
        ({"age_days": 10**400}, "context.age_days"),
        ({"customer": 7}, "context.customer"),
        ({"premium": 1}, "context.premium"),
        ({"premium": "yes"}, "context.premium"),
        ({"tags": "billing"}, "context.tags"),
        ({"tags": ["a", 1]}, "context.tags"),
        ({"tags": ["a", "b", "c"]}, "context.tags"),
        ({"tier": 3}, "context.tier"),
        ({"tier": ["free"]}, "context.tier"),
        ({"asked_by": "acme"}, "context.asked_by"),
    ],
)
def test_a_value_of_another_type_is_refused(context, field):
    """A declared key with a value of another type is refused, with its name and a remedy."""
    with pytest.raises(InvalidInput) as caught:
        check_declared(context, schema=read_schema(DECLARED))
    assert caught.value.field == field
    assert caught.value.remedy


def test_columns_count_other_and_missing():
    """A closed category has its values, "other" and "missing"; a hashed one its buckets and "missing"."""
    made = {key: one.columns for key, one in read_schema(DECLARED).items()}
    assert made == {"age_days": 2, "customer": 65, "premium": 2, "asked_by": 33, "tags": 33, "tier": 4}
    check_columns({f"k{n}": ContextKey(type="number") for n in range(64)})
