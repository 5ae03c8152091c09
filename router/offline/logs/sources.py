"""Sources of a log: a Parquet file, a ledger of the store, rows in memory; as Arrow record batches.

All give the columns that `batches` describes, so that one decoder reads them; each says how a row is named in messages.
"""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa
from sqlalchemy import ColumnElement, case, func, select

from ragbandit.router.offline.logs.batches import REWARD, REWARD_WORDS, BatchSpec, drawn, offered_arms
from ragbandit.router.offline.logs.ledger_transfer import late_decisions
from ragbandit.router.offline.logs.parquet import feature_lists, opened, without_rows
from ragbandit.router.offline.logs.place import Place, shown
from ragbandit.router.offline.logs.records import Defaults, Logged
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import feature_rows, features_value
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.errors import InvalidInput, StoreError
from ragbandit.shared.types import ArmName

Item = TypeVar("Item")

#: rows of a batch: its arrays fit into a processor's cache
BATCH = 32_768
#: the features of rows whose text was not kept: they tell the question
_OF_TEXTLESS = "features_of_textless"
#: columns of a ledger that are text
_TEXTS = ("id", "text", "arm", "context", "facts", "tenant", "version", "policy", "encoder_hash")


class LogSource(Protocol):
    """A log, or one file of it, in its order, as often as it is asked for."""

    def batches(self, spec: BatchSpec) -> Iterator[Any]:
        """Record batches with the columns of the spec that the source has.

        Raises InvalidInput for a source that cannot be read or lacks a column.
        """
        ...

    def row_name(self, number: int, key: str, /) -> str:
        """A row in words, by its number from 1 or its id."""
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
        for batch in self._read(wanted):
            yield _with_reward(batch, defaults=self.defaults)

    def _read(self, columns: Sequence[str]) -> Iterator[Any]:
        """Record batches that never span row groups: their dictionaries differ, and nested ones cannot be joined."""
        with opened(self.path, read_dictionary=self._dictionaries()) as file:
            for group in range(file.num_row_groups):
                yield from file.iter_batches(batch_size=BATCH, row_groups=[group], columns=list(columns))

    def row_name(self, number: int, _key: str, /) -> str:
        """By its number in the file."""
        return f"{shown(self.path)} row {number}"

    def arms(self, *, every: bool) -> tuple[ArmName, ...]:
        """As `LogSource` says."""
        if without_rows(self.path):
            return ()
        names = self.columns()
        if "arms" not in names:
            raise InvalidInput("there is no such column", field=f"{shown(self.path)} arms", remedy="log all arms")
        return _arms_in(self._read([name for name in ("arms", "facts") if name in names]), every=every)

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


def rows_batch(rows: Sequence[Logged]) -> Any:
    """Rows in memory as a record batch, with all that arrays are made of but the fields."""
    decided, rewards = [row.decision for row in rows], [row.reward for row in rows]
    numbers = [pa.array([getattr(reward, name) for reward in rewards], pa.float64()) for name in REWARD]
    words = [pa.array([getattr(reward, name) for reward in rewards], pa.string()) for name in REWARD_WORDS]
    columns = {
        "id": pa.array([decision.id for decision in decided], pa.string()),
        "text": pa.array([decision.query.text for decision in decided], pa.string()),
        "arms": pa.array([decision.arms for decision in decided], pa.list_(pa.string())),
        "pmf": pa.array([decision.pmf for decision in decided], pa.list_(pa.float64())),
        "arm": pa.array([decision.arm for decision in decided], pa.string()),
        "reward": pa.StructArray.from_arrays([*numbers, *words], names=[*REWARD, *REWARD_WORDS]),
        "made_at": pa.array([decision.made_at for decision in decided], pa.float64()),
        "cost_weight": pa.array([decision.cost_weight for decision in decided], pa.float64()),
        "late": pa.array([row.late for row in rows], pa.bool_()),
        "version": pa.array([decision.version for decision in decided], pa.string()),
        "features": feature_lists([decision.features for decision in decided]),
    }
    return pa.RecordBatch.from_pydict(columns)


