"""A Parquet log as arrays, a batch of rows at a time: millions of rows without a loop over them.

Only the columns that are asked for are read. A file may offer other arms, or in another order, in every row: the
columns of a Log are the arms of the whole file, in the first row's order, then by name.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.bandit_log import ROUNDING, Log, keys_of_bytes, possible, question_keys
from ragbandit.router.offline.logs.parquet import arrow, opened
from ragbandit.router.offline.logs.place import Place, place_of
from ragbandit.router.offline.logs.records import OURS, Defaults
from ragbandit.router.offline.types import Flags, Keys, Matrix, Strings, Vector
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.types import KILLED, STICKY, ArmName

__all__ = ["LogOverview", "overview_of", "read_keys", "read_log", "read_log_with"]

#: rows at a time
BATCH = 1 << 16
Codes = npt.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class LogOverview:
    """Facts about all rows of a file, or of all files of a log."""

    path: Place
    rows: int
    arms: tuple[ArmName, ...]
    minimum: float
    maximum: float
    #: the reward is a struct of its parts, not one number
    parts: bool
    columns: tuple[str, ...]
    #: rows of this file may have stayed on the arm of an earlier turn: they offer one arm, and the file has facts
    may_stay: bool = False
    #: rows of this file may have no text, and have features, which then tell the question
    may_lack_text: bool = False

    def within(self, others: Sequence["LogOverview"]) -> "LogOverview":
        """This file's, with arms and bounds of all files of the log, in their order."""
        names = dict.fromkeys(others[0].arms)
        arms = (*names, *sorted({arm for other in others for arm in other.arms}.difference(names)))
        minimum, maximum = min(other.minimum for other in others), max(other.maximum for other in others)
        return replace(self, arms=arms, minimum=minimum, maximum=maximum)


def read_log(
    path: str | Path,
    *,
    columns: Sequence[str] = (),
    batch_rows: int = BATCH,
    defaults: Defaults | None = None,
) -> Iterator[Log]:
    """The log, `batch_rows` rows at a time, in the order of the file; arms and bounds are the same in all of them.

    columns: what is wanted beside the decisions and rewards: "features", and text columns for `Log.fields`
    ("tenant", "version", "context.device"; JSON where the value is no text, "" where there is none).
    defaults: the bounds where the file has only numbers for rewards. Raises InvalidInput for a file that cannot be
    read, for rows whose columns do not fit each other, by number; what Log checks it does not check. ConfigError
    without pyarrow.
    """
    for log, _ in read_log_with(path, candidates=(), columns=columns, batch_rows=batch_rows, defaults=defaults):
        yield log


def read_log_with(
    path: str | Path,
    *,
    candidates: Sequence[str],
    columns: Sequence[str] = (),
    batch_rows: int = BATCH,
    defaults: Defaults | None = None,
    overview: LogOverview | None = None,
) -> Iterator[tuple[Log, dict[str, Matrix]]]:
    """`read_log`, each with the candidates' pmfs beside it: column -> shape (n, K), in the order of the Log's arms.

    candidates: list columns of numbers aligned with `arms`. They are not checked beyond their lengths. overview: of a
    file that is one of several; by default of this file alone.
    """
    said = defaults or Defaults()
    overview = overview or overview_of(path, defaults=said)
    fields = [name for name in columns if name != "features"]
    wanted = ["id", "arms", "pmf", "arm", *candidates, *(["features"] if "features" in columns else [])]
    for name in [*wanted, *(name for name in fields if _column_of(name) not in OURS)]:
        if name not in overview.columns:
            raise InvalidInput("there is no such column", field=f"{path} {name}", remedy=_known(overview))
    wanted += [name for name in ("propensity", "made_at", "late", "reward") if name in overview.columns]
    wanted += [_column_of(name) for name in fields if _column_of(name) in overview.columns]
    wanted += ["facts"] if overview.may_stay else []
    wanted += ["text"] if "text" in overview.columns else []
    wanted += ["features"] if overview.may_lack_text else []
    with opened(place_of(path), read_dictionary=_text_columns(place_of(path))) as file:
        row = 0
        for batch in _batches(file, rows=batch_rows, columns=list(dict.fromkeys(wanted))):
            drawn = _drawn(batch) if overview.may_stay else batch
            if drawn.num_rows:
                piece = _Piece(batch=drawn, overview=overview, first=row + 1)
                log = piece.log(fields=fields, features="features" in columns, defaults=said)
                yield log, {name: piece.spread(name) for name in candidates}
            row += batch.num_rows


