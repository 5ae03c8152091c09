"""Parquet: the record's keys as typed columns, open objects as JSON text.

`reward` is a struct of its parts, or one column of numbers where somebody else wrote the file. A key of `extra` that
the first row holds as a list of numbers (a candidate's pmf) becomes a column of its own; the others are together in
the column `extra`, as JSON. A replay reads the same files as arrays (`sources`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ragbandit.router.offline.logs import OURS, BadRow, Defaults, Logged, Place, Record, place_of, record_of, shown
from ragbandit.router.offline.logs.batches import LINE, REWARD, REWARD_WORDS, BatchSpec, drawn, offered_arms
from ragbandit.router.offline.logs.jsonl import RowReader, bad_row
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files import new_file, remote_system
from ragbandit.shared.redaction import without_secrets
from ragbandit.shared.types import KILLED, LABEL_QUEUE, STICKY, ArmName, Reward

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
    first = list(islice(stream, PIECE))
    extra = first[0].extra if first else {}
    own = tuple(name for name, value in extra.items() if name != "extra" and _numbers(value))
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
    parts = record["reward"]
    cells["reward"] = parts | {part: canonical(parts[part]) for part in _OPEN_PARTS if part in parts}
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


Item = TypeVar("Item")

#: rows of a batch: its arrays fit into a processor's cache
BATCH = 32_768
#: rows of Python's own that are held at once, as a part of a batch
_PAGES = 8


class LogSource(Protocol):
    """A log, or one file of it, in its order, as often as it is asked for."""

    def batches(self, spec: BatchSpec) -> Iterator[Any]:
        """Record batches with the columns of the spec that the source has.

        Raises InvalidInput for a source that cannot be read or lacks a column.
        """
        ...

    @property
    def place(self) -> str:
        """Of its rows, as in `row_named`."""
        ...

    def arms(self, *, every: bool) -> tuple[ArmName, ...]:
        """The arms of the first row that was drawn; every: then those of all others, as they occur. () without rows."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetSource:
    """A Parquet file, a batch of rows at a time: only the columns that are asked for are read."""

    path: Place
    #: the bounds where the file has only numbers for rewards
    defaults: Defaults

    def batches(self, spec: BatchSpec) -> Iterator[Any]:
        """As `LogSource` says. Reading and arithmetic take about as long: a thread reads one batch ahead."""
        return iter(()) if without_rows(self.path) else _ahead(self._batches(spec))

    def _batches(self, spec: BatchSpec) -> Iterator[Any]:
        known = self.columns()
        for name in ("id", "arms", "pmf", "arm", "reward", *spec.own):
            if name not in known:
                raise InvalidInput(
                    "there is no such column",
                    field=f"{shown(self.path)} {name}",
                    remedy=f"log id, arms, pmf, arm and reward; the file has {', '.join(known)}",
                )
        wanted = [name for name in spec.columns if name in known]
        if "features" in known and not spec.features and self._may_lack_text():
            wanted.append("features")  # they then tell the question
        line = 1
        for batch in self._read(wanted):
            lines = pa.array(np.arange(line, line := line + batch.num_rows))
            yield _with_reward(batch, defaults=self.defaults).append_column(LINE, lines)

    def _read(self, columns: Sequence[str]) -> Iterator[Any]:
        """Record batches that never span row groups: their dictionaries differ, and nested ones cannot be joined."""
        with opened(self.path, read_dictionary=self._dictionaries()) as file:
            for group in range(file.num_row_groups):
                yield from file.iter_batches(batch_size=BATCH, row_groups=[group], columns=list(columns))

    @property
    def place(self) -> str:
        """As `LogSource` says."""
        return f"{shown(self.path)} row"

    def arms(self, *, every: bool) -> tuple[ArmName, ...]:
        """As `LogSource` says."""
        if without_rows(self.path):
            return ()
        names = self.columns()
        if "arms" not in names:
            raise InvalidInput("there is no such column", field=f"{shown(self.path)} arms", remedy="log all arms")
        return arms_in(self._read([name for name in ("arms", "facts") if name in names]), every=every)

    def columns(self) -> tuple[str, ...]:
        """The file's columns."""
        with opened(self.path) as file:
            return tuple(file.schema_arrow.names)

    def _dictionaries(self) -> list[str]:
        """Columns whose few texts are read once each: arms, and what may be a segment. Not the ids and questions."""
        with opened(self.path) as file:
            columns = [file.schema.column(i) for i in range(len(file.schema))]
            return [
                column.path
                for column in columns
                if column.physical_type == "BYTE_ARRAY" and column.path.split(".")[0] not in ("id", "text")
            ]

    def _may_lack_text(self) -> bool:
        """Whether a row may have no text, by the file's own statistics, which tell the least text."""
        with opened(self.path) as file:
            at = next((i for i in range(len(file.schema)) if file.schema.column(i).path == "text"), None)
            groups = [] if at is None else [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            statistics = [group.column(at).statistics for group in groups]
        return at is None or not all(
            each and each.has_min_max and each.null_count == 0 and each.min for each in statistics
        )


def _with_reward(batch: Any, *, defaults: Defaults) -> Any:
    """The batch with the reward as a struct of its parts; a number is the whole reward."""
    at = batch.schema.get_field_index("reward")
    reward, rows = batch.column(at), batch.num_rows
    if pa.types.is_struct(reward.type):
        return batch
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
class RowsSource:
    """Rows of a file that is read row by row, some at a time."""

    #: the rows, from the first one on, whenever it is called
    rows: Callable[[], Iterable[Logged]]

    def batches(self, spec: BatchSpec) -> Iterator[Any]:
        """As `LogSource` says."""
        stream = iter(self.rows())
        while page := list(islice(stream, max(BATCH // _PAGES, 1))):
            yield rows_batch(page, spec=spec)

    @property
    def place(self) -> str:
        """As `LogSource` says."""
        return "line"

    def arms(self, *, every: bool) -> tuple[ArmName, ...]:
        """As `LogSource` says."""
        drawn_rows = (row for row in self.rows() if undrawn(row) is None)
        offers = (row.decision.arms for row in (drawn_rows if every else islice(drawn_rows, 1)))
        return tuple(dict.fromkeys(arm for offer in offers for arm in offer))


def row_name(row: Logged) -> str:
    """A row in words, for messages."""
    return f"line {row.line}" if row.line else f"decision {row.decision.id}"


def undrawn(row: Logged) -> str | None:
    """Why this row is left out: nobody drew its arm, or its label was chosen for its use; None where it is not."""
    queue = row.decision.facts.get(LABEL_QUEUE) if row.reward.judged_by == "label" else None
    if isinstance(queue, Mapping) and queue.get("asked") and queue.get("uniform") is False:
        return "its label was chosen by the queue for its use: the uniform part of the queue speaks of all"
    return next((why for key, why in _UNDRAWN.items() if key in row.decision.facts), None)


def rows_batch(rows: Sequence[Logged], *, spec: BatchSpec) -> Any:
    """Rows as a record batch with the columns of the spec. Raises InvalidInput for a candidate's pmf that is none."""
    decided, rewards = [row.decision for row in rows], [row.reward for row in rows]
    numbers = [pa.array([getattr(reward, name) for reward in rewards], pa.float64()) for name in REWARD]
    words = [pa.array([getattr(reward, name) for reward in rewards], pa.string()) for name in REWARD_WORDS]
    texts = {
        "id": [decision.id for decision in decided],
        "text": [decision.query.text for decision in decided],
        "arm": [decision.arm for decision in decided],
        "version": [decision.version for decision in decided],
        "policy": [decision.policy for decision in decided],
        "tenant": [decision.query.tenant for decision in decided],
        "encoder_hash": [decision.encoder_hash for decision in decided],
        "facts": [canonical(dict(row.decision.facts)) if undrawn(row) else "{}" for row in rows],
    }
    if "context" in spec.columns:
        texts["context"] = [canonical(dict(decision.query.context)) for decision in decided]
    columns = {
        **{name: pa.array(values, pa.string()) for name, values in texts.items()},
        "arms": pa.array([decision.arms for decision in decided], pa.list_(pa.string())),
        "pmf": pa.array([decision.pmf for decision in decided], pa.list_(pa.float64())),
        "reward": pa.StructArray.from_arrays([*numbers, *words], names=[*REWARD, *REWARD_WORDS]),
        "made_at": pa.array([decision.made_at for decision in decided], pa.float64()),
        "cost_weight": pa.array([decision.cost_weight for decision in decided], pa.float64()),
        "late": pa.array([row.late for row in rows], pa.bool_()),
        LINE: pa.array([row.line for row in rows], pa.int64()),
        "features": feature_lists([decision.features for decision in decided]),
        **{name: pa.array([_own_pmf(row, name) for row in rows], pa.list_(pa.float64())) for name in spec.own},
    }
    return pa.RecordBatch.from_pydict(columns)


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


def arms_in(batches: Iterator[Any], *, every: bool) -> tuple[ArmName, ...]:
    """The arms of the first row that was drawn; every: then those of all others, as they occur."""
    arms: dict[ArmName, None] = {}
    for batch in batches:
        rows = batch.filter(pa.array(drawn(batch)))
        arms |= offered_arms(rows if every else rows.slice(0, 1))
        if arms and not every:
            break
    return tuple(arms)
