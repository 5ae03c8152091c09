"""A ledger as arrays, a page of rows at a time: what is judged in millions is never made into Decision objects.

Pages are ranges of seq, each one query: nothing is held open between them, and a ledger that grows meanwhile does not
change what is read, since `open_ledger` notes where it ends.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Column, ColumnElement, Select, case, func, not_, or_, select

from ragbandit.router.errors import InvalidInput, StoreError
from ragbandit.router.offline.estimation.bandit_log import BY_ID, Log, keys_of, possible, questions_of
from ragbandit.router.offline.logs.ledger_transfer import late_decisions
from ragbandit.router.offline.types import Choices, Flags, Matrix, Strings
from ragbandit.router.storage.archive.reading import archived_spans, rows_of_ledger
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import Row, canonical
from ragbandit.router.storage.rows.feature_bytes import feature_rows, features_value
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.router.types import KILLED, STICKY, ArmName

__all__ = ["LedgerPage", "LedgerReader", "UnevenFeatures", "open_ledger"]

#: fields that are columns of their own; others are keys of the context
_COLUMNS = ("tenant", "version", "policy")
#: the features of rows whose text was not kept: they tell the question
_OF_TEXTLESS = "features_of_textless"
_REWARD = ("value", "quality", "cost", "minimum", "maximum", "preset", "source")


#: in the facts of a turn that stayed, and of a pinned arm, as canonical JSON has them; within texts quotes are escaped
_UNDRAWN = (f'"{STICKY}":{{', f'"{KILLED}":{{')


class UnevenFeatures(Exception):
    """Rows without features, or with those of several encoders: no model of rewards can be fitted to them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerPage:
    """Some rows of a ledger, in its order."""

    log: Log
    ids: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class LedgerReader:
    """The rows of a ledger up to a seq, read as often as asked."""

    ledger: Ledger
    #: the arms of all rows, in the order in which they occur
    arms: tuple[ArmName, ...]
    first: int
    last: int
    #: rows decided before are left out, seconds since the epoch
    since: float | None
    #: rows may offer different arms
    mixed_arms: bool

    def pages(
        self, *, rows: int, fields: Sequence[str], features: bool, summary: bool, unmixed: str = ""
    ) -> Iterator[LedgerPage]:
        """The rows in order, `rows` at a time at most.

        fields: for `Log.fields`: tenant, version, policy or keys of the context. features: read them too. summary: also
        what only a summary reads, `late` and the questions; without it every question is known by its id. unmixed:
        remedy for rows that offer other arms.
        Raises InvalidInput for a row with other arms, StoreError for one that cannot be read, UnevenFeatures.
        """
        said = _Decoder(arms=self.arms, mixed=self.mixed_arms, unmixed=unmixed)
        for start in range(self.first, self.last + 1, rows):
            stop = min(start + rows - 1, self.last)
            wanted = _wanted(fields=fields, features=features, summary=summary)
            columns = self._read(start, stop, wanted=wanted)
            if self._archived(start, stop):  # asked afterwards: rows may move while they are read
                columns = self._read_with_archive(start, stop, wanted=wanted)
            if not columns["id"]:
                continue
            try:
                yield self._page(columns, said, fields=fields, span=(start, stop))
            except (ValueError, TypeError, KeyError) as error:
                raise self._unreadable(error, start=start, stop=stop) from error

    def judged(self) -> int:
        """How many of the rewards in the database are a judge's; those in the archive are not counted."""
        query = _joined(select(func.count()), label=self.ledger.label, since=self.since)
        span = updates.c.seq.between(self.first, self.last), updates.c.judged_by == "judge"
        with self.ledger.database.read() as connection:
            return int(connection.execute(query.where(*span)).scalar_one())

    def stayed(self) -> int:
        """How many rows of the database are left out because their arm was that of an earlier turn."""
        query = select(func.count()).join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
        query = query.where(updates.c.policy == self.ledger.label, not_(_is_draw()))
        if self.since is not None:
            query = query.where(decisions.c.made_at >= self.since)
        with self.ledger.database.read() as connection:
            return int(connection.execute(query.where(updates.c.seq.between(self.first, self.last))).scalar_one())

    def _read(self, start: int, stop: int, *, wanted: Sequence[ColumnElement[Any]]) -> dict[str, Sequence[Any]]:
        """Column -> its values in these rows of the database."""
        query = _joined(select(*wanted), label=self.ledger.label, since=self.since)
        with self.ledger.database.read() as connection:
            rows = connection.execute(query.where(updates.c.seq.between(start, stop)).order_by(updates.c.seq)).all()
            values: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(wanted)
            return {column.name: each for column, each in zip(wanted, values, strict=True)}

    def _archived(self, start: int, stop: int) -> bool:
        with self.ledger.database.read() as connection:
            spans = archived_spans(connection, label=self.ledger.label)
        return any(first <= stop and start <= last for first, last in spans)

    def _read_with_archive(
        self, start: int, stop: int, *, wanted: Sequence[ColumnElement[Any]]
    ) -> dict[str, Sequence[Any]]:
        """`_read`, of database and archive together."""
        rows = rows_of_ledger(
            self.ledger.database, label=self.ledger.label, after=start - 1, upto=stop, page=stop - start + 1
        )
        kept = [
            [_value_of(column, update=update, made=made) for column in wanted]
            for update, made in rows
            if (self.since is None or made["made_at"] >= self.since) and _was_drawn(made)
        ]
        values: list[Sequence[Any]] = list(zip(*kept, strict=True)) or [()] * len(wanted)
        return {column.name: each for column, each in zip(wanted, values, strict=True)}

    def _page(
        self, columns: Mapping[str, Sequence[Any]], said: "_Decoder", *, fields: Sequence[str], span: tuple[int, int]
    ) -> LedgerPage:
        ids, summary = columns["id"], "text" in columns
        late: Flags = np.zeros(len(ids), dtype=np.bool_)
        if summary:
            marked = late_decisions(self.ledger, *span)
            late = np.array([key in marked for key in ids], dtype=np.bool_)
        action, keys = said.actions(columns["arm"]), keys_of(ids)
        questions, known_by = keys, np.full(len(ids), BY_ID, dtype=np.intp)
        if summary:
            features = [None if raw is None else features_value(raw) for raw in columns[_OF_TEXTLESS]]
            questions, known_by = questions_of(columns["text"], features=features, ids=keys)
        pmf, offered = said.pmfs(columns["arms"], columns["pmf"], ids=ids)
        value, quality, cost, minimum, maximum = (np.array(columns[name], dtype=np.float64) for name in _REWARD[:5])
        log = Log(
            arms=self.arms,
            keys=keys,
            questions=questions,
            known_by=known_by,
            action=action,
            pmf=possible(pmf, action=action),
            offered=offered,
            reward=value,
            quality=quality,
            cost=cost,
            minimum=float(minimum.min()),
            maximum=float(maximum.max()),
            raw=np.array([preset in ("reward", "default") for preset in columns["preset"]], dtype=np.bool_),
            defaulted=np.array([source == "default" for source in columns["source"]], dtype=np.bool_),
            late=late,
            made_at=np.array(columns["made_at"], dtype=np.float64),
            features=said.features(columns["features"], columns["encoder_hash"]) if "features" in columns else None,
            fields={name: said.texts(name, columns) for name in fields},
        )
        return LedgerPage(log=log, ids=ids)

    def _unreadable(self, error: Exception, *, start: int, stop: int) -> Exception:
        """What the reader of single rows says of this page: it names the decision."""
        try:
            for _ in self.ledger.read_with_decisions(after=start - 1, upto=stop):
                pass
        except StoreError as named:
            return named
        return StoreError(f"the rows {start} to {stop} cannot be read: {error}", remedy="see: ragbandit verify")


