"""Parquet: the keys of a record as typed columns, objects without a schema as JSON text.

`reward` is a struct of its parts; other tools may write a number. Further columns, such as a candidate's pmf, are read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as pq

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.offline.logs import Logged, usable_rows
from ragbandit.router.offline.logs.batches import batch_row_name
from ragbandit.router.offline.logs.cells import LATEST, align_pmf, convert_value, probabilities, seconds
from ragbandit.router.offline.logs.columns import LINE, PARTS, REWARD, REWARD_WORDS, column_type
from ragbandit.router.offline.logs.jsonl import KEYS, Record, column_values, read_rows
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput, StoreError
from ragbandit.shared.files import open_file
from ragbandit.shared.json_lines import new_file

#: rows per row group of a written file; a reader holds a row group in memory
GROUP = 1 << 16
#: rows that are converted to columns at a time
PIECE = 2048
#: largest number of bytes of the columns of a batch, and of its texts
_BATCH_BYTES = 1 << 24
#: keys of a record whose values are objects without a schema
_OPEN = ("context", "budget", "aim", "facts")
_TIMES = frozenset(("made_at", "feedback_at", "learned_at"))
_TYPES = pa.types


def _check_columns(names: Sequence[str], columns: Sequence[str], *, place: str) -> None:
    """Raise InvalidInput if a column that all rows need is missing, ArrowInvalid if rows may replace a missing one."""
    for name in ("id", "arm", "reward"):
        if name not in names:
            remedy = f"log id, arms, pmf, arm and reward; the file has {', '.join(names)}"
            raise InvalidInput("the file has no such column", field=f"{place} {name}", remedy=remedy)
    elsewhere = {*columns} - {*names} - ({*KEYS} - {"arms", "pmf"})
    if elsewhere:
        raise pa.ArrowInvalid(f"no columns {elsewhere}")


def _check_names(fields: Any, *, place: str, path: str = "") -> None:
    names = [field.name for field in fields]
    for field in fields:
        if names.count(field.name) > 1:
            remedy = "name every column once: a join keeps the columns of both sides"
            raise InvalidInput("this column occurs twice", field=f"{place} {path}{field.name}", remedy=remedy)
        if _TYPES.is_struct(field.type):
            _check_names(field.type, place=place, path=f"{path}{field.name}.")


def _cast(column: Any, kind: Any) -> Any:
    """The column cast to the type `kind`, with times as seconds since 1970 and NaN as null.

    Raises ArrowException if Arrow lacks this cast, or if `cells` converts more values, such as numbers in texts.
    """
    written = _decoded_type(column.type)
    if written != kind:
        if _TYPES.is_string(written) or (kind == pa.bool_() and not _TYPES.is_null(written)):
            raise pa.ArrowInvalid(f"{kind} in {written}")
        if _TYPES.is_date(written):
            column = column.cast(pa.timestamp("ms"))
        if _TYPES.is_timestamp(column.type):
            column = compute.divide(column.cast("timestamp[us]", safe=False).cast("int64").cast(kind, safe=False), 1e6)
        else:  # whole numbers above 2^53 are rounded, as in JSON
            column = column.cast(kind, safe=_TYPES.is_integer(kind))
    if kind == pa.float64() and compute.any(compute.is_nan(column)).as_py():
        column = compute.if_else(compute.is_nan(column), None, column)
    return column


def _decoded_type(kind: Any) -> Any:
    """The type of a column after decoding: dictionary-encoded and large text become text."""
    if _TYPES.is_list(kind):
        return pa.list_(_decoded_type(kind.value_type))
    text = kind.value_type if _TYPES.is_dictionary(kind) else kind
    return pa.string() if _TYPES.is_string(text) or _TYPES.is_large_string(text) else kind


def _with_reward(batch: Any, *, defaults: RewardSettings) -> Any:
    """The batch with the reward as a struct of its parts. Missing parts are filled in as for a row of JSONL."""
    at = batch.schema.get_field_index("reward")
    if at < 0:
        return batch
    column = batch.column(at)
    logged = {"value": column}
    if _TYPES.is_struct(column.type):
        logged = dict(zip((part.name for part in column.type), column.flatten(), strict=True))
    if unknown := logged.keys() - PARTS.keys():
        raise pa.ArrowInvalid(f"a reward has no {unknown}")  # the reader of rows then names the fault
    parts = {name: _cast(cells, PARTS[name]) for name, cells in logged.items()}
    for name in (*REWARD, "preset", "source"):
        parts.setdefault(name, pa.nulls(len(column), PARTS[name]))
    only_value, fill = parts["quality"].is_null(), compute.coalesce
    parts["quality"] = fill(parts["quality"], parts["value"])
    parts["cost"] = fill(parts["cost"], 0.0)
    parts["weight"] = fill(parts["weight"], compute.if_else(only_value, 0.0, defaults.weight))
    parts["minimum"] = fill(parts["minimum"], defaults.minimum)
    parts["maximum"] = fill(parts["maximum"], defaults.maximum)
    computed = compute.subtract(parts["quality"], compute.multiply(parts["weight"], parts["cost"]))
    computed = compute.max_element_wise(computed, parts["minimum"], skip_nulls=False)
    computed = compute.min_element_wise(computed, parts["maximum"], skip_nulls=False)
    parts["value"] = fill(parts["value"], computed)
    parts["preset"] = fill(parts["preset"], compute.if_else(only_value, "reward", "quality"))
    parts["source"] = fill(parts["source"], "explicit")
    return batch.set_column(at, "reward", pa.StructArray.from_arrays([*parts.values()], names=[*parts]))


def open_with_rows(path: Path, **options: Any) -> Any:
    """Open a Parquet file. Raises InvalidInput if it has no rows, or cannot be read."""
    file = _open(path, **options)
    if not file.metadata.num_rows:
        file.close()
        raise InvalidInput("the log has no rows", field=str(path), remedy="give a log with at least one decision")
    return file


def _open(path: Path, **options: Any) -> Any:
    try:
        open_file(path).close()  # a folder may have a pipe
        return pq.ParquetFile(path, **options)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInput(
            f"the file cannot be read: {error}", field=str(path), remedy="give a complete Parquet file"
        ) from error


def parquet_records(path: Path) -> Iterator[tuple[int, Callable[[], Record]]]:
    """Yield (number from 1, parser) of every row; see `records`."""
    number = 0
    with open_with_rows(path) as file:
        _check_names(file.schema_arrow, place=str(path))
        shared = _shared_texts(file)
        fields = [field for field in file.schema_arrow if field.name in shared]
        texts = [field.name for field in fields if _TYPES.is_string(_decoded_type(field.type))]
    with _open(path, read_dictionary=texts) as file:
        batches = _batches(file, most=PIECE, texts=texts, columns=file.schema_arrow.names)
        try:
            for number, cells in enumerate(chain.from_iterable(map(_cells, batches)), start=1):
                yield number, partial(_record_of, cells)
        except (OSError, ValueError, pa.ArrowException) as error:
            message = f"the file is damaged after row {number}: {error}"
            raise InvalidInput(message, field=str(path), remedy="fetch the file again") from error


def _shared_texts(file: Any) -> list[str]:
    """Paths of texts with a dictionary in a row group: only these may have more bytes than the file stores."""
    groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    parts = [group.column(at) for group in groups for at in range(group.num_columns)]
    shared = {part.path_in_schema for part in parts if part.has_dictionary_page and part.physical_type == "BYTE_ARRAY"}
    return sorted(shared)


def _batches(file: Any, *, most: int, texts: Sequence[str], columns: Sequence[str]) -> Iterator[Any]:
    """Yield batches with at most `most` rows of one row group, and with fewer if they have more than _BATCH_BYTES.

    texts: columns of texts that the file reads as dictionaries, so that a text that many rows share is there once. The
    batches have them as plain columns.
    """
    for group in range(file.num_row_groups):
        stored = file.metadata.row_group(group)
        parts = [stored.column(at) for at in range(stored.num_columns)]
        size = sum(part.total_uncompressed_size for part in parts if part.path_in_schema.partition(".")[0] in columns)
        rows = min(most, max(_BATCH_BYTES * stored.num_rows // max(size, 1), 1))
        for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
            yield from map(partial(_with_plain, texts=texts), _pieces(batch, texts=texts))


def _pieces(batch: Any, *, texts: Sequence[str]) -> Iterator[Any]:
    """Divide a batch into pieces with at most _BATCH_BYTES of these texts. A piece has at least one row."""
    sizes = np.zeros(batch.num_rows)
    for column in map(batch.column, set(texts) & {*batch.schema.names}):
        lengths = compute.binary_length(column.dictionary).take(column.indices).fill_null(0)
        sizes += lengths.to_numpy(zero_copy_only=False)
    ends, start = np.concatenate([[0.0], np.cumsum(sizes)]), 0
    while start < batch.num_rows:
        end = max(int(np.searchsorted(ends, ends[start] + _BATCH_BYTES, side="right")) - 1, start + 1)
        yield batch.slice(start, end - start)
        start = end


def _with_plain(batch: Any, *, texts: Sequence[str]) -> Any:
    for name in set(texts) & {*batch.schema.names}:
        batch = batch.set_column(batch.schema.get_field_index(name), name, batch.column(name).cast(pa.string()))
    return batch


def _cells(batch: Any) -> Iterator[Record]:
    """Yield each row of a batch. Features are arrays, since a list of Python numbers takes ten times the memory."""
    for at, name in enumerate(batch.schema.names):
        # Arrow converts these times, since Python's datetime lacks nanoseconds and some time zones.
        if name in _TIMES and _TYPES.is_timestamp(batch.column(at).type):
            batch = batch.set_column(at, name, _cast(batch.column(at), column_type(name)))
    if "features" not in batch.schema.names or not pa.types.is_list(batch.schema.field("features").type):
        yield from batch.to_pylist()
        return
    others = [name for name in batch.schema.names if name != "features"]
    for cells, vector in zip(batch.select(others).to_pylist(), batch.column("features"), strict=True):
        yield cells | {"features": vector.values.to_numpy(zero_copy_only=False) if vector.is_valid else None}


def _record_of(cells: Record) -> Record:
    """The record without empty unknown columns and empty members of structs."""
    record = {key: value for key, value in cells.items() if key in KEYS or value is not None}
    for key in _OPEN:
        if isinstance(members := record.get(key), dict):
            record[key] = {name: value for name, value in members.items() if value is not None}
    return record


def write(path: str | Path, rows: Iterable[Logged]) -> int:
    count, stream = 0, iter(rows)
    piece = list(islice(stream, PIECE))
    schema = rows_batch(piece, KEYS, parts=[*PARTS]).schema
    with new_file(Path(path)) as beside, pq.ParquetWriter(beside, schema, compression="zstd") as out:
        pending: list[Any] = []
        while piece:
            pending.append(rows_batch(piece, KEYS, parts=[*PARTS]))
            count += len(piece)
            piece = list(islice(stream, PIECE))
            if not piece or sum(map(len, pending)) >= GROUP:
                out.write_table(pa.Table.from_batches(pending), row_group_size=GROUP)
                pending = []
    return count


def rows_batch(
    rows: Sequence[Logged], columns: Sequence[str], *, parts: Sequence[str] = (*REWARD, *REWARD_WORDS)
) -> Any:
    try:
        return record_batch({name: _column(rows, name, parts=parts) for name in columns})
    except pa.ArrowException as error:  # rows of files are checked, so these are from a store
        message = f"{row_name(rows[0])} or a row after it cannot be read: {error}"
        raise StoreError(message, remedy="run `ragbandit verify`") from error


def _column(rows: Sequence[Logged], name: str, *, parts: Sequence[str]) -> Any:
    if name == LINE:
        return [row.line for row in rows]
    if name == "reward":
        values = {part: [getattr(row.reward, part) for row in rows] for part in parts}
        for part in values.keys() & {"terms", "surrogates"}:
            values[part] = [canonical(dict(members)) for members in values[part]]
        return reward_column(values)
    if name not in KEYS:
        return [_candidate_pmf(row, name) for row in rows]
    cells = column_values(rows, name)
    return [canonical(cell) if cell else "{}" for cell in cells] if name in _OPEN else cells


def record_batch(columns: Mapping[str, Any]) -> Any:
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values, column_type(name))
        for name, values in columns.items()
    }
    return pa.RecordBatch.from_pydict(arrays)


def reward_column(parts: Mapping[str, Sequence[Any]]) -> Any:
    return pa.StructArray.from_arrays([pa.array(values, PARTS[name]) for name, values in parts.items()], names=[*parts])


Item = TypeVar("Item")

#: rows per batch, whose arrays fit into a processor's cache
BATCH = 32_768
#: rows of the first batch, which may be read only for the arms
FIRST = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetSource:
    path: Path
    defaults: RewardSettings

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield record batches; see `LogSource`. A thread reads one batch ahead of the computation."""
        return _read_ahead(self._batches(columns))

    def _batches(self, columns: Sequence[str]) -> Iterator[Any]:
        done = 0
        try:
            for batch in self._columns(columns):
                yield batch
                done += batch.num_rows
        except (OSError, pa.ArrowException):  # reading the other rows one by one converts more, or names the fault
            rows = usable_rows(read_rows(self.path, defaults=self.defaults), path=self.path, skip=False, bad=[])
            yield from RowsSource(rows=lambda: islice(rows, done, None), place=self.place).batches(columns)

    def _columns(self, columns: Sequence[str]) -> Iterator[Any]:
        """The batches as Arrow converts them. Raises ArrowException if it cannot."""
        with _open(self.path) as file:
            if not file.metadata.num_rows:  # other tools write a file without rows for an empty partition
                return
            known = file.schema_arrow.names
            _check_names(file.schema_arrow, place=str(self.path))
            _check_columns(known, columns, place=str(self.path))
            texts = _shared_texts(file)
            wanted = [name for name in columns if name in known]
        # Columns with repeated texts stay dictionary-encoded; ids and questions are mostly different.
        plain = [name for name in ("id", "text") if name in texts]
        line, size = 1, max(BATCH // (8 if "features" in wanted else 1), 1)  # features take much memory
        with _open(self.path, read_dictionary=texts) as file:
            # A batch has rows of one row group: dictionaries of nested columns cannot be joined.
            for batch in _batches(file, most=size, texts=plain, columns=wanted):
                lines = pa.array(np.arange(line, line + batch.num_rows))
                line += batch.num_rows
                yield _with_reward(self._typed(batch.append_column(LINE, lines)), defaults=self.defaults)

    def _typed(self, batch: Any) -> Any:
        """The batch with the types of `column_type`. Raises InvalidInput for times in another unit than seconds."""
        for at, name in enumerate(batch.schema.names):
            if name == "reward":
                continue
            typed = _cast(batch.column(at), column_type(name))
            batch = batch.set_column(at, name, typed)
            too_late = np.abs(typed.to_numpy(zero_copy_only=False)) >= LATEST if name in _TIMES else np.zeros(1)
            if too_late.any():
                row = int(np.argmax(too_late))
                convert_value(
                    seconds, typed[row].as_py(), field=f"{batch_row_name(batch, row, place=self.place)} {name}"
                )
        return batch

    @property
    def place(self) -> str:
        return f"{self.path} row"


def _read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items; a thread computes the next item while the caller uses the last one."""
    end = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead") as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield cast(Item, item)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsSource:
    rows: Callable[[], Iterable[Logged]]  #: each call reads all rows, from the first
    place: str = "line"

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        stream, size = iter(self.rows()), FIRST
        while page := list(islice(stream, size)):
            yield rows_batch(page, [*columns, LINE])
            size = max(BATCH // 8, 1)  # smaller than BATCH, since rows of Python objects take more memory than arrays


def row_name(row: Logged) -> str:
    return f"line {row.line}" if row.line else f"decision {row.decision.id}"


def _candidate_pmf(row: Logged, name: str) -> list[float]:
    field, arms = f"{row_name(row)} {name}", row.decision.arms
    if name not in row.extra:
        raise InvalidInput(
            "the pmf is missing", field=field, remedy="give a list aligned with arms or an object by arm"
        )
    pmf: list[float] = align_pmf(convert_value(probabilities, row.extra[name], field=field), arms=arms, field=field)
    return pmf
