"""JSONL, our own format: one record a line, in UTF-8, plain or gzipped by the file's name.

The least that a row needs, as people write it by hand:

    {"id": "q1", "arms": ["fast", "deep"], "pmf": [0.8, 0.2], "arm": "deep", "reward": 0.7}

`pmf` may be an object, arm -> probability. `reward` may be an object: {"quality": 1.0, "cost": 3, "weight": 0.05}.
`features` may be a list of numbers; we write base64 of little-endian float32. Keys that are not ours are kept in
`extra`: a candidate's pmf is one, a list aligned with `arms` or an object.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from ragbandit.router.offline.estimation.bandit_log import ROUNDING, SUM_TOLERANCE
from ragbandit.router.offline.logs import OURS, BadRow, Defaults, Logged, Record, record_of
from ragbandit.router.policies.draw import is_explored, seed_of
from ragbandit.router.storage.rows.conversion import price_value
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files import lines, new_lines, parsed
from ragbandit.shared.types import (
    MAX_WEIGHT,
    ArmName,
    Budget,
    Decision,
    DecisionId,
    Features,
    JudgedBy,
    Query,
    Reward,
    RewardSource,
    RunBy,
)

#: (value, field) -> the value of the row
Check = Callable[[Any, str], Any]

_CAPS = tuple(part.name for part in fields(Budget))


def number(value: object, field: str) -> float:
    """A finite number. Raises InvalidInput naming the field."""
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number too large for a float
        pass
    raise InvalidInput(f"{value!r:.40} is no finite number", field=field, remedy="log a finite number")


def _text(most: int | None = None, *, least: int = 0) -> Check:
    """Text of so many characters that every database takes."""

    def check(value: object, field: str) -> str:
        if not isinstance(value, str) or len(value) < least:
            raise InvalidInput(f"{value!r:.40} is no text", field=field, remedy="write a string")
        if most is not None and len(value) > most:
            raise InvalidInput(f"has {len(value)} characters", field=field, remedy=f"keep it to {most}")
        if "\x00" in value or not _is_utf8(value):
            raise InvalidInput("holds a NUL or half a character", field=field, remedy="remove it")
        return value

    return check


def _is_utf8(text: str) -> bool:
    """Whether no character is half of one that takes two in UTF-16."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _one_of(*words: str) -> Check:
    def check(value: object, field: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise InvalidInput(f"{value!r:.40} is unknown", field=field, remedy=f"use {' or '.join(words)}")
        return value

    return check


def _list_of(check: Check) -> Check:
    def checked(value: object, field: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise InvalidInput(f"{value!r:.40} is no list", field=field, remedy="write a list")
        return tuple(check(item, field) for item in value)

    return checked


def _count(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
        raise InvalidInput(f"{value!r:.40} is no count", field=field, remedy="number the rows from 1, or leave it out")
    return value


def _seed(value: object, field: str) -> int:
    """A whole number of 64 bits, or its decimal digits."""
    try:
        if not isinstance(value, bool) and isinstance(value, int | str) and 0 <= (seed := int(value)) < 2**64:
            return seed
    except ValueError:
        pass
    raise InvalidInput(f"{value!r:.40} is no seed", field=field, remedy="log 64 bits in decimal, or leave it out")


def _flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{value!r:.40} is neither true nor false", field=field, remedy="write true or false")
    return value


def _object(value: object, field: str) -> Record:
    """An object that JSON can say again: no NaN, no half characters."""
    if not isinstance(value, dict):
        raise InvalidInput(f"{value!r:.40} is no object", field=field, remedy="write an object")
    try:
        if value:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(
            f"holds what JSON cannot: {error}", field=field, remedy="use text, finite numbers, lists and objects"
        ) from error
    return value


def _prices(value: object, field: str) -> dict[str, float]:
    return {name: number(price, f"{field}.{name}") for name, price in _object(value, field).items()}


def _budget(value: object, field: str) -> Budget:
    caps = _object(value, field)
    for name, cap in caps.items():
        kind = int | float if name in ("seconds", "dollars") else int
        if name not in _CAPS or isinstance(cap, bool) or not isinstance(cap, kind) or not cap > 0:
            raise InvalidInput(
                f"{cap!r} is no cap", field=f"{field}.{name}", remedy=f"caps above 0: {', '.join(_CAPS)}"
            )
    return Budget(**caps)


def _features(value: object, field: str) -> Features:
    """float32, shape (d,), from base64 of little-endian bytes, a list of numbers, or an array."""
    try:
        if isinstance(value, str):
            features = np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4").astype(np.float32)
        else:
            with np.errstate(over="ignore"):  # it is infinite then, and refused below
                features = np.asarray(value, dtype=np.float32)
    except (ValueError, TypeError, OverflowError, binascii.Error) as error:
        raise InvalidInput(
            f"cannot be read: {error}", field=field, remedy="log a list of numbers, or base64 of float32"
        ) from error
    if features.ndim != 1 or not features.size or not np.isfinite(features).all():
        raise InvalidInput("are no finite numbers in a row", field=field, remedy="encode the question again")
    return features


def _sample_weight(value: object, field: str) -> float:
    if (weight := number(value, field)) < 0.0:
        raise InvalidInput(f"{weight!r} is below 0", field=field, remedy="give the rows that it counts as, 0 or more")
    return weight


def _cost_weight(value: object, field: str) -> float:
    if not 0.0 <= (weight := number(value, field)) <= MAX_WEIGHT:
        raise InvalidInput(f"{weight!r} is no weight of cost", field=field, remedy=f"give 0 to {MAX_WEIGHT:g}")
    return weight


def _price(value: object, field: str) -> float | str | None:
    return price_value(_text(64, least=1)(value, field))


#: field of a record -> its check, and its value in a row without it
Fields = Mapping[str, tuple[Check, Any]]
_OF_QUERY: Final[Fields] = {
    "text": (_text(), ""),
    "context": (_object, {}),
    "budget": (_budget, Budget()),
    "price": (_price, None),
    "aim": (_prices, {}),
    "tenant": (_text(64), "default"),
}
_OF_DECISION: Final[Fields] = {
    "scores": (_list_of(number), None),
    "policy": (_text(40), "imported"),
    "version": (_text(128), ""),
    "encoder_hash": (_text(64), ""),
    "floor": (number, 0.0),
    "fault": (_text(), None),
    "facts": (_object, {}),
    "run_by": (_one_of(*get_args(RunBy)), "caller"),
    "features": (_features, None),
    "made_at": (number, 0.0),
    "cost_weight": (_cost_weight, None),
}
_OF_ROW: Final[Fields] = {
    "feedback_ids": (_list_of(_text(64)), ()),
    "feedback_at": (number, None),
    "learned_at": (number, None),
    "late": (_flag, False),
}


#: part of a reward -> its check
_OF_REWARD: Final[Mapping[str, Check]] = {
    **dict.fromkeys((part.name for part in fields(Reward)), number),
    "terms": _prices,
    "surrogates": _prices,
    "preset": _text(32),
    "source": _one_of(*get_args(RewardSource)),
    "judged_by": _one_of(*get_args(JudgedBy)),
    "sample_weight": _sample_weight,
}


def bad_row(error: InvalidInput, *, line: int) -> BadRow:
    """The fault of the row on this line."""
    return BadRow(line=line, field=error.field or "", reason=error.message, remedy=error.remedy or "")


class RowReader:
    """Makes the rows of one file. It knows which ids it has seen, and how many features the first row had.

    A record needs `id`, `arms` (or a pmf by name), `pmf`, `arm` and `reward`; for the rest there are defaults. A
    row that names no version comes from elsewhere: it must offer two arms at least. An arm alone is taken only
    from a ledger like ours, where the caller allowed no other one.
    """

    def __init__(self, *, defaults: Defaults) -> None:
        self.defaults = defaults
        self._lines: dict[str, int] = {}
        self._width: int | None = None

    def row(self, record: Mapping[str, Any], *, line: int) -> Logged | BadRow:
        """The row of a record, or what is wrong with it."""
        try:
            given = {key: value for key, value in record.items() if value is not None or key not in OURS}
            row = _logged(given, line=line, defaults=self.defaults)
            self._compare(row)
        except InvalidInput as error:
            return bad_row(error, line=line)
        self._lines[row.decision.id] = line
        return row

    def _compare(self, row: Logged) -> None:
        """Checks across rows."""
        earlier = self._lines.get(row.decision.id)
        if earlier is not None:
            message = f"{row.decision.id!r} stands on line {earlier} too"
            raise InvalidInput(message, field="id", remedy="log every decision once")
        features = row.decision.features
        if features is None:
            return
        if self._width not in (None, features.size):
            message = f"{features.size} numbers, the first row has {self._width}"
            raise InvalidInput(message, field="features", remedy="use one encoder for a log")
        self._width = features.size


def _values(record: Mapping[str, Any], checks: Fields) -> dict[str, Any]:
    return {name: check(record[name], name) if name in record else default for name, (check, default) in checks.items()}


def _logged(record: Mapping[str, Any], *, line: int, defaults: Defaults) -> Logged:
    return Logged(
        decision=_decision(record),
        reward=_reward(record, defaults=defaults),
        seq=_count(record.get("seq", line), "seq"),
        extra=_object({key: value for key, value in record.items() if key not in OURS}, "extra"),
        line=line,
        **_values(record, _OF_ROW),
    )


def _decision(record: Mapping[str, Any]) -> Decision:
    key = DecisionId(_text(64, least=1)(_needed(record, "id"), "id"))
    values, asked = _values(record, _OF_DECISION), _values(record, _OF_QUERY)
    arms, pmf = _offer(record, least=1 if values["version"] else 2)
    arm = ArmName(_text(64)(_needed(record, "arm"), "arm"))
    if arm not in arms:
        raise InvalidInput(
            f"{arm!r} is not among {', '.join(arms)}", field="arm", remedy="log all arms that were offered"
        )
    drawn, scores = arms.index(arm), values["scores"]
    if scores is not None and len(scores) != len(arms):
        raise InvalidInput(f"{len(scores)} numbers for {len(arms)} arms", field="scores", remedy="give one per arm")
    allowed = _list_of(_text(64))(record["allowed"], "allowed") if "allowed" in record else None
    return Decision(
        id=key,
        query=Query(id=key, arms=allowed, cost_weight=asked.pop("price"), **asked),
        arm=arm,
        arms=arms,
        pmf=pmf,
        propensity=_propensity(record, logged=pmf[drawn]),
        seed=_seed(record["seed"], "seed") if "seed" in record else seed_of(key),
        explored=_flag(record.get("explored", is_explored(pmf, drawn)), "explored"),
        **values,
    )


def _offer(record: Mapping[str, Any], *, least: int) -> tuple[tuple[ArmName, ...], tuple[float, ...]]:
    """The arms and the probability of each."""
    given = _needed(record, "pmf")
    by_name = given if isinstance(given, dict) else {}
    names = record.get("arms", list(by_name)) if by_name else _needed(record, "arms")
    arms: tuple[ArmName, ...] = _list_of(_text(64, least=1))(names, "arms")
    if len(set(arms)) != len(arms):
        raise InvalidInput(f"an arm is named twice: {', '.join(arms)}", field="arms", remedy="name every arm once")
    if len(arms) < least:
        message = f"{len(arms)} offered: there was nothing to choose"
        raise InvalidInput(message, field="arms", remedy="log all arms that were offered")
    values = [given[arm] for arm in arms] if set(by_name) == set(arms) else given
    if not isinstance(values, list | tuple) or len(values) != len(arms):
        raise InvalidInput("does not fit the arms", field="pmf", remedy="log one probability per arm")
    pmf = tuple(number(value, "pmf") for value in values)
    if min(pmf) < 0.0:
        raise InvalidInput(f"{min(pmf)} is negative", field="pmf", remedy="log numbers in [0, 1]")
    if abs(math.fsum(pmf) - 1.0) > SUM_TOLERANCE:
        raise InvalidInput(f"sums to {math.fsum(pmf):.9g}, not 1", field="pmf", remedy="log the whole pmf")
    return arms, pmf


def _propensity(record: Mapping[str, Any], *, logged: float) -> float:
    value = number(record.get("propensity", logged), "propensity")
    if not 0.0 < value <= 1.0:
        message, remedy = f"{value:.9g} is outside (0, 1]", "log the probability the drawn arm had"
        raise InvalidInput(message, field="propensity", remedy=remedy)
    if abs(value - logged) > ROUNDING:
        message = f"{value!r}, but the pmf gives the drawn arm {logged!r}"
        raise InvalidInput(message, field="propensity", remedy="log both from the same draw, after the floor")
    return value


def _reward(record: Mapping[str, Any], *, defaults: Defaults) -> Reward:
    """From a number, or from its parts: quality, cost and weight; a value beside them must follow from them."""
    given = _needed(record, "reward")
    parts = _reward_parts(given) if isinstance(given, dict) else {"value": number(given, "reward")}
    by_value = "quality" not in parts
    if by_value and "value" not in parts:
        raise InvalidInput("is missing", field="reward.value", remedy="give a number, or quality and cost")
    parts = {
        "quality": parts.get("value"),
        "cost": 0.0,
        "weight": 0.0 if by_value else defaults.weight,
        "minimum": defaults.minimum,
        "maximum": defaults.maximum,
        "terms": {},
        "preset": "reward" if by_value else "quality",
        "source": "explicit",
        **parts,
    }
    low, high = parts["minimum"], parts["maximum"]
    value = min(max(parts["quality"] - parts["weight"] * parts["cost"], low), high)
    logged = parts.get("value", value)
    if not low - ROUNDING <= logged <= high + ROUNDING:
        raise InvalidInput(
            f"{logged!r} lies outside [{low:g}, {high:g}]",
            field="reward",
            remedy="declare the bounds that the rewards have (minimum, maximum)",
        )
    if abs(logged - value) > ROUNDING:
        raise InvalidInput(
            f"{logged!r}, but its parts give {value!r}",
            field="reward.value",
            remedy="value = quality - weight * cost, within the bounds; leave out what is not known",
        )
    return Reward(**parts | {"value": value})


def _reward_parts(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that are named, checked; raw_quality, which earlier releases wrote, is left out."""
    parts = {name: value for name, value in given.items() if value is not None and name != "raw_quality"}
    unknown = sorted(set(parts) - set(_OF_REWARD))
    if unknown:
        raise InvalidInput("is unknown", field=f"reward.{unknown[0]}", remedy=f"known: {', '.join(_OF_REWARD)}")
    return {name: _OF_REWARD[name](value, f"reward.{name}") for name, value in parts.items()}


def _needed(record: Mapping[str, Any], key: str) -> Any:
    if key not in record:
        raise InvalidInput("is missing", field=key, remedy="a row needs id, arms, pmf, arm and reward")
    return record[key]


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def read(path: str | Path, *, defaults: Defaults) -> Iterator[Logged | BadRow]:
    """The rows of the file, in its order. Raises InvalidInput for a file that is unreadable or empty."""
    reader = RowReader(defaults=defaults)
    for number, raw in lines(Path(path)):
        try:
            entry = dict(parsed(raw))
        except InvalidInput as error:
            yield bad_row(error, line=number)
        else:
            yield reader.row(entry, line=number)


def write(path: str | Path, rows: Iterable[Logged]) -> int:
    """Write the rows; how many. The file is there when all of it is. Raises InvalidInput."""
    count = 0
    with new_lines(Path(path)) as out:
        for row in rows:
            out.write(line_of(record_of(row)) + b"\n")
            count += 1
    return count


def line_of(record: Record) -> bytes:
    """The record as one line, its keys in their order; numbers come back as they were."""
    if (features := record.get("features")) is not None:
        record = record | {"features": base64.b64encode(np.asarray(features, dtype="<f4").tobytes()).decode()}
    return _ENCODER.encode(record).encode()