def _wanted(*, fields: Sequence[str], features: bool, summary: bool) -> list[ColumnElement[Any]]:
    return [
        *(decisions.c[name] for name in ("id", "arms", "pmf", "arm", "made_at")),
        *(updates.c[name] for name in _REWARD),
        *(decisions.c[name] for name in _COLUMNS if name in fields),
        *([] if set(fields) <= set(_COLUMNS) else [decisions.c.context]),
        *([decisions.c.features, decisions.c.encoder_hash] if features else []),
        *([decisions.c.text, _features_of_textless()] if summary else []),
    ]


def _features_of_textless() -> ColumnElement[Any]:
    return case((decisions.c.text == "", decisions.c.features)).label(_OF_TEXTLESS)


def _value_of(column: ColumnElement[Any], *, update: Row, made: Row) -> object:
    """The value of a column of `_wanted` in rows of the archive."""
    if isinstance(column, Column):
        return (update if column.table is updates else made)[column.name]
    return None if made["text"] else made["features"]  # the one that is no column of a table


def _joined(query: Select[Any], *, label: str, since: float | None) -> Select[Any]:
    query = query.join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
    query = query.where(updates.c.policy == label, _is_draw())
    return query if since is None else query.where(decisions.c.made_at >= since)


def _is_draw() -> ColumnElement[bool]:
    """That the arm was drawn, not kept or pinned: the propensity tells it of nearly every row at once."""
    marked = [decisions.c.facts.contains(mark, autoescape=True) for mark in _UNDRAWN]
    return or_(decisions.c.propensity != 1.0, ~or_(*marked))


