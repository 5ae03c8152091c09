"""Vowpal Wabbit (the package vowpal-wabbit-next) as a policy: its online linear learner, and two of its explorers.

VW predicts the cost of an arm, which is the negative reward, from the d features x of a question: x / sqrt(d) times the
arm, and an intercept per arm (--cb_adf -q qa). An update is one gradient step, invariant to importance weights
(Karampatziakis and Langford 2011). The param cb_type chooses the cost that the step learns for an arm that was drawn
with probability p (Bietti et al. 2021, "A Contextual Bandit Bake-off"):

- mtr: the cost of the drawn arm, weighted by 1/p. VW sees only this arm, so the step does not depend on their number.
- ips: cost/p for the drawn arm, 0 for every other offered arm.
- dr: the predicted cost for every offered arm, and (cost - prediction)/p more for the drawn arm.

The explorers are computed here in float64 from VW's predicted costs, because VW's own explorers use float32 and do not
return these costs. squarecb gives 1 / (K + gamma * gap) to each of K arms except the best arm, which costs less by the
gap; gamma = gamma_scale * sqrt(sum of the updates' weights) (Foster and Rakhlin 2020). VW raises small probabilities to
epsilon/K; here epsilon/K is mixed in.

VW is not thread-safe, so every call takes a lock. A state contains the bytes of VW's model.
"""

import hashlib
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
from pydantic import Field

from ragbandit.router.policies.base import (
    Arrays,
    Facts,
    PerQuestionPolicy,
    PolicyNeed,
    PolicyOutput,
    PolicyParams,
    Share,
    epsilon_greedy,
    read_params,
    rows_of,
)
from ragbandit.router.policies.context import ContextColumns, read_schema
from ragbandit.router.policies.draw import with_floor
from ragbandit.shared.errors import PolicyFault, SnapshotError, required_module
from ragbandit.shared.types import ArmName, Features, Json, Query, Update

#: offsets of the namespaces q (question), a (arm) and c (context) in VW's hash, as VW computes them for dsjson files
_QUESTION, _ARM, _CONTEXT = 0xFF8209E8, 0x3C2569B2, 0xE132D65F
#: VW's options if there is a context: an arm has weights for the question, the context and their products
_WITH_CONTEXT: Final = "-q qa -q ca --interactions qca --ignore_linear q --ignore_linear c"
_ONE = np.ones(1, dtype=np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class VwParams(PolicyParams):
    explorer: Literal["epsilon", "squarecb"] = "squarecb"
    #: probability that is spread evenly over all arms
    epsilon: Share = 0.2
    #: factor of gamma (see the module); larger values explore less
    gamma_scale: Annotated[float, Field(ge=0.0, le=1e9, allow_inf_nan=False)] = 10.0
    cb_type: Literal["mtr", "dr", "ips"] = "mtr"
    learning_rate: Annotated[float, Field(ge=1e-9, le=1e6, allow_inf_nan=False)] = 0.01
    #: 0 keeps the learning rate constant, for traffic that drifts; 0.5 decreases it by the past gradients (AdaGrad)
    power_t: Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)] = 0.0
    #: VW has 2**bits weights of 16 bytes; an arm uses one for each feature and one more, at hashed positions
    bits: Annotated[int, Field(ge=14, le=24)] = 18
    #: the setting `context`, as it was when the ledger was learned
    context: Mapping[str, Any] | None = None


