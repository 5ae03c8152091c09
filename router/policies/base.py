"""The contract of policies: a policy returns one pmf; the draw and the logged propensity both come from it.

The steps to a decision are pure functions: `Policy.pmf` -> `gate` (finite, sums to 1) -> `with_floor` (exploration
floor) -> `with_incumbent` (restraint to an incumbent arm, if the policy has one) -> holdback (a fixed share for one
arm) -> `choose` (draw by the decision's seed). `draw` runs all steps after the first, live, in `verify --deep` and in
`simulate`. The last step can be repeated from the stored row.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.shared.errors import ConfigError, PolicyFault, SnapshotError
from ragbandit.shared.plugins import check_values
from ragbandit.shared.types import ArmName, FeatureRows, Features, Json, Matrix, Query, Reward, TableRow, Update

#: inputs of a policy: the shared encoder's features, or the text
PolicyNeed = Literal["features", "text"]
Arrays = dict[str, npt.NDArray[np.generic]]
#: JSON values of a saved state
Facts = Mapping[str, Any]
#: largest weight of one row of the ledger
MOST_ROWS: Final = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Restraint:
    """How far a policy may deviate from the incumbent arm on one question."""

    #: the incumbent
    arm: ArmName
    #: possible loss of each offered arm against the incumbent, >= -1; 0 for the incumbent
    risks: tuple[float, ...]
    #: largest mean risk; 0 allows only the incumbent
    allowance: float
    #: reward that may still be lost; below 0 if more was lost than the promise allows
    slack: float
    #: reason why the policy gets less than all probability
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyOutput:
    """A policy's output for one question; its tuples are aligned with the offered arms."""

    pmf: tuple[float, ...]
    #: expected value of every arm in units of reward; None if the policy does not estimate values
    scores: tuple[float, ...] | None = None
    #: posterior samples of the arms' values minus the scores, (arms, samples); None without a posterior
    deviations: Matrix | None = field(default=None, compare=False, repr=False)  # arrays cannot be compared by ==
    #: further content of the log, for example an LLM's reply. A policy with separate quality and cost logs both, in the
    #: order of the arms, and the weight between them: {"quality": [...], "cost": [...], "weight": 0.05}, with scores =
    #: quality - weight * cost. Then other weights can be tried on the log.
    facts: Mapping[str, Json] = field(default_factory=dict)
    #: restraint that the draw applies after the floors; None for a policy without an incumbent
    restraint: Restraint | None = None


class Policy(Protocol):
    """An algorithm with its parameters.

    The learner owns one instance and passes it the updates in the order of the ledger. Routers have other instances,
    restored from snapshots, and never call `learn`. The state after n updates depends only on the params and these
    updates, not on batches, clocks, the order of arms or the machine. `ragbandit.testing.policies` checks this.
    """

    @property
    def algorithm(self) -> str:
        """Name of the policy. A class attribute of built-in policies; the registry sets it on plug-ins."""
        ...

    @property
    def arms_named(self) -> Mapping[str, ArmName]:
        """Param -> arm, for params that name an arm which the policy may draw. These arms must be configured."""
        ...

    @property
    def needs(self) -> frozenset[PolicyNeed]:
        """The inputs of `pmf` and `learn`. A class attribute, except for a policy that wraps another one."""
        ...

    @property
    def deterministic(self) -> bool:
        """Whether a question always gets the same pmf. `verify --deep` skips other policies, such as LLMs."""
        ...

    @property
    def params(self) -> Mapping[str, Json]:
        """The params, including defaults."""
        ...

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """Probability of every offered arm, before the floor, for n questions. Must not change the policy.

        features: shape (n, d) if `needs` has "features", else None
        arms: the offered arms of every question: at least one, distinct, possibly unknown to the policy

        The output for a question must not depend on the other questions, nor on dropout or samples: a policy that
        samples returns the probabilities of its draw.
        """
        ...

    @property
    def seen(self) -> Mapping[ArmName, int]:
        """Arm -> number of updates learned; arms without updates may be missing."""
        ...

    def learn(self, update: Update) -> None:
        """Learn a ledger row, or raise PolicyFault and change nothing.

        Its weight is `rows_of(update)`. A row of weight 0 is counted in `seen` and changes no pmf.
        """
        ...

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """Everything that `restore` needs, as arrays (stored in safetensors) and JSON values."""
        ...

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Load a saved state into a new policy. Call it by `restored`, which checks first that arrays are finite.

        Raises SnapshotError for wrong shapes; `restored` turns other exceptions into SnapshotError.
        """
        ...


@runtime_checkable
class TableTrained(Protocol):
    """A policy that its method `fit` trains on tables with every arm's outcome, before it gets traffic.

    The param `trained` is set for a trained policy.
    """

    def fit(
        self, rows: Sequence[TableRow], *, progress: Callable[[int, int], None] | None = None
    ) -> Mapping[str, Json]:
        """Train on these rows. Returns facts about the training. progress: called with (batches done, all batches)."""
        ...


# Functions that read a policy's optional attributes, which are not in the protocol.


def is_lean(policy: Policy) -> bool:
    """`lean`: whether `learn` needs no texts, pmfs, offered arms, scores and ids of an update.

    The ledger of a lean policy is read without them, which saves most of the time. A policy with a schema of the
    context still gets tenant and context, and the text if the schema needs it.
    """
    return bool(getattr(policy, "lean", False))


def serves_prices(policy: Policy) -> bool:
    """`serves_prices`: whether quality and cost are separate, so that each question can have its own cost weight."""
    return bool(getattr(policy, "serves_prices", False))


def own_weight(query: Query) -> float | None:
    """The question's own cost weight; None if it has none, or only a name that is not resolved."""
    return float(query.cost_weight) if isinstance(query.cost_weight, int | float) else None


