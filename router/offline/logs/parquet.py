"""Parquet: the record's keys as typed columns, open objects as JSON text.

`reward` is a struct of its parts, or one column of numbers in files of other tools. A key of `extra` that
the first row holds as a list of numbers (a candidate's pmf) becomes a column of its own; the others are together in
the column `extra`, as JSON. A replay reads the same files as arrays (`ParquetSource`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.parquet as pq

from ragbandit.router.offline.logs import (
    BadRow,
    Defaults,
    Logged,
    Place,
    place_of,
    shown,
    usable_rows,
)
from ragbandit.router.offline.logs.batches import (
    COLUMNS,
    LINE,
    NUMBERS,
    PARTS,
    REWARD,
    REWARD_WORDS,
    TEXTLESS,
    record_batch,
    reward_column,
    row_named,
)
from ragbandit.router.offline.logs.jsonl import KEYS, Record, column_values, rows_of
from ragbandit.router.offline.logs.values import LATEST, converted, in_order, mapping, probabilities, seconds
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files import new_file, remote_system
from ragbandit.shared.redaction import without_secrets

#: rows per row group: what a reader holds at a time
GROUP = 1 << 16
#: rows made into columns at a time
PIECE = 2048
#: objects without a schema of their own
_OPEN = ("context", "budget", "aim", "facts")
_OPEN_PARTS = ("terms", "surrogates")


#: columns that every log has; arms may follow from a pmf by arm
_NEEDED = ("id", "arms", "pmf", "arm", "reward")
_TIMES = frozenset(("made_at", "feedback_at", "learned_at"))
_TYPES = pa.types


def _check_columns(schema: Any, columns: Sequence[str], *, place: str) -> None:
    """Raises InvalidInput for a column that is needed and missing, and for a name that stands twice.

    columns: those that are wanted; of ours only NEEDED must be there.
    """
    _check_names(schema, place=place)
    known = schema.names
    by_name = "pmf" in known and not _has_lists(schema.field("pmf").type)
    for name in columns:
        if name in known or (name in KEYS and name not in _NEEDED) or (name == "arms" and by_name):
            continue
        remedy = f"log id, arms, pmf, arm and reward; the file has {', '.join(known)}"
        raise InvalidInput("there is no such column", field=f"{place} {name}", remedy=remedy)


def _check_names(fields: Any, *, place: str, path: str = "") -> None:
    names = [one.name for one in fields]
    for one in fields:
        if names.count(one.name) > 1:
            remedy = "name every column once: a join keeps the columns of both sides"
            raise InvalidInput("this column stands twice", field=f"{place} {path}{one.name}", remedy=remedy)
        if _TYPES.is_struct(one.type):
            _check_names(one.type, place=place, path=f"{path}{one.name}.")


def _exact(column: Any, wanted: Any) -> Any:
    """A column with the wanted type, times as seconds since 1970, and without NaN if it is of numbers."""
    if _read_as(column.type) != wanted:
        if _TYPES.is_date(column.type):
            column = column.cast(pa.timestamp("ms"))
        if _TYPES.is_timestamp(column.type):
            column = compute.divide(column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).cast(wanted), 1e6)
        else:
            column = column.cast(wanted, safe=False)  # whole numbers above 2^53 are rounded, as in JSON
    if wanted == pa.float64() and compute.any(compute.is_nan(column)).as_py():
        column = compute.if_else(compute.is_nan(column), None, column)
    return column


def _has_exact(schema: Any, names: Iterable[str]) -> bool:
    """Whether Arrow converts these columns exactly; values of other types are converted one by one, row by row."""
    for name in names:
        kind = schema.field(name).type
        if name == "reward" and _TYPES.is_struct(kind):
            if not all(part.name in PARTS and _converts(part.type, PARTS[part.name]) for part in kind):
                return False
        elif name in _TIMES and (_TYPES.is_timestamp(kind) or _TYPES.is_date(kind)):
            continue
        elif not _converts(kind, pa.float64() if name == "reward" else COLUMNS.get(name, NUMBERS)):
            return False
    return True


def _read_as(kind: Any) -> Any:
    """The type that a column is read as: dictionary-encoded or large text is text."""
    if _TYPES.is_list(kind):
        return pa.list_(_read_as(kind.value_type))
    text = kind.value_type if _TYPES.is_dictionary(kind) else kind
    return pa.string() if _TYPES.is_string(text) or _TYPES.is_large_string(text) else kind


_AMOUNTS = (_TYPES.is_floating, _TYPES.is_integer, _TYPES.is_decimal, _TYPES.is_boolean)
#: type -> tests for the types whose values Arrow casts to it, with the same meaning
_CASTS = {
    pa.string(): (_TYPES.is_integer,),
    pa.float64(): _AMOUNTS,
    pa.float32(): _AMOUNTS,
    pa.int64(): (_TYPES.is_signed_integer,),
    pa.bool_(): (),
}


def _converts(written: Any, wanted: Any) -> bool:
    """Whether Arrow casts every value of the one type to the other, and means the same by it."""
    if _read_as(written) == wanted or _TYPES.is_null(written):
        return True
    if _TYPES.is_list(wanted):
        return _is_list(written) and _converts(written.value_type, wanted.value_type)
    return any(test(written) for test in _CASTS[wanted])


def _is_list(kind: Any) -> bool:
    return bool(_TYPES.is_list(kind) or _TYPES.is_large_list(kind) or _TYPES.is_fixed_size_list(kind))


def _has_lists(kind: Any) -> bool:
    """Whether it holds lists of numbers in the order of the arms, not pairs of arm and number."""
    return _is_list(kind) and not _TYPES.is_nested(kind.value_type)


def _with_reward(batch: Any, *, defaults: Defaults) -> Any:
    """The batch with the reward as a struct of its parts; those left out are filled in as in a row of JSONL."""
    at = batch.schema.get_field_index("reward")
    if at < 0:
        return batch
    column, given = batch.column(at), {"value": batch.column(at)}
    if _TYPES.is_struct(column.type):
        given = dict(zip((part.name for part in column.type), column.flatten(), strict=True))
    parts = {name: _exact(cells, PARTS[name]) for name, cells in given.items()}
    parts |= {n: pa.nulls(len(column), PARTS[n]) for n in (*REWARD, "preset", "source") if n not in parts}
    whole, fill = parts["quality"].is_null(), compute.coalesce
    parts["quality"], parts["cost"] = fill(parts["quality"], parts["value"]), fill(parts["cost"], 0.0)
    parts["weight"] = fill(parts["weight"], compute.if_else(whole, 0.0, defaults.weight))
    parts |= {name: fill(parts[name], getattr(defaults, name)) for name in ("minimum", "maximum")}
    earned = compute.subtract(parts["quality"], compute.multiply(parts["weight"], parts["cost"]))
    earned = compute.min_element_wise(compute.max_element_wise(earned, parts["minimum"]), parts["maximum"])
    parts["value"] = fill(parts["value"], earned)
    parts["preset"] = fill(parts["preset"], compute.if_else(whole, "reward", "quality"))
    parts["source"] = fill(parts["source"], "explicit")
    return batch.set_column(at, "reward", pa.StructArray.from_arrays([*parts.values()], names=[*parts]))


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
        options["filesystem"], name = remote_system(path, field="log")
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
        _check_columns(file.schema_arrow, _NEEDED, place=shown(place_of(path)))
        pieces = (cells for batch in file.iter_batches(batch_size=PIECE) for cells in _records(batch))
        number = 0
        try:
            for row in rows_of(
                ((line, partial(_record_of, cells)) for line, cells in enumerate(pieces, 1)), defaults=defaults
            ):
                number += 1
                yield row
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InvalidInput(
                f"is damaged after row {number}: {error}", field=str(path), remedy="fetch the file again"
            ) from error


def _records(batch: Any) -> Iterator[Record]:
    """A batch's rows; features as arrays, since a list of Python's numbers takes ten times the room."""
    for at, name in enumerate(batch.schema.names):
        if name in _TIMES and _TYPES.is_timestamp(batch.column(at).type):  # finer and in more zones than Python's
            batch = batch.set_column(at, name, _exact(batch.column(at), COLUMNS[name]))
    if "features" not in batch.schema.names or not pa.types.is_list(batch.schema.field("features").type):
        yield from batch.to_pylist()
        return
    others = [name for name in batch.schema.names if name != "features"]
    for cells, one in zip(batch.select(others).to_pylist(), batch.column("features"), strict=True):
        yield cells | {"features": one.values.to_numpy(zero_copy_only=False) if one.is_valid else None}


def _record_of(cells: Record) -> Record:
    """The record: `extra` spread out, empty cells of unknown columns and empty members of structs left out."""
    record = {key: value for key, value in cells.items() if key in KEYS or (value is not None and key != "extra")}
    for key in _OPEN:
        if isinstance(members := record.get(key), dict):
            record[key] = {name: value for name, value in members.items() if value is not None}
    extra = cells.get("extra")
    return record if extra is None else record | converted(mapping, extra, field="extra")


def write(path: str | Path, rows: Iterable[Logged]) -> int:
    """Write the rows; how many. The file is there when all of it is. Raises InvalidInput."""
    count, stream = 0, iter(rows)
    piece = list(islice(stream, PIECE))
    extra = piece[0].extra if piece else {}
    own = tuple(name for name, value in extra.items() if name != "extra" and _numbers(value))
    schema = _written(piece, own=own).schema
    with new_file(Path(path)) as beside, pq.ParquetWriter(beside, schema, compression="zstd") as out:
        held: list[Any] = []
        while piece:
            held.append(_written(piece, own=own))
            count += len(piece)
            piece = list(islice(stream, PIECE))
            if not piece or sum(map(len, held)) >= GROUP:
                out.write_table(pa.Table.from_batches(held), row_group_size=GROUP)
                held = []
    return count


def _numbers(value: object) -> bool:
    """A list that comes back equal from a column of float64."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(v, float) or (type(v) is int and abs(v) <= 1 << 53) for v in value)
    )


