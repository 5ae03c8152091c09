"""Lists of ratings are read value by value, as json.loads reads them."""

import json
from itertools import islice

import pytest

from ragbandit.additions.other_tools.ratings.rating_lists import MOST_CHARACTERS, STEP, RatingList

ROWS = [{"id": "é😀", "data": {"rating": -1.5e3}}, None, 12, "a,]}", [], True, {"x": {"y": [1, 2]}}]


@pytest.mark.parametrize("step", [1, 7, STEP])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_rows_are_those_of_the_document(step, indent):
    """The list may be the document or a field of it, among other fields, with any white space."""
    for document in ([], ROWS, {"items": ROWS, "total": 7}, {"total": 7, "data": ROWS, "meta": {"cursor": "c"}}):
        read = RatingList(json.dumps(document, ensure_ascii=False, indent=indent).encode(), step=step)
        assert [*read.rows()] == (document if isinstance(document, list) else ROWS)
        assert read.is_bare == isinstance(document, list)
        assert read.meta == ({"cursor": "c"} if "meta" in document else None)


def test_a_list_is_not_held_as_values():
    """The first rows are yielded without reading the end of the text, where the fault is."""
    rows = RatingList(b'{"items": [' + b'{"id": 1}, ' * 20_000 + b"oops").rows()
    assert [*islice(rows, 3)] == [{"id": 1}] * 3
    with pytest.raises(ValueError, match="not JSON"):
        list(rows)


@pytest.mark.parametrize(
    "body",
    [
        *("", "5", "{}", '{"items": 5}', "[1", "[1 2]", "[1]x", '{"items": [1]', '{"items" [1]}', "{1: [2]}", "<html>"),
        *("[" * 100_000, '{"data": [1], "data": [2]}x', f'["{"x" * 2 * MOST_CHARACTERS}"]', "[1,]"),
    ],
)
def test_what_is_not_a_list_is_an_error(body):
    """Broken documents, documents without a list, and values above the cap are errors."""
    with pytest.raises(ValueError, match="the reply is not JSON"):
        list(RatingList(body.encode()).rows())
