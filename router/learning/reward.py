"""From feedback and outcome to one reward: pure functions, no state, no clock.

reward = clip(quality - weight * cost): MBA-RAG's r = A(y, y_a) - lambda C(a), with the cost of the steps really
taken. Quality and cost stay apart in the result, so that lambda can be changed on the log.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ragbandit.router.learning.answer_metrics import containment, exact_match, f1
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Aggregate, Cost, Feedback, Outcome, Reward

if TYPE_CHECKING:
    from ragbandit.router.config.settings import RewardSettings

_QUALITIES = {"exact_match": exact_match, "f1": f1, "containment": containment}


def quality_of(feedback: Feedback, *, outcome: Outcome | None, measure: str) -> float:
    """Quality in [0, 1] of one feedback (for kind "reward": its value, whatever the bounds allow).

    A failed or empty answer has quality 0 by any label: a miss, however lenient the measure.
    """
    if feedback.kind == "label":
        assert isinstance(feedback.value, tuple)
        assert outcome is not None, "the learner waits for the outcome before it reads a label"
        if outcome.status == "failed" or not outcome.answer:
            return 0.0
        return _QUALITIES[measure](outcome.answer, gold=feedback.value)
    assert isinstance(feedback.value, int | float)
    return float(feedback.value)


def cost_of(outcome: Outcome, *, terms: Mapping[str, float]) -> float:
    """Sum of price times amount over the cost terms."""
    return cost_of_terms(outcome.steps, outcome.cost, terms=terms)


def cost_of_terms(steps: float, cost: Cost, *, terms: Mapping[str, float]) -> float:
    """`cost_of` an outcome with these steps and this cost."""
    return math.fsum(price * (steps if term == "steps" else getattr(cost, term)) for term, price in terms.items())


def aggregate(values: Sequence[float], *, how: Aggregate) -> float:
    """One value of several feedbacks, in the order they came. Needs at least one value."""
    match how:
        case "first":
            return values[0]
        case "last":
            return values[-1]
        case "mean":
            return math.fsum(values) / len(values)
        case "sum":
            return math.fsum(values)
        case "min":
            return min(values)
        case "max":
            return max(values)


def explicit_reward(
    feedback: Sequence[Feedback],
    *,
    outcome: Outcome | None,
    settings: "RewardSettings",
    how: Aggregate,
) -> Reward:
    """The reward that the collected feedback gives. Feedback of kind "reward" has its cost inside already.

    Where raw rewards are among the feedback they alone count: quality and reward are on different scales.
    Raises InvalidInput if a number is not finite: the row goes to quarantine.
    """
    raw = [item for item in feedback if item.kind == "reward"]
    values = [quality_of(item, outcome=outcome, measure=settings.quality) for item in raw or feedback]
    quality = aggregate(values, how=how)
    cost = 0.0 if outcome is None else cost_of(outcome, terms=settings.cost)
    weight = 0.0 if raw else settings.weight
    kinds = {item.kind for item in feedback}
    preset = "reward" if raw else "mixed" if len(kinds) > 1 else settings.quality if "label" in kinds else "rating"
    return _made(quality, cost=cost, weight=weight, preset=preset, settings=settings, source="explicit")


def default_reward(value: float, *, outcome: Outcome | None, settings: "RewardSettings") -> Reward:
    """The reward of a decision that nobody judged; the value is taken as it is."""
    cost = 0.0 if outcome is None else cost_of(outcome, terms=settings.cost)
    return _made(value, cost=cost, weight=0.0, preset="default", settings=settings, source="default")


def _made(
    quality: float, *, cost: float, weight: float, preset: str, settings: "RewardSettings", source: str
) -> Reward:
    value = quality - weight * cost
    if not math.isfinite(value) or not math.isfinite(cost):
        raise InvalidInput(f"reward is not finite: quality {quality}, cost {cost}", field="feedback.value")
    clipped = min(max(value, settings.minimum), settings.maximum)
    return Reward(
        value=clipped,
        quality=quality,
        cost=cost,
        weight=weight,
        minimum=settings.minimum,
        maximum=settings.maximum,
        terms=dict(settings.cost),
        preset=preset,
        source="default" if source == "default" else "explicit",
    )
