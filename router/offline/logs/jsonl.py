"""JSONL: one record a line, in UTF-8, plain or gzipped by the file's name. A row needs no more than this:

    {"id": "q1", "arms": ["fast", "deep"], "pmf": [0.8, 0.2], "arm": "deep", "reward": 0.7}

`pmf` may be an object by arm, `reward` an object such as {"quality": 1.0, "cost": 3, "weight": 0.05}, `features` a list
of numbers (written as base64 of little-endian float32). Unknown keys, such as a candidate's pmf, are kept in `extra`.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from ragbandit.router.offline.estimation.bandit_log import (
    LARGEST,
    LEAST_PROBABILITY,
    SUM_TOLERANCE,
    propensity_fault,
    slack,
)
from ragbandit.router.offline.logs import (
    OURS,
    BadRow,
    Defaults,
    JsonObject,
    Logged,
    Record,
    checked,
    record_of,
    sayable,
    values,
)
from ragbandit.router.offline.logs.values import converted, in_order
from ragbandit.router.policies.draw import is_explored, seed_of
from ragbandit.router.storage.rows.conversion import price_value
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files import lines, new_lines, parsed
from ragbandit.shared.plain_values import is_missing, plain_tree
from ragbandit.shared.types import MAX_WEIGHT, Budget, Decision, JudgedBy, Query, Reward, RewardSource, RunBy


def _upto(most: int | None, *, least: int = 0) -> StringConstraints:
    """Text of so many characters that every database takes: no NUL, no half characters."""
    return StringConstraints(pattern=r"^[^\x00]*$", min_length=least, max_length=most)


_AsText: Final = BeforeValidator(values.text)
_Text = Annotated[str, _upto(None), _AsText]
_Text64 = Annotated[str, _upto(64), _AsText]
_Name = Annotated[str, _upto(64, least=1), _AsText]
_AsTexts: Final = BeforeValidator(values.texts)
_Names = Annotated[tuple[Annotated[str, _upto(64)], ...], _AsTexts]
_Arms = Annotated[tuple[Annotated[str, _upto(64, least=1)], ...], _AsTexts]
_Price = Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(price_value), _AsText]
_AsNumber: Final = BeforeValidator(values.number)
_Number = Annotated[float, _AsNumber]
_Numbers = Annotated[tuple[float, ...], BeforeValidator(values.numbers)]
_Seconds = Annotated[float, BeforeValidator(values.seconds)]
_Flag = Annotated[bool, BeforeValidator(values.flag)]
_AsWhole: Final = BeforeValidator(values.whole)
_AsMapping: Final = BeforeValidator(values.mapping)
_Mapping = Annotated[JsonObject, _AsMapping]
_Members = Annotated[dict[str, float], _AsMapping]
#: part of a reward
_AsPart: Final = BeforeValidator(partial(values.number, most=LARGEST))
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
    """A record, each field converted as in `values`; None for a field that follows from the others."""

    model_config = ConfigDict(allow_inf_nan=False)

    id: _Name
    seq: Annotated[_Whole, _AsWhole] | None = None
    made_at: _Seconds = 0.0
    text: _Text = ""
    context: _Mapping = Field(default_factory=dict)
    tenant: _Text64 = "default"
    allowed: _Names | None = None
    budget: Annotated[_Caps, _AsMapping] = Field(default_factory=_Caps)
    price: _Price | None = None
    aim: _Members = Field(default_factory=dict)
    arms: _Arms
    pmf: tuple[float, ...]
    scores: _Numbers | None = None
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
    reward: Annotated[_Parts, BeforeValidator(values.reward)]
    feedback_ids: _Names = ()
    feedback_at: _Seconds | None = None
    learned_at: _Seconds | None = None
    late: _Flag = False
    features: Annotated[Any, BeforeValidator(values.features)] = None


#: what a decision has as it stands in the record
_OF_DECISION = [part.name for part in fields(Decision) if part.name in _Row.model_fields]


def rows_of(records: Iterable[tuple[int, Callable[[], Record]]], *, defaults: Defaults) -> Iterator[Logged | BadRow]:
    """The rows of a file, and a BadRow for each unusable record. records: line, and a function that parses it.

    A row without a version must offer two arms; with one it may offer one, as the service logs if a caller allowed one.
    """
    seen: dict[str, int] = {}
    width: int | None = None
    for line, made in records:
        try:
            row = _logged(made(), line=line, defaults=defaults)
            key, features = row.decision.id, row.decision.features
            if key in seen:
                message = f"{key!r} stands on line {seen[key]} too"
                raise InvalidInput(message, field="id", remedy="log every decision once")
            if features is not None and width not in (None, features.size):
                message = f"{features.size} numbers, the first row has {width}"
                raise InvalidInput(message, field="features", remedy="use one encoder for a log")
        except InvalidInput as error:
            yield BadRow(line=line, field=error.field or "", reason=error.message, remedy=error.remedy or "")
        else:
            seen[key], width = line, width if features is None else features.size
            yield row


def _logged(record: Mapping[str, Any], *, line: int, defaults: Defaults) -> Logged:
    given = {name: value for name, value in record.items() if name in OURS and not is_missing(value)}
    if "pmf" in given:
        pmf = converted(values.probabilities, given["pmf"], field="pmf")
        if isinstance(pmf, dict):
            given["arms"] = arms = converted(values.texts, given.get("arms", list(pmf)), field="arms")
            pmf = in_order(pmf, arms=arms, field="pmf")
        given["pmf"] = pmf
    row = checked(_Row, given)
    fault = _offer_fault(row) or _draw_fault(row)
    if fault is not None:
        field, reason, remedy = fault
        raise InvalidInput(reason, field=field, remedy=remedy)
    fields_of_row, drawn, asked = vars(row), row.arms.index(row.arm), ("text", "context", "tenant", "aim")
    query = Query(
        id=row.id,
        arms=row.allowed,
        budget=Budget(**row.budget),
        cost_weight=row.price,
        **{name: fields_of_row[name] for name in asked},
    )
    decided = {name: fields_of_row[name] for name in _OF_DECISION}
    decided["propensity"] = row.pmf[drawn] if row.propensity is None else row.propensity
    decided["seed"] = seed_of(row.id) if row.seed is None else row.seed
    decided["explored"] = is_explored(row.pmf, drawn) if row.explored is None else row.explored
    return Logged(
        decision=Decision(query=query, **decided),
        reward=_reward(dict(row.reward), defaults=defaults),
        seq=row.seq or line,
        extra=_extra(plain_tree({key: value for key, value in record.items() if key not in OURS})),
        line=line,
        **{name: fields_of_row[name] for name in ("feedback_ids", "feedback_at", "learned_at", "late")},
    )


def _extra(record: Record) -> Record:
    try:
        return sayable(record)
    except PydanticCustomError as error:
        raise InvalidInput("cannot be used", field="extra", remedy=error.message()) from error


_EVERY_ARM: Final = "log all arms that were offered"


def _offer_fault(row: _Row) -> tuple[str, str, str] | None:
    """(field, reason, remedy) of the first contradiction between arms, pmf and scores; None if there is none."""
    arms, pmf = row.arms, row.pmf
    if len(set(arms)) != len(arms):
        return "arms", f"an arm is named twice: {', '.join(arms)}", "name every arm once"
    if len(arms) < (1 if row.version else 2):
        return "arms", f"{len(arms)} offered: there was nothing to choose", _EVERY_ARM
    if len(pmf) != len(arms):
        return "pmf", "does not fit the arms", "log one probability per arm"
    if min(pmf) < 0.0:
        return "pmf", f"{min(pmf)} is negative", "log numbers in [0, 1]"
    if abs(math.fsum(pmf) - 1.0) > SUM_TOLERANCE:
        return "pmf", f"sums to {math.fsum(pmf):.9g}, not 1", "log the whole pmf"
    if row.scores is not None and len(row.scores) != len(arms):
        return "scores", f"{len(row.scores)} numbers for {len(arms)} arms", "give one per arm"
    return None


def _draw_fault(row: _Row) -> tuple[str, str, str] | None:
    """(field, reason, remedy) if the draw contradicts the pmf, else None."""
    if row.arm not in row.arms:
        return "arm", f"{row.arm!r} is not among {', '.join(row.arms)}", _EVERY_ARM
    drawn = row.pmf[row.arms.index(row.arm)]
    propensity = drawn if row.propensity is None else row.propensity
    for probability in (propensity, drawn):
        if not LEAST_PROBABILITY <= probability <= 1.0 + SUM_TOLERANCE:
            return "propensity", *propensity_fault(probability)
    if abs(propensity - drawn) > slack(drawn):
        reason = f"{propensity!r}, but the pmf gives the drawn arm {drawn!r}"
        return "propensity", reason, "log both from the same draw, after the floor"
    return None


def _reward(parts: Record, *, defaults: Defaults) -> Reward:
    """From a number, or from its parts: quality, cost and weight; a logged value must follow from its parts."""
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
    if not low - slack(low) <= logged <= high + slack(high):
        raise InvalidInput(
            f"{logged!r} lies outside [{low:g}, {high:g}]",
            field="reward",
            remedy="declare the bounds that the rewards have (minimum, maximum)",
        )
    if abs(logged - value) > slack(abs(parts["quality"]) + abs(parts["weight"] * parts["cost"])):
        raise InvalidInput(
            f"{logged!r}, but its parts give {value!r}",
            field="reward.value",
            remedy="value = quality - weight * cost, within the bounds; leave out what is not known",
        )
    return Reward(**parts | {"value": value})


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def read(path: str | Path, *, defaults: Defaults) -> Iterator[Logged | BadRow]:
    """The rows of the file, in its order. Raises InvalidInput for a file that is unreadable or empty."""
    records = ((number, partial(parsed, raw)) for number, raw in lines(Path(path)))
    return rows_of(records, defaults=defaults)


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
