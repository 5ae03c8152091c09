"""The rows of a ledger as Arrow record batches, read from columns of the store without a Decision per row."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import ColumnElement, case, func, or_, select

from ragbandit.router.offline.logs import parquet
from ragbandit.router.offline.logs.batches import REWARD, REWARD_WORDS, TEXTLESS, record_batch, reward_column
from ragbandit.router.offline.logs.ledger_transfer import late_decisions
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import features_value
from ragbandit.router.storage.rows.outcome_rows import CHOSEN_FOR_USE
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.errors import StoreError


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerSource:
    """The rows of a ledger up to a seq, a page of seqs at a time. Rows that are added meanwhile are not read."""

    ledger: Ledger
    #: seqs, from 1; without rows `last` is below `first`
    first: int
    last: int
    #: earlier decisions are left out, seconds since the epoch; None to read all
    since: float | None
    #: empty, since no row is in a file
    place: str = ""

    @classmethod
    def of(cls, ledger: Ledger, *, since: float | None) -> "LedgerSource":
        """The rows that the ledger has now."""
        with ledger.database.read() as connection:
            ends = select(func.min(updates.c.seq), func.max(updates.c.seq)).where(updates.c.policy == ledger.label)
            first, last = connection.execute(ends).one()
        return cls(ledger=ledger, first=int(first or 1), last=int(last or 0), since=since)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Record batches of these columns. Raises StoreError for a row that cannot be read."""
        start, size = self.first, parquet.FIRST
        while start <= self.last:
            stop = min(start + size - 1, self.last)
            late = late_decisions(self.ledger, start, stop) if "late" in columns else set()
            try:
                if values := self._page(columns, start=start, stop=stop):
                    more = {"late": [key in late for key in values["id"]]} if "late" in columns else {}
                    yield record_batch(_columns(values) | more)
            except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
                raise self._unreadable(error, start=start, stop=stop) from error
            start, size = stop + 1, parquet.BATCH

    def _page(self, columns: Sequence[str], *, start: int, stop: int) -> Mapping[str, Sequence[Any]]:
        """Column name -> values of the rows with these seqs. Empty if there are no rows."""
        names = [name for name in columns if name not in ("reward", "late")]
        names += [*REWARD, *REWARD_WORDS] if "reward" in columns else []
        query = select(*(_column(name) for name in names))
        query = query.join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
        query = query.where(updates.c.policy == self.ledger.label, updates.c.seq.between(start, stop))
        if self.since is not None:
            query = query.where(decisions.c.made_at >= self.since)
        with self.ledger.database.read() as connection:
            rows = connection.execute(query.order_by(updates.c.seq)).all()
        return dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}

    def _unreadable(self, error: Exception, *, start: int, stop: int) -> Exception:
        """The error of the row reader for this page, which names the decision."""
        try:
            for _ in self.ledger.read_with_decisions(after=start - 1, upto=stop):
                pass
        except StoreError as named:
            return named
        return StoreError(f"the rows {start} to {stop} cannot be read: {error}", remedy="see: ragbandit verify")


def _column(name: str) -> ColumnElement[Any]:
    if name in REWARD or name in REWARD_WORDS:
        return updates.c[name]
    if name == TEXTLESS:
        return case((decisions.c.text == "", decisions.c.features)).label(name)
    if name == "facts":  # needed only for the few rows with a certain draw or a chosen label
        needed = or_(decisions.c.propensity == 1.0, CHOSEN_FOR_USE)
        return case((needed, decisions.c.facts), else_="{}").label(name)
    return decisions.c[name]


def _columns(values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """The values of a page as columns of a record batch. Raises ValueError, TypeError or KeyError."""
    parts = {name: values[name] for name in (*REWARD, *REWARD_WORDS) if name in values}
    columns: dict[str, Any] = {name: each for name, each in values.items() if name not in parts}
    columns["arms"] = _lists_of(values["arms"])
    if "pmf" in values:
        columns["pmf"] = json.loads(f"[{','.join(values['pmf'])}]")
    for name in ("features", TEXTLESS):
        if name in columns:
            columns["features"] = _features_column(columns.pop(name))
    return columns | ({"reward": reward_column(parts)} if parts else {})


def _features_column(stored: Sequence[bytes | None]) -> Any:
    """Feature vectors as a column. Vectors of one width and encoding are converted together."""
    whole = [bytes(raw) for raw in stored if raw is not None]
    width = len(whole[0]) if whole else 0
    mark = whole[0][: width % 2] if whole else b""
    if not width or len(whole) < len(stored) or any(len(raw) != width or raw[: len(mark)] != mark for raw in whole):
        return [features_value(raw) for raw in stored]
    numbers = features_value(mark + b"".join(raw[len(mark) :] for raw in whole))
    assert numbers is not None
    ends = np.arange(len(whole) + 1) * (len(numbers) // len(whole))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(numbers))


def _lists_of(texts: Sequence[str]) -> Any:
    """JSON lists of text, most of them equal, as a column."""
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    lists = pa.array([json.loads(text) for text in places], pa.list_(pa.string()))
    return lists.take(pa.array([places[text] for text in texts], pa.int32()))
