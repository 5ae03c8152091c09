"""Links between decisions. Erasure follows them, since a decision may repeat the words of those before it.

A response that continues another one is stored with the messages of its own turn and the ids of the responses before
it, so a conversation is stored once.
"""

from typing import Final

from sqlalchemy import ColumnElement, RowMapping, or_, select

from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, QueriedFacts, ids_of, or_unfilled
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.tables import decisions

#: maximum number of ids in `Continues.chain` and `Continues.quoted`
MOST_LINKS: Final = 32
#: number of rows whose links are looked up at once
_BATCH: Final = 100


def followers(connection: Connection, selected: ColumnElement[bool], *, chains: bool) -> set[str]:
    """Ids of further rows in turns and failovers of selected rows. chains: also of responses that continue them."""
    has_links = or_(decisions.c.turn_of.is_not(None), decisions.c.belongs_to.is_not(None))
    has_links = or_(has_links, decisions.c.responses.is_not(None)) if chains else has_links
    rows = (
        select(*decisions.c["id", "turn_of"], *FACT_COLUMNS).order_by(decisions.c.made_at).where(or_unfilled(has_links))
    )
    found, count = set[str](), -1
    while len(found) > count:  # repeated while rows are found, because links can lead to earlier rows
        count = len(found)
        for batch in connection.execute(rows.execution_options(yield_per=_BATCH)).mappings().partitions():
            links = [_links(row, chains=chains) for row in batch]
            ids = set[str]().union(*(linked for _, linked in links))
            known = set(connection.execute(select(decisions.c.id).where(decisions.c.id.in_(ids), selected)).scalars())
            for group, linked in links:
                if not linked.isdisjoint(known | found):
                    found |= group - known
    return found


def _links(row: RowMapping, *, chains: bool) -> tuple[set[str], set[str]]:
    """Returns (ids of the row, of its decision and of its failovers, the same ids and with `chains` all linked ids)."""
    facts = QueriedFacts.of_row(row)
    group = {row["id"], row["turn_of"] or row["id"], *ids_of(facts.belongs_to)}
    return group, group | ids_of(facts.responses) if chains else group
