"""A policy on ridge heads: what mba and linucb share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from ragbandit.router.policies.base import (
    Arrays,
    Facts,
    HasParams,
    PolicyNeed,
    PolicyOutput,
    PolicyParams,
    Positive,
    weight_of,
)
from ragbandit.router.policies.context import read_schema
from ragbandit.router.policies.linear.blocks import LARGEST_BLOCK, BlockHeads
from ragbandit.router.policies.linear.context_heads import WITH_CONTEXT, ContextHeads
from ragbandit.router.policies.linear.ridge import Prediction, RidgeHeads
from ragbandit.shared.types import ArmName, FeatureRows, Features, Json, Query, Update

#: what an arm's rows count as together where it is started again
RESTART_ROWS: Final = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RidgeParams(PolicyParams):
    """Settings of every policy on ridge heads."""

    #: prior precision of the weights, in units where |x|^2 / d is 1 on average
    ridge: Positive = 10.0
    #: prior precision of the intercept
    bias_ridge: Positive = 1.0
    #: most rows of an arm that are learned at once; 1: row by row
    block: Annotated[int, Field(ge=1, le=LARGEST_BLOCK)] = 256
    #: what the setting `context` declares, or did when the ledger was learned
    context: Mapping[str, Any] | None = None


class RidgePolicy(HasParams, ABC):
    """A policy on these heads: a subclass only says how a posterior becomes a pmf.

    The scores of its output are the posterior means; what it explores with stands in the facts, beside quality, cost
    and the weight between them.
    """

    algorithm: ClassVar[str]
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"features"})
    deterministic: ClassVar[bool] = True
    lean: ClassVar[bool] = True
    serves_prices: ClassVar[bool] = True
    takes_context: ClassVar[bool] = True
    #: params that only the heads of this policy have
    of_heads: ClassVar[tuple[str, ...]] = ()

    def __init__(self, params: RidgeParams, *, memory: float | None = None) -> None:
        super().__init__(params)
        names = ("ridge", "bias_ridge", "block", *self.of_heads)
        settings = {"memory": memory} | {name: getattr(params, name) for name in names}
        #: of the context that it learns from; empty: none
        self.schema = read_schema(params.context)
        #: per arm: what its scores of models count as that were learned as they are, until the first calibrated one
        self._uncalibrated: dict[ArmName, float] = {}
        self._heads = (
            ContextHeads(self.schema, make=lambda: self.heads(**settings), models=models)
            if (models := self.models())
            else self.heads(**settings)
        )

    @staticmethod
    def heads(*, block: int, **settings: Any) -> RidgeHeads:
        """The heads of one model: row by row where a block is one row."""
        return RidgeHeads(**settings) if block == 1 else BlockHeads(**settings, block=block)

    def models(self) -> Mapping[str, float]:
        """The models that are averaged, with their shares before any row; none where there is but one."""
        return WITH_CONTEXT if self.schema else {}

    @property
    def weights_are_rows(self) -> bool:
        """Whether a row of weight 2 is the same row twice: row by row, and where none fades."""
        return type(self._heads) is RidgeHeads and self._heads.memory is None

    @abstractmethod
    def output(self, features: Features, *, arms: Sequence[ArmName], weight: float) -> PolicyOutput:
        """The pmf over these arms for one question at a weight of cost; features as the heads read them, (d,)."""

    def facts(self, prediction: Prediction, *, weight: float) -> dict[str, Json]:
        """What the heads tell the log."""
        return {"quality": list(prediction.quality), "cost": list(prediction.cost), "weight": weight}

    @property
    def noise(self) -> float:
        """Standard deviation of a reward around its mean."""
        return self._heads.noise

    def age(self, arm: ArmName) -> float:
        """Rows of an arm since it was begun, or begun anew."""
        return self._heads.age(arm)

    @property
    def seen(self) -> Mapping[ArmName, int]:
        """Number of updates learned, by arm."""
        return self._heads.seen

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """One output per question, each from its own features and arms alone."""
        assert features is not None
        if isinstance(self._heads, ContextHeads):
            features = self._heads.joined(features, queries=queries)
        return [
            self.output(row, arms=offered, weight=weight_of(query, default=self._heads.weight))
            for query, row, offered in zip(queries, features, arms, strict=True)
        ]

    def learn(self, update: Update) -> None:
        """Take in one row, O(d^2); PolicyFault and no change if its features are missing or of another length."""
        self._heads.learn(update)
        self._heads.finish(update.arm, restart=self._superseded(update))

    def restart(self, arm: ArmName) -> None:
        """Let an arm that is another one from now on count as RESTART_ROWS: its estimate stays, its width grows."""
        self._uncalibrated.pop(arm, None)
        if self._heads.mass(arm) > 0.0:
            self._heads.finish(arm, restart=RESTART_ROWS)

    def _superseded(self, update: Update) -> float | None:
        """What the arm's rows are to count as together, if a calibrated score takes the place of scores of before.

        Scores that nobody has calibrated may favour an arm. They are all there is at first; from the arm's first
        calibrated one on, what they taught is the best guess still, and counts for little.
        """
        reward, arm = update.reward, update.arm
        if reward.judged_by != "judge" or reward.preset == "reward" or reward.sample_weight == 0.0:
            return None
        if reward.raw_quality is None:
            self._uncalibrated[arm] = self._uncalibrated.get(arm, 0.0) + reward.sample_weight
            return None
        before = self._uncalibrated.pop(arm, None)
        return None if before is None else max(self._heads.mass(arm) - before, RESTART_ROWS)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """The heads', and per arm what scores count as that nobody has calibrated."""
        arrays, facts = self._heads.state()
        return arrays, facts | {"uncalibrated": dict(sorted(self._uncalibrated.items()))}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over the heads of a saved state."""
        self._heads.restore(arrays, facts)
        self._uncalibrated = dict(facts["uncalibrated"])
