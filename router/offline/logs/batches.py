"""Decodes Arrow record batches of logs into checked arrays.

A batch has `id`, `arms`, `pmf`, `arm`, `reward` and the requested columns, with the types of `column_type`. Text may be
dictionary-encoded. The column of a candidate contains lists of numbers aligned with `arms`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as compute

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.offline.estimation import Keys, Strings
from ragbandit.router.offline.estimation.bandit_log import (
    BY_FEATURES,
    BY_ID,
    BY_TEXT,
    LARGEST,
    LEAST_PROBABILITY,
    SUM_TOLERANCE,
    Log,
    slack,
    without_tiny,
    wrong_pmfs,
)
from ragbandit.router.offline.logs import ONLY_PROPENSITY
from ragbandit.router.offline.logs.columns import (
    FIELDS,
    LINE,
    REWARD,
    REWARD_WORDS,
    bytes_of,
    id_keys,
    keys_of_bytes,
    normalised,
)
from ragbandit.router.offline.logs.jsonl import parse_record
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import (
    IMPORTED,
    UNDRAWN,
    ArmName,
    Flags,
    Indices,
    Json,
    JudgeRequest,
    LabelRequest,
    Matrix,
    Vector,
)

UNMIXED = "give --mixed-arms to judge every row among its own arms, or --since a time after the change"
#: class of a judgement -> key of the fact that records whether a decision was drawn to be judged so
_REQUESTS: Final = {"label": LabelRequest.key, "judge": JudgeRequest.key}
#: columns that are always read
_COLUMNS: Final = (
    *("id", "arms", "pmf", "arm", "reward", "propensity", "made_at", "facts", "text", "cost_weight"),
    *("features", "encoder_hash"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSpec:
    arms: tuple[ArmName, ...]  #: all arms of the log, in the order of the columns of its matrices
    mixed_arms: bool = False
    fields: tuple[str, ...] = ()  #: names for `Log.fields`: tenant, version, policy or keys of the context
    #: name of a candidate -> the column that has its pmf
    pmfs: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*_COLUMNS, *map(column_of, self.fields), *self.pmfs.values()]))


class LogSource(Protocol):
    """A log, or a file of it. The rows have the same order each time they are read."""

    @property
    def place(self) -> str:
        """Prefix of a row's name in messages; see `batch_row_name`."""

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield record batches with these columns, except optional ones that the source lacks. Raises InvalidInput."""


def offered_arms(source: LogSource, *, every: bool) -> tuple[ArmName, ...]:
    """The arms that the first drawn row offers; if `every` is True, the arms that any drawn row offers."""
    arms: dict[ArmName, None] = {}
    for batch in source.batches(("arms", "facts")):
        rows = select_rows(batch, drawn_flags(batch))
        names = compute.unique((rows if every else rows.slice(0, 1)).column("arms").flatten()).to_pylist()
        arms |= {ArmName(name): None for name in names if name is not None}
        if arms and not every:
            break
    return tuple(arms)


def column_of(field: str) -> str:
    return field if field in FIELDS else "context"


def drawn_flags(batch: Any) -> Flags:
    """Flags of rows: True if the arm was drawn, except rows chosen for a label or score by their expected value."""
    left_out = _with_fact(batch, UNDRAWN, test=lambda fact: isinstance(fact, Mapping))
    for source, key in _REQUESTS.items():
        chosen = _with_fact(batch, (key,), test=_is_for_its_value, pattern_of_value=_ASKED)
        if chosen.any() and "reward" in batch.schema.names:
            chosen = chosen & _equals(compute.struct_field(batch.column("reward"), "judged_by"), source)
        left_out = left_out | chosen
    return np.asarray(~left_out)


#: pattern of what follows the key of a request if a label or score was asked for
_ASKED: Final = r'\{[^{}]*"asked"\s*:\s*true'


def _is_for_its_value(request: Json) -> bool:
    """Whether a label or score was requested only because its expected value raised the probability of the request."""
    return isinstance(request, Mapping) and request.get("asked") is True and request.get("uniform") is False


def _with_fact(
    batch: Any, keys: Sequence[str], *, test: Callable[[Json], bool] = lambda _fact: True, pattern_of_value: str = ""
) -> Flags:
    """Flags of rows: True if a fact with one of these keys fits. pattern_of_value: pattern that must follow a key"""
    if "facts" not in batch.schema.names:
        return np.zeros(batch.num_rows, dtype=np.bool_)
    # Most rows have none of the facts, so only texts with the pattern are parsed. The pattern alone proves nothing.
    pattern = rf'"({"|".join(map(re.escape, keys))})"\s*:\s*{pattern_of_value}'

    def flags(texts: Any) -> list[bool]:
        texts = texts.cast("string")
        has_one = compute.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False).astype(np.bool_)
        for place in np.flatnonzero(has_one):
            facts = object_or_empty(texts[place].as_py())
            has_one[place] = any(key in facts and test(facts[key]) for key in keys)
        return list(map(bool, has_one))

    return _convert_distinct(batch.column("facts"), flags, null=False)


def select_rows(batch: Any, rows: Flags) -> Any:
    return batch if rows.all() else batch.filter(pa.array(rows))


def check_choice(arms: Sequence[ArmName]) -> None:
    if len(arms) < 2:
        remedy = "replay needs a choice: log traffic with two arms or more"
        raise InvalidInput(f"the log has one arm only ({', '.join(arms)})", field="log", remedy=remedy)


def batch_row_name(batch: Any, row: int, *, place: str) -> str:
    """Name of a row for messages: the place and the line of a row from a file, else the id of the row's decision."""
    line = batch.column(LINE)[row].as_py() if LINE in batch.schema.names else 0
    return f"{place} {line}" if line else f"decision {batch.column('id')[row].as_py()}"


