"""Secrets that the processes of a store share."""

import hmac
import secrets
from typing import Final

from sqlalchemy import select

from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import service_secrets

#: name of the secret from which the seeds of draws are computed
DRAWS: Final = "draws"


def stored_secret(database: Database, *, name: str) -> bytes | None:
    """The store's secret with this name, 32 bytes; None if no process has made it yet."""
    with database.read() as connection:
        text = connection.execute(select(service_secrets.c.value).where(service_secrets.c.name == name)).scalar()
    return None if text is None else bytes.fromhex(text)


def shared_secret(database: Database, *, name: str, now: float) -> bytes:
    """The store's secret with this name, 32 random bytes. Creates it if it is missing."""
    secret = stored_secret(database, name=name)
    if secret is None:
        with database.write() as connection:
            row = {"name": name, "value": secrets.token_hex(32), "made_at": now}
            insert_new(connection, service_secrets, [row], key="name")
        secret = stored_secret(database, name=name)  # read again, since another process may have created it first
    assert secret is not None
    return secret


def draw_number(purpose: str, decision_id: str, *, secret: bytes) -> float:
    """A pseudorandom number in [0, 1), for example to choose decisions to judge. Callers cannot predict it."""
    # The space makes the number independent of the arm's draw, which hashes a text without a space.
    text = f"ragbandit {purpose}:{decision_id}".encode("utf-8", "surrogatepass")
    return (int.from_bytes(hmac.digest(secret, text, "sha256")[:8], "big") >> 11) * 2.0**-53
