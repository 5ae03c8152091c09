"""Reads of JSON columns are narrowed to rows that may have a key; parsing decides, on both databases."""

import pytest
from sqlalchemy import Column, MetaData, Table, Text, select

from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.json_columns import if_it_may_have, may_have, object_or_empty

ROWS = [
    {"forced": True, "label_request": {"asked": True}},
    {"forced": False},
    {"text": '"forced":true and "label_request":{"asked":true}'},
    {"labelXrequest": {"asked": True}},
    {"schema": {"forced": True}},
    {"forced": 'a NUL \0, a lone quote " and no end'},
]


@pytest.fixture
def read(empty):
    """A function that returns (number, value of an expression) of the rows that fit a condition on the column."""
    table = Table("json_columns", MetaData(), Column("number", Text), Column("facts", Text))
    with empty.write() as connection:
        table.create(connection)
        texts = [*map(canonical, ROWS), "{damaged", '{"forced":', "null"]
        connection.execute(table.insert(), [{"number": str(n), "facts": text} for n, text in enumerate(texts)])

    def rows(*names):
        query = select(table.c.number, if_it_may_have(table.c.facts, *names)).order_by(table.c.number)
        with empty.read() as connection:
            narrowed = {int(number): text for number, text in connection.execute(query) if text is not None}
            same = connection.execute(select(table.c.number).where(may_have(table.c.facts, *names)))
            assert sorted(map(int, same.scalars())) == [*narrowed]
        return narrowed

    return rows


def test_a_key_is_read_by_parsing(read):
    """Rows that may have a key are few, none with the key is missing, and only their parsed top level has it."""
    narrowed = read("forced")
    assert [*narrowed] == [0, 1, 4, 5, 7]
    assert [n for n, text in narrowed.items() if "forced" in object_or_empty(text)] == [0, 1, 5]
    assert [*read("label_request")] == [0]
    assert [*read("forced", "label_request", "labelXrequest")] == [0, 1, 3, 4, 5, 7]
