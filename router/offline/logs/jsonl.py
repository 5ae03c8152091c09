"""JSONL: one record per line, in UTF-8; gzipped if the file's name ends in .gz. The smallest row is:

    {"id": "q1", "arms": ["fast", "deep"], "pmf": [0.8, 0.2], "arm": "deep", "reward": 0.7}

`read_rows` takes all forms of `records`. `pmf` may be an object by arm, or missing if there is a `propensity`, `reward`
an object such as {"quality": 1.0, "cost": 3, "weight": 0.05}, `features` a list of numbers (written as base64 of
little-endian float32). Unknown keys, such as a candidate's pmf, are kept in `extra`.
"""

import base64
import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.offline.estimation.bandit_log import (
    LARGEST,
    LEAST_PROBABILITY,
    SUM_TOLERANCE,
    propensity_fault,
    slack,
)
from ragbandit.router.offline.logs import (
    ONLY_PROPENSITY,
    BadRow,
    JsonObject,
    Logged,
    cells,
    checked_json_object,
    validate_record,
)
from ragbandit.router.offline.logs.cells import align_pmf, convert_value
from ragbandit.router.offline.logs.dsjson import log_records
from ragbandit.router.offline.logs.records import nest_columns, records
from ragbandit.router.policies.draw import is_explored, seed_of
from ragbandit.router.storage.rows.conversion import budget_caps, price_text, price_value
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import new_lines
from ragbandit.shared.texts.plain_values import is_missing, plain_tree
from ragbandit.shared.types import MAX_ARMS, MAX_WEIGHT, Budget, Decision, JudgedBy, Query, Reward, RewardSource, RunBy


def _upto(most: int | None, *, minimum: int = 0) -> StringConstraints:
    return StringConstraints(pattern=r"^[^\x00]*$", min_length=minimum, max_length=most)


_AsText: Final = BeforeValidator(cells.text)
_Text = Annotated[str, _upto(None), _AsText]
_Text64 = Annotated[str, _upto(64), _AsText]
_Name = Annotated[str, _upto(64, minimum=1), _AsText]
_AsTexts: Final = BeforeValidator(cells.texts)
_Names = Annotated[tuple[Annotated[str, _upto(64)], ...], _AsTexts]
_Price = Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(price_value), _AsText]
_AsNumber: Final = BeforeValidator(cells.cell_number)
_Number = Annotated[float, _AsNumber]
_Seconds = Annotated[float, BeforeValidator(cells.seconds)]
_Flag = Annotated[bool, BeforeValidator(cells.flag)]
_AsWhole: Final = BeforeValidator(cells.whole)
_Mapping = Annotated[JsonObject, BeforeValidator(cells.mapping)]
_AsMembers: Final = BeforeValidator(cells.members)
_Members = Annotated[dict[str, float], _AsMembers]
_AsPart: Final = BeforeValidator(partial(cells.cell_number, most=LARGEST))
_Part = Annotated[float, _AsPart]
_Whole = Annotated[int, Field(gt=0, lt=2**63)]
_Positive = Annotated[float, Field(gt=0.0)]


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
class _Caps(TypedDict, total=False):
    rounds: _Whole
    passages: _Whole
    tokens: _Whole
    seconds: _Positive
    dollars: _Positive


@with_config(ConfigDict(extra="forbid", allow_inf_nan=False))
class _Parts(TypedDict, total=False):
    value: _Part
    quality: _Part
    cost: _Part
    weight: _Part
    minimum: _Part
    maximum: _Part
    terms: _Members
    surrogates: _Members
    preset: Annotated[str, _upto(32), _AsText]
    source: Annotated[RewardSource, _AsText]
    judged_by: Annotated[JudgedBy, _AsText]
    sample_weight: Annotated[float, Field(ge=0.0), _AsPart]


