"""Parquet: the record's keys as typed columns, open objects as JSON text.

`reward` is a struct of its parts, or one column of numbers where somebody else wrote the file. A key of `extra` that
the first row holds as a list of numbers (a candidate's pmf) becomes a column of its own; the others are together in
the column `extra`, as JSON. A replay reads the same files as arrays (`sources`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ragbandit.router.offline.logs.place import Place, file_system, place_of, shown
from ragbandit.router.offline.logs.records import OURS, BadRow, Defaults, Logged, Record, record_of
from ragbandit.router.offline.logs.row_checks import RowReader, bad_row
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files import new_file
from ragbandit.shared.redaction import without_secrets
from ragbandit.shared.types import Reward

#: rows per row group: what a reader holds at a time
GROUP = 1 << 16
#: rows made into columns at a time
PIECE = 2048
#: objects without a schema of their own
_OPEN = ("context", "budget", "aim", "facts")
_REWARD_KINDS = get_type_hints(Reward)


def without_rows(path: Place) -> bool:
    """Whether the file has no rows, as engines write for a partition of nothing. Raises InvalidInput as `opened`."""
    with _opened(path) as file:
        return not file.metadata.num_rows


def opened(path: Place, **options: Any) -> Any:
    """The ParquetFile. Raises InvalidInput for one that cannot be read or has no rows."""
    file = _opened(path, **options)
    if not file.metadata.num_rows:
        file.close()
        raise InvalidInput("has no rows", field=shown(path), remedy="give a log with at least one decision")
    return file


def _opened(path: Place, **options: Any) -> Any:
    if isinstance(path, Path):
        name: str | Path = path
    else:
        options["filesystem"], name = file_system(path)
    try:
        return pq.ParquetFile(name, **options)
    except (OSError, pa.ArrowException) as error:
        message = without_secrets(str(error))
        raise InvalidInput(
            f"cannot be read: {message}", field=shown(path), remedy="give a Parquet file, whole"
        ) from error


def read(path: str | Path, *, defaults: Defaults) -> Iterator[Logged | BadRow]:
    """The rows of the file, in its order. Raises InvalidInput for a file that is unreadable or empty."""
    with opened(place_of(path)) as file:
        reader, number = RowReader(defaults=defaults), 0
        try:
            for batch in file.iter_batches(batch_size=PIECE):
                for cells in _records(batch):
                    number += 1
                    try:
                        yield reader.row(_record_of(cells), line=number)
                    except InvalidInput as error:
                        yield bad_row(error, line=number)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InvalidInput(
                f"is damaged after row {number}: {error}", field=str(path), remedy="fetch the file again"
            ) from error


def _records(batch: Any) -> Iterator[Record]:
    """A batch's rows; features as arrays, since a list of Python's numbers takes ten times the room."""
    names = batch.schema.names
    at = names.index("features") if "features" in names else -1
    if at < 0 or not pa.types.is_list(batch.schema.field(at).type):
        yield from batch.to_pylist()
        return
    features = batch.column(at)
    numbers = features.values.to_numpy(zero_copy_only=False)
    ends = features.offsets.to_numpy()
    given = features.is_valid().to_numpy(zero_copy_only=False)
    others = [name for name in names if name != "features"]
    for row, cells in enumerate(batch.select(others).to_pylist()):
        yield cells | {"features": numbers[ends[row] : ends[row + 1]] if given[row] else None}


def _record_of(cells: Record) -> Record:
    """The record: JSON text read, `extra` spread out, empty cells of unknown columns left out."""
    record = {key: value for key, value in cells.items() if key in OURS or (value is not None and key != "extra")}
    for key in _OPEN:
        if isinstance(record.get(key), str):
            record[key] = _json(record[key], field=key)
    reward = record.get("reward")
    if isinstance(reward, dict) and isinstance(reward.get("terms"), str):
        record["reward"] = reward | {"terms": _json(reward["terms"], field="reward.terms")}
    if isinstance(record.get("pmf"), dict) and "arms" not in record:
        record["pmf"] = {arm: p for arm, p in record["pmf"].items() if p is not None}
    extra = cells.get("extra")
    return record | (_json(extra, field="extra") if isinstance(extra, str) else {})


def _json(text: str, *, field: str) -> Record:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"is not JSON: {error}", field=field, remedy="write a JSON object as text") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"is a {type(value).__name__}", field=field, remedy="write a JSON object as text")
    return value


def write(path: str | Path, rows: Iterable[Logged]) -> int:
    """Write the rows; how many. The file is there when all of it is. Raises InvalidInput."""
    count, stream = 0, iter(rows)
    first = list(islice(stream, PIECE))
    own = _own_columns(first[0].extra) if first else ()
    schema = _schema(own)
    with new_file(Path(path)) as beside, pq.ParquetWriter(beside, schema, compression="zstd") as out:
        held: list[Any] = []
        piece = first
        while piece:
            held.append(_table(piece, schema=schema, own=own))
            count += len(piece)
            if sum(map(len, held)) >= GROUP:
                out.write_table(pa.concat_tables(held), row_group_size=GROUP)
                held = []
            piece = list(islice(stream, PIECE))
        if held:
            out.write_table(pa.concat_tables(held), row_group_size=GROUP)
    return count


def _own_columns(extra: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(name for name, value in extra.items() if name != "extra" and _numbers(value))


def _numbers(value: object) -> bool:
    """A list that comes back equal from a column of float64."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(v, float) or (type(v) is int and abs(v) <= 1 << 53) for v in value)
    )


