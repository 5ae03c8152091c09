"""SQLite schemas that are compared once per test process with what this release declares, in place of 8 ms each.

Thousands of tests open a copy of one file. A schema whose statements differ in one character is compared itself.
"""

from typing import Any

from sqlalchemy import Connection, text

from ragbandit.router.storage.sql import schema, tables

_STATEMENTS = text("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")


def share_schema_checks() -> None:
    """From now on the tables of a database are not compared again if one with the same statements was accepted."""
    compare, accepted = schema.check_tables, set[Any]()

    def check_tables(connection: Connection, *, revision: str) -> None:
        if connection.dialect.name != "sqlite":
            compare(connection, revision=revision)
            return
        key = (revision, tables.SCHEMA_REVISION, *map(tuple, connection.execute(_STATEMENTS)))
        if key not in accepted:
            compare(connection, revision=revision)
            accepted.add(key)

    schema.check_tables = check_tables
