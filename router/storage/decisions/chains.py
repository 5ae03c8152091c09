"""Links between decisions. Erasure follows them, since a decision may repeat the words of those before it.

A response that continues another one is stored with the messages of its own turn and the ids of the responses before
it, so a conversation is stored once.
"""

from typing import Final

from sqlalchemy import ColumnElement, Connection, or_, select

from ragbandit.router.storage.decisions.tool_turns import TOOL_TURN, edge_of
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.failures import FAILOVER

#: keys in `Query.request`: id of the response that a response continues, as the caller sent it; and ids that the
#: responses of the items in the input may have, at most MOST_LINKS
PREVIOUS: Final = "previous_response_id"
QUOTED: Final = "quoted"
#: keys in `Query.request` with links and without texts
LINKS: Final = (PREVIOUS, QUOTED, TOOL_TURN, FAILOVER)
#: key in `Query.request`: ids of the responses before this one, nearest first, at most MOST_LINKS
CHAIN: Final = "chain"
MOST_LINKS: Final = 32
#: number of rows whose links are looked up at once
_BATCH: Final = 100


def followers(connection: Connection, selected: ColumnElement[bool], *, chains: bool) -> set[str]:
    """Ids of the decisions that belong to the loops and failovers of selected ones, or follow them in `chains`."""
    linked = or_(*(decisions.c.request.contains(f'"{name}":', autoescape=True) for name in LINKS[0 if chains else 2 :]))
    rows = select(*decisions.c["id", "request"]).where(linked).order_by(decisions.c.made_at)
    found, count = set[str](), -1
    while len(found) > count:  # once more, because links can lead to earlier rows
        count = len(found)
        for batch in connection.execute(rows.execution_options(yield_per=_BATCH)).partitions():
            links = {row.id: _links(row.request, chains=chains) for row in batch}
            ids = {*links}.union(*(firsts | before for firsts, before in links.values()))
            known = set(connection.execute(select(decisions.c.id).where(decisions.c.id.in_(ids), selected)).scalars())
            for key, (firsts, before) in links.items():
                if key in known or any(one in known or one in found for one in (key, *firsts, *before)):
                    found |= {key, *firsts} - known
    return found


def _links(request: str, *, chains: bool) -> tuple[set[str], set[str]]:
    """Returns (ids of the decisions that began its loop and failover, ids of other decisions that it follows)."""
    edge = edge_of(request)
    firsts = {str(link.get("first")) for link in map(edge.get, (TOOL_TURN, FAILOVER)) if isinstance(link, dict)}
    return firsts, {str(edge.get(PREVIOUS)), *(edge.get(QUOTED) or ())} if chains else set()
