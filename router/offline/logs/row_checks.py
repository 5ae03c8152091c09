"""From a record to a row, with every check that no format may leave out: one bad row is named, never raised."""

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING as MISSING_DEFAULT
from dataclasses import fields
from typing import Any, cast, get_args, get_type_hints

import numpy as np

from ragbandit.router.offline.estimation.bandit_log import ROUNDING, SUM_TOLERANCE
from ragbandit.router.offline.logs.records import MISSING, OURS, BadRow, Defaults, Logged, Record
from ragbandit.router.policies.draw import seed_of
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import (
    ArmName,
    Budget,
    Decision,
    DecisionId,
    Features,
    FeedbackId,
    PolicyLabel,
    Query,
    Reward,
    RewardSource,
    RunBy,
)

_CAPS = tuple(field.name for field in fields(Budget))
_KINDS = get_type_hints(Reward)


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

    def row(self, found: Mapping[str, Any], *, line: int) -> Logged | BadRow:
        """The row of a record, or what is wrong with it."""
        try:
            said = {key: value for key, value in found.items() if value is not None or key not in OURS}
            row = _logged(said, line=line, defaults=self.defaults)
            self._compare(row)
        except InvalidInput as error:
            return bad_row(error, line=line)
        self._lines[row.decision.id] = line
        return row

    def _compare(self, row: Logged) -> None:
        """Checks across rows."""
        before = self._lines.get(row.decision.id)
        if before is not None:
            raise InvalidInput(
                f"{row.decision.id!r} stands on line {before} too", field="id", remedy="log every decision once"
            )
        features = row.decision.features
        if features is None:
            return
        if self._width is not None and features.size != self._width:
            raise InvalidInput(
                f"{features.size} numbers, the first row has {self._width}",
                field="features",
                remedy="use one encoder for a log",
            )
        self._width = features.size


def _logged(found: Mapping[str, Any], *, line: int, defaults: Defaults) -> Logged:
    decision = _decision(found)
    feedback_ids = [FeedbackId(_text(i, "feedback_ids", most=64)) for i in _list(found, "feedback_ids", default=[])]
    return Logged(
        decision=decision,
        reward=_reward(found, defaults=defaults),
        seq=_count(found.get("seq", line), "seq"),
        feedback_ids=tuple(feedback_ids),
        feedback_at=None if "feedback_at" not in found else number(found["feedback_at"], "feedback_at"),
        learned_at=None if "learned_at" not in found else number(found["learned_at"], "learned_at"),
        late=_flag(found.get("late", False), "late"),
        extra=_open({key: value for key, value in found.items() if key not in OURS}, "extra"),
        line=line,
    )


def _decision(found: Mapping[str, Any]) -> Decision:
    identity = DecisionId(_text(_needed(found, "id"), "id", most=64, least=1))
    version = _text(found.get("version", ""), "version", most=128)
    arms, pmf = _offer(found, least=1 if version else 2)
    arm = ArmName(_text(_needed(found, "arm"), "arm", most=64))
    if arm not in arms:
        raise InvalidInput(
            f"{arm!r} is not among {', '.join(arms)}", field="arm", remedy="log all arms that were offered"
        )
    propensity = _propensity(found, logged=pmf[arms.index(arm)])
    scores = tuple(number(v, "scores") for v in _list(found, "scores", default=[])) if "scores" in found else None
    if scores is not None and len(scores) != len(arms):
        raise InvalidInput(f"{len(scores)} numbers for {len(arms)} arms", field="scores", remedy="give one per arm")
    return Decision(
        id=identity,
        query=_query(found, identity=identity),
        arm=arm,
        arms=arms,
        pmf=pmf,
        propensity=propensity,
        scores=scores,
        policy=PolicyLabel(_text(found.get("policy", "imported"), "policy", most=40)),
        version=version,
        encoder_hash=_text(found.get("encoder_hash", ""), "encoder_hash", most=64),
        seed=seed_of(identity),
        floor=number(found.get("floor", 0.0), "floor"),
        explored=_flag(found.get("explored", pmf[arms.index(arm)] < max(pmf)), "explored"),
        fault=None if "fault" not in found else _text(found["fault"], "fault"),
        facts=_open(found.get("facts", {}), "facts"),
        run_by=cast("RunBy", _one_of(found.get("run_by", "caller"), "run_by", known=("worker", "caller"))),
        features=_features(found.get("features")),
        made_at=number(found.get("made_at", 0.0), "made_at"),
    )


