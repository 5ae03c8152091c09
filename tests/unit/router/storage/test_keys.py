"""The table of keys that name what a request continues."""

import pkgutil

import pytest

from ragbandit.router.storage.decisions import continuing
from ragbandit.router.storage.decisions.continuing import ANSWER, KEYS, RESULTS, _continued
from ragbandit.shared.types import Continues, Loop, Query
from tests.support.examples import made_decision


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_the_functions_of_a_key_exist(key):
    """Who makes a key and who looks for it are functions of the router."""
    for name in filter(None, (key.made_by, key.found_by)):
        assert callable(pkgutil.resolve_name(f"ragbandit.router.{name}")), name


def test_each_key_is_explained():
    """The page of the module has one numbered entry for each row of the table, in its order."""
    page = continuing.__doc__ or ""
    starts = [page.lower().index(f"\n{place}. ") for place in range(1, len(KEYS) + 1)]
    entries = [page.lower()[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
    assert all(name in entry for name, entry in zip(KEYS, entries, strict=True))
    assert f"\n{len(KEYS) + 1}. " not in page


def test_what_is_continued_once():
    """Results and answers may be continued once; the error of a second request names the field of the table."""
    once = {name: key.once for name, key in KEYS.items() if key.once is not None}
    assert once == {"results of calls": RESULTS, "text of an answer": ANSWER}
    for continues, field in ((Continues(loop=Loop(previous="d1")), RESULTS), (Continues(answer="d1"), ANSWER)):
        assert _continued(made_decision(query=Query(text="q", continues=continues))) == ("d1", field)