def _written(rows: Sequence[Logged], *, own: Sequence[str]) -> Any:
    """The rows with all columns of a file."""
    batch = rows_batch(rows, KEYS, parts=[*PARTS])
    kept = [{name: row.extra[name] for name in own if _numbers(row.extra.get(name))} for row in rows]
    left = [
        {name: value for name, value in row.extra.items() if name not in mine}
        for row, mine in zip(rows, kept, strict=True)
    ]
    more = {name: [mine.get(name) for mine in kept] for name in own}
    more["extra"] = [canonical(extra) if extra else None for extra in left]
    return record_batch({**dict(zip(KEYS, batch.columns, strict=True)), **more})


def rows_batch(
    rows: Sequence[Logged], columns: Sequence[str], *, parts: Sequence[str] = (*REWARD, *REWARD_WORDS)
) -> Any:
    """Rows as a record batch with these columns. Raises InvalidInput for a wrong pmf of a candidate."""
    names = ["features" if name == TEXTLESS else name for name in columns]
    return record_batch({name: _column(rows, name, parts=parts) for name in names})


def _column(rows: Sequence[Logged], name: str, *, parts: Sequence[str]) -> Any:
    if name == LINE:
        return [row.line for row in rows]
    if name == "reward":
        values = {part: [getattr(row.reward, part) for row in rows] for part in parts}
        values |= {part: [canonical(dict(each)) for each in values[part]] for part in _OPEN_PARTS if part in values}
        return reward_column(values)
    if name not in KEYS:
        return [_own_pmf(row, name) for row in rows]
    cells = column_values(rows, name)
    return [canonical(cell) if cell else "{}" for cell in cells] if name in _OPEN else cells


