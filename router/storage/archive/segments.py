"""Segment: the rows of up to 20,000 decisions as Parquet files, with a manifest that seals them.

    segment-000001/
      decisions-5f2c0e91.parquet  outcomes-...  feedback-...  updates-...  closures-...  cancellations-...
      manifest-a91b33d0.json

Every table is there, with its columns as in SQL, in the order of its primary key (updates: policy, seq). Files bear the
first digits of their sha256, so that a segment that is written anew stands beside the old one until SQL names it.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import Boolean, Float, Integer, LargeBinary, Table

from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.tables import cancellations, closures, decisions, feedback, outcomes, updates
from ragbandit.shared.errors import StoreError, required_module
from ragbandit.shared.files.folders import Folder

Rows = Sequence[Mapping[str, Any]]

#: the tables of a segment; rows leave the database in the opposite order, since all refer to decisions
ARCHIVED: Final[tuple[Table, ...]] = (decisions, outcomes, feedback, updates, closures, cancellations)
#: columns that erasure may make blank; the seal covers all others
ERASABLE: Final[Mapping[str, frozenset[str]]] = {
    "decisions": frozenset({"text", "context", "features", "scores", "facts", "fault", "session", "request"}),
    "outcomes": frozenset({"answer", "trace", "error", "made_by", "sources"}),
    "feedback": frozenset({"value", "rater", "facts"}),
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
    columns = _fixed()
    return _written(
        root,
        tables,
        number=number,
        manifest={
            "seal_before": seal_before,
            "seal": seal_of(tables, columns=columns, before=seal_before),
            "sealed": columns,
            "spans": _spans(tables.get("updates", ())),
        },
    )


def rewrite_segment(segment: Segment, tables: Mapping[str, Rows]) -> Segment:
    """The same segment with other values in columns that the seal does not cover, beside the files of before.

    tables: all rows, those of `kept` too. Raises StoreError if the seal does not fit, or it cannot be written.
    """
    manifest = _manifest(segment)
    if seal_of(tables, columns=manifest["sealed"], before=manifest["seal_before"]) != segment.seal:
        raise StoreError(f"{segment.name} cannot be written anew: its seal would not fit", remedy=_REMEDY)
    kept = {name: manifest[name] for name in ("seal_before", "seal", "sealed", "spans")}
    return replace(_written(segment.root, tables, number=segment.number, manifest=kept), kept=segment.kept)


def sweep_segment(segment: Segment) -> None:
    """Delete the files in its folder that are not its own: those of before it was written anew. Raises StoreError."""
    folder = Folder(segment.root)
    try:
        named = {file["name"] for file in _manifest(segment)["files"].values()}
        own = {f"{segment.name}/{name}" for name in (*named, _manifest_name(segment.manifest_sha256))}
        for name in folder.names(segment.name):
            if name not in own:
                folder.remove(name)
    except OSError as error:
        raise StoreError(f"old files of {segment.name} cannot be deleted: {error}", field="archive") from error


def _written(root: str, tables: Mapping[str, Rows], *, number: int, manifest: dict[str, Any]) -> Segment:
    folder, files, name = Folder(root), {}, segment_name(number)
    try:
        for table in ARCHIVED:
            rows = _ordered(table, tables.get(table.name, ()))
            data = _parquet(table, rows)
            sha256 = hashlib.sha256(data).hexdigest()
            files[table.name] = {"name": f"{table.name}-{sha256[:8]}.parquet", "sha256": sha256, "rows": len(rows)}
            folder.put(f"{name}/{files[table.name]['name']}", data)
        whole = {"format": FORMAT, "number": number, "files": files, **manifest}
        described = json.dumps(whole, indent=1, sort_keys=True).encode()
        sha256 = hashlib.sha256(described).hexdigest()
        folder.put(f"{name}/{_manifest_name(sha256)}", described)
    except OSError as error:
        raise StoreError(f"the archive {root} cannot be written: {error}", field="archive") from error
    return Segment(
        number=number,
        root=root,
        manifest_sha256=sha256,
        seal=manifest["seal"],
        decisions=len(tables.get("decisions", ())),
        spans={label: (first, last) for label, (first, last) in manifest["spans"].items()},
    )


def _manifest_name(sha256: str) -> str:
    return f"manifest-{sha256[:8]}.json"


def read_segment(segment: Segment, *, tables: Sequence[Table] = ARCHIVED) -> dict[str, list[dict[str, Any]]]:
    """The rows of these tables, by table name, after every file is compared with its sha256. Without `kept`.

    Raises StoreError for a segment that is missing or was changed.
    """
    files, by_table = _manifest(segment)["files"], {}
    for table in tables:
        name = f"{segment.name}/{files[table.name]['name']}"
        try:
            data = Folder(segment.root).get(name)
        except OSError as error:
            raise _unreadable(segment, error) from error
        if hashlib.sha256(data).hexdigest() != files[table.name]["sha256"]:
            raise StoreError(f"{name} in {segment.root} was changed", remedy=_REMEDY)
        key, empty = decision_key(table), {column.name: None for column in table.columns}
        # Columns that were added since are NULL.
        by_table[table.name] = [empty | row for row in _rows(data) if row[key] not in segment.kept]
    return by_table


def seal_of(tables: Mapping[str, Rows], *, columns: Mapping[str, Sequence[str]], before: str) -> str:
    """The seal of a segment's rows. columns: those that it covers, by table; before: the seal of the segment before."""
    digest = hashlib.sha256(before.encode())
    for table in ARCHIVED:
        names = columns[table.name]
        digest.update(canonical([table.name, list(names)]).encode())
        for row in _ordered(table, tables.get(table.name, ())):
            # Text from the database may be any; what is in a fixed column has been checked at the edge.
            digest.update(canonical([_sealed(row[name]) for name in names]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _sealed(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def segment_files(segment: Segment) -> list[str]:
    """The names of its files under its root, the manifest last. Raises StoreError where that is missing or changed."""
    named = sorted(file["name"] for file in _manifest(segment)["files"].values())
    return [f"{segment.name}/{name}" for name in (*named, _manifest_name(segment.manifest_sha256))]


def sealed_columns(segment: Segment) -> dict[str, list[str]]:
    """The columns that its seal covers, as of the schema that it was made with. Raises StoreError."""
    columns: dict[str, list[str]] = _manifest(segment)["sealed"]
    return columns


def _fixed() -> dict[str, list[str]]:
    return {
        table.name: [c.name for c in table.columns if c.name not in ERASABLE.get(table.name, frozenset())]
        for table in ARCHIVED
    }


def _manifest(segment: Segment) -> dict[str, Any]:
    """The manifest, compared with its sha256. Raises StoreError."""
    try:
        described = Folder(segment.root).get(f"{segment.name}/{_manifest_name(segment.manifest_sha256)}")
    except OSError as error:
        raise _unreadable(segment, error) from error
    if hashlib.sha256(described).hexdigest() != segment.manifest_sha256:
        raise StoreError(f"{segment.name} in {segment.root} was changed: its manifest is another", remedy=_REMEDY)
    manifest: dict[str, Any] = json.loads(described)
    return manifest


def _unreadable(segment: Segment, error: OSError) -> StoreError:
    return StoreError(f"{segment.name} cannot be read from {segment.root}: {error}", remedy=_REMEDY)


def _ordered(table: Table, rows: Rows) -> list[Mapping[str, Any]]:
    keys = [column.name for column in table.primary_key.columns]
    return sorted(rows, key=lambda row: tuple(row[key] for key in keys))


def _spans(rows: Rows) -> dict[str, tuple[int, int]]:
    spans: dict[str, tuple[int, int]] = {}
    for row in rows:
        first, last = spans.get(row["policy"], (row["seq"], row["seq"]))
        spans[row["policy"]] = min(first, row["seq"]), max(last, row["seq"])
    return spans


def _pyarrow() -> Any:
    required_module("pyarrow.parquet", extra="replay", field="archive")  # an archive is seldom read
    return required_module("pyarrow", extra="replay")


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
    rows: list[dict[str, Any]] = _pyarrow().parquet.read_table(io.BytesIO(data)).to_pylist()
    return rows