class _Row(BaseModel):
    """Schema of a line. If None, propensity and explored are computed from the pmf, and the seed from the id."""

    model_config = ConfigDict(allow_inf_nan=False)

    id: Annotated[str, _upto(None, minimum=1), _AsText]
    seq: Annotated[int, Field(ge=0, lt=2**63), _AsWhole] | None = None
    made_at: _Seconds = 0.0
    text: _Text = ""
    context: _Mapping = Field(default_factory=dict)
    tenant: _Text64 = "default"
    allowed: _Names | None = None
    budget: Annotated[_Caps, _AsMembers] = Field(default_factory=_Caps)
    price: _Price | None = None
    aim: _Members = Field(default_factory=dict)
    arms: Annotated[tuple[Annotated[str, _upto(64, minimum=1)], ...], _AsTexts]
    pmf: tuple[float, ...]
    scores: Annotated[tuple[float, ...], BeforeValidator(cells.numbers)] | None = None
    arm: _Text64
    propensity: _Number | None = None
    policy: Annotated[str, _upto(40), _AsText] = "imported"
    version: Annotated[str, _upto(128), _AsText] = ""
    encoder_hash: _Text64 = ""
    seed: Annotated[int, Field(ge=0, lt=2**64), _AsWhole] | None = None
    floor: _Number = 0.0
    explored: _Flag | None = None
    fault: _Text | None = None
    facts: _Mapping = Field(default_factory=dict)
    run_by: Annotated[RunBy, _AsText] = "caller"
    cost_weight: Annotated[float, Field(ge=0.0, le=MAX_WEIGHT), _AsNumber] | None = None
    reward: Annotated[_Parts, BeforeValidator(cells.reward)]
    feedback_ids: _Names = ()
    feedback_at: _Seconds | None = None
    learned_at: _Seconds | None = None
    features: Annotated[Any, BeforeValidator(cells.features)] = None


#: a parsed row; `features` is a float32 array, shape (d,), or None
Record = dict[str, Any]
#: keys of a record, in the order in which they are written; other keys of a line are kept in `extra`
KEYS = tuple(_Row.model_fields)
#: fields in which "" is a value; in all others it is a missing value, as converters of CSV write it
_BLANK = ("tenant", "policy", "fault")
_ROW_FIELDS = frozenset(part.name for part in fields(Logged))
_DECISION_FIELDS = frozenset(part.name for part in fields(Decision))
_SAME_IN_DECISION = [key for key in KEYS if key in _DECISION_FIELDS]
_REWARD_DEFAULTS = {part.name: part.default for part in fields(Reward)} | {"surrogates": {}}


def _attribute(key: str) -> str:
    owner = "" if key in _ROW_FIELDS else "decision." if key in _DECISION_FIELDS else "decision.query."
    return owner + {"allowed": "arms", "price": "cost_weight"}.get(key, key)


def _reward_record(reward: Reward) -> Record:
    parts = {name: getattr(reward, name) for name in _REWARD_DEFAULTS}
    changed = {name: value for name, value in parts.items() if value != _REWARD_DEFAULTS[name]}
    return changed | {"terms": dict(reward.terms)}


_VALUES = attrgetter(*map(_attribute, KEYS))
#: key of a record -> conversion from an attribute of the row. The seed becomes text: many readers round 64-bit integers
_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(KEYS, lambda value: list(value) if isinstance(value, tuple) else value),
    **dict.fromkeys(("context", "aim", "facts"), dict),
    "budget": budget_caps,
    "price": price_text,
    "seed": str,
    "reward": _reward_record,
}


def record_of(row: Logged) -> Record:
    """The row's record: all KEYS in order, then `extra`. Arrays and mappings are not copied."""
    pairs = zip(_CONVERSIONS.items(), _VALUES(row), strict=True)
    return {**{key: convert(value) for (key, convert), value in pairs}, **row.extra}


def column_values(rows: Iterable[Logged], key: str) -> list[Any]:
    value, convert = attrgetter(_attribute(key)), _CONVERSIONS[key]
    return [convert(value(row)) for row in rows]


def parse_rows(
    parsers: Iterable[tuple[int, Callable[[], Record]]],
    *,
    defaults: RewardSettings,
    arms_of_rows: Callable[[], Sequence[str]] = tuple,
) -> Iterator[Logged | BadRow]:
    """Yield the rows of a file, given as line numbers and parsers of lines; unusable rows become BadRow.

    arms_of_rows: the arms of all rows, for rows with a propensity that do not say which arms were offered.
    A row without a version must offer at least two arms. A row with a version may offer one, since the service logs
    such rows if the caller allows only one arm.
    """
    line_of: dict[str, int] = {}
    width: int | None = None
    for line, parse in parsers:
        try:
            row = parse_record(parse(), line=line, defaults=defaults, arms_of_rows=arms_of_rows)
            key, features = row.decision.id, row.decision.features
            if key in line_of:
                raise InvalidInput(
                    f"{key!r} is on line {line_of[key]} too", field="id", remedy="log every decision once"
                )
            if features is not None and width not in (None, features.size):
                message = f"this row has {features.size} numbers, but the first row has {width}"
                raise InvalidInput(message, field="features", remedy="use one encoder for a log")
        except InvalidInput as error:
            yield BadRow(line=line, field=error.field or "", reason=error.message, remedy=error.remedy or "")
        else:
            line_of[key], width = line, width if features is None else features.size
            yield row


