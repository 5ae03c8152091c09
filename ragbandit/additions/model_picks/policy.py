"""`llm`: a language model picks the arm from the arms' descriptions, without training or feedback.

It is the selector of LlamaIndex's and LangChain's routers, and the form of Adaptive-RAG (arXiv 2403.14403) that needs
no classifier. The service asks the model before the draw (`step.py`), and stores its pick with the request. The policy
only reads the pick, so that audits and replay compute the same pmf without a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ragbandit.router.policies.base import (
    SINGLE_STEP,
    ArmParam,
    PerQuestionPolicy,
    PolicyNeed,
    PolicyOutput,
    PolicyParams,
    read_params,
)
from ragbandit.shared.types import ArmName, Features, Json, ModelPick, Query


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmParams(PolicyParams):
    #: the arm if the model failed, or picked an arm that is not offered
    fallback: ArmParam = SINGLE_STEP

    arms_named: ClassVar[tuple[str, ...]] = ("fallback",)


class Llm(PerQuestionPolicy):
    """All probability for the picked arm, or for `fallback` without a usable pick. Uniform if neither is offered."""

    algorithm: ClassVar[str] = "llm"
    example: ClassVar[Mapping[str, Json]] = {"fallback": "multi_step"}
    needs: ClassVar[frozenset[PolicyNeed]] = frozenset({"pick"})
    deterministic: ClassVar[bool] = True
    lean: ClassVar[bool] = True

    def __init__(self, **params: Json) -> None:
        settings = read_params(LlmParams, given=params)
        super().__init__(settings)
        self.fallback = settings.fallback

    def output(self, query: Query, *, features: Features | None, arms: Sequence[ArmName]) -> PolicyOutput:
        """Without a usable pick, the fact `no_pick` has the reason: `not_asked`, `not_offered`, or the failure."""
        del features
        pick = ModelPick.read(query.sent.pick) if query.sent.pick else None
        pick = pick or ModelPick(failed="not_asked")
        picked, facts = pick.arm, dict[str, Json]()
        if picked not in arms:
            facts["no_pick"] = pick.failed or "not_offered"
            picked = self.fallback
        if picked not in arms:
            return PolicyOutput(pmf=(1.0 / len(arms),) * len(arms), facts=facts)
        return PolicyOutput(pmf=tuple(float(arm == picked) for arm in arms), facts=facts)