Item = TypeVar("Item")

#: rows of a batch: its arrays fit into a processor's cache
BATCH = 32_768
#: rows of Python's own that are held at once, as a part of a batch, and of the first page, which is read for the arms
_PAGES, FIRST = 8, 64


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetSource:
    """A Parquet file, a batch of rows at a time: only the columns that are asked for are read."""

    path: Place
    #: the bounds where the file has only numbers for rewards
    defaults: Defaults

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """As `LogSource` says. Reading and arithmetic take about as long: a thread reads one batch ahead."""
        return _ahead(self._batches(columns))

    def _batches(self, columns: Sequence[str]) -> Iterator[Any]:
        with _opened(self.path) as file:
            if not file.metadata.num_rows:  # as engines write for a partition of nothing
                return
            known = file.schema_arrow.names
            _check_columns(file.schema_arrow, [name for name in columns if name != TEXTLESS], place=shown(self.path))
            leaves = [file.schema.column(at) for at in range(len(file.schema))]
            textless = TEXTLESS in columns and _may_lack_text(file.metadata, leaves)
            wanted = [name for name in columns if name in known]
            wanted += ["features"] if textless and "features" in known else []
            if ("arms" in columns and "arms" not in known) or not _has_exact(file.schema_arrow, wanted):
                rows = partial(read, self.path, defaults=self.defaults)
                usable = partial(usable_rows, path=self.path, skip=False, bad=[])
                yield from RowsSource(rows=lambda: usable(rows()), place=self.place).batches(columns)
                return
        # Few texts are read once each: arms, and what may be a segment. Not the ids and questions.
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        texts = [path for path in texts if path.split(".")[0] not in ("id", "text")]
        line = 1
        with _opened(self.path, read_dictionary=texts) as file:
            # Never across row groups: their dictionaries differ, and nested ones cannot be joined.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(batch_size=BATCH, row_groups=[group], columns=wanted):
                    lines = pa.array(np.arange(line, line := line + batch.num_rows))
                    batch = self._typed(batch.append_column(LINE, lines))
                    yield _with_reward(batch, defaults=self.defaults)

    def _typed(self, batch: Any) -> Any:
        """The batch with the types of COLUMNS. Raises InvalidInput for times that count no seconds."""
        for at, name in enumerate(batch.schema.names):
            if name == "reward":
                continue
            column = batch.column(at)
            if (typed := _exact(column, COLUMNS.get(name, NUMBERS))) is not column:
                batch = batch.set_column(at, name, typed)
            late = np.abs(typed.to_numpy(zero_copy_only=False)) >= LATEST if name in _TIMES else np.zeros(1)
            if late.any():
                row = int(np.argmax(late))
                converted(seconds, typed[row].as_py(), field=f"{row_named(batch, row, place=self.place)} {name}")
        return batch

    @property
    def place(self) -> str:
        """As `LogSource` says."""
        return f"{shown(self.path)} row"

    def columns(self) -> tuple[str, ...]:
        """The file's columns."""
        with opened(self.path) as file:
            return tuple(file.schema_arrow.names)


