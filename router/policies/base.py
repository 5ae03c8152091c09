"""The contract of policies: a policy returns one pmf, which gives both the drawn arm and the logged propensity.

A decision is made by pure functions: `Policy.pmf`, then `checked_pmf` (the pmf is finite and sums to 1), `with_floor`
(exploration floor), `with_incumbent` (restraint to an incumbent arm, if the policy has one), the holdback (a fixed
share for one arm), and `draw_index` (draw by the decision's seed). `draw` runs all steps after `Policy.pmf`.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.shared.errors import ConfigError, PolicyFault, SnapshotError
from ragbandit.shared.plugins import check_values
from ragbandit.shared.types import ArmName, FeatureRows, Features, Json, Matrix, Query, Reward, TableRow, Update

PolicyNeed = Literal["features", "text", "pick"]
Arrays = dict[str, npt.NDArray[np.generic]]
Facts = Mapping[str, Any]
#: largest sample weight of an update
MOST_ROWS: Final = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Restraint:
    """How far a policy may deviate from the incumbent arm on one question."""

    arm: ArmName
    #: risk of each offered arm compared with the incumbent: larger if it may lose more, below 0 if it is known to gain;
    #: 0 for the incumbent
    risks: tuple[float, ...]
    #: upper limit of the mean of `risks` under the pmf that the arm is drawn from
    allowance: float
    #: total reward that the policy may still lose against the incumbent; negative if it has lost more than was allowed
    slack: float
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyOutput:
    """A policy's output for one question. The entries of its tuples are in the order of the offered arms."""

    pmf: tuple[float, ...]
    #: estimated reward of each arm; None if the policy does not estimate rewards
    scores: tuple[float, ...] | None = None
    #: posterior samples of each arm's reward minus its score, (arms, samples); None without a posterior
    deviations: Matrix | None = field(default=None, compare=False, repr=False)  # arrays cannot be compared by ==
    #: further values for the log, for example an LLM's reply. A policy that estimates quality and cost separately logs
    #: {"quality": [...], "cost": [...], "weight": 0.05}, with a value per arm and scores = quality - weight * cost, so
    #: that other weights can be tried on the log.
    facts: Mapping[str, Json] = field(default_factory=dict)
    #: the draw applies this limit after the floors; None for a policy without an incumbent
    restraint: Restraint | None = None


class Policy(Protocol):
    """An algorithm with its parameters.

    The learner has one instance and passes it all updates in the order of the ledger. Routers restore other instances
    from snapshots and never call `learn`. The state after n updates depends only on the params and these updates, not
    on batches, clocks, the order of arms or the machine. `ragbandit.testing.policies` checks this.
    """

    @property
    def algorithm(self) -> str:
        """Name of the policy: a class attribute of a built-in policy. The registry sets it on a plug-in."""

    @property
    def arms_named(self) -> Mapping[str, ArmName]:
        """Param -> arm, for params that name an arm that the policy may draw. Such arms must be configured."""

    @property
    def needs(self) -> frozenset[PolicyNeed]:
        """The inputs that `pmf` and `learn` need: a class attribute, except if a policy wraps another policy.

        "pick": a language model's pick of an arm, which the service asks for before the draw (`Sent.pick`)
        """

    @property
    def deterministic(self) -> bool:
        """Whether equal questions always get the same pmf. `verify --deep` skips policies without this property."""

    @property
    def params(self) -> Mapping[str, Json]: ...

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """Probability of every offered arm for n questions, before the floor. Must not change the policy.

        features: shape (n, d) if `needs` contains "features", else None
        arms: the offered arms of each question: at least one, distinct, possibly unknown to the policy

        The output for a question must not depend on the other questions, on dropout or on random numbers. A policy that
        samples returns the probabilities of its draw.
        """

    @property
    def seen(self) -> Mapping[ArmName, int]:
        """Arm -> number of learned updates. Arms without updates may be missing."""

    def learn(self, update: Update) -> None:
        """Learn a ledger row with the weight `rows_of(update)`. Raises PolicyFault, and then changes nothing.

        A row of weight 0 is counted in `seen` and changes no pmf.
        """

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """Everything that `restore` needs: arrays, which are stored as safetensors, and JSON values."""

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Load a saved state into a new policy. Callers use the function `restore_policy`, which checks the arrays
        first.
        """


@runtime_checkable
class TableTrained(Policy, Protocol):
    """A policy that `fit` trains on tables with the outcome of every arm. It does not learn from a ledger."""

    @property
    def trained_arms(self) -> tuple[ArmName, ...]:
        """The arms that the policy can choose; () before training."""

    def fit(self, rows: Sequence[TableRow], *, progress: Callable[[int, int], None] = ...) -> Mapping[str, Json]:
        """Train on these rows. Returns facts for a report. progress: called with (finished batches, all batches)."""

    def save(self, folder: str | Path) -> str:
        """Write the folder for the param `trained`. Returns a sha256. Raises InvalidInput before `fit`."""


# The following functions read optional attributes of a policy, which are not in the protocol.


def is_lean(policy: Policy) -> bool:
    """Whether `learn` works without the texts, pmfs, offered arms, scores and ids of updates (attribute `lean`).
    Reading a ledger without them is much faster. A policy with a context schema still gets the context.
    """
    return bool(getattr(policy, "lean", False))


def reads_draws(policy: Policy) -> bool:
    """Whether `learn` reads the offered arms, `Update.released` and the query's unit (attribute `reads_draws`)."""
    return bool(getattr(policy, "reads_draws", False))


