"""Service secrets: random bytes that every process of a store shares, made by the first that needs them."""

import secrets

from sqlalchemy import select

from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import service_secrets


def shared_secret(database: Database, *, name: str, now: float) -> bytes:
    """The secret of this name, 32 random bytes."""
    query = select(service_secrets.c.value).where(service_secrets.c.name == name)
    with database.read() as connection:
        secret = connection.execute(query).scalar()
    if secret is None:
        with database.write() as connection:
            row = {"name": name, "value": secrets.token_hex(32), "made_at": now}
            insert_new(connection, service_secrets, [row], key="name")
            secret = connection.execute(query).scalar_one()  # another process may have been first
    return bytes.fromhex(str(secret))