@dataclass(frozen=True, kw_only=True)
class LedgerSource:
    """The rows of a ledger up to a seq, a page of seqs at a time.

    Pages are queries: nothing is held open between them, and a ledger that grows meanwhile does not change what is
    read, since `open_ledger` notes where it ends. No Decision is made.
    """

    ledger: Ledger
    first: int
    last: int
    #: rows decided before are left out, seconds since the epoch
    since: float | None

    def batches(self, spec: BatchSpec) -> Iterator[Any]:
        """As `LogSource` says. Raises StoreError for a row that cannot be read."""
        return _ahead(self._batches(spec))

    def _batches(self, spec: BatchSpec) -> Iterator[Any]:
        names = [name for name in spec.columns if name not in ("reward", "late", "features")]
        names += ["features" if spec.features else _OF_TEXTLESS, *REWARD, *REWARD_WORDS]
        for start, stop, columns in self._pages(names):
            marked = late_decisions(self.ledger, start, stop) if spec.late else set[str]()
            try:
                yield _ledger_batch(columns, late=marked)
            except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
                raise self._unreadable(error, start=start, stop=stop) from error

    def row_name(self, _number: int, key: str, /) -> str:
        """By its decision."""
        return f"decision {key}"

    def arms(self, *, every: bool) -> tuple[ArmName, ...]:
        """As `LogSource` says."""
        return _arms_in(self._offers(), every=every)

    def _offers(self) -> Iterator[Any]:
        for start, stop, columns in self._pages(["id", "arms", "facts"]):
            try:
                offers = {"arms": _lists_of(columns["arms"]), "facts": pa.array(columns["facts"], pa.string())}
                yield pa.RecordBatch.from_pydict(offers)
            except (ValueError, TypeError, KeyError) as error:
                raise self._unreadable(error, start=start, stop=stop) from error

    def _pages(self, names: Sequence[str]) -> Iterator[tuple[int, int, Mapping[str, Sequence[Any]]]]:
        """(first seq, last seq, name -> values of the rows) of every page that has rows."""
        for start in range(self.first, self.last + 1, BATCH):
            stop = min(start + BATCH - 1, self.last)
            columns = self._read(start, stop, names=names)
            if columns["id"]:
                yield start, stop, columns

    def _read(self, start: int, stop: int, *, names: Sequence[str]) -> Mapping[str, Sequence[Any]]:
        """Name -> its values in these rows of the database."""
        query = select(*(_column(name) for name in names))
        query = query.join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
        query = query.where(updates.c.policy == self.ledger.label, updates.c.seq.between(start, stop))
        if self.since is not None:
            query = query.where(decisions.c.made_at >= self.since)
        with self.ledger.database.read() as connection:
            return _columns(names, connection.execute(query.order_by(updates.c.seq)).all())

    def _unreadable(self, error: Exception, *, start: int, stop: int) -> Exception:
        """What the reader of single rows says of this page: it names the decision."""
        try:
            for _ in self.ledger.read_with_decisions(after=start - 1, upto=stop):
                pass
        except StoreError as named:
            return named
        return StoreError(f"the rows {start} to {stop} cannot be read: {error}", remedy="see: ragbandit verify")


def open_ledger(ledger: Ledger, *, since: float | None) -> LedgerSource | None:
    """The ledger as it is now; None where it has no rows."""
    with ledger.database.read() as connection:
        ends = select(func.min(updates.c.seq), func.max(updates.c.seq)).where(updates.c.policy == ledger.label)
        first, last = connection.execute(ends).one()
    if first is None:
        return None
    return LedgerSource(ledger=ledger, first=int(first), last=int(last), since=since)


def _column(name: str) -> ColumnElement[Any]:
    if name in REWARD or name in REWARD_WORDS:
        return updates.c[name]
    if name == _OF_TEXTLESS:
        return case((decisions.c.text == "", decisions.c.features)).label(name)
    if name == "facts":  # a draw that was certain is rare: of all others they say nothing here
        return case((decisions.c.propensity == 1.0, decisions.c.facts), else_="{}").label(name)
    return decisions.c[name]


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Sequence[Any]]:
    values: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(names)
    return dict(zip(names, values, strict=True))


def _ledger_batch(columns: Mapping[str, Sequence[Any]], *, late: Container[str]) -> Any:
    """A page of rows as a record batch. Raises ValueError, TypeError or KeyError for what cannot be read."""
    ids = columns["id"]
    numbers = [pa.array(columns[name], pa.float64()) for name in REWARD]
    words = [pa.array(columns[name], pa.string()) for name in REWARD_WORDS]
    features = columns.get("features", columns.get(_OF_TEXTLESS, ()))
    arrays = {
        "arms": _lists_of(columns["arms"]),
        "pmf": pa.array(json.loads(f"[{','.join(columns['pmf'])}]"), pa.list_(pa.float64())),
        "reward": pa.StructArray.from_arrays([*numbers, *words], names=[*REWARD, *REWARD_WORDS]),
        "features": _features(features),
        "late": pa.array([key in late for key in ids], pa.bool_()),
        **{name: pa.array(columns[name], pa.float64()) for name in ("propensity", "made_at", "cost_weight")},
    }
    texts = [name for name in columns if name in _TEXTS]
    return pa.RecordBatch.from_pydict(arrays | {name: pa.array(columns[name], pa.string()) for name in texts})


def _lists_of(texts: Sequence[str]) -> Any:
    """JSON lists of text, of which few are different, as a column."""
    known = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    lists = pa.array([json.loads(text) for text in known], pa.list_(pa.string()))
    return lists.take(pa.array([known[text] for text in texts], pa.int32()))


def _features(rows: Sequence[bytes | None]) -> Any:
    numbers = feature_rows(rows)
    if numbers is None:
        return feature_lists([features_value(raw) for raw in rows])
    ends = np.arange(0, numbers.size + 1, numbers.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(numbers.ravel()))


def _arms_in(batches: Iterator[Any], *, every: bool) -> tuple[ArmName, ...]:
    """The arms of the first row that was drawn; every: then those of all others, as they occur."""
    arms: dict[ArmName, None] = {}
    for batch in batches:
        rows = batch.filter(pa.array(drawn(batch)))
        arms |= offered_arms(rows if every else rows.slice(0, 1))
        if arms and not every:
            break
    return tuple(arms)