def _may_lack_text(metadata: Any, leaves: Sequence[Any]) -> bool:
    """Whether a row may have no text or only spaces, by the smallest text in the file's statistics."""
    at = next((at for at, leaf in enumerate(leaves) if leaf.path == "text"), None)
    if at is None:
        return True
    texts = (metadata.row_group(group).column(at).statistics for group in range(metadata.num_row_groups))
    return not all(each and each.has_min_max and each.null_count == 0 and each.min >= "!" for each in texts)


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, the next one being made in a thread while the last one is used."""
    end = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead") as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield cast(Item, item)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsSource:
    """Rows of a file that is read row by row, some at a time."""

    #: the rows, from the first one on, whenever it is called
    rows: Callable[[], Iterable[Logged]]
    place: str = "line"

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """As `LogSource` says."""
        stream, size = iter(self.rows()), FIRST
        while page := list(islice(stream, size)):
            yield rows_batch(page, [*columns, LINE])
            size = max(BATCH // _PAGES, 1)


def row_name(row: Logged) -> str:
    """A row in words, for messages."""
    return f"line {row.line}" if row.line else f"decision {row.decision.id}"


def _own_pmf(row: Logged, name: str) -> list[float]:
    """A candidate's pmf that stands in the row, in the order of its arms: a list, or {arm: probability}."""
    field, arms = f"{row_name(row)} {name}", row.decision.arms
    if name not in row.extra:
        raise InvalidInput("is missing", field=field, remedy="give a list aligned with arms, or an object by arm")
    pmf: list[float] = in_order(converted(probabilities, row.extra[name], field=field), arms=arms, field=field)
    return pmf
