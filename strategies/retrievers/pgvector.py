# ruff: noqa: S608 - psycopg quotes every name in a statement, and every value is a parameter
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import psycopg
from pgvector.psycopg import register_vector
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from ragbandit.shared.errors import ConfigError, RagBanditError
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Hit
from ragbandit.strategies.retrievers.databases import CONNECTIONS, Batches, DatabaseRetriever, Distance

#: field -> default column. "a.b" is the key b in the JSON column a. Title and url are optional
COLUMNS: Final = {"id": "id", "title": "title", "text": "text", "url": "url", "vector": "embedding"}
#: distance -> (operator of pgvector, operator class without the type)
_OPERATORS: Final = {"cosine": ("<=>", "cosine_ops"), "dot": ("<#>", "ip_ops"), "euclid": ("<->", "l2_ops")}
_COMMENT: Final = "SELECT obj_description(to_regclass(%s), 'pg_class') WHERE to_regclass(%s) IS NOT NULL"
_TYPES: Final = """
    SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
#: counts the HNSW indexes of a table; a view counts as having an index
_HAS_GRAPH: Final = """
    SELECT count(*) FROM pg_class c LEFT JOIN pg_index i ON indrelid = c.oid AND indisvalid
    LEFT JOIN pg_opclass o ON o.oid = ANY(indclass) LEFT JOIN pg_am a ON a.oid = opcmethod
    WHERE c.oid = to_regclass(%s) AND (relkind = 'v' OR (amname = 'hnsw' AND opcname = %s))