def _drawn(batch: Any) -> Any:
    """The rows whose arm was drawn: without turns that stayed on an earlier one's, and without pinned arms."""
    compute = arrow("pyarrow.compute")
    # Within texts the quotes of JSON are escaped; a file of others may have spaces.
    stayed = compute.match_substring_regex(batch.column("facts").cast("string"), rf'"({STICKY}|{KILLED})" ?: ?\{{')
    return batch.filter(compute.invert(compute.fill_null(stayed, False)))


def _batches(file: Any, *, rows: int, columns: list[str]) -> Iterator[Any]:
    """Record batches that never span row groups: their dictionaries differ, and nested ones cannot be joined."""
    for group in range(file.num_row_groups):
        yield from file.iter_batches(batch_size=rows, row_groups=[group], columns=columns)


def _column_of(name: str) -> str:
    return "context" if name.startswith("context.") else name


def _known(overview: LogOverview) -> str:
    return f"the file has {', '.join(overview.columns)}"


def _text_columns(path: Place) -> list[str]:
    """Columns whose few texts are read once each: arms, and what may be a segment. Not the ids and questions."""
    with opened(path) as file:
        schema = file.schema
        columns = [schema.column(i) for i in range(len(schema))]
        return [
            column.path
            for column in columns
            if column.physical_type == "BYTE_ARRAY" and column.path.split(".")[0] not in ("id", "text", "facts")
        ]


def overview_of(path: str | Path, *, defaults: Defaults) -> LogOverview:
    """The overview of a file. Raises InvalidInput for one that lacks a column, or names no arm."""
    place = place_of(path)
    with opened(place, read_dictionary=_text_columns(place)) as file:
        columns, rows = tuple(file.schema_arrow.names), int(file.metadata.num_rows)
        for name in ("id", "arms", "pmf", "arm", "reward"):
            if name not in columns:
                remedy = "log id, arms, pmf, arm and reward"
                raise InvalidInput("there is no such column", field=f"{path} {name}", remedy=remedy)
        parts = arrow("pyarrow.types").is_struct(file.schema_arrow.field("reward").type)
        bounds = ["reward.minimum", "reward.maximum"] if parts else []
        names: list[str] = []
        others: set[str] = set()
        alone = False
        minimum, maximum = [], []
        for batch in _batches(file, rows=BATCH, columns=["arms", *bounds]):
            arms = batch.column("arms")
            names = names or arms[0].as_py() or []
            alone = alone or bool((np.diff(_offsets(arms)) == 1).any())
            others.update(_dictionary(arms.flatten()).dictionary.to_pylist())
            if parts:
                minimum.append(_floats(batch.column("reward").field("minimum")).min())
                maximum.append(_floats(batch.column("reward").field("maximum")).max())
    every = tuple(ArmName(name) for name in (*names, *sorted(others.difference(names, {None}))) if name is not None)
    if not every:
        raise InvalidInput("names no arm", field=f"{path} arms", remedy="log all arms that were offered")
    return LogOverview(
        path=place,
        rows=rows,
        arms=every,
        minimum=float(min(minimum)) if parts else defaults.minimum,
        maximum=float(max(maximum)) if parts else defaults.maximum,
        parts=parts,
        columns=columns,
        may_stay=alone and "facts" in columns,
        may_lack_text="features" in columns and _may_lack_text(place),
    )


