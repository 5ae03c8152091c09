"""A ledger of the store as a source of record batches: its columns are read without making an object of every row."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from sqlalchemy import select

from ragbandit.router.offline.logs.columns import REWARD, REWARD_WORDS, column_type
from ragbandit.router.offline.logs.jsonl import KEYS
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.offline.logs.parquet import BATCH, FIRST, record_batch, reward_column, rows_batch
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import arms_value, features_rows, features_value
from ragbandit.router.storage.sql.tables import decisions, updates

_REWARD: Final = (*REWARD, *REWARD_WORDS)
#: columns of `updates` that are always read
_UPDATE: Final = ("seq", *_REWARD)


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerSource:
    ledger: Ledger
    #: seq of the last row that is read: rows that are added later are not read, so that every pass has the same rows
    upto: int
    since: float | None = None  #: decisions before this time are not read, seconds since the epoch; None to read all

    @property
    def place(self) -> str:
        return "row"

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield record batches; see `LogSource`. Raises StoreError for a row that cannot be read."""
        after, size = 0, FIRST
        columns = tuple(dict.fromkeys([*columns, "made_at"]))
        while rows := self._page(columns, after=after, size=size):
            try:
                batch = _batch(columns, rows)
            except (ValueError, TypeError, KeyError, pa.ArrowException):  # reading row by row names the row
                batch = rows_batch(list(ledger_rows(self.ledger, after=after, upto=rows[-1][0])), columns)
            if self.since is not None:
                batch = batch.filter(pa.array(batch.column("made_at").to_numpy() >= self.since))
            if batch.num_rows:
                yield batch
            after = rows[-1][0]
            size = BATCH // 8  # smaller than BATCH, since the cells of a page take more memory than its arrays

    def _page(self, columns: Sequence[str], *, after: int, size: int) -> Sequence[Any]:
        """The next rows: the columns _UPDATE, then the names in `columns` that are stored with the decision."""
        stored = [decisions.c[name] for name in _of_decision(columns)]
        query = select(*updates.c[_UPDATE], *stored)
        query = query.join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
        query = query.where(updates.c.policy == self.ledger.label, updates.c.seq > after, updates.c.seq <= self.upto)
        with self.ledger.database.read() as connection:
            return connection.execute(query.order_by(updates.c.seq).limit(size)).all()


def _of_decision(columns: Sequence[str]) -> list[str]:
    return [name for name in columns if name in KEYS and name in decisions.c]


def _batch(columns: Sequence[str], rows: Sequence[Any]) -> Any:
    """A batch of the rows of a page. Raises ValueError, TypeError, KeyError or ArrowException for an unreadable row."""
    names = [*_UPDATE, *_of_decision(columns)]
    cells: dict[str, Sequence[Any]] = dict(zip(names, zip(*rows, strict=True), strict=True))
    arrays: dict[str, Any] = {}
    for name in columns:
        if name == "reward":
            arrays[name] = reward_column({part: cells[part] for part in _REWARD})
        else:
            arrays[name] = _READERS[name](cells[name]) if name in _READERS else cells[name]
    return record_batch(arrays)


def _arms(texts: Sequence[str]) -> Any:
    """Lists of arms, each different text parsed once."""
    coded = pa.array(texts).dictionary_encode()
    lists = pa.array([list(arms_value(text)) for text in coded.dictionary.to_pylist()], column_type("arms"))
    return lists.take(coded.indices)


def _pmfs(texts: Sequence[str]) -> Any:
    parsed = json.loads(f"[{','.join(texts)}]")
    if len(parsed) != len(texts):
        raise ValueError("a pmf is not JSON")
    return pa.array(parsed, column_type("pmf"))


def _features(cells: Sequence[bytes | None]) -> Any:
    """Lists of float16 or float32, as they are stored: float16 takes half the memory, so more of a log stays there."""
    rows = features_rows(cells)
    if rows is None:  # a row has no features, or features of another width
        return list(map(features_value, cells))
    return pa.ListArray.from_arrays(np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32), pa.array(rows.ravel()))


_READERS: Final[Mapping[str, Callable[[Sequence[Any]], Any]]] = {
    "arms": _arms,
    "pmf": _pmfs,
    "features": _features,
}
