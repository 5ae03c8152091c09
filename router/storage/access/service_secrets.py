"""Service secrets: random bytes that every process of a store shares, made by the first that needs them."""

import secrets
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select

from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import service_secrets

#: name of the secret that the seeds of draws are made with
DRAWS: Final = "draws"


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """A secret, and when it was made, in seconds since the epoch."""

    value: bytes
    made_at: float


def known_secret(database: Database, *, name: str) -> Secret | None:
    """The secret of this name; None: no process has needed it yet."""
    with database.read() as connection:
        row = connection.execute(select(service_secrets).where(service_secrets.c.name == name)).first()
    return None if row is None else Secret(value=bytes.fromhex(row.value), made_at=row.made_at)


def shared_secret(database: Database, *, name: str, now: float) -> bytes:
    """The secret of this name, 32 random bytes."""
    known = known_secret(database, name=name)
    if known is None:
        with database.write() as connection:
            row = {"name": name, "value": secrets.token_hex(32), "made_at": now}
            insert_new(connection, service_secrets, [row], key="name")
        known = known_secret(database, name=name)  # another process may have been first
    assert known is not None
    return known.value
