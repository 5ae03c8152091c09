"""Parquet: the record's keys as typed columns, open objects as JSON text.

`reward` is a struct of its parts, or one column of numbers where somebody else wrote the file. A key of `extra` that
the first row holds as a list of numbers (a candidate's pmf) becomes a column of its own; the others are together in
the column `extra`, as JSON. A replay reads the same files as arrays (`sources`).
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ragbandit.router.offline.logs import OURS, BadRow, Defaults, Logged, Place, Record, place_of, record_of, shown
from ragbandit.router.offline.logs.batches import LINE, NEEDED, REWARD, BatchSpec, drawn, offered_arms
from ragbandit.router.offline.logs.jsonl import RowReader, bad_row
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput, StoreError
from ragbandit.shared.files import new_file, remote_system
from ragbandit.shared.redaction import without_secrets
from ragbandit.shared.types import KILLED, STICKY, ArmName, Reward

#: rows per row group: what a reader holds at a time
GROUP = 1 << 16
#: rows made into columns at a time
PIECE = 2048
#: objects without a schema of their own
_OPEN = ("context", "budget", "aim", "facts")
_OPEN_PARTS = ("terms", "surrogates")
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
    if isinstance(reward := record.get("reward"), dict):
        read = {
            part: _json(reward[part], field=f"reward.{part}")
            for part in _OPEN_PARTS
            if isinstance(reward.get(part), str)
        }
        record["reward"] = reward | read
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
    piece = list(islice(stream, PIECE))
    own = tuple(name for name, value in piece[0].extra.items() if name != "extra" and _numbers(value)) if piece else ()
    schema = _schema([*OURS, *own, "extra"])
    with new_file(Path(path)) as beside, pq.ParquetWriter(beside, schema, compression="zstd") as out:
        held: list[Any] = []
        while piece:
            held.append(_batch([_whole_cells(row, own=own) for row in piece], schema=schema))
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


def _schema(columns: Iterable[str]) -> Any:
    """Types of these columns; one that is not ours is a candidate's pmf."""
    text, number, names = pa.string(), pa.float64(), pa.list_(pa.string())
    reward = [(part, number if kind in (float, float | None) else text) for part, kind in _REWARD_KINDS.items()]
    types = dict.fromkeys((*OURS, "extra"), text)
    types |= dict.fromkeys(("made_at", "propensity", "floor", "cost_weight", "feedback_at", "learned_at"), number)
    types |= dict.fromkeys(("allowed", "arms", "feedback_ids"), names) | dict.fromkeys(("explored", "late"), pa.bool_())
    types |= dict.fromkeys(("pmf", "scores"), pa.list_(number))
    types |= {"seq": pa.int64(), LINE: pa.int64(), "reward": pa.struct(reward), "features": pa.list_(pa.float32())}
    return pa.schema([(name, types.get(name, pa.list_(number))) for name in columns])


