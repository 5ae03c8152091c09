"""One logged decision with what became of it: the unit of every format.

Its record is the JSON object that a line of JSONL holds. The other formats say the same record in their own shape.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from ragbandit.router.config.settings import RewardSettings
from ragbandit.router.storage.rows.conversion import price_text
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import ArmName, Budget, Decision, FeedbackId, Json, Reward

#: keys as in OURS; `features` is a float32 array, shape (d,), or None
Record = dict[str, Any]

#: the keys of a record, in the order of a line; whatever else a row has is `extra`
OURS = (
    "id",
    "seq",
    "made_at",
    "text",
    "context",
    "tenant",
    "allowed",
    "budget",
    "price",
    "aim",
    "arms",
    "pmf",
    "scores",
    "arm",
    "propensity",
    "policy",
    "version",
    "encoder_hash",
    "seed",
    "floor",
    "explored",
    "fault",
    "facts",
    "run_by",
    "cost_weight",
    "reward",
    "feedback_ids",
    "feedback_at",
    "learned_at",
    "late",
    "features",
)
_CAPS = tuple(cap.name for cap in fields(Budget))


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """A decision and the reward that was learned for it: a row of a log."""

    decision: Decision
    reward: Reward
    #: place in the ledger, from 1; of a file that has none, the row's number
    seq: int
    feedback_ids: tuple[FeedbackId, ...] = ()
    #: when the last feedback that made the reward came in; None where nobody knows
    feedback_at: float | None = None
    #: when it was learned; None where nobody knows
    learned_at: float | None = None
    #: more feedback came after it was learned
    late: bool = False
    #: keys of the file that we do not know; a candidate's pmf may be one of them
    extra: Mapping[str, Json] = field(default_factory=dict)
    #: where it stands in its file, for messages; 0 where it comes from a store
    line: int = 0
    #: as in `Update`, where it comes from a store; files do not have them
    decided: int | None = None
    restarts: tuple[ArmName, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRow:
    """A row that cannot be used: where, which field, why, and what to do."""

    line: int
    field: str
    reason: str
    remedy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """Reward bounds and weight for rows that do not name them."""

    #: the bounds of the reward
    minimum: float = -1.0
    maximum: float = 1.0
    #: of the cost, for a reward that is given as quality and cost
    weight: float = 0.0


_OF_ROW = frozenset(part.name for part in fields(Logged))
_OF_DECISION = frozenset(part.name for part in fields(Decision))
_REWARD_DEFAULTS = {part.name: part.default for part in fields(Reward)}


def _path(key: str) -> str:
    """Where a row has what a key of its record says."""
    owner = "" if key in _OF_ROW else "decision." if key in _OF_DECISION else "decision.query."
    return owner + {"allowed": "arms", "price": "cost_weight"}.get(key, key)


_VALUES = attrgetter(*map(_path, OURS))


def reward_defaults(
    settings: RewardSettings, *, minimum: float | None = None, maximum: float | None = None
) -> Defaults:
    """Bounds and weight of rewards that do not name them: the configured ones, or the bounds given here.

    Raises InvalidInput for bounds that are not finite, or not in order.
    """
    defaults = Defaults(
        minimum=settings.minimum if minimum is None else minimum,
        maximum=settings.maximum if maximum is None else maximum,
        weight=settings.weight,
    )
    if not -math.inf < defaults.minimum < defaults.maximum < math.inf:
        raise InvalidInput("must be below maximum", field="minimum", remedy="give the bounds that the rewards have")
    return defaults


def record_of(row: Logged) -> Record:
    """The row's record: every key of OURS in that order, then `extra`. Arrays and mappings are the row's own."""
    record: Record = dict(zip(OURS, map(_listed, _VALUES(row)), strict=True))
    budget, reward = record["budget"], record["reward"]
    record["context"], record["facts"] = dict(record["context"]), dict(record["facts"])
    record["seed"] = str(record["seed"])  # many readers of JSON round whole numbers of 64 bits
    record["price"], record["aim"] = price_text(record["price"]), dict(record["aim"])
    record["budget"] = {name: cap for name in _CAPS if (cap := getattr(budget, name)) is not None}
    record["reward"] = _reward_parts(reward) | {"terms": dict(reward.terms)}
    return {**record, **row.extra}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _reward_parts(reward: Reward) -> dict[str, Any]:
    """All parts but those that are what they are by default."""
    return {name: value for name, default in _REWARD_DEFAULTS.items() if (value := getattr(reward, name)) != default}