def serves_prices(policy: Policy) -> bool:
    """Whether each question may have its own cost weight, since the policy learns quality and cost separately."""
    return bool(getattr(policy, "serves_prices", False))


def needs_every_arm(policy: TableTrained) -> bool:
    """Whether the policy's table needs every configured arm (attribute `needs_every_arm`), as params name no arm."""
    return bool(getattr(policy, "needs_every_arm", False))


def held_out_rows(policy: TableTrained) -> Sequence[TableRow]:
    """The rows of the last `fit` that the policy did not learn (attribute `held_out`); () if it learned all rows."""
    rows: Sequence[TableRow] = getattr(policy, "held_out", ())
    return rows


def own_cost_weight(query: Query) -> float | None:
    """The question's own cost weight as a number; None without one, or if it is still an unresolved name."""
    return float(query.cost_weight) if isinstance(query.cost_weight, int | float) else None


def cost_weight_of(query: Query, *, default: float) -> float:
    weight = own_cost_weight(query)
    return default if weight is None else weight


def schema_of(policy: Policy) -> ContextSchema:
    """Schema of the context that the policy learns from (attribute `schema`); {} if the policy ignores the context."""
    schema: ContextSchema = getattr(policy, "schema", {})
    return schema


def tolerance_of(policy: Policy) -> float:
    """Largest relative difference between two machines that learned the same rows (attribute `tolerance`).

    `learning.audit.differences.largest_difference` defines the difference. The tolerance may grow with the number of
    rows. It is 0 if the state is equal to the last bit on every machine. Two machines may exchange the probabilities of
    arms whose scores differ by less than the tolerance times the largest score.
    """
    return float(getattr(policy, "tolerance", 0.0))


def policy_age(policy: Policy, arm: ArmName) -> float:
    """Number of an arm's rows since its last restart; infinity if the policy has no method `age`."""
    age = getattr(policy, "age", None)
    return math.inf if age is None else float(age(arm))


def restart_arm(policy: Policy, arm: ArmName) -> None:
    """Reduce the weight of everything learned about a changed arm, if the policy has the method `restart`."""
    restart: Callable[[ArmName], None] | None = getattr(policy, "restart", None)
    if restart is not None:
        restart(arm)


def pmf_of_one(policy: Policy, query: Query, *, features: Features | None, arms: Sequence[ArmName]) -> PolicyOutput:
    rows = None if features is None else features[None, :]
    return policy.pmf([query], features=rows, arms=[arms])[0]


def apply_update(policy: Policy, update: Update) -> bool:
    """Restart the arms of `update.restarts`, then learn the row. Returns False if the policy refuses the row."""
    for arm in update.restarts:
        restart_arm(policy, arm)
    try:
        policy.learn(update)
    except PolicyFault:
        return False
    return True


def epsilon_greedy(scores: Sequence[float], *, epsilon: float) -> tuple[float, ...]:
    """Each of K arms gets epsilon/K, and the best arms share the remaining 1 - epsilon (MBA-RAG, section 2.2)."""
    best = max(scores)
    ties = sum(s == best for s in scores)
    return tuple(epsilon / len(scores) + ((1.0 - epsilon) / ties if s == best else 0.0) for s in scores)


def quality_cost_and_weight(reward: Reward, *, weight: float, usual: float = math.inf) -> tuple[float, float, float]:
    """Returns (quality, cost, weight of cost) of a reward, for a policy that learns quality and cost separately.

    If the caller sent a reward that already includes the cost, quality is reward + weight * cost. A cost beyond
    the bounds of the reward is reduced, so that one answer that cost a million does not outweigh all others.

    weight: cost weight at the decision
    usual: cost weight of other questions, if this question has its own; the smaller of both weights limits the cost
    """
    if not reward.has_parts:
        limit = (reward.maximum - reward.minimum) / weight if weight > 0.0 else math.inf
        cost = min(reward.cost, limit)
        return reward.value + weight * cost, cost, weight
    smaller = min(reward.weight, usual)
    limit = (reward.quality - reward.minimum) / smaller if smaller > 0.0 else math.inf
    return reward.quality, min(reward.cost, max(limit, 0.0)), reward.weight


def rows_of(update: Update) -> float:
    """Weight of an update: the number of rows that it counts as. Raises PolicyFault outside [0, MOST_ROWS]."""
    rows = update.reward.sample_weight
    if not 0.0 <= rows <= MOST_ROWS:  # also refuses NaN
        raise PolicyFault(f"the sample weight is {rows!r}, not in [0, {MOST_ROWS:g}]")
    return rows