def _offer(found: Mapping[str, Any], *, least: int) -> tuple[tuple[ArmName, ...], tuple[float, ...]]:
    """The arms and the probability of each."""
    given = _needed(found, "pmf")
    by_name = given if isinstance(given, dict) else {}
    if not by_name:
        _needed(found, "arms")
    names = _list(found, "arms", default=list(by_name))
    arms = tuple(ArmName(_text(name, "arms", most=64, least=1)) for name in names)
    if len(set(arms)) != len(arms):
        raise InvalidInput(f"an arm is named twice: {', '.join(arms)}", field="arms", remedy="name every arm once")
    if len(arms) < least:
        raise InvalidInput(
            f"{len(arms)} offered: there was nothing to choose", field="arms", remedy="log all arms that were offered"
        )
    values = [given[arm] for arm in arms] if set(by_name) == set(arms) else given
    if not isinstance(values, list | tuple) or len(values) != len(arms):
        raise InvalidInput("does not fit the arms", field="pmf", remedy="log one probability per arm")
    pmf = tuple(number(value, "pmf") for value in values)
    if min(pmf) < 0.0:
        raise InvalidInput(f"{min(pmf)} is negative", field="pmf", remedy="log numbers in [0, 1]")
    if abs(math.fsum(pmf) - 1.0) > SUM_TOLERANCE:
        raise InvalidInput(f"sums to {math.fsum(pmf):.9g}, not 1", field="pmf", remedy="log the whole pmf")
    return arms, pmf


def _propensity(found: Mapping[str, Any], *, logged: float) -> float:
    value = number(found.get("propensity", logged), "propensity")
    if not 0.0 < value <= 1.0:
        raise InvalidInput(
            f"{value:.9g} is outside (0, 1]", field="propensity", remedy="log the probability the drawn arm had"
        )
    if abs(value - logged) > ROUNDING:
        raise InvalidInput(
            f"{value!r}, but the pmf gives the drawn arm {logged!r}",
            field="propensity",
            remedy="log both from the same draw, after the floor",
        )
    return value


def _query(found: Mapping[str, Any], *, identity: DecisionId) -> Query:
    allowed = _list(found, "allowed", default=[]) if "allowed" in found else None
    budget = _mapping(found.get("budget", {}), "budget")
    for name, cap in budget.items():
        known = name in _CAPS and not isinstance(cap, bool)
        whole = name not in ("seconds", "dollars")
        if not known or not isinstance(cap, int if whole else int | float) or not cap > 0:
            raise InvalidInput(f"{cap!r} is no cap", field=f"budget.{name}", remedy=f"caps above 0: {', '.join(_CAPS)}")
    return Query(
        id=identity,
        text=_text(found.get("text", ""), "text"),
        context=_open(found.get("context", {}), "context"),
        arms=None if allowed is None else tuple(ArmName(_text(arm, "allowed", most=64)) for arm in allowed),
        budget=Budget(**budget),
        tenant=_text(found.get("tenant", "default"), "tenant", most=64),
    )


def _reward(found: Mapping[str, Any], *, defaults: Defaults) -> Reward:
    """From a number, or from its parts: quality, cost and weight; a value beside them must follow from them."""
    given = found.get("reward", {}) if defaults.unrated else _needed(found, "reward")
    parts = given if isinstance(given, dict) else {"value": given}
    parts = {key: value for key, value in parts.items() if value is not None}
    unknown = sorted(set(parts) - {field.name for field in fields(Reward)})
    if unknown:
        known = ", ".join(field.name for field in fields(Reward))
        raise InvalidInput("is unknown", field=f"reward.{unknown[0]}", remedy=f"known: {known}")

    def part(name: str, otherwise: object) -> float:
        return number(parts.get(name, otherwise), f"reward.{name}" if isinstance(given, dict) else "reward")

    whole = "quality" not in parts
    missing = defaults.unrated and whole and "value" not in parts
    if whole and "value" not in parts and not missing:
        raise InvalidInput("is missing", field="reward.value", remedy="give a number, or quality and cost")
    quality = 0.0 if missing else part("quality", parts.get("value"))
    cost = part("cost", 0.0)
    weight = part("weight", 0.0 if whole and not missing else defaults.weight)
    minimum, maximum = part("minimum", defaults.minimum), part("maximum", defaults.maximum)
    made = min(max(quality - weight * cost, minimum), maximum)
    _check_value(part("value", made), made=made, minimum=minimum, maximum=maximum)
    terms = {name: number(price, f"reward.terms.{name}") for name, price in _terms(parts).items()}
    return Reward(
        value=made,
        quality=quality,
        cost=cost,
        weight=weight,
        minimum=minimum,
        maximum=maximum,
        terms=terms,
        preset=MISSING
        if missing
        else _text(parts.get("preset", "reward" if whole else "quality"), "reward.preset", most=32),
        source=cast(
            "RewardSource", _one_of(parts.get("source", "explicit"), "reward.source", known=("explicit", "default"))
        ),
        **_optional_parts(parts),
    )


