"""The contract of choosing: a policy gives one pmf; the draw and the logged propensity both come from it.

From values to a decision in pure steps: `Policy.pmf` -> `gate` (finite, sums to 1) -> `with_floor` (exploration
floor) -> `held_back` (to an incumbent arm, where the policy asks for it) -> holdback (a fixed share for one arm)
-> `choose` (draw by the decision's seed). `draw` takes all after the first at once, wherever a decision is made or
made again: live, in `verify --deep`, in `simulate`. Anybody who has the row can take the last step again.
"""

import math
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

#: What a policy must be given: the shared encoder's embedding, or the raw text (it has its own way to read it).
PolicyNeed = Literal["features", "text"]
Arrays = dict[str, npt.NDArray[np.generic]]
#: the JSON values of a saved state, as `restore` reads them
Facts = Mapping[str, Any]
#: one row of the ledger counts as at most this many
MOST_ROWS: Final = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Restraint:
    """What a policy that is held back to an incumbent arm says about one question, beside its pmf."""

    #: the incumbent
    arm: ArmName
    #: of every offered arm: what drawing it may cost against the incumbent, >= -1; 0 for the incumbent itself
    risks: tuple[float, ...]
    #: the most that the risks may be on average; 0 is the incumbent alone
    allowance: float
    #: reward that may be lost before the promise is broken; below 0 it is broken
    slack: float
    #: why the share is below 1, where it is
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyOutput:
    """A policy's output for one question; both tuples are aligned with the arms that were offered."""

    pmf: tuple[float, ...]
    #: the value it expects of every arm, in units of reward; None if it has none
    scores: tuple[float, ...] | None = None
    #: draws of the arms' values from its posterior, each less the score, (arms, draws); None: it has none
    deviations: Matrix | None = field(default=None, compare=False, repr=False)  # == of arrays is no truth value
    #: what else belongs in the log: a price in force, an LLM's reply. A policy that keeps quality and cost apart puts
    #: both here, as lists aligned with the arms, with the weight between them: {"quality": [...], "cost": [...],
    #: "weight": 0.05}, scores = quality - weight * cost. From these rows any other weight can be tried on the log.
    facts: Mapping[str, Json] = field(default_factory=dict)
    #: what the draw holds it back with, after the floors; None for a policy that nothing holds back
    restraint: Restraint | None = None


class Policy(Protocol):
    """One algorithm with its parameters.

    The learner owns one instance and feeds it updates in ledger order; routers hold other instances, made from
    snapshots, and never call `learn`. The state after n updates depends on the params and those n updates only:
    not on batches, clocks, arm order or the machine. `ragbandit.testing.policies` checks this.
    """

    @property
    def algorithm(self) -> str:
        """The name that it was made by. A class attribute of ours; the registry sets it on a plug-in."""
        ...

    @property
    def arms_named(self) -> Mapping[str, ArmName]:
        """Param -> the arm that it names, for the params of arms that the policy may draw: they must be there."""
        ...

    @property
    def needs(self) -> frozenset[PolicyNeed]:
        """The inputs of `pmf` and `learn`. A class attribute, but for a policy that wraps another one."""
        ...

    @property
    def deterministic(self) -> bool:
        """The same question gives the same pmf again; False if it asks an LLM, which `verify --deep` leaves out."""
        ...

    @property
    def params(self) -> Mapping[str, Json]:
        """The settings it was made with, after defaults."""
        ...

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """Probability of every offered arm, before the floor, for n questions at once. Must not change the policy.

        features has shape (n, d) where `needs` has "features"; arms[i] are the one or more distinct names offered
        to question i, also ones never seen before. What a question gets does not depend on the others. No dropout,
        no sampling: a policy that samples integrates its own draw.
        """
        ...

    @property
    def seen(self) -> Mapping[ArmName, int]:
        """Number of updates learned, by arm; arms without any may be left out."""
        ...

    def learn(self, update: Update) -> None:
        """Take in one ledger row, or raise PolicyFault and change nothing.

        It counts as `rows_of(update)` rows; one that counts as none is tallied in `seen` and changes no pmf.
        """
        ...

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """Everything `restore` needs, as arrays (kept in safetensors) and JSON values."""
        ...

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state, on a fresh policy; `restored` is the way to call it.

        The arrays are finite. Raises SnapshotError on wrong shapes; what else it raises becomes one.
        """
        ...


@runtime_checkable
class TableTrained(Protocol):
    """A policy that is trained ahead of traffic, on tables with every arm's outcome, by its method `fit`.

    A param `trained`, if it is set, says that this has been done.
    """

    def fit(
        self, rows: Sequence[TableRow], *, progress: Callable[[int, int], None] | None = None
    ) -> Mapping[str, Json]:
        """Train on these rows; what was found. progress: batches done, batches in all."""
        ...


# What a policy may have beside the protocol, each an attribute or a property.


def is_lean(policy: Policy) -> bool:
    """`lean`: its `learn` needs no texts, pmfs, offered arms, scores and ids of an update.

    Its ledger is read without them, which is most of the work. One with a schema of the context is given tenant and
    context all the same, and the text where the schema reads it.
    """
    return bool(getattr(policy, "lean", False))


def serves_prices(policy: Policy) -> bool:
    """`serves_prices`: it keeps quality and cost apart, so that each question can have a weight of cost of its own."""
    return bool(getattr(policy, "serves_prices", False))


def own_weight(query: Query) -> float | None:
    """The weight of cost that a question has of its own; None for a name, which nobody has looked up."""
    return float(query.cost_weight) if isinstance(query.cost_weight, int | float) else None


def weight_of(query: Query, *, default: float) -> float:
    """`own_weight`, or else this one."""
    return default if (weight := own_weight(query)) is None else weight


def schema_of(policy: Policy) -> ContextSchema:
    """`schema`: of the context that it learns from, and records among its params; empty where it reads none."""
    schema: ContextSchema = getattr(policy, "schema", {})
    return schema


def tolerance_of(policy: Policy) -> float:
    """`tolerance`: most that rounding may explain between two machines, threads or devices that learned the same rows.

    As `learning.audit.checks` measures it; it may grow with updates. The same share of the largest score is a tie,
    between whose arms the pmf may differ. 0 for an exact policy: every machine learns the same bytes.
    """
    return float(getattr(policy, "tolerance", 0.0))


def policy_age(policy: Policy, arm: ArmName) -> float:
    """`age(arm)`: rows of an arm since it was restarted; inf where the policy does not say."""
    age = getattr(policy, "age", None)
    return math.inf if age is None else float(age(arm))


def restart(policy: Policy, arm: ArmName) -> None:
    """`restart(arm)`: what was learned of this arm counts for little from now on, since the arm is another one.

    A policy without it goes on as it is, and follows the arm as fast as its own steps do.
    """
    begin: Callable[[ArmName], None] | None = getattr(policy, "restart", None)
    if begin is not None:
        begin(arm)


def pmf_of_one(policy: Policy, query: Query, *, features: Features | None, arms: Sequence[ArmName]) -> PolicyOutput:
    """The policy's output for one question; features of shape (d,)."""
    rows = None if features is None else features[None, :]
    return policy.pmf([query], features=rows, arms=[arms])[0]