def _was_drawn(made: Row) -> bool:
    """The same of a row of the archive."""
    return made["propensity"] != 1.0 or not any(mark in made["facts"] for mark in _UNDRAWN)


def open_ledger(
    ledger: Ledger, *, since: float | None, mixed_arms: bool, none: Callable[[int], InvalidInput]
) -> LedgerReader:
    """A reader of the ledger as it is now. none: what to raise where no row is left, of so many."""
    with ledger.database.read() as connection:
        ends = select(func.min(updates.c.seq), func.max(updates.c.seq)).where(updates.c.policy == ledger.label)
        spans = [tuple(connection.execute(ends).one()), *archived_spans(connection, label=ledger.label)]
        known = [span for span in spans if span[0] is not None]
        if not known:
            raise none(0)
        first, last = min(span[0] for span in known), max(span[1] for span in known)
        offers = _offers(ledger.label, since=since, all_of_them=mixed_arms)
        texts = [row["arms"] for row in connection.execute(offers).mappings()]
    if len(known) > 1 or spans[0][0] is None:
        texts = _archived_offers(ledger, first=first, last=last, since=since, all_of_them=mixed_arms)
    if not texts:
        raise none(int(last))
    try:
        arms = dict.fromkeys(ArmName(name) for text in texts for name in json.loads(text))
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"the arms {texts[0]!r:.80} cannot be read: {error}", remedy="see: ragbandit verify"
        ) from error
    return LedgerReader(
        ledger=ledger, arms=tuple(arms), first=int(first), last=int(last), since=since, mixed_arms=mixed_arms
    )


def _offers(label: str, *, since: float | None, all_of_them: bool) -> Select[Any]:
    """The first row's arms, or all that were ever offered, in the order in which they occur."""
    if not all_of_them:
        return _joined(select(decisions.c.arms), label=label, since=since).order_by(updates.c.seq).limit(1)
    found = _joined(select(decisions.c.arms), label=label, since=since)
    return found.group_by(decisions.c.arms).order_by(func.min(updates.c.seq))


def _archived_offers(ledger: Ledger, *, first: int, last: int, since: float | None, all_of_them: bool) -> list[str]:
    """The same of a ledger with archived rows."""
    rows = rows_of_ledger(ledger.database, label=ledger.label, after=first - 1, upto=last, page=1000)
    texts = (made["arms"] for _, made in rows if (since is None or made["made_at"] >= since) and _was_drawn(made))
    return list(dict.fromkeys(texts)) if all_of_them else list(islice(texts, 1))


