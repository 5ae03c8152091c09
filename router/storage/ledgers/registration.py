"""Registration of policies: a ledger becomes known by its label, at once, whatever the store holds."""

import json
import socket
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, select, update

from ragbandit.router.storage.access.audit_log import last_entry, record
from ragbandit.router.storage.ledgers.inheritance import BEGUN
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, policies, updates
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import PolicyLabel

OTHER_ENCODER: Final = "set the encoder back (auto is the one that the store began with), or begin another policy.label"


def register_policy(
    database: Database,
    *,
    label: PolicyLabel,
    algorithm: str,
    params: str,
    encoder_hash: str,
    now: float,
    encoder: str | None = None,
) -> None:
    """Make the ledger known: from now on decisions wait for it.

    Those from before a new label, or from while it was retired, get their place by `inheritance.inherit`. Nothing is
    counted or locked. encoder: JSON of `encoders.base.origin_of`, kept from the first time on for as long as the ledger
    has this encoder. Raises Conflict if the ledger was learned with another encoder: its features would not fit.
    """
    with database.write() as connection:
        row = {
            "label": label,
            "algorithm": algorithm,
            "params": params,
            "encoder_hash": encoder_hash,
            "made_at": now,
        }
        origin = {} if encoder is None else {"encoder": encoder}
        known = _policy_row(connection, label=label)
        if known is None:
            if insert_new(connection, policies, [row | BEGUN | origin], key="label"):
                _record(connection, "ledger.register", row)
                return
            known = _policy_row(connection, label=label)  # another router was first
            assert known is not None
        other = _other_encoder(connection, known["encoder_hash"], ours=encoder_hash, label=label)
        if other is not None:
            raise Conflict(
                f"the ledger {label!r} was learned with encoder {other[:12]}, "
                f"the configured encoder is {encoder_hash[:12]}",
                field="encoder",
                remedy=OTHER_ENCODER,
            )
        changed: dict[str, Any] = {}
        if (known["algorithm"], known["params"], known["encoder_hash"]) != (algorithm, params, encoder_hash):
            changed = row
        if known["retired_at"] is not None:
            changed = changed | BEGUN
        if changed:
            _record(connection, "ledger.change" if "algorithm" in changed else "ledger.return", row)
        if known["encoder"] is None or not known["encoder_hash"]:
            changed = changed | origin
        if changed:
            connection.execute(update(policies).where(policies.c.label == label).values(**changed))


def origin_in(database: Database, *, label: PolicyLabel) -> dict[str, Any] | None:
    """`policies.encoder` of this ledger, else of the newest of the store that has it; None: no ledger does."""
    has = policies.c.encoder.is_not(None)
    query = (
        select(policies.c.encoder).where(has).order_by((policies.c.label == label).desc(), policies.c.made_at.desc())
    )
    with database.read() as connection:
        text = connection.execute(query.limit(1)).scalar()
    return None if text is None else dict(json.loads(text))


def replaced_encoders(database: Database) -> frozenset[str]:
    """Encoders whose features an earlier release made again with another one, as its verb wrote in the audit log."""
    with database.read() as connection:
        entry = last_entry(connection, action="features.encode", target="store")
    replaced: Any = () if entry is None else entry.facts["replaced"]
    return frozenset(replaced)


def _record(connection: Connection, action: str, row: dict[str, Any]) -> None:
    facts = {name: row[name] for name in ("algorithm", "params", "encoder_hash")}
    host = socket.gethostname()
    record(connection, actor=f"process:router@{host}", action=action, target=f"ledger:{row['label']}", facts=facts)


def _other_encoder(connection: Connection, kept: str, *, ours: str, label: PolicyLabel) -> str | None:
    """The encoder of what this ledger learned, where a policy that needs features of `ours` cannot follow it."""
    if kept or not ours:
        return kept if ours not in ("", kept) else None
    # Learned so far by a policy that needs no features: whichever encoder the decisions had.
    learned = decisions.c.encoder_hash
    query = select(learned).join_from(decisions, updates, updates.c.decision_id == decisions.c.id)
    query = query.where(updates.c.policy == label, learned != ours)
    return connection.execute(query.limit(1)).scalar()


def _policy_row(connection: Connection, *, label: PolicyLabel) -> RowMapping | None:
    return connection.execute(select(policies).where(policies.c.label == label)).mappings().first()
