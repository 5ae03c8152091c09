"""Reader of a ledger: what its updates say of each arm, in the order of their seqs, without a gap."""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, select

from ragbandit.router.storage.rows.conversion import reward_at
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.router.storage.totals.excesses import add_excess
from ragbandit.router.storage.totals.rows import Deltas, TotalsPage, hour_of
from ragbandit.shared.types import IMPORTED

_UPDATE: Final = ("seq", "arm", "value", "quality", "cost", "source", "minimum", "maximum", "preset")
_DECISION: Final = ("id", "made_at", "policy", "arms", "facts", "pmf", "cost_weight")


def rewards_reader(label: str) -> str:
    """The name of a ledger's reader."""
    return f"arm_hours:{label}"


def next_rewards(database: Database, *, label: str, weight: float, seen: Mapping[str, Any], limit: int) -> TotalsPage:
    """The next updates of a ledger: `limit` at most. Raises StoreError.

    weight: reward.weight, at which rewards are summed.
    """
    after = int(seen.get("seq", 0))
    with database.read() as connection:
        rows = _page(connection, label=label, after=after, limit=limit)
    deltas = Deltas()
    for row in rows:
        _count(row, label=label, weight=weight, deltas=deltas)
    to = {"seq": rows[-1]["seq"]} if rows else dict(seen)
    return TotalsPage(seen=seen, to=to, deltas=deltas, more=bool(rows))


def _page(connection: Connection, *, label: str, after: int, limit: int) -> list[dict[str, Any]]:
    columns = [updates.c[name] for name in _UPDATE] + [decisions.c[name] for name in _DECISION]
    query = select(*columns).join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
    query = query.where(updates.c.policy == label, updates.c.seq > after).order_by(updates.c.seq).limit(limit)
    return [dict(row) for row in connection.execute(query).mappings()]


def _count(row: Mapping[str, Any], *, label: str, weight: float, deltas: Deltas) -> None:
    if f'"{IMPORTED}":' in row["facts"]:
        return
    hour = hour_of(row["made_at"])
    sums = {"reward": reward_at(row, weight=weight), "quality": float(row["quality"]), "cost": float(row["cost"])}
    squares = {f"{name}_squares": value * value for name, value in sums.items()}
    kind = "learned" if row["source"] == "explicit" else "defaulted"
    deltas.add((label, hour, row["arm"]), **{kind: 1}, **sums, **squares)
    # Where another ledger decided, this one's policy did not serve it.
    if row["policy"] == label and kind == "learned":
        add_excess(deltas, row, policy=label, hour=hour, stage="judged")