class _Decoder:
    """From the texts of columns to arrays; what stands in many rows is read once."""

    def __init__(self, *, arms: Sequence[ArmName], mixed: bool, unmixed: str) -> None:
        self._arms, self._mixed, self._unmixed = tuple(arms), mixed, unmixed
        self._place = {arm: index for index, arm in enumerate(arms)}
        #: text of arms -> their columns
        self._offers: dict[str, npt.NDArray[np.intp]] = {}
        self._encoder: tuple[str, int] | None = None

    def pmfs(self, arms: Sequence[str], texts: Sequence[str], *, ids: Sequence[str]) -> tuple[Matrix, Flags]:
        """Probabilities and what was offered, both of shape (n, K). arms, texts: JSON lists."""
        pmf, offered = np.zeros((len(ids), len(self._arms))), np.zeros((len(ids), len(self._arms)), dtype=np.bool_)
        groups: dict[str, list[int]] = {}
        for row, offer in enumerate(arms):
            groups.setdefault(offer, []).append(row)
        for offer, rows in groups.items():
            here = self._columns(offer)
            self._check_offer(here, ids=ids, first=rows[0])
            place = np.array(rows, dtype=np.intp)[:, None]
            pmf[place, here] = _pmfs_of_texts([texts[row] for row in rows], arms=len(here))
            offered[place, here] = True
        return pmf, offered

    def actions(self, arms: Sequence[str]) -> Choices:
        """Columns of the drawn arms, -1 for one that nobody offered; shape (n,)."""
        return np.array([self._place.get(ArmName(arm), -1) for arm in arms], dtype=np.intp)

    def features(self, rows: Sequence[bytes | None], encoders: Sequence[str]) -> npt.NDArray[np.float32]:
        """Features of shape (n, d). Raises UnevenFeatures."""
        found = feature_rows(rows)
        kinds = set(encoders)
        if found is None or len(kinds) > 1:
            raise UnevenFeatures
        made_by = kinds.pop(), found.shape[1]
        self._encoder = self._encoder or made_by
        if made_by != self._encoder:
            raise UnevenFeatures
        return found

    def texts(self, name: str, columns: Mapping[str, Sequence[Any]]) -> Strings:
        """A field of every row as text, "" where a row does not have it; shape (n,)."""
        found = np.empty(len(columns["id"]), dtype=np.object_)
        if name in _COLUMNS:
            found[:] = columns[name]
            return found
        known: dict[str, str] = {}
        for row, context in enumerate(columns["context"]):
            if context not in known:
                value = json.loads(context).get(name)
                known[context] = value if isinstance(value, str) else "" if value is None else canonical(value)
            found[row] = known[context]
        return found

    def _columns(self, text: str) -> npt.NDArray[np.intp]:
        if text not in self._offers:
            names = json.loads(text)
            self._offers[text] = np.array([self._place.get(name, -1) for name in names], dtype=np.intp)
        return self._offers[text]

    def _check_offer(self, here: npt.NDArray[np.intp], *, ids: Sequence[str], first: int) -> None:
        """Raises InvalidInput for a row that offers other arms than the log."""
        if self._mixed or (len(here) == len(self._arms) and (here >= 0).all()):
            return
        known = [self._arms[place] for place in here if place >= 0]
        more = " and others" if (here < 0).any() else ""
        raise InvalidInput(
            f"offers {', '.join(known)}{more}; the first row offers {', '.join(self._arms)}",
            field=f"decision {ids[first]} arms",
            remedy=self._unmixed,
        )


def _pmfs_of_texts(texts: Sequence[str], *, arms: int) -> Matrix:
    """The pmfs of rows that have them as JSON, shape (n, arms)."""
    lists = json.loads(f"[{','.join(texts)}]")
    if len(lists) != len(texts) or not {*map(len, lists)} <= {arms}:
        raise ValueError("a pmf does not fit its arms")
    return np.fromiter(chain.from_iterable(lists), dtype=np.float64, count=len(lists) * arms).reshape(-1, arms)
