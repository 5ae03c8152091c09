"""The keys that name what a request continues."""

import re

import pytest

from ragbandit.router.storage.decisions import continuing
from ragbandit.router.storage.decisions.continuing import ANSWER, RESULTS, _continued
from ragbandit.router.storage.sql.tables import metadata
from ragbandit.shared.types import Continues, Loop, Query
from tests.support.examples import made_decision


def test_the_functions_and_columns_of_keys_exist():
    """The functions and columns that the docstring of the module names are in it and in the schema."""
    names = re.findall(r"`([a-z_]+(?:\.[a-z_]+)?)`", continuing.__doc__ or "")
    columns = {f"{table.name}.{column.name}" for table in metadata.tables.values() for column in table.columns}
    assert {"calls_key", "answer_key", "task_key", "outcomes.call", "units.key"} <= {*names}
    for name in {*names} - {"responses"}:  # an addition
        assert name in columns or callable(getattr(continuing, name)), name


@pytest.mark.parametrize(
    ("continues", "field"),
    [(Continues(loop=Loop(previous="d1")), RESULTS), (Continues(answer="d1"), ANSWER)],
    ids=["results", "answer"],
)
def test_what_is_continued_once(continues, field):
    """Results and answers may be continued once; the error of a second request names the field of the key."""
    assert _continued(made_decision(query=Query(text="q", continues=continues))) == ("d1", field)