def parse_record(
    record: Mapping[str, Any], *, line: int, defaults: RewardSettings, arms_of_rows: Callable[[], Sequence[str]]
) -> Logged:
    """Convert and check a record. arms_of_rows: see `parse_rows`. Raises InvalidInput, with the field."""
    record = nest_columns(record, heads=("pmf", "reward", "context"))
    present = {
        name: value
        for name, value in record.items()
        if name in KEYS and not is_missing(value) and (type(value) is not str or value or name in _BLANK)
    }
    if "pmf" not in present and {"arm", "propensity"} <= present.keys():
        present |= _with_even_pmf(present, arms_of_rows=arms_of_rows)
    elif "pmf" not in present and {"id", "arms", "arm", "reward"} <= present.keys():
        remedy = "log the probability of every arm, or as propensity that of the drawn arm"
        raise InvalidInput("the value is missing", field="pmf", remedy=remedy)
    elif "pmf" in present:
        pmf = convert_value(cells.probabilities, present["pmf"], field="pmf")
        if isinstance(pmf, dict):
            present["arms"] = arms = convert_value(cells.texts, present.get("arms", list(pmf)), field="arms")
            pmf = align_pmf(pmf, arms=arms, field="pmf")
        present["pmf"] = [0.0 if -slack(0.0) < share < 0.0 else share for share in pmf]
    row = validate_record(_Row, present)
    _check_offer(row)
    _check_draw(row)
    query = Query(
        id=row.id,
        text=row.text,
        context=row.context,
        tenant=row.tenant,
        aim=row.aim,
        arms=row.allowed,
        budget=Budget(**row.budget),
        cost_weight=row.price,
    )
    drawn = row.arms.index(row.arm)
    fields_of_decision = {name: getattr(row, name) for name in _SAME_IN_DECISION}
    fields_of_decision["propensity"] = row.pmf[drawn] if row.propensity is None else row.propensity
    fields_of_decision["seed"] = seed_of(row.id) if row.seed is None else row.seed
    fields_of_decision["explored"] = is_explored(row.pmf, drawn) if row.explored is None else row.explored
    return Logged(
        decision=Decision(query=query, **fields_of_decision),
        reward=_reward(dict(row.reward), defaults=defaults),
        seq=line if row.seq is None else row.seq,
        extra=_extra(plain_tree({key: value for key, value in record.items() if key not in KEYS})),
        line=line,
        **{name: getattr(row, name) for name in ("feedback_ids", "feedback_at", "learned_at")},
    )


def _with_even_pmf(present: Record, *, arms_of_rows: Callable[[], Sequence[str]]) -> Record:
    """The pmf of a row that has only the propensity. If it is a guess, the row gets the fact ONLY_PROPENSITY."""
    arms = convert_value(cells.texts, present["arms"], field="arms") if "arms" in present else list(arms_of_rows())
    if len(arms) < 2 and "arms" not in present:
        raise InvalidInput("the value is missing", field="arms", remedy=_EVERY_ARM)
    drawn = convert_value(cells.cell_number, present["propensity"], field="propensity")
    _check_propensity(drawn)
    rest = max(1.0 - drawn, 0.0) / max(len(arms) - 1, 1)
    even = {"arms": arms, "pmf": [drawn if name == str(present["arm"]) else rest for name in arms]}
    if "arms" not in present or (len(arms) > 2 and rest > 0.0):
        even["facts"] = {**convert_value(cells.mapping, present.get("facts", {}), field="facts"), ONLY_PROPENSITY: True}
    return even


def _extra(record: Record) -> Record:
    try:
        return checked_json_object(record)
    except PydanticCustomError as error:
        raise InvalidInput("the unknown keys of a row cannot be used", field="extra", remedy=error.message()) from error


_EVERY_ARM: Final = "log all arms that were offered"


def _check_offer(row: _Row) -> None:
    """Raise InvalidInput for a contradiction between arms, pmf and scores."""
    arms, pmf = row.arms, row.pmf
    if len(set(arms)) != len(arms):
        raise InvalidInput(f"an arm is named twice: {', '.join(arms)}", field="arms", remedy="name every arm once")
    if len(arms) < (1 if row.version else 2):
        raise InvalidInput(f"only {len(arms)} offered: there was nothing to choose", field="arms", remedy=_EVERY_ARM)
    if len(pmf) != len(arms):
        raise InvalidInput("does not fit the arms", field="pmf", remedy="log one probability per arm")
    if min(pmf) < 0.0:
        raise InvalidInput(f"{min(pmf)} is negative", field="pmf", remedy="log numbers in [0, 1]")
    if abs(math.fsum(pmf) - 1.0) > SUM_TOLERANCE:
        raise InvalidInput(f"sums to {math.fsum(pmf):.9g}, not 1", field="pmf", remedy="log the whole pmf")
    if row.scores is not None and len(row.scores) != len(arms):
        message = f"{len(row.scores)} numbers for {len(arms)} arms"
        raise InvalidInput(message, field="scores", remedy="give one per arm")


