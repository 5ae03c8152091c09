"""The page of the tables, from their metadata."""

from typing import Final

from sqlalchemy import Column, Table
from sqlalchemy.dialects import postgresql

from ragbandit.router.storage.sql.tables import metadata

#: the tables that analysts begin with
_FIRST: Final = ("decisions", "outcomes", "feedback", "updates", "closures", "waiting")

_HEAD: Final = """# Tables

The schema of the store, written from the code by `make docs`. It is an interface for analysts: a column that is named
here keeps its meaning until a migration of a new release says otherwise (CHANGELOG). Use a role that may only read:
what is written beside the service is not counted, and `ragbandit verify` names it.

SQLite and PostgreSQL have the same tables. Times are seconds since the epoch (UTC), texts that say "JSON" are JSON, and
numbers in them are float64 to the last bit. `features` and `trace` alone are bytes: `ragbandit data export` and
`GET /v1/decisions/{id}` give traces in readable form. On PostgreSQL `\\d+ decisions` shows the meanings too.

## Three questions

With `sqlite3 .ragbandit/ragbandit.db` or `psql "$DATABASE_URL"` (as psql takes it, without `+psycopg`). What each arm
was worth, by what was learned in the ledger `main`:

```sql
SELECT arm, count(*) AS learned, avg(value) AS reward, avg(quality) AS quality, avg(cost) AS cost
FROM updates WHERE policy = 'main' GROUP BY arm ORDER BY arm;
```

What always taking one arm would have earned (importance weighting; `ragbandit replay` gives intervals and better
estimates):

```sql
SELECT arm, sum(value / propensity) / (SELECT count(*) FROM updates WHERE policy = 'main') AS always
FROM updates WHERE policy = 'main' GROUP BY arm ORDER BY arm;
```

The probability and the score of every arm in the newest decisions, with SQLite:

```sql
SELECT d.id, a.value AS arm, p.value AS probability, s.value AS score
FROM (SELECT * FROM decisions ORDER BY made_at DESC LIMIT 20) AS d
JOIN json_each(d.arms) AS a JOIN json_each(d.pmf) AS p ON p.key = a.key
LEFT JOIN json_each(d.scores) AS s ON s.key = a.key;
```

and with PostgreSQL:

```sql
SELECT d.id, a.arm, p.value::float8 AS probability, (d.scores::json ->> (a.n - 1)::int)::float8 AS score
FROM (SELECT * FROM decisions ORDER BY made_at DESC LIMIT 20) AS d
CROSS JOIN json_array_elements_text(d.arms::json) WITH ORDINALITY AS a (arm, n)
JOIN json_array_elements_text(d.pmf::json) WITH ORDINALITY AS p (value, n) ON p.n = a.n;
```
"""


def schema_page() -> str:
    """docs/schema.md."""
    names = [*_FIRST, *sorted(metadata.tables.keys() - {*_FIRST})]
    return "\n".join([_HEAD, *(_table(metadata.tables[name]) for name in names)])


def _table(table: Table) -> str:
    comment = table.comment or ""
    rows = [f"## `{table.name}`", "", f"{comment[:1].upper()}{comment[1:]}.", "", "| column | type | is |"]
    rows += ["|---|---|---|", *(_column(column) for column in table.columns)]
    return "\n".join([*rows, ""])


def _column(column: Column[object]) -> str:
    kind = column.type.compile(postgresql.dialect()).lower().replace("varchar", "text")  # type: ignore[no-untyped-call] # SQLAlchemy leaves it untyped
    more = ["key"] if column.primary_key else [] if not column.nullable else ["may be NULL"]
    more += [f"of `{key.target_fullname}`" for key in column.foreign_keys]
    meaning = "; ".join([*more, *([column.comment.replace("|", "\\|")] if column.comment else [])])
    return f"| `{column.name}` | {kind} | {meaning} |"