def decode_batch(batch: Any, *, spec: BatchSpec, place: str = "line") -> Log:
    """Decode and check a batch. The log has features if all rows have features of one encoder.

    Raises InvalidInput for a row that the reader of rows refuses, in its words, or that offers other arms than the log.
    """
    return _DecodedBatch(batch=batch, spec=spec, place=place).log()


@dataclass(kw_only=True)
class _DecodedBatch:
    """A batch of n rows, whose lists of arms have T entries in total."""

    batch: Any
    spec: BatchSpec
    place: str = "line"

    def __post_init__(self) -> None:
        offers = self._complete_column("arms")
        self.lengths = np.diff(_offsets(offers))  # (n,)
        entries = offers.flatten()
        if entries.null_count:
            nameless = ~entries.is_valid().to_numpy(zero_copy_only=False)
            raise self._reader_fault(int(self._rows()[np.argmax(nameless)]))
        self.places = self._codes(entries)  # (T,) column of each entry
        count = len(self.spec.arms)
        #: True if all rows offer all arms in the same order, so that the flattened lists form a matrix
        self.even = bool((self.lengths == count).all()) and bool(
            (self.places.reshape(-1, count) == self.places[:count]).all()
        )
        self._read_offers(offers)

    def log(self) -> Log:
        batch, spec = self.batch, self.spec
        names = batch.schema.names
        action, pmf = self._codes(batch.column("arm")), self._matrix("pmf")
        reward = batch.column("reward")
        numbers = {name: _floats(reward.field(name)) for name in REWARD}
        self._check(self._wrong_draws(pmf, action=action) | _wrong_rewards(numbers))
        texts = {name: reward.field(name) for name in REWARD_WORDS if reward.type.get_field_index(name) >= 0}
        keys = id_keys(self._complete_column("id"))
        questions, recognised_by = self._question_keys(keys)
        features = self._features()
        priced = None
        if "cost_weight" in names:
            priced = np.asarray(batch.column("cost_weight").is_valid().to_numpy(zero_copy_only=False))
        lines = _optional(batch, LINE, default=np.zeros(0, dtype=np.intp))
        return Log(
            arms=spec.arms,
            keys=keys,
            questions=questions,
            recognised_by=recognised_by,
            action=action,
            pmf=without_tiny(pmf, action=action),
            offered=self.offered,
            reward=numbers["value"],
            quality=numbers["quality"],
            cost=numbers["cost"],
            minimum=float(numbers["minimum"].min()),
            maximum=float(numbers["maximum"].max()),
            raw=_equals(texts["preset"], "reward") | _equals(texts["preset"], "default"),
            defaulted=_equals(texts["source"], "default"),
            priced=priced,
            made_at=times_of(batch),
            judged=_equals(texts["judged_by"], "judge") if "judged_by" in texts else None,
            partial=_with_fact(batch, (ONLY_PROPENSITY,), test=lambda fact: fact is True),
            imported=_with_fact(batch, (IMPORTED,)),
            features=features,
            encoder_hash=self._encoders()[0] or "" if features is not None and "encoder_hash" in names else "",
            lines=lines if lines.any() else None,
            fields={name: self._texts(name) for name in spec.fields},
            pmfs={name: self._candidate(column) for name, column in spec.pmfs.items()},
        )

    def _read_offers(self, offers: Any) -> None:
        """Set `offered`, shape (n, K). Raises InvalidInput if a row offers other arms than the log, or an arm twice."""
        count = len(self.spec.arms)
        unknown = np.bincount(self._rows()[self.places < 0], minlength=self.batch.num_rows)
        others = (self.lengths != count) | (unknown > 0)
        if not self.spec.mixed_arms and others.any():
            row = int(np.argmax(others))
            reason = f"offers {', '.join(offers[row].as_py())}; the first row offers {', '.join(self.spec.arms)}"
            raise self._invalid(row, "arms", reason, UNMIXED)
        self.offered: Flags = np.zeros((self.batch.num_rows, count), dtype=np.bool_)
        self.offered[self._rows(), self.places] = True
        self._check(self.offered.sum(axis=1) != self.lengths)

    def _question_keys(self, ids: Keys) -> tuple[Keys, Indices]:
        """Returns (hashes of the questions, BY_ID, BY_TEXT or BY_FEATURES for each), both of shape (n,)."""
        names = self.batch.schema.names
        keys, recognised_by = ids, np.full(len(ids), BY_ID, dtype=np.intp)
        textless = np.ones(len(ids), dtype=np.bool_)
        if "text" in names:
            text, lengths = bytes_of(normalised(self.batch.column("text").fill_null("")))
            textless = lengths == 0
            keys = np.where(textless, keys, keys_of_bytes(text, lengths=lengths))
            recognised_by[~textless] = BY_TEXT
        if "features" in names and textless.any():
            column = self.batch.column("features")
            lengths = compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.intp)
            numbers = column.flatten().to_numpy(zero_copy_only=False).astype("<f4", copy=False)
            selected = np.ascontiguousarray(numbers[np.repeat(textless, lengths)]).view(np.uint8)
            lengths = np.where(textless, lengths, 0)
            keys = np.where(lengths > 0, keys_of_bytes(selected, lengths=4 * lengths), keys)
            recognised_by[lengths > 0] = BY_FEATURES
        return keys, recognised_by

    def _matrix(self, name: str) -> Matrix:
        """A list column aligned with `arms`, shape (n, K); 0 where an arm was not offered."""
        column = self._complete_column(name)
        if not pa.types.is_list(column.type) or not pa.types.is_floating(column.type.value_type):
            raise self._invalid(0, name, "is no pmf", "name a column with one probability per arm")
        uneven = np.diff(_offsets(column)) != self.lengths
        if uneven.any():
            row = int(np.argmax(uneven))
            raise self._invalid(row, name, "does not fit the arms", "log one probability per arm")
        numbers = _floats(column.flatten())  # (T,)
        numbers = np.where((numbers < 0.0) & (numbers > -slack(0.0)), 0.0, numbers)
        if self.even:
            return numbers.reshape(-1, len(self.spec.arms))[:, np.argsort(self.places[: len(self.spec.arms)])]
        matrix = np.zeros((self.batch.num_rows, len(self.spec.arms)))
        matrix[self._rows(), self.places] = numbers
        return matrix

    def _candidate(self, name: str) -> Matrix:
        """The pmf of a candidate, shape (n, K). Raises InvalidInput unless each row has a distribution."""
        pmf = self._matrix(name)
        wrong = wrong_pmfs(pmf, offered=self.offered)
        if len(wrong):
            row = int(wrong[0])
            message = f"{pmf[row].tolist()} is no distribution over the arms that the row offers"
            raise self._invalid(row, name, message, "give probabilities that sum to 1")
        return pmf

    def _rows(self) -> Indices:
        return np.repeat(np.arange(self.batch.num_rows), self.lengths)  # (T,) row of each entry

    def _codes(self, column: Any) -> Indices:
        index_of = {name: index for index, name in enumerate(self.spec.arms)}
        return _convert_distinct(column, lambda names: [index_of.get(name, -1) for name in names.to_pylist()], null=-1)

    def _wrong_draws(self, pmf: Matrix, *, action: Indices) -> Flags:
        """Flags of rows whose pmf, arm and propensity contradict each other, shape (n,)."""
        drawn = np.take_along_axis(pmf, action[:, None], axis=1)[:, 0]
        wrong = (action < 0) | ~((drawn >= LEAST_PROBABILITY) & (drawn <= 1.0 + SUM_TOLERANCE))
        wrong[wrong_pmfs(pmf)] = True
        if "propensity" in self.batch.schema.names:
            logged = _floats(self.batch.column("propensity"))
            wrong |= np.abs(logged - drawn) > slack(drawn)  # False for a row without propensity, which is NaN
        return wrong

    def _features(self) -> npt.NDArray[np.float32] | None:
        """The features, shape (n, d); None unless all rows have features of one width and one encoder."""
        names = self.batch.schema.names
        if "features" not in names or ("encoder_hash" in names and len(self._encoders()) > 1):
            return None
        column = self.batch.column("features")
        widths = np.zeros(0) if column.null_count else np.diff(_offsets(column))
        if not len(widths) or not widths[0] or (widths != widths[0]).any():
            return None
        numbers = column.flatten().to_numpy(zero_copy_only=False)
        features = np.asarray(numbers.reshape(self.batch.num_rows, -1))
        self._check(~np.isfinite(features).all(axis=1))
        return features

    def _encoders(self) -> list[str | None]:
        return list(compute.unique(self.batch.column("encoder_hash")).to_pylist())

    def _texts(self, field: str) -> Strings:
        """The value of a field in each row as text, shape (n,): other types as JSON, "" if missing."""
        name = column_of(field)
        if name not in self.batch.schema.names:
            return np.full(self.batch.num_rows, "", dtype=np.object_)

        def member(text: Any) -> object:
            try:
                context = json.loads(str(text or "{}"))
            except ValueError:
                context = None
            if not isinstance(context, Mapping):
                raise self._reader_fault(self.batch.column(name).to_pylist().index(text))
            return context.get(field)

        def convert(cells: Any) -> list[str]:
            values: list[object] = cells.to_pylist()
            if name == "context":
                values = [member(value) for value in values]
            values = ["" if value is None else value for value in values]
            return [value if isinstance(value, str) else canonical(value) for value in values]

        return _convert_distinct(self.batch.column(name), convert, null="")

    def _complete_column(self, name: str) -> Any:
        if name not in self.batch.schema.names:
            raise self._invalid(0, name, "the column is missing", "log this column")
        column = self.batch.column(name)
        if column.null_count:
            self._check(~column.is_valid().to_numpy(zero_copy_only=False))
        return column

    def _check(self, bad: Flags) -> None:
        """Raise InvalidInput for the first of these rows."""
        if bad.any():
            raise self._reader_fault(int(np.argmax(bad)))

    def _reader_fault(self, row: int) -> InvalidInput:
        """The reason why the reader of rows refuses this row."""
        record = self.batch.slice(row, 1).to_pylist()[0]
        try:
            parse_record(record, line=1, defaults=RewardSettings(), arms_of_rows=tuple)
        except InvalidInput as error:
            return self._invalid(row, error.field or "", error.message, error.remedy or "")
        return self._invalid(row, "", "the row cannot be used", "a row needs id, arms, pmf, arm and reward")

    def _invalid(self, row: int, name: str, reason: str, remedy: str) -> InvalidInput:
        field = f"{batch_row_name(self.batch, row, place=self.place)} {name}".rstrip()
        return InvalidInput(reason, field=field, remedy=remedy)


