"""Columns of the context: what each type becomes, and the moments that numbers are standardised by."""

import math
import statistics

import numpy as np
import pytest

from ragbandit.router.policies.context import SKETCHED, ContextColumns, read_schema, sketch
from ragbandit.shared.types import Query

NUMBER = {"age": {"type": "number"}}


def columns(declared):
    return ContextColumns(read_schema(declared))


def made(declared, context=None, *, tenant="default", text="who?"):
    return columns(declared).of(Query(text=text, context=context or {}, tenant=tenant)).tolist()


@pytest.mark.parametrize("value", [None, "seven", [1], True, float("nan"), 10**400])
def test_what_is_no_number_is_missing(value):
    """A row that was logged before its key was declared may hold anything: it counts as missing."""
    taught = columns(NUMBER)
    for age in (1.0, 2.0, 3.0):
        taught.learn(Query(text="who?", context={"age": age}))
    before = taught.state()
    query = Query(text="who?", context={"age": value})
    assert taught.of(query).tolist() == [0.0, 1.0]
    taught.learn(query)
    assert taught.state() == before
    assert taught.of(Query(text="who?")).tolist() == [0.0, 1.0]


def test_numbers_are_standardised_by_the_rows_learned():
    """A number's column is its distance from the mean of the learned rows, in their standard deviations, cut at 3."""
    values = [3.0, 8.0, 1.5, 12.0, 7.0]
    taught = columns(NUMBER)
    assert taught.of(Query(text="who?", context={"age": 5.0})).tolist() == [0.0, 0.0]
    for value in values:
        taught.learn(Query(text="who?", context={"age": value}))
    expected = (9.0 - statistics.fmean(values)) / statistics.pstdev(values)
    assert taught.of(Query(text="who?", context={"age": 9})).tolist() == pytest.approx([expected, 0.0])
    assert taught.of(Query(text="who?", context={"age": 1e9})).tolist() == [3.0, 0.0]


def test_one_value_far_out_does_not_hide_the_others():
    """After one value of 1e90 ordinary values are still apart."""
    taught = columns(NUMBER)
    for number in range(100):
        taught.learn(Query(text="who?", context={"age": float(number % 10)}))
    taught.learn(Query(text="who?", context={"age": 1e90}))
    low, high = (taught.of(Query(text="who?", context={"age": age}))[0] for age in (0.0, 9.0))
    assert high - low > 2.0


def test_types_become_columns():
    """Booleans are signs, closed categories one of their columns or "other", and every key has "missing"."""
    assert made({"premium": {"type": "boolean"}}, {"premium": True}) == [1.0, 0.0]
    assert made({"premium": {"type": "boolean"}}, {"premium": False}) == [-1.0, 0.0]
    assert made({"premium": {"type": "boolean"}}) == [0.0, 1.0]
    tier = {"tier": {"type": "category", "values": ["free", "pro"]}}
    assert made(tier, {"tier": "pro"}) == [0.0, 1.0, 0.0, 0.0]
    assert made(tier, {"tier": "enterprise"}) == [0.0, 0.0, 1.0, 0.0]
    assert made(tier) == [0.0, 0.0, 0.0, 1.0]


def test_hashed_values_share_columns_by_their_hash():
    """A hashed category is one signed column; words are added up and divided by the root of their number."""
    customer = {"customer": {"type": "category", "hashed": 16}}
    found = made(customer, {"customer": "acme"})
    assert sorted(map(abs, found)) == [0.0] * 16 + [1.0]
    assert found == made(customer, {"customer": "acme"})
    assert found != made(customer, {"customer": "umbrella"})
    tags = {"tags": {"type": "words", "hashed": 256 - 1, "most": 3}}
    both = np.array(made(tags, {"tags": ["billing", "urgent"]}))
    assert float(both @ both) == pytest.approx(1.0)
    assert both.tolist() == made(tags, {"tags": ["urgent", "billing", "urgent"]})
    assert made(tags, {"tags": []}) == [0.0] * 256


def test_the_tenant_is_filled_in():
    """The question's tenant is a category that needs no caller."""
    assert made({"t": {"type": "tenant", "values": ["acme"]}}, tenant="acme") == [1.0, 0.0, 0.0]
    assert made({"t": {"type": "tenant", "values": ["acme"]}}, tenant="else") == [0.0, 1.0, 0.0]


def test_all_keys_together_weigh_as_much_as_one():
    """The squared length of the columns is about 1, however many keys are declared."""
    schema = {f"k{n}": {"type": "boolean"} for n in range(9)}
    found = np.array(made(schema, {f"k{n}": n % 2 == 0 for n in range(9)}))
    assert float(found @ found) == pytest.approx(1.0)


def test_sketches_multiply_the_kernels():
    """The inner product of two sketches is about that of the questions times that of the contexts."""
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(50):
        x, y = rng.standard_normal((2, 64)).astype(np.float32)
        c, d = rng.standard_normal((2, 5)) / math.sqrt(5)
        errors.append(sketch(x, c) @ sketch(y, d) - (x @ y) / 64 * (c @ d))
    assert sketch(x, c).shape == (SKETCHED,)
    assert abs(np.mean(errors)) < 0.05
    assert np.sqrt(np.mean(np.square(errors))) < 0.3