def weight_of(query: Query, *, default: float) -> float:
    """`own_weight`, or `default` without one."""
    weight = own_weight(query)
    return default if weight is None else weight


def schema_of(policy: Policy) -> ContextSchema:
    """`schema`: schema of the context that the policy learns from; {} if it ignores the context."""
    schema: ContextSchema = getattr(policy, "schema", {})
    return schema


def tolerance_of(policy: Policy) -> float:
    """`tolerance`: largest rounding difference between machines, threads or devices that learned the same rows.

    `learning.snapshots.difference` defines the measure. The tolerance may grow. Arms tie if their scores
    differ by less than this share of the largest score, and the pmf may differ between tied arms. 0 for an exact
    policy, which has the same bytes on every machine.
    """
    return float(getattr(policy, "tolerance", 0.0))


def policy_age(policy: Policy, arm: ArmName) -> float:
    """`age(arm)`: number of an arm's rows since its last restart; inf for a policy without this method."""
    age = getattr(policy, "age", None)
    return math.inf if age is None else float(age(arm))


def restart(policy: Policy, arm: ArmName) -> None:
    """`restart(arm)`: reduce the weight of everything learned about a changed arm.

    A policy without this method adapts to the changed arm only by learning new rows.
    """
    restart_arm: Callable[[ArmName], None] | None = getattr(policy, "restart", None)
    if restart_arm is not None:
        restart_arm(arm)


def pmf_of_one(policy: Policy, query: Query, *, features: Features | None, arms: Sequence[ArmName]) -> PolicyOutput:
    """The policy's output for one question; features of shape (d,)."""
    rows = None if features is None else features[None, :]
    return policy.pmf([query], features=rows, arms=[arms])[0]


def apply(policy: Policy, update: Update) -> bool:
    """Restart the arms of `update.restarts`, then learn the row. Returns False if the policy refuses the row."""
    for arm in update.restarts:
        restart(policy, arm)
    try:
        policy.learn(update)
    except PolicyFault:
        return False
    return True


def epsilon_greedy(scores: Sequence[float], *, epsilon: float) -> tuple[float, ...]:
    """epsilon/K for every arm, and (1 - epsilon)/ties more for the best ones (MBA-RAG eq. 3, which omits the pmf)."""
    best = max(scores)
    ties = sum(s == best for s in scores)
    return tuple(epsilon / len(scores) + ((1.0 - epsilon) / ties if s == best else 0.0) for s in scores)


def heads_of(reward: Reward, *, weight: float, usual: float = math.inf) -> tuple[float, float, float]:
    """Returns (quality, cost, weight) as a policy with separate heads learns them.

    A reward from the caller already includes its cost: its quality is chosen so that quality - weight * cost is the
    reward. The cost is cut to the range that the reward's lower bound can express, so that one answer that cost a
    million does not outweigh all others.

    weight: cost weight at the decision
    usual: cost weight of questions without a weight of their own; for a question with a higher weight (a budget's) the
        cost is cut as for these questions. inf if the question has no weight of its own, or if this weight is 0
    """
    if not reward.has_parts:
        limit = (reward.maximum - reward.minimum) / weight if weight > 0.0 else math.inf
        cost = min(reward.cost, limit)
        return reward.value + weight * cost, cost, weight
    smaller = min(reward.weight, usual)
    limit = (reward.quality - reward.minimum) / smaller if smaller > 0.0 else math.inf
    return reward.quality, min(reward.cost, max(limit, 0.0)), reward.weight


def rows_of(update: Update) -> float:
    """Weight of an update, in rows: its sample weight. Raises PolicyFault outside [0, MOST_ROWS]."""
    rows = update.reward.sample_weight
    if not 0.0 <= rows <= MOST_ROWS:  # also refuses NaN
        raise PolicyFault(f"the sample weight is {rows!r}, not in [0, {MOST_ROWS:g}]")
    return rows


def tally(seen: dict[ArmName, int], update: Update) -> None:
    """Count an update of its arm."""
    seen[update.arm] = seen.get(update.arm, 0) + 1


def counted_state(seen: Mapping[ArmName, int]) -> tuple[Arrays, dict[str, Json]]:
    """The first part of every policy's state: no arrays, and the number of updates per arm."""
    return {}, {"updates": sum(seen.values()), "seen": dict(sorted(seen.items()))}


