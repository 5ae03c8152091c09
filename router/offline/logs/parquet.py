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
import pyarrow.parquet as pq

from ragbandit.router.offline.logs import (
    OURS,
    BadRow,
    Defaults,
    Logged,
    Place,
    Record,
    column_values,
    place_of,
    shown,
)
from ragbandit.router.offline.logs.batches import (
    COLUMNS,
    LINE,
    PARTS,
    REWARD,
    REWARD_WORDS,
    TEXTLESS,
    record_batch,
    reward_column,
)
from ragbandit.router.offline.logs.columns import NEEDED, TIMES, batch_of, check_columns, exact
from ragbandit.router.offline.logs.jsonl import rows_of
from ragbandit.router.offline.logs.values import converted, in_order, mapping, probabilities
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
        check_columns(file.schema_arrow, NEEDED, place=shown(place_of(path)))
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
    for name in set(batch.schema.names) & TIMES:
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, name, exact(batch.column(at), COLUMNS[name], is_time=True))
    if "features" not in batch.schema.names or not pa.types.is_list(batch.schema.field("features").type):
        yield from batch.to_pylist()
        return
    others = [name for name in batch.schema.names if name != "features"]
    for cells, one in zip(batch.select(others).to_pylist(), batch.column("features"), strict=True):
        yield cells | {"features": one.values.to_numpy(zero_copy_only=False) if one.is_valid else None}


def _record_of(cells: Record) -> Record:
    """The record: `extra` spread out, empty cells of unknown columns and empty members of structs left out."""
    record = {key: value for key, value in cells.items() if key in OURS or (value is not None and key != "extra")}
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
    batch = rows_batch(rows, OURS, parts=[*PARTS])
    kept = [{name: row.extra[name] for name in own if _numbers(row.extra.get(name))} for row in rows]
    left = [
        {name: value for name, value in row.extra.items() if name not in mine}
        for row, mine in zip(rows, kept, strict=True)
    ]
    more = {name: [mine.get(name) for mine in kept] for name in own}
    more["extra"] = [canonical(extra) if extra else None for extra in left]
    return record_batch({**dict(zip(OURS, batch.columns, strict=True)), **more})


def rows_batch(
    rows: Sequence[Logged], columns: Sequence[str], *, parts: Sequence[str] = (*REWARD, *REWARD_WORDS)
) -> Any:
    """Rows as a record batch with these columns. Raises InvalidInput for a candidate's pmf that is none."""
    names = ["features" if name == TEXTLESS else name for name in columns]
    return record_batch({name: _column(rows, name, parts=parts) for name in names})


def _column(rows: Sequence[Logged], name: str, *, parts: Sequence[str]) -> Any:
    if name == LINE:
        return [row.line for row in rows]
    if name == "reward":
        values = {part: [getattr(row.reward, part) for row in rows] for part in parts}
        values |= {part: [canonical(dict(each)) for each in values[part]] for part in _OPEN_PARTS if part in values}
        return reward_column(values)
    if name not in OURS:
        return [_own_pmf(row, name) for row in rows]
    cells = column_values(rows, name)
    return [canonical(cell) if cell else "{}" for cell in cells] if name in _OPEN else cells


Item = TypeVar("Item")

#: rows of a batch: its arrays fit into a processor's cache
BATCH = 32_768
#: rows of Python's own that are held at once, as a part of a batch, and of the first page: it tells the arms
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
            check_columns(file.schema_arrow, [name for name in columns if name != TEXTLESS], place=shown(self.path))
            leaves = [file.schema.column(at) for at in range(len(file.schema))]
            textless = TEXTLESS in columns and _may_lack_text(file.metadata, leaves)
        wanted = [name for name in columns if name in known]
        wanted += ["features"] if textless and "features" in known else []
        wanted += [] if "arms" in known or "pmf" in wanted else ["pmf"]
        # Few texts are read once each: arms, and what may be a segment. Not the ids and questions.
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        texts = [path for path in texts if path.split(".")[0] not in ("id", "text")]
        own = [name for name in columns if name not in OURS]
        line = 1
        with _opened(self.path, read_dictionary=texts) as file:
            # Never across row groups: their dictionaries differ, and nested ones cannot be joined.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(batch_size=BATCH, row_groups=[group], columns=wanted):
                    named = partial(self._named, line)
                    lines = pa.array(np.arange(line, line := line + batch.num_rows))
                    batch = batch_of(batch, defaults=self.defaults, own=own, named=named)
                    yield batch.append_column(LINE, lines)

    def _named(self, first: int, row: int, field: str) -> str:
        return f"{self.place} {first + row} {field}"

    @property
    def place(self) -> str:
        """As `LogSource` says."""
        return f"{shown(self.path)} row"

    def columns(self) -> tuple[str, ...]:
        """The file's columns."""
        with opened(self.path) as file:
            return tuple(file.schema_arrow.names)


def _may_lack_text(metadata: Any, leaves: Sequence[Any]) -> bool:
    """Whether a row may have no text, or spaces alone, by the file's own statistics, which tell the least text."""
    at = next((at for at, leaf in enumerate(leaves) if leaf.path == "text"), None)
    if at is None:
        return True
    told = (metadata.row_group(group).column(at).statistics for group in range(metadata.num_row_groups))
    return not all(each and each.has_min_max and each.null_count == 0 and each.min >= "!" for each in told)


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
