"""The rows of a ledger as Arrow record batches, straight from the columns of the store: no Decision is made."""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy import ColumnElement, case, func, or_, select

from ragbandit.router.offline.logs.batches import REWARD, REWARD_WORDS, BatchSpec
from ragbandit.router.offline.logs.ledger_transfer import late_decisions
from ragbandit.router.offline.logs.parquet import BATCH, arms_in, feature_lists
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import features_value
from ragbandit.router.storage.rows.job_rows import CHOSEN_FOR_USE
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.errors import StoreError
from ragbandit.shared.types import ArmName

#: the features of rows whose text was not kept: they tell the question
_OF_TEXTLESS = "features_of_textless"
#: columns of a ledger that are text
_TEXTS = ("id", "text", "arm", "context", "facts", "tenant", "version", "policy", "encoder_hash")


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerSource:
    """The rows of a ledger up to a seq, a page of seqs at a time: a ledger that grows changes nothing that is read."""

    ledger: Ledger
    #: seqs, from 1; none where last is below first
    first: int
    last: int
    #: rows decided before are left out, seconds since the epoch
    since: float | None

    @classmethod
    def of(cls, ledger: Ledger, *, since: float | None) -> "LedgerSource":
        """The ledger as it is now."""
        with ledger.database.read() as connection:
            ends = select(func.min(updates.c.seq), func.max(updates.c.seq)).where(updates.c.policy == ledger.label)
            first, last = connection.execute(ends).one()
        return cls(ledger=ledger, first=int(first or 1), last=int(last or 0), since=since)

    def batches(self, spec: BatchSpec) -> Iterator[Any]:
        """As `LogSource` says. Raises StoreError for a row that cannot be read."""
        names = [name for name in spec.columns if name not in ("reward", "late", "features")]
        names += ["features" if spec.features else _OF_TEXTLESS, *REWARD, *REWARD_WORDS]
        for start, stop, columns in self._pages(names):
            late = late_decisions(self.ledger, start, stop)
            try:
                yield _batch(columns, late=late)
            except (ValueError, TypeError, KeyError, pa.ArrowException) as error:
                raise self._unreadable(error, start=start, stop=stop) from error

    @property
    def place(self) -> str:
        """As `LogSource` says: none of its rows stands in a file."""
        return ""

    def arms(self, *, every: bool) -> tuple[ArmName, ...]:
        """As `LogSource` says."""
        return arms_in(self._offers(), every=every)

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
            query = select(*(_column(name) for name in names))
            query = query.join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
            query = query.where(updates.c.policy == self.ledger.label, updates.c.seq.between(start, stop))
            if self.since is not None:
                query = query.where(decisions.c.made_at >= self.since)
            with self.ledger.database.read() as connection:
                rows = connection.execute(query.order_by(updates.c.seq)).all()
            if rows:
                yield start, stop, dict(zip(names, zip(*rows, strict=True), strict=True))

    def _unreadable(self, error: Exception, *, start: int, stop: int) -> Exception:
        """What the reader of single rows says of this page: it names the decision."""
        try:
            for _ in self.ledger.read_with_decisions(after=start - 1, upto=stop):
                pass
        except StoreError as named:
            return named
        return StoreError(f"the rows {start} to {stop} cannot be read: {error}", remedy="see: ragbandit verify")


def _column(name: str) -> ColumnElement[Any]:
    if name in REWARD or name in REWARD_WORDS:
        return updates.c[name]
    if name == _OF_TEXTLESS:
        return case((decisions.c.text == "", decisions.c.features)).label(name)
    if name == "facts":  # a draw that was certain, or a chosen label, is rare: of all others they say nothing here
        told = or_(decisions.c.propensity == 1.0, CHOSEN_FOR_USE)
        return case((told, decisions.c.facts), else_="{}").label(name)
    return decisions.c[name]


def _batch(columns: Mapping[str, Sequence[Any]], *, late: Container[str]) -> Any:
    """A page of rows as a record batch. Raises ValueError, TypeError or KeyError for what cannot be read."""
    numbers = [pa.array(columns[name], pa.float64()) for name in REWARD]
    words = [pa.array(columns[name], pa.string()) for name in REWARD_WORDS]
    arrays = {
        "arms": _lists_of(columns["arms"]),
        "pmf": pa.array(json.loads(f"[{','.join(columns['pmf'])}]"), pa.list_(pa.float64())),
        "reward": pa.StructArray.from_arrays([*numbers, *words], names=[*REWARD, *REWARD_WORDS]),
        "features": feature_lists(
            [features_value(raw) for raw in columns.get("features", columns.get(_OF_TEXTLESS, ()))]
        ),
        "late": pa.array([key in late for key in columns["id"]], pa.bool_()),
        **{name: pa.array(columns[name], pa.float64()) for name in ("propensity", "made_at", "cost_weight")},
    }
    texts = {name: pa.array(columns[name], pa.string()) for name in _TEXTS if name in columns}
    return pa.RecordBatch.from_pydict(arrays | texts)


def _lists_of(texts: Sequence[str]) -> Any:
    """JSON lists of text, of which few are different, as a column."""
    known = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    lists = pa.array([json.loads(text) for text in known], pa.list_(pa.string()))
    return lists.take(pa.array([known[text] for text in texts], pa.int32()))