def apply(policy: Policy, update: Update) -> bool:
    """Let the policy learn, after the arms that were restarted with this row; False if it refused the row.

    It will refuse it again on every replay.
    """
    for arm in update.restarts:
        restart(policy, arm)
    try:
        policy.learn(update)
    except PolicyFault:
        return False
    return True


def epsilon_greedy(scores: Sequence[float], *, epsilon: float) -> tuple[float, ...]:
    """epsilon/K + (1 - epsilon)/ties on the best arms (MBA-RAG eq. 3, with the propensity it leaves out)."""
    best = max(scores)
    ties = sum(s == best for s in scores)
    return tuple(epsilon / len(scores) + ((1.0 - epsilon) / ties if s == best else 0.0) for s in scores)


def usual_weight(query: Query, *, usual: float) -> float:
    """What `heads_of` is given as `usual`: inf for a question without a weight of its own, or where none is known."""
    return math.inf if own_weight(query) is None or usual <= 0.0 else usual


def heads_of(reward: Reward, *, weight: float, usual: float = math.inf) -> tuple[float, float, float]:
    """(quality, cost, weight) as a policy with heads apart learns them; weight: the one in force where it was decided.

    Where the caller gave the reward itself, its cost is inside already: quality is then what makes
    quality - weight * cost equal to it. A cost beyond what the reward's lower bound can express counts as that much:
    one answer that cost a million must not drown all others. usual: weight of questions without one of their own; a
    row at a higher one (a budget's) tells as much of the cost as theirs do.
    """
    if not reward.has_parts:
        most = (reward.maximum - reward.minimum) / weight if weight > 0.0 else math.inf
        cost = min(reward.cost, most)
        return reward.value + weight * cost, cost, weight
    least = min(reward.weight, usual)
    most = (reward.quality - reward.minimum) / least if least > 0.0 else math.inf
    return reward.quality, min(reward.cost, max(most, 0.0)), reward.weight


def rows_of(update: Update) -> float:
    """How many rows an update counts as, its sample weight. Raises PolicyFault outside [0, MOST_ROWS]."""
    rows = update.reward.sample_weight
    if not 0.0 <= rows <= MOST_ROWS:  # also where it is NaN
        raise PolicyFault(f"the sample weight is {rows!r}, not in [0, {MOST_ROWS:g}]")
    return rows


def tally(seen: dict[ArmName, int], update: Update) -> None:
    """Count one more update of its arm."""
    seen[update.arm] = seen.get(update.arm, 0) + 1


def counted_state(seen: Mapping[ArmName, int]) -> tuple[Arrays, dict[str, Json]]:
    """The beginning of every policy's state: no arrays yet, and how many updates of which arm made it."""
    return {}, {"updates": sum(seen.values()), "seen": dict(sorted(seen.items()))}