def _may_lack_text(path: Place) -> bool:
    """Whether a row may have no text, by the file's own statistics, which tell the least text."""
    with opened(path) as file:
        schema = file.schema
        at = next((i for i in range(len(schema)) if schema.column(i).path == "text"), None)
        groups = [] if at is None else [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        told = [group.column(at).statistics for group in groups]
    return at is None or not all(each and each.has_min_max and each.null_count == 0 and each.min for each in told)


def read_keys(path: str | Path) -> Iterator[Keys]:
    """`keys_of` the ids of a file, a batch at a time."""
    with opened(place_of(path)) as file:
        for batch in _batches(file, rows=BATCH, columns=["id"]):
            yield _keys(batch.column("id"))


@dataclass(kw_only=True)
class _Piece:
    """A batch of n rows, with T entries in all rows' lists of arms together."""

    batch: Any
    overview: LogOverview
    #: number of its first row in the file, from 1
    first: int

    def __post_init__(self) -> None:
        arms = self._list("arms")
        self.lengths = np.diff(_offsets(arms))  # (n,)
        self.places = self._codes(arms.flatten())  # (T,) column of every entry
        nameless = np.flatnonzero(self.places < 0)
        if len(nameless):
            row = int(self._rows()[nameless[0]])
            raise self._wrong(row, "arms", "an arm has no name", "name every arm")
        # One offer in one order all along, as most logs have it: then lists are rows of a matrix.
        count = len(self.overview.arms)
        self.even = bool((self.lengths == count).all()) and bool(
            (self.places.reshape(-1, count) == self.places[:count]).all()
        )

    def log(self, *, fields: Sequence[str], features: bool, defaults: Defaults) -> Log:
        """The rows as a Log."""
        rows, overview = self.batch.num_rows, self.overview
        action = self._codes(self.batch.column("arm"))
        offered = self._offered()
        pmf = self.spread("pmf")
        self._check_propensity(pmf, action=action)
        value, quality, cost, raw, defaulted = self._reward()
        keys = _keys(self._whole("id"))
        questions, known_by = self._questions(keys)
        return Log(
            arms=overview.arms,
            keys=keys,
            questions=questions,
            known_by=known_by,
            action=action,
            pmf=possible(pmf, action=action),
            offered=offered,
            reward=value,
            quality=quality,
            cost=cost,
            minimum=overview.minimum if overview.parts else defaults.minimum,
            maximum=overview.maximum if overview.parts else defaults.maximum,
            raw=raw,
            defaulted=defaulted,
            late=self._optional("late", otherwise=np.zeros(rows, dtype=np.bool_)).astype(np.bool_),
            made_at=self._optional("made_at", otherwise=np.zeros(rows)).astype(np.float64),
            features=self._features() if features else None,
            fields={name: self._texts(name) for name in fields},
        )

    def _questions(self, ids: Keys) -> tuple[Keys, Codes]:
        """`question_keys` of the rows."""
        texts, features = (np.zeros(len(ids), dtype=np.uint64), np.zeros(len(ids), dtype=np.intp)), None
        if "text" in self.overview.columns:
            text, lengths = _bytes_of(self.batch.column("text").fill_null(""))
            texts = keys_of_bytes(text, lengths=lengths), lengths.astype(np.intp)
        if self.overview.may_lack_text and not texts[1].all():
            column, textless = self.batch.column("features"), texts[1] == 0
            sizes = arrow("pyarrow.compute").list_value_length(column).fill_null(0)
            lengths = sizes.to_numpy(zero_copy_only=False).astype(np.intp)
            numbers = column.flatten().to_numpy(zero_copy_only=False).astype("<f4", copy=False)
            alone = np.where(textless, lengths, 0)
            kept = np.ascontiguousarray(numbers[np.repeat(textless, lengths)]).view(np.uint8)
            features = keys_of_bytes(kept, lengths=4 * alone), alone
        return question_keys(ids, texts=texts, features=features)

    def spread(self, name: str) -> Matrix:
        """A list column aligned with `arms`, shape (n, K); 0 where an arm was not offered."""
        column = self._list(name)
        uneven = np.flatnonzero(np.diff(_offsets(column)) != self.lengths)
        if len(uneven):
            raise self._wrong(int(uneven[0]), name, "does not fit the arms", "log one probability per arm")
        numbers = _floats(column.flatten())  # (T,)
        if self.even:
            turned = np.argsort(self.places[: len(self.overview.arms)])
            return numbers.reshape(-1, len(self.overview.arms))[:, turned]
        found = np.zeros((self.batch.num_rows, len(self.overview.arms)))
        found[self._rows(), self.places] = numbers
        return found

    def _offered(self) -> Flags:
        count = len(self.overview.arms)
        if self.even:
            twice = np.bincount(self.places[:count], minlength=count).max(initial=0) > 1
            offered = np.ones((self.batch.num_rows, count), dtype=np.bool_)
            repeated = np.array([0]) if twice else np.array([], dtype=np.intp)
        else:
            offered = np.zeros((self.batch.num_rows, count), dtype=np.bool_)
            offered[self._rows(), self.places] = True
            repeated = np.flatnonzero(offered.sum(axis=1) != self.lengths)
        if len(repeated):
            raise self._wrong(int(repeated[0]), "arms", "an arm is named twice", "name every arm once")
        return offered

    def _rows(self) -> Codes:
        """The row of every entry, shape (T,)."""
        return np.repeat(np.arange(self.batch.num_rows), self.lengths)

    def _codes(self, column: Any) -> Codes:
        """The place of every name among the arms; -1 where it is none of them."""
        coded = _dictionary(column)
        place = {name: index for index, name in enumerate(self.overview.arms)}
        table = np.array([place.get(name, -1) for name in coded.dictionary.to_pylist()], dtype=np.intp)
        indices = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        found = table[indices] if len(table) else np.full(len(coded), -1)
        return np.asarray(np.where(coded.is_valid().to_numpy(zero_copy_only=False), found, -1), dtype=np.intp)

    def _reward(self) -> tuple[Vector, Vector, Vector, Flags, Flags]:
        """Value, quality, cost, whether it came whole, whether nobody judged; each of shape (n,)."""
        rows, column = self.batch.num_rows, self.batch.column("reward")
        if not self.overview.parts:
            value = _floats(column)
            return value, value, np.zeros(rows), np.ones(rows, dtype=np.bool_), np.zeros(rows, dtype=np.bool_)
        value, quality, cost = (_floats(column.field(name)) for name in ("value", "quality", "cost"))
        weight, minimum, maximum = (_floats(column.field(name)) for name in ("weight", "minimum", "maximum"))
        wrong = np.flatnonzero(np.abs(np.clip(quality - weight * cost, minimum, maximum) - value) > ROUNDING)
        if len(wrong):
            row = int(wrong[0])
            made = f"quality {quality[row]:g}, weight {weight[row]:g} and cost {cost[row]:g}"
            raise self._wrong(
                row, "reward.value", f"{value[row]:g} does not follow from {made}", "correct the parts of the reward"
            )
        preset = column.field("preset")
        raw = _equals(preset, "reward") | _equals(preset, "default")
        return value, quality, cost, raw, _equals(column.field("source"), "default")

    def _check_propensity(self, pmf: Matrix, *, action: Codes) -> None:
        if "propensity" not in self.overview.columns:
            return
        logged = _floats(self.batch.column("propensity"))
        drawn = np.take_along_axis(pmf, np.maximum(action, 0)[:, None], axis=1)[:, 0]
        # A row without propensity says nothing that could be wrong; one whose arm is unknown fails Log's own check.
        wrong = np.flatnonzero((np.abs(logged - drawn) > ROUNDING) & (action >= 0))
        if len(wrong):
            row = int(wrong[0])
            reason = f"{logged[row]!r}, but the pmf gives the drawn arm {drawn[row]!r}"
            raise self._wrong(row, "propensity", reason, "log both from the same draw, after the floor")

    def _features(self) -> npt.NDArray[np.float32]:
        column = self._list("features")
        width = np.diff(_offsets(column))
        uneven = np.flatnonzero(width != width[0])
        if len(uneven) or not width[0]:
            row = int(uneven[0]) if len(uneven) else 0
            raise self._wrong(row, "features", f"{width[row]} numbers", "read a log in which all rows have features")
        numbers: npt.NDArray[np.float32] = (
            column.flatten().to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
        )
        return numbers.reshape(self.batch.num_rows, -1)

    def _texts(self, name: str) -> Strings:
        """A field's value in every row, shape (n,)."""
        if _column_of(name) not in self.overview.columns:
            return np.full(self.batch.num_rows, "", dtype=np.object_)
        coded = _dictionary(self.batch.column(_column_of(name)))
        texts = coded.dictionary.to_pylist()
        if name.startswith("context."):
            texts = [_member(text, name.removeprefix("context.")) for text in texts]
        table = np.array([*(_said(text) for text in texts), ""], dtype=np.object_)
        indices = coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
        return np.asarray(table[indices], dtype=np.object_)

    def _optional(self, name: str, *, otherwise: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if name not in self.overview.columns:
            return otherwise
        column = self.batch.column(name)
        return np.asarray(column.fill_null(otherwise.dtype.type(0).item()).to_numpy(zero_copy_only=False))

    def _whole(self, name: str) -> Any:
        """A column without nulls."""
        column = self.batch.column(name)
        if column.null_count:
            missing = np.flatnonzero(~column.is_valid().to_numpy(zero_copy_only=False))
            raise self._wrong(int(missing[0]), name, "is missing", "a row needs id, arms, pmf, arm and reward")
        return column

    def _list(self, name: str) -> Any:
        column, types = self._whole(name), arrow("pyarrow.types")
        if types.is_list(column.type):
            return column
        if types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
            return column.cast(arrow().list_(column.type.value_type))
        raise InvalidInput("is no list", field=f"{self.overview.path} {name}", remedy="write a column of lists")

    def _wrong(self, row: int, name: str, reason: str, remedy: str) -> InvalidInput:
        return InvalidInput(reason, field=f"{self.overview.path}:{self.first + row} {name}", remedy=remedy)


def _dictionary(column: Any) -> Any:
    return column if arrow("pyarrow.types").is_dictionary(column.type) else column.dictionary_encode()


def _floats(column: Any) -> Vector:
    """float64, NaN where there is nothing: no check lets it pass."""
    return np.asarray(column.cast(arrow().float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def _equals(column: Any, text: str) -> Flags:
    coded = _dictionary(column)
    table = np.array([*(name == text for name in coded.dictionary.to_pylist()), False])
    return np.asarray(table[coded.indices.fill_null(len(table) - 1).to_numpy(zero_copy_only=False)], dtype=np.bool_)


def _offsets(column: Any) -> Codes:
    """Offset of every row's list in the flattened column, and the end of the last one; shape (n + 1,)."""
    ends = column.offsets.to_numpy().astype(np.intp)
    return np.asarray(ends - ends[0], dtype=np.intp)


def _keys(column: Any) -> Keys:
    """`keys_of` for a column of ids, read where they lie."""
    text, lengths = _bytes_of(column)
    return keys_of_bytes(text, lengths=lengths)


def _bytes_of(column: Any) -> "tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]":
    """The UTF-8 of a text column without nulls, one row behind the other, and each row's length in bytes."""
    plain = column.cast(arrow().large_string())
    ends = np.frombuffer(plain.buffers()[1], dtype=np.int64)[plain.offset : plain.offset + len(plain) + 1]
    text = np.frombuffer(plain.buffers()[2] or b"", dtype=np.uint8)[int(ends[0]) : int(ends[-1])]
    return text, np.diff(ends)


def _member(text: str | None, key: str) -> object:
    """A context's value under this key."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise InvalidInput(f"is not JSON: {error}", field="context", remedy="write a JSON object as text") from error
    return found.get(key) if isinstance(found, Mapping) else None


def _said(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else canonical(value)
