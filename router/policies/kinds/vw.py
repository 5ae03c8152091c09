"""Vowpal Wabbit (the wheel vowpal-wabbit-next) as a policy: its online linear learner, and two of its explorers.

VW regresses the cost of an arm, minus the reward, on x / sqrt(d) times the arm, with an intercept per arm
(--cb_adf -q qa): one gradient step per update, invariant to importance weights (Karampatziakis and Langford 2011).
Bietti et al. 2021, "A Contextual Bandit Bake-off", describe the three ways to a cost that cb_type names:

- mtr: the arm drawn regresses its own cost, weighted by 1/p. VW also scales the step by the share of arms that were
  drawn; here VW sees the drawn arm alone, so the number of arms does not move the step.
- ips: the arm drawn gets cost/p, every other offered arm 0.
- dr: every offered arm gets its predicted cost; the arm drawn gets (cost - prediction)/p on top.

The explorers are computed here in float64 from VW's predicted costs, and give what VW's own give (the tests compare):
VW's are float32, hide the predicted costs, and come in the order of the scores.

- epsilon: --cb_explore_adf --epsilon.
- squarecb: --squarecb, probability 1 / (K + gamma * gap) for all but the best arm, gamma = gamma_scale * sqrt(updates)
  (Foster and Rakhlin 2020; an update that counts as w rows is w of them). VW lifts small probabilities to epsilon/K;
  here epsilon/K is mixed in.

Quality and cost are not kept apart: VW learns the reward's value. Not thread-safe and not picklable: a lock stands
before every call. A state holds VW's own model bytes, which the command line of VW reads.
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
    HasParams,
    PolicyNeed,
    PolicyOutput,
    PolicyParams,
    Share,
    counted_state,
    epsilon_greedy,
    read_params,
    restored_counts,
    rows_of,
    tally,
)
from ragbandit.router.policies.context import ContextColumns, read_schema
from ragbandit.router.policies.draw import with_floor
from ragbandit.shared.errors import PolicyFault, SnapshotError, required_module
from ragbandit.shared.types import ArmName, FeatureRows, Features, Json, Query, Update

#: Where the namespaces "q", "a" and "c" begin in VW's hash (murmur3): the same rows as dsjson make the same model.
_QUESTION, _ARM, _CONTEXT = 0xFF8209E8, 0x3C2569B2, 0xE132D65F
#: with a context: an arm's weights for the question, for the context and for their products
_WITH_CONTEXT: Final = "-q qa -q ca --interactions qca --ignore_linear q --ignore_linear c"
_ONE = np.ones(1, dtype=np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class VwParams(PolicyParams):
    """Settings of vw."""

    explorer: Literal["epsilon", "squarecb"] = "squarecb"
    #: share of the probability that is spread over all arms
    epsilon: Share = 0.2
    #: how fast squarecb trusts its costs
    gamma_scale: Annotated[float, Field(ge=0.0, le=1e9, allow_inf_nan=False)] = 10.0
    cb_type: Literal["mtr", "dr", "ips"] = "mtr"
    #: of the gradient step; VW reads it as float32
    learning_rate: Annotated[float, Field(ge=1e-9, le=1e6, allow_inf_nan=False)] = 0.01
    #: 0 keeps the step, for traffic that drifts; .5 shrinks it with the gradients a weight has seen (AdaGrad)
    power_t: Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)] = 0.0
    #: 2**bits weights of 16 bytes; d + 1 of them per arm, placed by a hash
    bits: Annotated[int, Field(ge=14, le=24)] = 18
    #: what the setting `context` declares, or did when the ledger was learned
    context: Mapping[str, Any] | None = None


class VowpalWabbit(HasParams):
    """A contextual bandit by Vowpal Wabbit.

    Weights whose hashes agree in `bits` bits are shared; so are two whole arms whose names' hashes do.
    Raises ConfigError where the wheel is not installed.
    """

    algorithm: ClassVar[str] = "vw"
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"features"})
    deterministic: ClassVar[bool] = True
    takes_context: ClassVar[bool] = True

    def __init__(self, **params: Json) -> None:
        settings = read_params(VwParams, given=params)
        super().__init__(settings)
        #: of the context that it learns from; empty: none
        self.schema = read_schema(settings.context)
        self._columns = ContextColumns(self.schema) if self.schema else None
        self.settings = settings
        self.seen: dict[ArmName, int] = {}
        #: what these updates count as
        self._mass = 0.0
        #: d of the features it has learned; None before the first update
        self._dimension: int | None = None
        # Its own types contradict numpy's.
        self._vw: Any = required_module("vowpal_wabbit_next", extra="vw", field="policy.name")
        self._lock = threading.Lock()
        self._workspace = self._vw.Workspace(self._arguments())

    def _arguments(self) -> list[str]:
        # No constant feature: it would tie the arms' intercepts together, and with them the number of arms.
        # Without --normalized: features have length 1 by design, and VW cannot save its running scale for dr.
        crossed = _WITH_CONTEXT if self.schema else "-q qa --ignore_linear q"
        settings = self.settings
        return (
            f"--cb_adf --cb_type {settings.cb_type} {crossed} --noconstant --adaptive --invariant "
            f"--learning_rate {settings.learning_rate!r} --power_t {settings.power_t!r} -b {settings.bits} --quiet"
        ).split()

    def pmf(
        self, queries: Sequence[Query], *, features: FeatureRows | None, arms: Sequence[Sequence[ArmName]]
    ) -> list[PolicyOutput]:
        """The explorer on VW's predicted costs; scores are the predicted rewards, 0 for an arm never learned."""
        assert features is not None
        questions = zip(features, queries, arms, strict=True)
        return [self._one(row, query=query, arms=offered) for row, query, offered in questions]

    def _one(self, features: Features, *, query: Query, arms: Sequence[ArmName]) -> PolicyOutput:
        # Weight 0: VW counts the weight of all it is shown, and asking must not change the state.
        examples = [self._shared(features, query=query, weight=0.0), *(self._action(arm, weight=0.0) for arm in arms)]
        with self._lock:
            ranked = self._workspace.predict_one(examples)  # [(index, cost)], best first
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
        """One step of VW, with the importance weight that the row counts as.

        PolicyFault for what VW takes without a word and is spoilt by: NaN, p of 0 or above 1.
        """
        features, p, cost, rows = update.features, update.propensity, -update.reward.value, rows_of(update)
        if features is None or self._dimension not in (None, features.size):
            raise PolicyFault("features are missing or of another length")
        # VW squares these in float32, and says nothing when they become infinite there. NaN fails every comparison.
        if not (float(np.abs(features).max()) < 1e6 and 0.0 < p <= 1.0 and (1.0 + abs(cost)) / p < 1e15):
            raise PolicyFault(f"VW cannot learn from cost {cost!r} at probability {p!r} with these features")
        if rows == 0.0:
            tally(self.seen, update)
            return
        drawn = self._vw.CBLabel(label=(0, cost, p), weight=rows)
        # One order for every order of offering, since the sums of float32 depend on it.
        shown = [update.arm] if self.settings.cb_type == "mtr" else sorted({update.arm, *update.arms})
        actions = [self._action(arm, label=drawn if arm == update.arm else None, weight=rows) for arm in shown]
        with self._lock:
            self._workspace.learn_one([self._shared(features, query=update.query), *actions])
        if self._columns is not None:
            self._columns.learn(update.query)
        self._dimension, self._mass = features.size, self._mass + rows
        tally(self.seen, update)

    def state(self) -> tuple[Arrays, dict[str, Json]]:
        """VW's model as bytes, with their sha256, the counts, and d."""
        arrays, facts = counted_state(self.seen)
        with self._lock:
            saved = self._workspace.serialize()
        # Loading puts VW's own tallies (examples and features shown, predictions among them) back to 0: what is left
        # depends on the updates alone.
        model = self._vw.Workspace(["--quiet"], model_data=saved).serialize()
        arrays["model"] = np.frombuffer(model, dtype=np.uint8)
        sha256 = hashlib.sha256(model).hexdigest()
        facts |= {"model_sha256": sha256, "dimension": self._dimension, "mass": self._mass}
        return arrays, facts if self._columns is None else {**facts, "context": self._columns.state()}

    def restore(self, arrays: Arrays, facts: Facts) -> None:
        """Take over a saved state. The sha256 is checked first: VW may crash on bytes that are not its own."""
        seen, model = restored_counts(facts), arrays.get("model")
        if model is None or len(arrays) != 1 or model.dtype != np.uint8 or model.ndim != 1:
            raise SnapshotError(f"there must be one array, model, uint8 of shape (bytes,), not {sorted(arrays)}")
        saved = model.tobytes()
        if hashlib.sha256(saved).hexdigest() != facts.get("model_sha256"):
            raise SnapshotError("model is damaged: its sha256 does not match")
        try:
            workspace = self._vw.Workspace(["--quiet"], model_data=saved)
        except RuntimeError as error:  # another version of VW wrote it
            raise SnapshotError(f"VW cannot load the model: {error}") from error
        if self._columns is not None:
            self._columns.restore(facts["context"])
        self._dimension = facts["dimension"]
        with self._lock:
            self.seen, self._mass, self._workspace = seen, facts["mass"], workspace

    def _shared(self, features: Features, *, query: Query, weight: float = 1.0) -> Any:
        """The question: x / sqrt(d), so that with the intercept 1 both parts weigh alike; and its context."""
        example = self._vw.Example()
        indices = np.arange(_QUESTION, _QUESTION + features.size, dtype=np.uint64)
        scaled = (features.astype(np.float64) / math.sqrt(features.size)).astype(np.float32)
        example["q"].push_many_features(indices, scaled)
        if self._columns is not None:
            columns = self._columns.of(query).astype(np.float32)
            used = np.flatnonzero(columns)  # as VW leaves zeros out where it reads them
            example["c"].push_many_features(np.uint64(_CONTEXT) + used.astype(np.uint64), columns[used])
        example.set_label(self._vw.CBLabel(shared=True, weight=weight))
        return example

    def _action(self, arm: ArmName, *, label: Any = None, weight: float = 1.0) -> Any:
        """An arm: one feature, which is its intercept and, times the question, all its other weights."""
        example = self._vw.Example()
        digest = hashlib.blake2b(arm.encode("utf-8", "surrogatepass"), digest_size=4).digest()
        index = _ARM + int.from_bytes(digest, "big")
        example["a"].push_many_features(np.array([index], dtype=np.uint64), _ONE)
        example.set_label(label or self._vw.CBLabel(weight=weight))
        return example


def _squarecb(scores: Sequence[float], *, gamma: float) -> list[float]:
    """Inverse gap weighting: 1 / (K + gamma * (best - score)), the best arm takes the rest; ties with it share that."""
    best, count = max(scores), len(scores)
    pmf = [0.0 if score == best else 1.0 / (count + gamma * (best - score)) for score in scores]
    rest = (1.0 - math.fsum(pmf)) / sum(score == best for score in scores)
    return [rest if score == best else p for p, score in zip(pmf, scores, strict=True)]