def _schema(own: Sequence[str]) -> Any:
    text, number, names = pa.string(), pa.float64(), pa.list_(pa.string())
    reward = [(part, number if kind in (float, float | None) else text) for part, kind in _REWARD_KINDS.items()]
    types = {
        "seq": pa.int64(),
        "made_at": number,
        "allowed": names,
        "arms": names,
        "pmf": pa.list_(number),
        "scores": pa.list_(number),
        "propensity": number,
        "floor": number,
        "cost_weight": number,
        "explored": pa.bool_(),
        "reward": pa.struct(reward),
        "feedback_ids": names,
        "feedback_at": number,
        "learned_at": number,
        "late": pa.bool_(),
        "features": pa.list_(pa.float32()),
    }
    columns = [(name, types.get(name, text)) for name in OURS]
    return pa.schema([*columns, *((name, pa.list_(number)) for name in own), ("extra", text)])


def _table(rows: Sequence[Logged], *, schema: Any, own: Sequence[str]) -> Any:
    records = [_columns(row, own=own) for row in rows]
    features = [record.pop("features") for record in records]
    plain = [each for each in schema if each.name != "features"]
    table = pa.Table.from_pylist(records, schema=pa.schema(plain))
    return table.add_column(schema.get_field_index("features"), schema.field("features"), feature_lists(features)).cast(
        schema
    )


def _columns(row: Logged, *, own: Sequence[str]) -> Record:
    record = record_of(row)
    cells = {key: record[key] for key in OURS} | {key: canonical(record[key]) for key in _OPEN}
    cells["reward"] = record["reward"] | {"terms": canonical(record["reward"]["terms"])}
    columns = {name: row.extra[name] for name in own if _numbers(row.extra.get(name))}
    left = {name: value for name, value in row.extra.items() if name not in columns}
    return cells | columns | {"extra": canonical(left) if left else None}


def feature_lists(features: Sequence[Any]) -> Any:
    """A column of float32 lists, null where there are none."""
    ends = np.cumsum([0, *(0 if row is None else row.size for row in features)], dtype=np.int32)
    there = [row for row in features if row is not None]
    numbers = np.concatenate(there).astype(np.float32) if there else np.zeros(0, dtype=np.float32)
    absent = pa.array([row is None for row in features])
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(numbers), mask=absent)
