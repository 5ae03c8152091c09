"""Features made again: the configured encoder takes the place of the one that a store began with.

Every decision in the database that has a text gets the features that this encoder makes of it. What has no text
(`log.text: none`, erased) or is archived stays as it is: a policy that needs features is learned without its update
(`Ledger.read_with_decisions`). Meanwhile the ledgers have the encoder `UNFINISHED`, with which no router starts and no
learner learns.
"""

from collections.abc import Callable
from typing import Final

from sqlalchemy import bindparam, func, select, update

from ragbandit.router.encoders.base import Encoder, origin_of
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.archive.reading import archived_decisions
from ragbandit.router.storage.ledgers.registration import ENCODE, UNFINISHED
from ragbandit.router.storage.rows.feature_bytes import features_bytes
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import held_leases
from ragbandit.router.storage.sql.tables import decisions, policies, snapshots
from ragbandit.shared.errors import NotReady

#: decisions of one transaction
BATCH: Final = 256


def encodable(database: Database, *, encoder_hash: str) -> dict[str, int]:
    """How many decisions have features of another encoder: with a text, without one, archived. Raises StoreError."""
    other, has_text = decisions.c.encoder_hash != encoder_hash, decisions.c.text != ""
    counts = (
        select(has_text, func.count()).where(other, has_text | decisions.c.features.is_not(None)).group_by(has_text)
    )
    with database.read() as connection:
        here = {bool(texts): int(count) for texts, count in connection.execute(counts)}
    rows = (row for _, rows in archived_decisions(database) for row in rows)
    archived = sum(row["features"] is not None and row["encoder_hash"] != encoder_hash for row in rows)
    return {"decisions": here.get(True, 0), "without_text": here.get(False, 0), "archived": archived}


def encode(
    database: Database,
    *,
    encoder: Encoder,
    actor: str,
    now: float,
    progress: Callable[[int], None] = lambda _done: None,
) -> None:
    """Make the features of decisions again, then give the ledgers this encoder; nobody else may use the store.

    The same call again goes on with one that was interrupted. Raises NotReady while a learner works, StoreError.
    """
    _begin(database, encoder=encoder, actor=actor, now=now)
    remade = decisions.c.encoder_hash != encoder.hash, decisions.c.text != ""
    rows = select(decisions.c.id, decisions.c.text).where(*remade).order_by(decisions.c.id).limit(BATCH)
    new = update(decisions).where(decisions.c.id == bindparam("of_id"))
    new = new.values(features=bindparam("new"), encoder_hash=encoder.hash)
    done, after = 0, ""
    while True:
        with database.read() as connection:
            batch = connection.execute(rows.where(decisions.c.id > after)).all()
        if not batch:
            break
        features = map(features_bytes, encoder.encode([row.text for row in batch]))
        with database.write() as connection:
            values = [{"of_id": row.id, "new": vector} for row, vector in zip(batch, features, strict=True)]
            connection.execute(new, values)
        done, after = done + len(batch), batch[-1].id
        progress(done)
    with database.write() as connection:
        closed = policies.c.encoder_hash == UNFINISHED
        connection.execute(update(policies).where(closed).values(encoder_hash=encoder.hash))
        connection.execute(update(policies).values(encoder=origin_of(encoder)))
        facts = {"encoder_hash": encoder.hash, "decisions": done}
        record(connection, actor=actor, action=f"{ENCODE}.end", target="store", facts=facts, now=now)


def _begin(database: Database, *, encoder: Encoder, actor: str, now: float) -> None:
    """Close the ledgers of other encoders, and write down which encoders' features go."""
    if any(one.name.startswith("learn:") and one.left_s > 0 for one in held_leases(database, limit=10_000)):
        remedy = "stop all services and workers of this store, then run `ragbandit data encode` again"
        raise NotReady("a learner is at work, so features cannot be made again now", remedy=remedy)
    ours = ("", encoder.hash)
    with database.write() as connection:
        others = policies.c.encoder_hash.not_in(ours)
        connection.execute(update(policies).where(others).values(encoder_hash=UNFINISHED))
        known = select(snapshots.c.encoder_hash).where(snapshots.c.encoder_hash.not_in(ours)).distinct()
        facts = {"encoder_hash": encoder.hash, "replaced": sorted(connection.execute(known).scalars())}
        record(connection, actor=actor, action=ENCODE, target="store", facts=facts, now=now)
