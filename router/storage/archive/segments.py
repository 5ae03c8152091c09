"""Segment: the rows of up to 20,000 decisions as Parquet files, with a manifest that seals them.

    segment-000001/
      decisions.parquet outcomes.parquet feedback.parquet updates.parquet closures.parquet cancellations.parquet
      manifest.json

Every table is there, with its columns as in SQL, in the order of its primary key (updates: policy, seq).
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Boolean, Float, Integer, LargeBinary, Table

from ragbandit.router.errors import StoreError, missing_package
from ragbandit.router.storage.folders import Folder
from ragbandit.router.storage.rows import canonical
from ragbandit.router.storage.tables import cancellations, closures, decisions, feedback, outcomes, updates

__all__ = ["ARCHIVED", "ERASABLE", "Rows", "Segment", "decision_key", "read_segment", "write_segment"]

Rows = Sequence[Mapping[str, Any]]

#: the tables of a segment; rows leave the database in the opposite order, since all refer to decisions
ARCHIVED: Final[tuple[Table, ...]] = (decisions, outcomes, feedback, updates, closures, cancellations)
#: columns that erasure may make blank; the seal covers all others
ERASABLE: Final[Mapping[str, frozenset[str]]] = {
    "decisions": frozenset({"text", "context", "features", "scores", "facts", "fault"}),
    "outcomes": frozenset({"answer", "trace", "error", "made_by"}),
    "feedback": frozenset({"value"}),
    "closures": frozenset({"reason"}),
}
#: of the manifest; another number is refused
FORMAT: Final = 1
_REMEDY = "put the segment back from a backup; `ragbandit verify` names what is missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A sealed segment: what its manifest says, and where it lies."""

    number: int
    #: folder or fsspec URL that holds the segment's folder
    root: str
    #: sha256 of manifest.json, as the database has it
    manifest_sha256: str
    #: sha256 over the seal of the segment before it and every column that erasure never touches
    seal: str
    decisions: int
    #: per label (first seq, last seq) of its updates
    spans: Mapping[str, tuple[int, int]]
    #: decisions that got rows after they were sealed: they stayed in the database, and are read there
    kept: frozenset[str] = field(default_factory=frozenset)

    @property
    def name(self) -> str:
        """Its folder."""
        return segment_name(self.number)


def segment_name(number: int) -> str:
    """The folder of a segment."""
    return f"segment-{number:06d}"


def decision_key(table: Table) -> str:
    """The column that says which decision a row is about."""
    return "id" if table is decisions else "decision_id"


def write_segment(root: str, tables: Mapping[str, Rows], *, number: int, seal_before: str) -> Segment:
    """Write the files of a segment, the manifest last. tables: rows by table name.

    seal_before: the seal of the segment before it, "" for the first. Raises StoreError if it cannot be written.
    """
    folder, files, name = Folder(root), {}, segment_name(number)
    ordered = {table.name: _ordered(table, tables.get(table.name, ())) for table in ARCHIVED}
    try:
        for table in ARCHIVED:
            data = _parquet(table, ordered[table.name])
            folder.put(f"{name}/{table.name}.parquet", data)
            files[table.name] = {"sha256": hashlib.sha256(data).hexdigest(), "rows": len(ordered[table.name])}
        spans = _spans(ordered["updates"])
        manifest = {
            "format": FORMAT,
            "number": number,
            "seal_before": seal_before,
            "seal": _seal(ordered, before=seal_before),
            "spans": spans,
            "files": files,
        }
        described = json.dumps(manifest, indent=1, sort_keys=True).encode()
        folder.put(f"{name}/manifest.json", described)
    except OSError as error:
        raise StoreError(f"the archive {root} cannot be written: {error}", field="archive") from error
    return Segment(
        number=number,
        root=root,
        manifest_sha256=hashlib.sha256(described).hexdigest(),
        seal=str(manifest["seal"]),
        decisions=len(ordered["decisions"]),
        spans=spans,
    )


def read_segment(segment: Segment, *, tables: Sequence[Table] = ARCHIVED) -> dict[str, list[dict[str, Any]]]:
    """The rows of these tables, by table name, after every file is compared with its sha256. Without `kept`.

    Raises StoreError for a segment that is missing or was changed.
    """
    folder = Folder(segment.root)
    try:
        described = folder.get(f"{segment.name}/manifest.json")
        if hashlib.sha256(described).hexdigest() != segment.manifest_sha256:
            raise StoreError(f"{segment.name} in {segment.root} was changed: its manifest is another", remedy=_REMEDY)
        files = json.loads(described)["files"]
        found = {}
        for table in tables:
            data = folder.get(f"{segment.name}/{table.name}.parquet")
            if hashlib.sha256(data).hexdigest() != files[table.name]["sha256"]:
                raise StoreError(f"{segment.name}/{table.name}.parquet in {segment.root} was changed", remedy=_REMEDY)
            key = decision_key(table)
            found[table.name] = [row for row in _rows(data) if row[key] not in segment.kept]
    except OSError as error:
        raise StoreError(f"{segment.name} cannot be read from {segment.root}: {error}", remedy=_REMEDY) from error
    return found


def sealed(segment: Segment, tables: Mapping[str, Rows], *, seal_before: str) -> bool:
    """Whether whole tables (none left out as kept) still give the segment's seal."""
    ordered = {table.name: _ordered(table, tables[table.name]) for table in ARCHIVED}
    return _seal(ordered, before=seal_before) == segment.seal


def _ordered(table: Table, rows: Rows) -> list[Mapping[str, Any]]:
    keys = [column.name for column in table.primary_key.columns]
    return sorted(rows, key=lambda row: tuple(row[key] for key in keys))


def _seal(tables: Mapping[str, Rows], *, before: str) -> str:
    digest = hashlib.sha256(before.encode())
    for table in ARCHIVED:
        fixed = [c.name for c in table.columns if c.name not in ERASABLE.get(table.name, frozenset())]
        digest.update(canonical([table.name, fixed]).encode())
        for row in tables[table.name]:
            # Text from the database may be any; what is in a fixed column has been checked at the edge.
            digest.update(canonical([row[name] for name in fixed]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _spans(rows: Rows) -> dict[str, tuple[int, int]]:
    spans: dict[str, tuple[int, int]] = {}
    for row in rows:
        first, last = spans.get(row["policy"], (row["seq"], row["seq"]))
        spans[row["policy"]] = min(first, row["seq"]), max(last, row["seq"])
    return spans


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet  # the `parquet` extra
    except ImportError as error:
        raise missing_package("pyarrow", extra="parquet", field="archive") from error
    return pyarrow


def _parquet(table: Table, rows: Rows) -> bytes:
    pyarrow = _pyarrow()
    schema = pyarrow.schema([(column.name, _type(column.type, pyarrow)) for column in table.columns])
    columns = [pyarrow.array([row[one.name] for row in rows], type=one.type) for one in schema]
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), file, compression="zstd")
    return file.getvalue()


def _type(kind: object, pyarrow: Any) -> Any:
    """The Parquet type that holds a column's values exactly."""
    if isinstance(kind, Boolean):
        return pyarrow.bool_()
    if isinstance(kind, Integer):
        return pyarrow.int64()
    if isinstance(kind, Float):
        return pyarrow.float64()
    return pyarrow.binary() if isinstance(kind, LargeBinary) else pyarrow.string()


def _rows(data: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _pyarrow().parquet.read_table(io.BytesIO(data)).to_pylist()
    return found