def restored(policy: Policy, arrays: Arrays, facts: Facts) -> Policy:
    """Load a saved state into a new policy. Raises SnapshotError, after which the policy cannot be used.

    The sha256 of the state's bytes was checked before. So a state that does not fit was written with other params, or
    by another version of the policy.
    """
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise SnapshotError(f"{name} has numbers that are not finite")
    try:
        policy.restore(arrays, facts)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SnapshotError(f"this is not a state of {policy.algorithm} with these params: {error!r}") from error
    return policy


def checked_arrays(
    arrays: Arrays, *, shapes: Mapping[str, tuple[int, ...]], float32: Container[str] = frozenset()
) -> dict[str, npt.NDArray[Any]]:
    """Copies of a saved state's arrays. Raises SnapshotError for other names, shapes or types.

    float32: names of the arrays of this type; all others are float64.
    """
    if arrays.keys() != shapes.keys():
        raise SnapshotError(f"arrays {sorted(arrays)}, expected {sorted(shapes)}")
    for name, shape in shapes.items():
        kind = np.float32 if name in float32 else np.float64
        if arrays[name].shape != shape or arrays[name].dtype != kind:
            raise SnapshotError(f"{name} must be {kind.__name__} of shape {shape}")
    return {name: array.copy() for name, array in arrays.items()}


def restored_counts(facts: Facts) -> dict[ArmName, int]:
    """Arm -> updates, from a saved state. Raises SnapshotError if they are missing or do not add up."""
    updates, seen = facts.get("updates"), facts.get("seen")
    if not isinstance(updates, int) or updates < 0:
        raise SnapshotError(f"the number of updates is missing or wrong: {updates!r}")
    if not isinstance(seen, Mapping) or not all(isinstance(n, int) and n > 0 for n in seen.values()):
        raise SnapshotError(f"the updates of each arm are missing or wrong: {seen!r}")
    if sum(seen.values()) != updates:
        raise SnapshotError(f"{updates} updates, but {sum(seen.values())} of all arms together")
    return {ArmName(arm): n for arm, n in seen.items()}


#: path of the params in the configuration
WHERE: Final = "policy.params"

# Types of params. Beyond these bounds results may underflow or overflow; torch and others use integers of 32 bits.
Number = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=1e-12, le=1e12, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0, le=10**9)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Text = Annotated[str, Field(min_length=1)]
ArmParam = Annotated[ArmName, Field(min_length=1)]


NO_RETRIEVAL: Final = ArmName("no_retrieval")
SINGLE_STEP: Final = ArmName("single_step")
MULTI_STEP: Final = ArmName("multi_step")


class PolicyParams:
    """Base of the params dataclasses of policies, with ranges such as `Annotated[int, pydantic.Field(ge=1)]`."""

    __slots__ = ()
    #: fields that name an arm which the policy may draw; these arms must be configured
    arms_named: ClassVar[tuple[str, ...]] = ()


ParamsType = TypeVar("ParamsType", bound=PolicyParams)


def read_params(kind: type[ParamsType], *, given: Mapping[str, Json]) -> ParamsType:
    """Make the params from plain values; checks every value and fills in defaults.

    Raises ConfigError with field "policy.params.<param>" for a param that is unknown, missing or out of range.
    """
    checked = check_values(kind, given=given, where=WHERE)
    for param in fields(kind):  # type: ignore[arg-type] # every subclass is a dataclass
        if param.name not in checked and param.default is MISSING and param.default_factory is MISSING:
            raise ConfigError("is needed", field=f"{WHERE}.{param.name}", remedy="it has no default: give it a value")
    return kind(**checked)


class HasParams:
    """Base of policies with a params dataclass: implements `params` and `arms_named`."""

    _params: PolicyParams

    def __init__(self, params: PolicyParams) -> None:
        self._params = params

    @property
    def params(self) -> Mapping[str, Json]:
        """The params with defaults, as JSON values; `context` and `facts` only if they are set."""
        plain: dict[str, Json] = asdict(self._params)  # type: ignore[call-overload] # every subclass is a dataclass
        return {name: value for name, value in plain.items() if value or name not in ("context", "facts")}

    @property
    def arms_named(self) -> Mapping[str, ArmName]:
        """Param -> arm, for params that name an arm which the policy may draw."""
        return {name: getattr(self._params, name) for name in self._params.arms_named}


class CountingPolicy(HasParams):
    """A policy that counts the updates of each arm; a subclass may learn from them."""

    def __init__(self, params: PolicyParams) -> None:
        super().__init__(params)
        self.seen: dict[ArmName, int] = {}

    def learn(self, update: Update) -> None:
        """Count the update."""
        tally(self.seen, update)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The counts."""
        return counted_state(self.seen)

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Load the counts."""
        del arrays
        self.seen = restored_counts(facts)


class PerQuestionPolicy(CountingPolicy, ABC):
    """A counting policy that computes the output for one question at a time."""

    @abstractmethod
    def output(self, query: Query, *, features: Features | None, arms: Sequence[ArmName]) -> PolicyOutput:
        """The output for one question. features: shape (d,)."""

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """One output per question."""
        rows = [None] * len(queries) if features is None else features
        return [self.output(q, features=row, arms=a) for q, row, a in zip(queries, rows, arms, strict=True)]
