"""The rows of a ledger as Arrow record batches, read from the columns of the store without making Decision objects."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlalchemy import ColumnElement, case, func, or_, select

from ragbandit.router.offline.logs import parquet
from ragbandit.router.offline.logs.columns import DECIDED, PARTS, RESTARTS, parts_read
from ragbandit.router.storage.jobs.scores import CHOSEN_FOR_USE
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import features_value
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.errors import StoreError
from ragbandit.shared.types import IMPORTED

#: rows per page: fewer than in a batch of Parquet, since a page is read as Python objects
PAGE: Final = 2048


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerSource:
    """The rows that a ledger has now, read page by page. Rows that are added later are not read."""

    ledger: Ledger
    first: int  #: seq of the first row
    last: int  #: seq of the last row; below `first` if there are no rows
    #: decisions made before this time are not read, seconds since the epoch; None to read all
    since: float | None
    place: str = ""

    @classmethod
    def of(cls, ledger: Ledger, *, since: float | None) -> "LedgerSource":
        with ledger.database.read() as connection:
            ends = select(func.min(updates.c.seq), func.max(updates.c.seq)).where(updates.c.policy == ledger.label)
            first, last = connection.execute(ends).one()
        return cls(ledger=ledger, first=int(first or 1), last=int(last or 0), since=since)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield record batches; see `LogSource`. Raises StoreError for a row that cannot be read."""
        start, size = self.first, parquet.FIRST
        while start <= self.last:
            stop = min(start + size - 1, self.last)
            try:
                values = self._page(columns, start=start, stop=stop)
                if values:
                    yield parquet.record_batch(_columns(values))
            except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
                raise self._unreadable(error, start=start, stop=stop) from error
            start, size = stop + 1, PAGE

    def _page(self, columns: Sequence[str], *, start: int, stop: int) -> Mapping[str, Sequence[Any]]:
        names = [name for name in columns if name != "reward"]
        if "reward" in columns:
            names += parts_read(columns)
        query = select(*(_column(name) for name in names))
        query = query.join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
        query = query.where(updates.c.policy == self.ledger.label, updates.c.seq.between(start, stop))
        if self.since is not None:
            query = query.where(decisions.c.made_at >= self.since)
        with self.ledger.database.read() as connection:
            rows = connection.execute(query.order_by(updates.c.seq)).all()
        return dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}

    def _unreadable(self, error: Exception, *, start: int, stop: int) -> Exception:
        """An error for this page: if possible the error of the row reader, which names the decision."""
        try:
            for _ in self.ledger.read_with_decisions(after=start - 1, upto=stop):
                pass
        except StoreError as row_error:
            return row_error
        return StoreError(f"the rows {start} to {stop} cannot be read: {error}", remedy="see: ragbandit verify")


def _column(name: str) -> ColumnElement[Any]:
    if name in PARTS or name == "seq":
        return updates.c[name]
    if name in (DECIDED, RESTARTS):
        return updates.c[name.removeprefix("#")].label(name)
    if name == "facts":  # facts may be long, and few rows have one that replay reads
        imported = decisions.c.facts.contains(f'"{IMPORTED}":')
        return case(
            (or_(decisions.c.propensity == 1.0, CHOSEN_FOR_USE, imported), decisions.c.facts), else_="{}"
        ).label(name)
    return decisions.c[name]


def _columns(values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    parts = {name: values[name] for name in PARTS if name in values}
    columns: dict[str, Any] = {name: cells for name, cells in values.items() if name not in parts}
    columns["arms"] = _lists_of(values["arms"])
    if "pmf" in values:
        columns["pmf"] = json.loads(f"[{','.join(values['pmf'])}]")
    if "features" in columns:
        columns["features"] = _features_column(columns["features"])
    if RESTARTS in columns:
        columns[RESTARTS] = [None if text is None else json.loads(text) for text in columns[RESTARTS]]
    if parts:
        columns["reward"] = parquet.reward_column(parts)
    return columns


def _features_column(stored: Sequence[bytes | None]) -> Any:
    """Feature vectors as a column. Vectors of one width and encoding are converted together."""
    vectors = [bytes(raw) for raw in stored if raw is not None]
    width = len(vectors[0]) if vectors else 0
    mark = vectors[0][: width % 2] if vectors else b""  # an odd length means one leading byte with the encoding
    alike = all(len(raw) == width and raw.startswith(mark) for raw in vectors)
    if not width or not alike or len(vectors) < len(stored):
        return [features_value(raw) for raw in stored]
    numbers = features_value(mark + b"".join(raw[len(mark) :] for raw in vectors))
    assert numbers is not None
    ends = np.arange(len(vectors) + 1) * (len(numbers) // len(vectors))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(numbers))


def _lists_of(texts: Sequence[str]) -> Any:
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    lists = pa.array([json.loads(text) for text in places], pa.list_(pa.string()))
    return lists.take(pa.array([places[text] for text in texts], pa.int32()))