def _check_draw(row: _Row) -> None:
    if row.arm not in row.arms:
        raise InvalidInput(f"{row.arm!r} is not among {', '.join(row.arms)}", field="arm", remedy=_EVERY_ARM)
    drawn = row.pmf[row.arms.index(row.arm)]
    propensity = drawn if row.propensity is None else row.propensity
    _check_propensity(propensity)
    _check_propensity(drawn)
    if abs(propensity - drawn) > slack(drawn):
        reason = f"{propensity!r}, but the pmf gives the drawn arm {drawn!r}"
        raise InvalidInput(reason, field="propensity", remedy="log both from the same draw, after the floor")


def _check_propensity(probability: float) -> None:
    if not LEAST_PROBABILITY <= probability <= 1.0 + SUM_TOLERANCE:
        reason, remedy = propensity_fault(probability)
        raise InvalidInput(reason, field="propensity", remedy=remedy)


def _reward(parts: Record, *, defaults: RewardSettings) -> Reward:
    """Make a reward from its value, or from quality, cost and weight. A value must follow from the logged parts."""
    only_value = "quality" not in parts
    if only_value and "value" not in parts:
        raise InvalidInput("the value is missing", field="reward.value", remedy="give a number, or quality and cost")
    parts = {
        "quality": parts.get("value"),
        "cost": 0.0,
        "weight": 0.0 if only_value else defaults.weight,
        "minimum": defaults.minimum,
        "maximum": defaults.maximum,
        "terms": {},
        "preset": "reward" if only_value else "quality",
        "source": "explicit",
        **parts,
    }
    low, high = parts["minimum"], parts["maximum"]
    value = min(max(parts["quality"] - parts["weight"] * parts["cost"], low), high)
    logged = parts.get("value", value)
    if not low - slack(low) <= logged <= high + slack(high):
        remedy = "declare the bounds that the rewards have (minimum, maximum)"
        raise InvalidInput(f"the value {logged!r} lies outside [{low:g}, {high:g}]", field="reward", remedy=remedy)
    if abs(logged - value) > slack(abs(parts["quality"]) + abs(parts["weight"] * parts["cost"])):
        remedy = "value = quality - weight * cost, within the bounds; leave out what is not known"
        message = f"the reward is {logged!r}, but its parts give {value!r}"
        raise InvalidInput(message, field="reward.value", remedy=remedy)
    return Reward(**parts | {"value": value})


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def read_rows(path: str | Path, *, defaults: RewardSettings | None = None) -> Iterator[Logged | BadRow]:
    """Read the rows of a log in the order of the file, in any form of `records`. Unusable rows become BadRow.

    Raises InvalidInput for a file that cannot be read, ConfigError for a format whose package is not installed.
    """
    file, keys = Path(path), ("arm", "id")
    seen = cache(partial(_arms_seen, file, keys=keys))
    return parse_rows(log_records(file, keys=keys), defaults=defaults or RewardSettings(), arms_of_rows=seen)


def _arms_seen(file: Path, *, keys: Sequence[str]) -> Sequence[str]:
    """The drawn arms of a log, sorted; none for more than MAX_ARMS."""
    arms: set[str] = set()
    for _, parse in records(file, keys=keys):
        with contextlib.suppress(InvalidInput):  # `parse_rows` yields a BadRow for it
            arms.add(convert_value(cells.text, parse().get("arm"), field="arm"))
        if len(arms) > MAX_ARMS:
            return ()
    return sorted(arms - {""})


def write(path: str | Path, rows: Iterable[Logged]) -> int:
    count = 0
    with new_lines(Path(path)) as out:
        for row in rows:
            out.write(json_line(record_of(row)) + b"\n")
            count += 1
    return count


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with new_lines(path) as out:
        for record in records:
            out.write(json_line(dict(record)) + b"\n")


def json_line(record: Record) -> bytes:
    """The record as one line of JSON without the line end. All numbers are exact."""
    features = record.get("features")
    if features is not None:
        record = record | {"features": base64.b64encode(np.asarray(features, dtype="<f4").tobytes()).decode()}
    return _ENCODER.encode(record).encode()