class VowpalWabbit(PerQuestionPolicy):
    """A contextual bandit by Vowpal Wabbit. Raises ConfigError if the package is not installed."""

    algorithm: ClassVar[str] = "vw"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"features"})
    deterministic: ClassVar[bool] = True
    takes_context: ClassVar[bool] = True

    def __init__(self, **params: Json) -> None:
        settings = read_params(VwParams, given=params)
        super().__init__(settings)
        self.schema = read_schema(settings.context)
        self._columns = ContextColumns(self.schema) if self.schema else None
        self.settings = settings
        self._mass = 0.0
        self._dimension: int | None = None
        # Any, because the package's type stubs contradict numpy's.
        self._vw: Any = required_module("vowpal_wabbit_next", extra="vw", field="policy.name")
        self._lock = threading.Lock()
        self._workspace = self._vw.Workspace(self._arguments())

    def _arguments(self) -> list[str]:
        # --noconstant: a constant feature would couple the arms' intercepts, and depend on the number of arms. Not
        # --normalized: features already have the length 1, and VW cannot save its running scale for dr.
        crossed = _WITH_CONTEXT if self.schema else "-q qa --ignore_linear q"
        settings = self.settings
        return (
            f"--cb_adf --cb_type {settings.cb_type} {crossed} --noconstant --adaptive --invariant "
            f"--learning_rate {settings.learning_rate!r} --power_t {settings.power_t!r} -b {settings.bits} --quiet"
        ).split()

    def output(self, query: Query, *, features: Features | None, arms: Sequence[ArmName]) -> PolicyOutput:
        assert features is not None
        # Weight 0, because VW adds up the weights of all examples, and a prediction must not change the state.
        question = self._question_example(features, query=query, weight=0.0)
        actions = [self._arm_example(arm, weight=0.0) for arm in arms]
        with self._lock:
            ranked = self._workspace.predict_one([question, *actions])  # [(index, cost)], best first
        scores = [0.0] * len(arms)
        for index, cost in ranked:
            scores[index] = 0.0 - cost  # never -0.0
        epsilon = self.settings.epsilon
        if self.settings.explorer == "epsilon":
            return PolicyOutput(pmf=epsilon_greedy(scores, epsilon=epsilon), scores=tuple(scores))
        gamma = self.settings.gamma_scale * math.sqrt(self._mass)
        pmf = with_floor(_squarecb(scores, gamma=gamma), floor=epsilon / len(arms))
        return PolicyOutput(pmf=pmf, scores=tuple(scores), facts={"gamma": gamma})

    def learn(self, update: Update) -> None:
        """One step of VW with the row's weight. Raises PolicyFault for numbers that would damage VW's model."""
        features, rows = update.features, rows_of(update)
        p, cost = update.propensity, -update.reward.value
        if features is None or self._dimension not in (None, features.size):
            raise PolicyFault("the features are missing, or their number differs from earlier rows")
        # VW squares these numbers in float32, where they may silently become infinite. NaN fails every comparison.
        if not (float(np.abs(features).max()) < 1e6 and 0.0 < p <= 1.0 and (1.0 + abs(cost)) / p < 1e15):
            raise PolicyFault(f"VW cannot learn from cost {cost!r} at probability {p!r} with these features")
        if rows == 0.0:
            super().learn(update)
            return
        drawn = self._vw.CBLabel(label=(0, cost, p), weight=rows)
        # sorted, because float32 sums depend on the order
        learned = [update.arm] if self.settings.cb_type == "mtr" else sorted({update.arm, *update.arms})
        actions = [self._arm_example(arm, label=drawn if arm == update.arm else None, weight=rows) for arm in learned]
        with self._lock:
            self._workspace.learn_one([self._question_example(features, query=update.query), *actions])
        if self._columns is not None:
            self._columns.learn(update.query)
        self._dimension, self._mass = features.size, self._mass + rows
        super().learn(update)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        arrays, facts = super().state()
        with self._lock:
            saved = self._workspace.serialize()
        # Loading resets VW's counts of examples and predictions, so that the state depends only on the updates.
        model = self._vw.Workspace(["--quiet"], model_data=saved).serialize()
        arrays["model"] = np.frombuffer(model, dtype=np.uint8)
        sha256 = hashlib.sha256(model).hexdigest()
        facts |= {"model_sha256": sha256, "dimension": self._dimension, "mass": self._mass}
        return arrays, facts if self._columns is None else {**facts, "context": self._columns.state()}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Load a saved state. Checks the sha256 first, because VW may crash on other bytes."""
        model = arrays.get("model")
        if model is None or len(arrays) != 1 or model.dtype != np.uint8 or model.ndim != 1:
            raise SnapshotError(f"the state must be one array of bytes with the name model, not {sorted(arrays)}")
        saved = model.tobytes()
        if hashlib.sha256(saved).hexdigest() != facts.get("model_sha256"):
            raise SnapshotError("the array model is damaged: its sha256 does not match")
        try:
            workspace = self._vw.Workspace(["--quiet"], model_data=saved)
        except RuntimeError as error:  # another version of VW wrote the model
            raise SnapshotError(f"VW cannot load the model: {error}") from error
        super().restore(arrays, facts)
        if self._columns is not None:
            self._columns.restore(facts["context"])
        self._dimension = facts["dimension"]
        with self._lock:
            self._mass, self._workspace = facts["mass"], workspace

    def _question_example(self, features: Features, *, query: Query, weight: float = 1.0) -> Any:
        """VW's example of a question: its features, scaled to a length near 1, and its context."""
        example = self._vw.Example()
        indices = np.arange(_QUESTION, _QUESTION + features.size, dtype=np.uint64)
        scaled = (features.astype(np.float64) / math.sqrt(features.size)).astype(np.float32)
        example["q"].push_many_features(indices, scaled)
        if self._columns is not None:
            columns = self._columns.of(query).astype(np.float32)
            used = np.flatnonzero(columns)  # VW also leaves out zeros when it reads text
            example["c"].push_many_features(np.uint64(_CONTEXT) + used.astype(np.uint64), columns[used])
        example.set_label(self._vw.CBLabel(shared=True, weight=weight))
        return example

    def _arm_example(self, arm: ArmName, *, label: Any = None, weight: float = 1.0) -> Any:
        """An arm as one feature. Its weight is the arm's intercept; products with the question have further weights."""
        example = self._vw.Example()
        digest = hashlib.blake2b(arm.encode("utf-8", "surrogatepass"), digest_size=4).digest()
        index = _ARM + int.from_bytes(digest, "big")
        example["a"].push_many_features(np.array([index], dtype=np.uint64), _ONE)
        example.set_label(label or self._vw.CBLabel(weight=weight))
        return example


def _squarecb(scores: Sequence[float], *, gamma: float) -> list[float]:
    best, count = max(scores), len(scores)
    pmf = [0.0 if score == best else 1.0 / (count + gamma * (best - score)) for score in scores]
    p_best = (1.0 - math.fsum(pmf)) / sum(score == best for score in scores)
    return [p_best if score == best else p for p, score in zip(pmf, scores, strict=True)]
