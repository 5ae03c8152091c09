"""The tables as analysts read them: every table says what it is, and the queries of docs/store.md run."""

import re

import pytest
from sqlalchemy import text

from docs.generate import DOCS
from ragbandit.router.storage.sql.tables import metadata

#: in the order of the page; the third is of SQLite, the fourth of PostgreSQL
QUERIES = re.findall(r"```sql\n(.*?)```", (DOCS / "store.md").read_text(), re.S)


@pytest.fixture
def learned(make_world, database_url):
    """A world that has learned from six decisions."""
    world = make_world(database_url=database_url)
    world.judged(6)
    world.learn()
    return world


def rows(world, query: str) -> list:
    with world.database.read() as connection:
        return list(connection.execute(text(query.replace(":", "\\:"))))


@pytest.mark.parametrize("table", metadata.sorted_tables, ids=lambda table: table.name)
def test_every_table_says_what_it_is(table):
    """A table has a sentence, and each column that its name does not explain has one."""
    assert len(table.comment) > 15
    unsaid = [column.name for column in table.columns if not column.comment]
    assert len(unsaid) <= 10, unsaid


def test_the_queries_of_the_page(learned):
    """They run on this database, and say what the values of the domain say."""
    updates = list(learned.ledger.read(after=0))
    assert len(updates) == 6
    by_arm = {arm: [one for one in updates if one.arm == arm] for arm in {one.arm for one in updates}}
    for row in rows(learned, QUERIES[0]):
        rewards = [one.reward.value for one in by_arm[row.arm]]
        assert (row.learned, row.reward) == (len(rewards), pytest.approx(sum(rewards) / len(rewards)))
    for row in rows(learned, QUERIES[1]):
        weighted = sum(one.reward.value / one.propensity for one in by_arm[row.arm])
        assert row.always == pytest.approx(weighted / len(updates))
    drawn = {
        (row.id, row.arm): (row.probability, row.score)
        for row in rows(learned, QUERIES[2 + (not learned.database.is_sqlite)])
    }
    expected = {
        (one.decision_id, arm): (one.pmf[place], one.scores and one.scores[place])
        for one in updates
        for place, arm in enumerate(one.arms)
    }
    assert drawn == expected
