"""A store that was moved from SQLite to PostgreSQL with the command line, compared row by row with the one it was."""

import json
from collections import Counter

from sqlalchemy import select

from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import metadata
from tests.support.command import run


def rows_of(url: str) -> dict[str, Counter[str]]:
    """Table -> its rows, for every table that the schema has."""
    database = Database(url, make=False)
    try:
        with database.read() as connection:
            tables = metadata.sorted_tables
            return {table.name: Counter(map(str, connection.execute(select(table)))) for table in tables}
    finally:
        database.close()


def move(source: str, target: str, monkeypatch, *, config: str = "config.yaml") -> int:
    """Move a store and let this process use the new one: all rows are there, and `verify --deep` gives the same.

    source, target: URLs. monkeypatch: sets DATABASE_URL. config: the file of the settings. Returns the number of rows.
    """
    monkeypatch.setenv("DATABASE_URL", source)
    verified = run("verify", "--deep", "--json", "--config", config, code=0).stdout
    before = rows_of(source)
    monkeypatch.setenv("DATABASE_URL", target)
    done = json.loads(run("migrate", "--from", source, "--json", "--config", config, code=0).stdout)
    assert rows_of(target) == before
    assert run("verify", "--deep", "--json", "--config", config, code=0).stdout == verified
    assert done["rows"] == sum(rows.total() for rows in before.values())
    return int(done["rows"])
