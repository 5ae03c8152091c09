"""Searches in JSON columns find keys and values, and no text of a user, on both databases."""

import pytest
from sqlalchemy import Column, MetaData, Table, Text, select

from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.json_columns import has_key, has_object, has_value, key_pattern, object_pattern

ROWS = [
    {"forced": True, "label_request": {"asked": True, "chance": 0.5, "uniform": False}},
    {"forced": False, "label_request": {"asked": True, "uniform": True}},
    {"text": '"forced":true and "label_request":{"asked":true,"uniform":false}'},
    {"labelXrequest": {"asked": True, "uniform": False}},
    {"nested": {"forced": True}},
]


@pytest.fixture
def found(empty):
    """A function: the numbers of the rows that fit a condition on the column."""
    table = Table("json_columns", MetaData(), Column("number", Text), Column("facts", Text))
    with empty.write() as connection:
        table.create(connection)
        connection.execute(
            table.insert(), [{"number": str(number), "facts": canonical(row)} for number, row in enumerate(ROWS)]
        )

    def numbers(condition):
        with empty.read() as connection:
            rows = connection.execute(select(table.c.number).where(condition(table.c.facts)).order_by(table.c.number))
            return [int(row.number) for row in rows]

    return numbers


def test_keys_values_and_objects(found):
    """A key counts on any level; a text that looks like a key does not."""
    assert found(lambda facts: has_key(facts, "forced")) == [0, 1, 4]
    assert found(lambda facts: has_key(facts, "label_request")) == [0, 1]
    assert found(lambda facts: has_value(facts, "forced", True)) == [0, 4]
    last = '"uniform":false'
    assert 2 not in found(lambda facts: has_object(facts, "label_request", first='"asked":true', last=last))
    assert 0 in found(lambda facts: has_object(facts, "label_request", first='"asked":true', last=last))
    assert found(lambda facts: facts.like(key_pattern("forced"))) == [0, 1, 4]
    assert 1 in found(lambda facts: facts.like(object_pattern("label_request", first='"asked":true')))