def _wrong_rewards(numbers: Mapping[str, Vector]) -> Flags:
    """Flags of rows whose reward is missing, too large, or does not follow from its parts, shape (n,)."""
    value, quality, weight, cost, low, high = (
        numbers[name] for name in ("value", "quality", "weight", "cost", "minimum", "maximum")
    )
    wrong = ~np.logical_and.reduce([np.abs(values) <= LARGEST for values in numbers.values()])  # True for NaN
    wrong |= (value < low - slack(low)) | (value > high + slack(high))
    computed = np.clip(quality - weight * cost, low, high)
    wrong |= np.abs(computed - value) > slack(np.abs(quality) + np.abs(weight * cost))
    return np.asarray(wrong)


def _convert_distinct(column: Any, values: Callable[[Any], Sequence[Any]], *, null: Any) -> npt.NDArray[Any]:
    """Convert a column, shape (n,). `values` is called once with the column's distinct values; nulls become `null`."""
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    table = np.array([*values(coded.dictionary), null], dtype=np.object_ if isinstance(null, str) else type(null))
    indices = coded.indices.fill_null(len(table) - 1) if coded.indices.null_count else coded.indices
    return np.asarray(table[indices.to_numpy(zero_copy_only=False)])


def _floats(column: Any) -> Vector:
    """The column as float64. A null becomes NaN, which fails every check."""
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def _equals(column: Any, text: str) -> Flags:
    return _convert_distinct(column, lambda values: [value == text for value in values.to_pylist()], null=False)


def _offsets(column: Any) -> Indices:
    """Offset of each row's list in the flattened column, and the end of the last list; shape (n + 1,)."""
    ends = column.offsets.to_numpy().astype(np.intp)
    return np.asarray(ends - ends[0], dtype=np.intp)


def _optional(batch: Any, name: str, *, default: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if name not in batch.schema.names:
        return default
    column = batch.column(name)
    return np.asarray(column.fill_null(default.dtype.type(0).item()).to_numpy(zero_copy_only=False))


def times_of(batch: Any) -> Vector:
    """The time of each decision, seconds since the epoch; 0 if it is not known."""
    return _optional(batch, "made_at", default=np.zeros(batch.num_rows)).astype(np.float64)