def restored(policy: Policy, arrays: Arrays, facts: Facts) -> Policy:
    """A fresh policy, with a saved state taken over. Raises SnapshotError; the policy is of no use then.

    The bytes of a state are known by their sha256, so what does not fit was written for other params, or by another
    version of the policy.
    """
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise SnapshotError(f"{name} holds numbers that are not finite")
    try:
        policy.restore(arrays, facts)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SnapshotError(f"this is no state of {policy.algorithm} with these params: {error!r}") from error
    return policy


def checked_arrays(
    arrays: Arrays, *, shapes: Mapping[str, tuple[int, ...]], float32: Container[str] = frozenset()
) -> dict[str, npt.NDArray[Any]]:
    """Copies of a saved state's arrays. Raises SnapshotError for other names, shapes or types than these.

    float32: the names of those that are; all others are float64.
    """
    if arrays.keys() != shapes.keys():
        raise SnapshotError(f"arrays {sorted(arrays)}, wanted {sorted(shapes)}")
    for name, shape in shapes.items():
        kind = np.float32 if name in float32 else np.float64
        if arrays[name].shape != shape or arrays[name].dtype != kind:
            raise SnapshotError(f"{name} must be {kind.__name__} of shape {shape}")
    return {name: array.copy() for name, array in arrays.items()}


def restored_counts(facts: Facts) -> dict[ArmName, int]:
    """The updates of each arm in a saved state. Raises SnapshotError if they are missing or do not add up."""
    updates, seen = facts.get("updates"), facts.get("seen")
    if not isinstance(updates, int) or updates < 0:
        raise SnapshotError(f"the number of updates is missing or wrong: {updates!r}")
    if not isinstance(seen, Mapping) or not all(isinstance(n, int) and n > 0 for n in seen.values()):
        raise SnapshotError(f"the updates of each arm are missing or wrong: {seen!r}")
    if sum(seen.values()) != updates:
        raise SnapshotError(f"{updates} updates, but {sum(seen.values())} of all arms together")
    return {ArmName(arm): n for arm, n in seen.items()}


#: where params stand in the configuration
WHERE: Final = "policy.params"

# Beyond 1e-12 and 1e12 no param makes sense, and what is made of it might be 0 or no float any more. Whole numbers end
# at 1e9: torch and others take them as 32 bits.
#: a number from 0 to 1e12
Number = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]
#: a number above 0, from 1e-12 to 1e12, so that its inverse is one too
Positive = Annotated[float, Field(ge=1e-12, le=1e12, allow_inf_nan=False)]
#: a number from 0 to 1
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
#: an integer from 0 to 1e9
Whole = Annotated[int, Field(ge=0, le=10**9)]
#: an integer from 1 to 1e9
Count = Annotated[int, Field(ge=1, le=10**9)]
#: text that is not empty
Text = Annotated[str, Field(min_length=1)]
#: the name of an arm
ArmParam = Annotated[ArmName, Field(min_length=1)]


#: the arms that params name by default
NO_RETRIEVAL: Final = ArmName("no_retrieval")
SINGLE_STEP: Final = ArmName("single_step")
MULTI_STEP: Final = ArmName("multi_step")


class PolicyParams:
    """Base of every policy's params dataclass: frozen, keyword-only.

    Ranges are written as `Annotated[int, pydantic.Field(ge=1)]`.
    """

    __slots__ = ()
    #: the fields that name an arm which the policy may draw: each must be among the arms that are there
    arms_named: ClassVar[tuple[str, ...]] = ()


ParamsType = TypeVar("ParamsType", bound=PolicyParams)


def read_params(kind: type[ParamsType], *, given: Mapping[str, Json]) -> ParamsType:
    """The params out of plain values, every field checked by its type, defaults filled in.

    Raises ConfigError with field "policy.params.<param>" for a param that is unknown, needed or out of range.
    """
    checked = check_values(kind, given=given, where=WHERE)
    for each in fields(kind):  # type: ignore[arg-type] # every subclass is a dataclass
        if each.name not in checked and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError("is needed", field=f"{WHERE}.{each.name}", remedy="it has no default: give it a value")
    return kind(**checked)


class HasParams:
    """A policy whose settings are one params dataclass: what it records, and which arms it names."""

    _params: PolicyParams

    def __init__(self, params: PolicyParams) -> None:
        self._params = params

    @property
    def params(self) -> Mapping[str, Json]:
        """The settings it was made with, after defaults, as JSON values; `context` and `facts` where there are any."""
        plain: dict[str, Json] = asdict(self._params)  # type: ignore[call-overload] # every subclass is a dataclass
        return {name: value for name, value in plain.items() if value or name not in ("context", "facts")}

    @property
    def arms_named(self) -> Mapping[str, ArmName]:
        """Param -> the arm that it names, for the params of arms that the policy may draw."""
        return {name: getattr(self._params, name) for name in self._params.arms_named}