def _optional_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that have a default, where they are named: numbers, or one of a few words."""
    values: dict[str, Any] = {}
    for part in fields(Reward):
        if part.default is MISSING_DEFAULT or part.name not in parts:
            continue
        words = [word for kind in get_args(_KINDS[part.name]) for word in get_args(kind)]
        name = f"reward.{part.name}"
        values[part.name] = _one_of(parts[part.name], name, known=words) if words else number(parts[part.name], name)
    if values.get("sample_weight", 1.0) < 0.0:
        message, remedy = f"{values['sample_weight']!r} is below 0", "give the rows that it counts as, 0 or more"
        raise InvalidInput(message, field="reward.sample_weight", remedy=remedy)
    return values


def _check_value(value: float, *, made: float, minimum: float, maximum: float) -> None:
    """Raises InvalidInput for a reward out of its bounds, or another one than its parts make."""
    if not minimum - ROUNDING <= value <= maximum + ROUNDING:
        raise InvalidInput(
            f"{value!r} lies outside [{minimum:g}, {maximum:g}]",
            field="reward",
            remedy="declare the bounds that the rewards have (minimum, maximum)",
        )
    if abs(value - made) > ROUNDING:
        raise InvalidInput(
            f"{value!r}, but its parts give {made!r}",
            field="reward.value",
            remedy="value = quality - weight * cost, within the bounds; leave out what is not known",
        )


def _terms(parts: Mapping[str, Any]) -> Mapping[str, Any]:
    return _open(parts.get("terms", {}), "reward.terms")


def _features(value: object) -> Features | None:
    """float32, shape (d,), from base64 of little-endian bytes, a list of numbers, or an array."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            features = np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4").astype(np.float32)
        else:
            with np.errstate(over="ignore"):  # it is infinite then, and refused below
                features = np.asarray(value, dtype=np.float32)
    except (ValueError, TypeError, OverflowError, binascii.Error) as error:
        raise InvalidInput(
            f"cannot be read: {error}", field="features", remedy="log a list of numbers, or base64 of float32"
        ) from error
    if features.ndim != 1 or not features.size or not np.isfinite(features).all():
        raise InvalidInput("are no finite numbers in a row", field="features", remedy="encode the question again")
    return features


def _needed(found: Mapping[str, Any], key: str) -> Any:
    if key not in found:
        raise InvalidInput("is missing", field=key, remedy="a row needs id, arms, pmf, arm and reward")
    return found[key]


def _text(value: object, field: str, *, most: int | None = None, least: int = 0) -> str:
    """Text that every database takes."""
    if not isinstance(value, str) or len(value) < least:
        raise InvalidInput(f"{value!r:.40} is no text", field=field, remedy="write a string")
    if most is not None and len(value) > most:
        raise InvalidInput(f"has {len(value)} characters", field=field, remedy=f"keep it to {most}")
    if "\x00" in value or not _whole(value):
        raise InvalidInput("holds a NUL or half a character", field=field, remedy="remove it")
    return value


def _whole(text: str) -> bool:
    """No half of a character that takes two in UTF-16."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def number(value: object, field: str) -> float:
    """A finite number. Raises InvalidInput naming the field."""
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number too large for a float
        pass
    raise InvalidInput(f"{value!r:.40} is no finite number", field=field, remedy="log a finite number")


def _count(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**63:
        raise InvalidInput(f"{value!r:.40} is no count", field=field, remedy="number the rows from 1, or leave it out")
    return value


def _flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{value!r:.40} is neither true nor false", field=field, remedy="write true or false")
    return value


def _one_of(value: object, field: str, *, known: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise InvalidInput(f"{value!r:.40} is unknown", field=field, remedy=f"use {' or '.join(known)}")
    return value


def _list(found: Mapping[str, Any], key: str, *, default: list[Any]) -> list[Any]:
    value = found.get(key, default)
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"{value!r:.40} is no list", field=key, remedy="write a list")
    return list(value)


def _mapping(value: object, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{value!r:.40} is no object", field=field, remedy="write an object")
    return value


def _open(value: object, field: str) -> Record:
    """An object that JSON can say again: no NaN, no half characters."""
    found = _mapping(value, field)
    if not found:
        return found
    try:
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(
            f"holds what JSON cannot: {error}", field=field, remedy="use text, finite numbers, lists and objects"
        ) from error
    return found
