"""Agreement of callers: a server's words may repeat what a caller wrote, so one of several callers decides nothing."""

from collections.abc import Collection
from typing import Final

from sqlalchemy import and_, select

from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions

#: tenant, API key and hash of a request whose reply was a sign
Sign = tuple[str, str | None, str]

#: time in which other callers count as seen, seconds
_RECENT_S: Final = 3600.0


def agree(signs: Collection[Sign], *, database: Database, now: float) -> bool:
    """Whether two tenants received a sign: two keys if no other tenant asked in the last hour, or two questions if no
    other key asked in that hour. signs: at least one. Raises StoreError.
    """
    with database.read() as connection:
        for column, values in zip((decisions.c.tenant, decisions.c.api_key), zip(*signs, strict=True), strict=False):
            if len(set(values)) > 1:
                return True
            is_other = and_(decisions.c.made_at > now - _RECENT_S, column.is_distinct_from(values[0]))
            if connection.execute(select(decisions.c.id).where(is_other).limit(1)).first() is not None:
                return False
    return len(set(signs)) > 1
