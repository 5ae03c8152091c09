"""MBA-RAG as published: fine-tunes all of DistilBERT, one question per step (arXiv 2412.01572, section 2).

The paper and the authors' code differ; params choose between them (docs/training.md). Intended differences to both:
the network decides without dropout, because the authors' dropout adds exploration with unknown propensities; heads
belong to arm names, and a head is created at its arm's first update; rows are learned in the order of the ledger.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

from ragbandit.router.policies.base import (
    Arrays,
    Count,
    Facts,
    Number,
    PerQuestionPolicy,
    PolicyNeed,
    PolicyOutput,
    Share,
    checked_arrays,
    epsilon_greedy,
    read_params,
    rows_of,
    tally,
)
from ragbandit.router.policies.finetuned.params import EXAMPLE, HEAD, RIGHT, ReadingParams
from ragbandit.router.policies.finetuned.reading import load_reader
from ragbandit.shared.errors import PolicyFault, SnapshotError
from ragbandit.shared.types import ArmName, Features, Json, Query, Reward, TableRow, Update

#: name -> arm -> reward of a right answer to a multi-hop question: as published, and as in the authors' launch script
TABLES: Final[Mapping[str, Mapping[str, float]]] = {
    "multi_paper": {"no_retrieval": 4.3, "single_step": 2.3, "multi_step": 1.15},
    "multi_code": {"no_retrieval": 4.49, "single_step": 2.3, "multi_step": 2.1},
}
#: `Reward.preset` of a reward from `MbaPaper.table_reward`
PRINTED: Final = "printed"
#: rows with a larger absolute reward are refused
_MOST: Final = 1e6
MOST_ROUNDING: Final = 2.0**-8


@dataclass(frozen=True, kw_only=True, slots=True)
class MbaPaperParams(ReadingParams):
    #: initial learning rate of AdamW
    learning_rate: Number = 5e-5
    #: weight decay of AdamW; 0.01, torch's default, in the authors' code
    weight_decay: Number = 0.01
    #: number of steps during which the learning rate falls to `floor`
    total: Count = 1292
    #: learning rate after `total` steps
    floor: Number = 0.0
    #: share of `total` in which the learning rate rises; in the authors' scripts 0 for "single", 0.05 for "multi_code"
    warmup: Share = 0.0
    #: "paper" is (output of the drawn arm - reward)^2, "code" is a third of it
    loss: Literal["paper", "code"] = "paper"
    #: "ledger" learns the reward in the ledger row. The others replace the reward of a right answer as in the paper:
    #: "single" by 1 - steps/10 (0.9 for single_step), "multi_paper" and "multi_code" by a number of TABLES
    reward: Literal["ledger", "single", "multi_paper", "multi_code"] = "ledger"
    #: reward of a wrong answer, unless `reward` is "ledger": -1 for "paper", 0 for "code". In a table, which has the
    #: outcomes of all arms, "paper" is -1 only if no arm is right, and else 0 (appendix A.2)
    failure: Literal["paper", "code"] = "paper"


class MbaPaper(PerQuestionPolicy):
    """Fine-tuned DistilBERT with one head per arm. Epsilon-greedy on the outputs of the heads."""

    algorithm: ClassVar[str] = "mba_paper"
    example: ClassVar[Mapping[str, Json]] = EXAMPLE | {"total": 30, "floor": 1e-4}
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"text"})
    deterministic: ClassVar[bool] = True
    #: the paper's draw has no floor besides epsilon / K, so passes over tables use no other floor
    without_floors: ClassVar[bool] = True

    def __init__(self, **params: Json) -> None:
        self.settings = read_params(MbaPaperParams, given=params)
        super().__init__(self.settings)
        self._reader = load_reader(self.settings)
        #: arm -> number of its updates with a weight above 0, each of which is a training step
        self._steps: dict[ArmName, int] = {}
        self._network = self._reader.network(seed=self.settings.seed)

    @property
    def updates(self) -> int:
        return sum(self._steps.values())

    @property
    def epsilon(self) -> float:
        """Share of exploration: min(1, 1/ln(e + 1e-5)) at step e = updates + 1, as in the authors' code."""
        return min(1.0, 1.0 / math.log(self.updates + 1 + 1e-5))

    @property
    def rate(self) -> float:
        """Learning rate of the next step: rises during the warm-up, then falls to `floor`."""
        done, warm = self.updates, int(self.settings.warmup * self.settings.total)
        if done < warm:
            return self.settings.learning_rate * done / warm
        remaining = max(0.0, (self.settings.total - done) / max(1, self.settings.total - warm))
        return max(self.settings.floor, self.settings.learning_rate * remaining)

    @property
    def tolerance(self) -> float:
        """Rounding error of one gradient times the number of steps; at most MOST_ROUNDING, not to hide a wrong row."""
        steps = self.updates if self.settings.floor > 0.0 else min(self.updates, self.settings.total)
        return min(MOST_ROUNDING, self._reader.rounding * (1 + steps))

    def output(self, query: Query, *, features: Features | None, arms: Sequence[ArmName]) -> PolicyOutput:
        del features
        scores = tuple(self._network.outputs([query.text], arms=arms)[0].tolist())
        epsilon = self.epsilon
        facts = {"epsilon": epsilon, "learning_rate": self.rate}
        return PolicyOutput(pmf=epsilon_greedy(scores, epsilon=epsilon), scores=scores, facts=facts)

    def learn(self, update: Update) -> None:
        """Make one step on the row's question; its number is the seed of the dropout. Raises PolicyFault."""
        target, rows = self._target(update), rows_of(update)
        if not abs(target) <= _MOST:
            raise PolicyFault(f"the reward {target} is too large to be squared and added in float32, or not a number")
        if rows == 0.0:
            super().learn(update)
            return
        factor = rows if self.settings.loss == "paper" else rows / 3  # the authors' loss is a mean over three outputs
        # A step at the learning rate 0, as at the start of the warm-up, still changes AdamW's moments.
        if self.updates < self.settings.total or self.rate > 0.0:
            self._network.descend(
                [update.query.text],
                arms=[update.arm],
                loss=lambda outputs: factor * (outputs[0, 0] - target) ** 2,
                rate=self.rate,
                decay=self.settings.weight_decay,
                step=self.updates + 1,
            )
        self._network.values[HEAD + update.arm] = self._network.head(update.arm)
        super().learn(update)
        tally(self._steps, update)

    def _target(self, update: Update) -> float:
        """Target of the drawn arm's output. Raises PolicyFault if the row does not determine it."""
        reward, table = update.reward, self.settings.reward
        if table == "ledger" or reward.preset == PRINTED:
            return reward.value
        if not reward.has_parts:
            raise PolicyFault(f"the reward table {table!r} needs rewards with separate quality and cost")
        if reward.quality < RIGHT:
            return -1.0 if self.settings.failure == "paper" else 0.0
        return self._paper_reward(update.arm, reward=reward)

    def _paper_reward(self, arm: ArmName, *, reward: Reward) -> float:
        """The paper's reward of a right answer. Raises PolicyFault if it has none."""
        table = self.settings.reward
        if table == "single":
            if dict(reward.terms) != {"steps": 1.0}:
                raise PolicyFault("the reward table 'single' needs the cost in steps: reward.cost must be {steps: 1.0}")
            return 1.0 - reward.cost / 10.0
        if arm not in TABLES[table]:
            raise PolicyFault(f"the reward table {table!r} has no arm {arm!r}")
        return TABLES[table][arm]

    def table_reward(self, row: TableRow, *, arm: ArmName, reward: Reward) -> Reward:
        """The reward of an arm's answer in a table, where the outcomes of all arms are known (appendix A.2).

        Raises PolicyFault if the param `reward` does not determine it.
        """
        if self.settings.reward == "ledger":
            return reward
        if row.correct[arm] >= RIGHT:
            value = self._paper_reward(arm, reward=reward)
        else:
            is_lost = self.settings.failure == "paper" and all(one < RIGHT for one in row.correct.values())
            value = -1.0 if is_lost else 0.0
        return replace(reward, value=value, preset=PRINTED)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        arrays, facts = super().state()
        facts |= {"model": self._reader.identity, "steps": dict(sorted(self._steps.items()))}
        return arrays | (self._network.arrays(rows=3) if self._steps else {}), facts

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        if facts.get("model") != self._reader.identity:
            raise SnapshotError("the snapshot was made with another model or tokenizer", field="policy.params.model")
        steps = dict(facts["steps"])
        network = self._reader.network(seed=self.settings.seed)
        shapes = network.shapes(list(steps)) if steps else {}
        checked = checked_arrays(arrays, shapes=shapes, float32=shapes)
        super().restore(arrays, facts)
        self._steps, self._network = steps, network
        network.fill(checked)
