"""Registration of policies: a ledger becomes known by its label, and inherits the decisions that it has not seen."""

from typing import Any

from sqlalchemy import Connection, RowMapping, Select, exists, literal, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from ragbandit.router.errors import Conflict
from ragbandit.router.storage.bulk_insert import insert_new
from ragbandit.router.storage.counters import Moves, counted
from ragbandit.router.storage.database import Database
from ragbandit.router.storage.tables import closures, decisions, feedback, outcomes, policies, updates, waiting
from ragbandit.router.types import PolicyLabel

__all__ = ["register_policy"]

#: columns of `waiting`, in the order of `_history`
_ROOM = ["policy", "decision_id", "decided_at", "run_by", "has_outcome", "has_feedback", "has_reward"]


def register_policy(
    database: Database, *, label: PolicyLabel, algorithm: str, params: str, encoder_hash: str, now: float
) -> None:
    """Make the ledger known. It inherits every decision in the store that it has not seen as waiting.

    Raises Conflict if the ledger was learned with another encoder: its features would not fit.
    """
    with database.write() as connection:
        row = {
            "label": label,
            "algorithm": algorithm,
            "params": params,
            "encoder_hash": encoder_hash,
            "made_at": now,
        }
        # A label that is known has a row in `waiting` for every decision since: there is nothing to inherit.
        kept = _policy_row(connection, label=label)
        if kept is None:
            if _register_new(connection, row):
                return
            kept = _policy_row(connection, label=label)
            assert kept is not None
        other = _other_encoder(connection, kept["encoder_hash"], ours=encoder_hash, label=label)
        if other is not None:
            raise Conflict(
                f"the ledger {label!r} was learned with encoder {other[:12]}, "
                f"the configured encoder is {encoder_hash[:12]}",
                field="encoder",
                remedy="set the encoder back, or start a new ledger with another policy.label",
            )
        if (kept["algorithm"], kept["params"], kept["encoder_hash"]) != (algorithm, params, encoder_hash):
            connection.execute(
                update(policies)
                .where(policies.c.label == label)
                .values(algorithm=algorithm, params=params, encoder_hash=encoder_hash, made_at=now)
            )


def _other_encoder(connection: Connection, kept: str, *, ours: str, label: PolicyLabel) -> str | None:
    """The encoder of what this ledger learned, where a policy that needs features of `ours` cannot follow it."""
    if kept or not ours:
        return kept if ours not in ("", kept) else None
    # Learned so far by a policy that needs no features: whichever encoder the decisions had.
    query = select(decisions.c.encoder_hash).join(updates, updates.c.decision_id == decisions.c.id)
    query = query.where(updates.c.policy == label, decisions.c.encoder_hash != ours)
    return connection.execute(query.limit(1)).scalar()


def _policy_row(connection: Connection, *, label: PolicyLabel) -> RowMapping | None:
    return connection.execute(select(policies).where(policies.c.label == label)).mappings().first()


def _register_new(connection: Connection, row: dict[str, Any]) -> bool:
    """Insert the label, with every decision in the store as waiting; False if another router was first."""
    if connection.dialect.name == "postgresql":
        # A decision that is being committed has not seen this label, and this label would not see it. The lock
        # stops every insert until this transaction ends, so it is taken once per label and not at every start.
        connection.execute(text("LOCK TABLE decisions IN SHARE MODE"))
    if not insert_new(connection, policies, [row], key="label"):
        return False
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    inherited = dialect.insert(waiting).from_select(_ROOM, _history(row["label"]))
    before = counted(connection, label=row["label"])
    connection.execute(inherited.on_conflict_do_nothing())
    after = counted(connection, label=row["label"])
    moves = Moves()
    for name in ("waiting", "unanswered", "missing_outcome"):
        moves.add(name, after[name] - before[name], label=row["label"])
    moves.write(connection, shard=0)
    return True


def _history(label: str) -> Select[Any]:
    """Waiting rows for the decisions of which this ledger knows nothing: made before it, or under another label."""
    fed = exists().where(feedback.c.decision_id == decisions.c.id)
    rewarded = fed.where(feedback.c.kind == "reward")
    done = exists().where(outcomes.c.decision_id == decisions.c.id)
    seen = [
        exists().where(table.c.policy == label, table.c.decision_id == decisions.c.id)
        for table in (waiting, updates, closures)
    ]
    return (
        select(literal(label), decisions.c.id, decisions.c.made_at, decisions.c.run_by, done, fed, rewarded)
        .select_from(decisions)
        .where(*(~known for known in seen))
    )