"""


class PgvectorRetriever(DatabaseRetriever):
    """Searches passages by meaning in a table of PostgreSQL with pgvector.

    index: TABLE or SCHEMA.TABLE. exact: True to compare every vector, without an HNSW index. timeout_s: timeout of
    connecting, and of a search. Raises ConfigError for an invalid dsn; the message does not contain the dsn.
    """

    kind = "pgvector"
    errors: ClassVar[tuple[type[Exception], ...]] = (SQLAlchemyError,)

    def __init__(
        self,
        dsn: str,
        *,
        index: str,
        fields: Mapping[str, str] | None = None,
        exact: bool = True,
        distance: Distance = "cosine",
        timeout_s: float = 10.0,
    ) -> None:
        super().__init__(index=index, fields=fields)
        self.exact, self.distance = exact, distance
        self._timeout_ms = round(timeout_s * 1000)
        limits: dict[str, Any] = {"connect_timeout": max(2, round(timeout_s)), "tcp_user_timeout": self._timeout_ms}
        try:
            self._target = limits | conninfo_to_dict(dsn)
        except psycopg.Error:  # the error is not passed on, because its text repeats the dsn
            remedy = "set the variable to postgresql://USER:PASSWORD@HOST/DATABASE"
            fault = "the variable's value is not a connection string"
            raise ConfigError(fault, field="retriever.dsn_env", remedy=remedy) from None
        pool: dict[str, Any] = {"pool_size": CONNECTIONS, "max_overflow": 0, "pool_timeout": timeout_s}
        self._engine = create_engine("postgresql+psycopg://", creator=self._connect, pool_pre_ping=True, **pool)
        self._table = _quoted(*index.split("."))
        self._names = COLUMNS | self.fields
        self._operator, self._operators = _OPERATORS[distance]

    def _connect(self) -> "psycopg.Connection[Any]":
        connection = psycopg.connect(**self._target, prepare_threshold=None)  # PgBouncer switches connections
        try:
            register_vector(connection)
        except psycopg.ProgrammingError as error:
            connection.close()
            fault, remedy = "the database has no extension vector", "run in it: CREATE EXTENSION vector"
            raise ConfigError(fault, field="retriever.dsn_env", remedy=remedy) from error
        connection.commit()
        return connection

    @contextmanager
    def _begin(self, **limits: object) -> Iterator[Callable[..., Any]]:
        """Begin a transaction. limits: settings, with "__" for ".". Yields the function that runs a statement."""
        with self._engine.begin() as connection:
            for name, value in limits.items():
                connection.exec_driver_sql(f"SET LOCAL {name.replace('__', '.')} = {value}")
            yield connection.exec_driver_sql

    def _read(self) -> None:
        with self._begin(statement_timeout=self._timeout_ms) as ask:
            types = {name: kind for name, kind in ask(_TYPES, (self._table,))}  # noqa: C416 - rows are no pairs
            if not types:
                raise self._unusable(f"{self.index!r} is not a table of this database")
            for field, name in list(self._names.items()):
                if name.split(".")[0] not in types:
                    if field not in ("title", "url") or field in self.fields:
                        remedy = f"set retriever.fields.{field} to one of its columns: {', '.join(types)}"
                        fault = f"{self.index!r} has no column {name!r}"
                        raise self._unusable(fault, field=f"fields.{field}", remedy=remedy)
                    del self._names[field]
            name = self._names["vector"]
            self._type, vector = types[name], _quoted(name)
            if self._type not in ("vector", "halfvec"):
                fault = f"{self.index!r} has a column {name!r} of the type {self._type}, not vector or halfvec"
                remedy = "set retriever.fields.vector to a column of vectors"
                raise self._unusable(fault, field="fields.vector", remedy=remedy)
            operators = f"{self._type}_{self._operators}"
            if not self.exact and not ask(_HAS_GRAPH, (self._table, operators)).scalar():
                remedy = f"CREATE INDEX ON {self._table} USING hnsw ({vector} {operators})"
                fault = f"{self.index!r} has no HNSW index of {self.distance}"
                raise self._unusable(fault, field="search_by", remedy=remedy)
            first = f"SELECT vector_dims({vector}) FROM {self._table} WHERE {vector} IS NOT NULL LIMIT 1"
            self.width = ask(first).scalar()
            self.meta = _meta_in(ask(_COMMENT, (self._table, self._table)).scalar())
        chosen = ", ".join(f"({_value(name)})::text AS {key}" for key, name in self._names.items() if key != "vector")
        self._rows = f"SELECT {chosen}, {vector} {self._operator} CAST(%s AS {self._type}) AS far FROM {self._table}"

    def _nearest(self, vector: npt.NDArray[np.float32], *, k: int) -> list[Hit]:
        limits: dict[str, object] = {"statement_timeout": self._timeout_ms}
        if self.exact:
            limits["enable_indexscan"] = "off"
        else:
            limits["hnsw__ef_search"] = min(1000, max(100, 2 * k))  # pgvector allows at most 1,000 candidates
        has_vector = f"{_quoted(self._names['vector'])} IS NOT NULL"
        order = "far, id" if self.exact else "far"  # an HNSW index cannot order by a second column
        with self._begin(**limits) as ask:
            rows = ask(f"{self._rows} WHERE {has_vector} ORDER BY {order} LIMIT %s", (vector, k)).mappings().all()
        best = 1.0 if self.distance == "cosine" else 0.0
        # A vector of zeros is left out: it has no cosine, so its distance is NaN.
        return [Hit(passage=self._passage(row), score=best - row["far"]) for row in rows if row["far"] == row["far"]]

    def _count(self) -> int:
        with self._begin() as ask:
            return int(ask(f"SELECT count(*) FROM {self._table}").scalar())

    def _fill(self, batches: Batches, *, meta: dict[str, Json]) -> None:
        *schema, table = self.index.split(".")
        building, columns = _quoted(*schema, f"{table}_building"), [_quoted(name) for name in self._names.values()]
        types = ("text PRIMARY KEY", "text", "text", "text", f"vector({meta['width']})")
        with self._begin(statement_timeout=0, idle_in_transaction_session_timeout=0) as ask:  # encoding may take hours
            comments = ask(_COMMENT, (self._table, self._table)).all()
            if comments and not _meta_in(comments[0][0]):
                raise self._not_ours(self.index)
            ask(f"CREATE TABLE {building} ({', '.join(map(' '.join, zip(columns, types, strict=True)))})")
            for passages, vectors in batches:
                assert vectors is not None  # this retriever is always built with an encoder
                pairs = zip(passages, vectors, strict=True)
                rows = [(passage.id, passage.title, passage.text, passage.url, vector) for passage, vector in pairs]
                ask(f"INSERT INTO {building} ({', '.join(columns)}) VALUES (%s, %s, %s, %s, %s)", rows)
            if not self.exact:
                ask(f"CREATE INDEX ON {building} USING hnsw ({columns[-1]} vector_{self._operators})")
            ask(f"DROP TABLE IF EXISTS {self._table}")
            ask(f"ALTER TABLE {building} RENAME TO {_quoted(table)}")
            ask(f"COMMENT ON TABLE {self._table} IS {sql.Literal(json.dumps({'ragbandit': meta})).as_string()}")

    def _disconnect(self) -> None:
        self._engine.dispose()

    def _translated(self, error: Exception, *, kind: type[RagBanditError]) -> RagBanditError:
        reason = str(getattr(error, "orig", None) or error).partition("\n")[0]
        remedy = "check that the server runs, that the variable has its address, and that its user may read the table"
        return kind(f"PostgreSQL refuses, or does not answer: {reason}", field="retriever.dsn_env", remedy=remedy)


def _meta_in(comment: str | None) -> dict[str, Json]:
    try:
        content = json.loads(comment or "{}")
    except ValueError:
        return {}
    return dict(content.get("ragbandit", {})) if isinstance(content, dict) else {}


def _quoted(*name: str) -> str:
    return sql.Identifier(*name).as_string()


def _value(name: str) -> str:
    column, *path = name.split(".")
    return f"{_quoted(column)} #>> {sql.Literal(path).as_string()}" if path else _quoted(column)