def tally(counts: dict[ArmName, int], update: Update) -> None:
    counts[update.arm] = counts.get(update.arm, 0) + 1


def counted_state(counts: Mapping[ArmName, int]) -> tuple[Arrays, dict[str, Json]]:
    return {}, {"updates": sum(counts.values()), "seen": dict(sorted(counts.items()))}


def restore_policy(policy: Policy, arrays: Arrays, facts: Facts) -> Policy:
    """Load a saved state into a new policy. Raises SnapshotError, after which the policy cannot be used."""
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise SnapshotError(f"{name} has numbers that are not finite")
    try:
        policy.restore(arrays, facts)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SnapshotError(f"this is not a state of {policy.algorithm} with these params: {error!r}") from error
    return policy


def copy_policy(policy: Policy) -> Policy | None:
    """An independent copy of the policy, equal to what `restore_policy` makes from its state, but faster.

    None if the policy does not have the attribute `copyable`.
    """
    return copy.deepcopy(policy) if getattr(policy, "copyable", False) else None


def checked_arrays(
    arrays: Arrays, *, shapes: Mapping[str, tuple[int, ...]], float32: Container[str] = frozenset()
) -> dict[str, npt.NDArray[Any]]:
    """Copies of a saved state's arrays, of type float64 or, by name, `float32`. Raises SnapshotError for others."""
    if arrays.keys() != shapes.keys():
        raise SnapshotError(f"the state has the arrays {sorted(arrays)}, expected {sorted(shapes)}")
    for name, shape in shapes.items():
        kind = np.float32 if name in float32 else np.float64
        if arrays[name].shape != shape or arrays[name].dtype != kind:
            raise SnapshotError(f"{name} must be {kind.__name__} of shape {shape}")
    return {name: array.copy() for name, array in arrays.items()}


def restored_counts(facts: Facts) -> dict[ArmName, int]:
    """Arm -> number of updates, from a saved state. Raises SnapshotError if numbers are missing or contradictory."""
    updates, seen = facts.get("updates"), facts.get("seen")
    if not isinstance(updates, int) or updates < 0:
        raise SnapshotError(f"the number of updates is missing or wrong: {updates!r}")
    if not isinstance(seen, Mapping) or not all(isinstance(n, int) and n > 0 for n in seen.values()):
        raise SnapshotError(f"the updates of each arm are missing or wrong: {seen!r}")
    if sum(seen.values()) != updates:
        raise SnapshotError(f"the number of updates is {updates}, but the arms have {sum(seen.values())} together")
    return {ArmName(arm): n for arm, n in seen.items()}


PARAMS_KEY: Final = "policy.params"

# Types of params. Values outside these ranges could overflow or underflow; torch needs integers of 32 bits.
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
    """Base of the params dataclasses of policies. Ranges are declared as `Annotated[int, pydantic.Field(ge=1)]`."""

    __slots__ = ()
    #: names of the fields that contain an arm which the policy may draw; such arms must be configured
    arms_named: ClassVar[tuple[str, ...]] = ()


ParamsType = TypeVar("ParamsType", bound=PolicyParams)


def read_params(kind: type[ParamsType], *, given: Mapping[str, Json]) -> ParamsType:
    """Make the params from plain values. Raises ConfigError with the field "policy.params.<param>"."""
    checked = check_values(kind, given=given, where=PARAMS_KEY)
    for param in fields(kind):  # type: ignore[arg-type] # every subclass is a dataclass
        if param.name not in checked and param.default is MISSING and param.default_factory is MISSING:
            raise ConfigError(
                "is needed", field=f"{PARAMS_KEY}.{param.name}", remedy="it has no default: give it a value"
            )
    return kind(**checked)


class HasParams:
    #: params for checks of the contract, where their types do not determine a value other than the default
    example: ClassVar[Mapping[str, Json]] = {}
    _params: PolicyParams

    def __init__(self, params: PolicyParams) -> None:
        self._params = params

    @property
    def params(self) -> Mapping[str, Json]:
        """The params with defaults, as JSON values. Empty `context` and `facts` are left out."""
        plain: dict[str, Json] = asdict(self._params)  # type: ignore[call-overload] # every subclass is a dataclass
        return {name: value for name, value in plain.items() if value or name not in ("context", "facts")}

    @property
    def arms_named(self) -> Mapping[str, ArmName]:
        return {name: getattr(self._params, name) for name in self._params.arms_named}


class PerQuestionPolicy(HasParams, ABC):
    """Base of policies that decide question by question. Its `learn` only counts the updates of each arm."""

    def __init__(self, params: PolicyParams) -> None:
        super().__init__(params)
        self.seen: dict[ArmName, int] = {}

    def learn(self, update: Update) -> None:
        tally(self.seen, update)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        return counted_state(self.seen)

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        del arrays
        self.seen = restored_counts(facts)

    @abstractmethod
    def output(self, query: Query, *, features: Features | None, arms: Sequence[ArmName]) -> PolicyOutput: ...

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        rows = [None] * len(queries) if features is None else features
        return [self.output(q, features=row, arms=a) for q, row, a in zip(queries, rows, arms, strict=True)]