def _batch(rows: Sequence[Record], *, schema: Any) -> Any:
    """A record batch of these cells."""
    columns = {each.name: [cells.get(each.name) for cells in rows] for each in schema}
    arrays = [
        _feature_lists(columns[each.name]) if each.name == "features" else pa.array(columns[each.name], each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cells(row: Logged, *, columns: Iterable[str]) -> Record:
    """The cells of a row in columns of OURS."""
    record = record_of(row)
    parts = record["reward"]
    record["reward"] = parts | {part: canonical(parts[part]) for part in _OPEN_PARTS if part in parts}
    return {name: canonical(record[name]) if name in _OPEN else record[name] for name in columns}


def _whole_cells(row: Logged, *, own: Sequence[str]) -> Record:
    """All cells of a row; `extra` has what has no column of its own."""
    columns = {name: row.extra[name] for name in own if _numbers(row.extra.get(name))}
    left = {name: value for name, value in row.extra.items() if name not in columns}
    return {**_cells(row, columns=OURS), **columns, "extra": canonical(left) if left else None}


def _feature_lists(features: Sequence[Any]) -> Any:
    """A column of float32 lists, null where there are none."""
    ends = np.cumsum([0, *(0 if row is None else row.size for row in features)], dtype=np.int32)
    there = [row for row in features if row is not None]
    numbers = np.concatenate(there).astype(np.float32) if there else np.zeros(0, dtype=np.float32)
    absent = pa.array([row is None for row in features])
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(numbers), mask=absent)


Item = TypeVar("Item")

#: rows of a batch: its arrays fit into a processor's cache
BATCH = 32_768
#: rows of Python's own that are held at once, as a part of a batch
_PAGES = 8


class LogSource(ABC):
    """A log, or one file of it, in its order, as often as it is asked for."""

    @abstractmethod
    def batches(self, spec: BatchSpec) -> Iterator[Any]:
        """Record batches with the columns of the spec that the source has.

        Raises InvalidInput for a source that cannot be read or lacks a column, StoreError for a ledger's row.
        """

    @property
    def place(self) -> str:
        """Of its rows, as in `row_named`."""
        return "line"

    def arms(self, *, every: bool) -> tuple[ArmName, ...]:
        """The arms of the first row that was drawn; every: then those of all others, as they occur. () without rows."""
        arms: dict[ArmName, None] = {}
        for batch in self.batches(BatchSpec(arms=(), only=("arms", "facts"))):
            rows = batch.filter(pa.array(drawn(batch)))
            arms |= offered_arms(rows if every else rows.slice(0, 1))
            if arms and not every:
                break
        return tuple(arms)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetSource(LogSource):
    """A Parquet file, a batch of rows at a time: only the columns that are asked for are read."""

    path: Place
    #: the bounds where the file has only numbers for rewards
    defaults: Defaults

    def batches(self, spec: BatchSpec) -> Iterator[Any]:
        """As `LogSource` says. Reading and arithmetic take about as long: a thread reads one batch ahead."""
        return iter(()) if without_rows(self.path) else _ahead(self._batches(spec))

    def _batches(self, spec: BatchSpec) -> Iterator[Any]:
        known = self.columns()
        for name in spec.columns:
            if name not in known and name in (*NEEDED, *spec.own):
                raise InvalidInput(
                    "there is no such column",
                    field=f"{shown(self.path)} {name}",
                    remedy=f"log {', '.join(NEEDED[:-1])} and {NEEDED[-1]}; the file has {', '.join(known)}",
                )
        line = 1
        for batch in self._read([name for name in spec.columns if name in known]):
            lines = pa.array(np.arange(line, line := line + batch.num_rows))
            yield _with_reward(batch, defaults=self.defaults).append_column(LINE, lines)

    def _read(self, columns: Sequence[str]) -> Iterator[Any]:
        """Record batches that never span row groups: their dictionaries differ, and nested ones cannot be joined.

        Columns whose few texts are read once each: arms, and what may be a segment. Not the ids and questions.
        """
        with opened(self.path) as file:
            described = [file.schema.column(at) for at in range(len(file.schema))]
        texts = [each.path for each in described if each.physical_type == "BYTE_ARRAY"]
        texts = [path for path in texts if path.split(".")[0] not in ("id", "text")]
        with opened(self.path, read_dictionary=texts) as file:
            for group in range(file.num_row_groups):
                yield from file.iter_batches(batch_size=BATCH, row_groups=[group], columns=list(columns))

    @property
    def place(self) -> str:
        """As `LogSource` says."""
        return f"{shown(self.path)} row"

    def columns(self) -> tuple[str, ...]:
        """The file's columns."""
        with opened(self.path) as file:
            return tuple(file.schema_arrow.names)


def _with_reward(batch: Any, *, defaults: Defaults) -> Any:
    """The batch with the reward as a struct of its parts; a number is the whole reward."""
    at = batch.schema.get_field_index("reward")
    if at < 0 or pa.types.is_struct(batch.schema.field(at).type):
        return batch
    reward, rows = batch.column(at), batch.num_rows
    bounds = {"minimum": defaults.minimum, "maximum": defaults.maximum}
    plain = {name: pa.repeat(pa.scalar(bounds.get(name, 0.0)), rows) for name in REWARD}
    words = {"preset": pa.repeat("reward", rows), "source": pa.repeat("explicit", rows)}
    parts = plain | words | {"value": reward, "quality": reward}
    return batch.set_column(at, "reward", pa.StructArray.from_arrays([*parts.values()], names=[*parts]))


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, the next one being made in a thread while the last one is used."""
    end = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead") as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield cast(Item, item)


#: key of a decision's facts that says that nobody drew its arm -> why
_UNDRAWN: Final = {
    STICKY: "it stayed on the arm of an earlier turn of its session: nobody drew it",
    KILLED: "its arm was pinned by the kill switch: nobody drew it",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsSource(LogSource):
    """Rows of a ledger, or of a file that is read row by row, some at a time."""

    #: the rows, from the first one on, whenever it is called
    rows: Callable[[], Iterable[Logged]]

    def batches(self, spec: BatchSpec) -> Iterator[Any]:
        """As `LogSource` says."""
        stream = iter(self.rows())
        while page := list(islice(stream, max(BATCH // _PAGES, 1))):
            yield rows_batch(page, spec=spec)


def row_name(row: Logged) -> str:
    """A row in words, for messages."""
    return f"line {row.line}" if row.line else f"decision {row.decision.id}"


def undrawn(row: Logged) -> str | None:
    """Why nobody drew the arm of this row; None where it was drawn."""
    return next((why for key, why in _UNDRAWN.items() if key in row.decision.facts), None)


def rows_batch(rows: Sequence[Logged], *, spec: BatchSpec) -> Any:
    """Rows as a record batch with the columns of the spec.

    Raises InvalidInput for a candidate's pmf that is none, StoreError for damaged rows of a store.
    """
    columns = [name for name in spec.columns if name not in spec.own]
    cells = [
        {**_cells(row, columns=columns), LINE: row.line, **{name: _own_pmf(row, name) for name in spec.own}}
        for row in rows
    ]
    try:
        return _batch(cells, schema=_schema([*columns, LINE, *spec.own]))
    except pa.ArrowException as error:  # files are checked as they are read
        first, last = rows[0].decision.id, rows[-1].decision.id
        raise StoreError(f"{first} to {last} cannot be read: {error}", remedy="see: ragbandit verify") from error


def _own_pmf(row: Logged, name: str) -> list[float]:
    """A candidate's pmf that stands in the row, in the order of its arms: a list, or {arm: probability}."""
    arms, value = row.decision.arms, row.extra.get(name)
    if isinstance(value, Mapping) and set(value) <= set(arms):
        value = [value.get(arm, 0.0) for arm in arms]
    numbers = [each for each in value if type(each) in (int, float)] if isinstance(value, list) else []
    if isinstance(value, list) and len(arms) == len(numbers) == len(value):
        return numbers
    reason = "is missing" if value is None else f"{value!r:.80} does not fit the arms {', '.join(arms)}"
    remedy = "give a list aligned with arms, or an object from arm to probability"
    raise InvalidInput(reason, field=f"{row_name(row)} {name}", remedy=remedy)
