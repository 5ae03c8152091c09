"""Rewards from feedback and outcomes.

reward = clip(quality - weight * cost), which is MBA-RAG's r = A(y, y_a) - lambda C(a). A Reward also contains quality
and cost, so that a logged reward can be computed again with another weight (lambda).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.model_servers.failures import successor_of
from ragbandit.shared.texts.text_forms import answer_words, is_blank
from ragbandit.shared.types import Aggregate, Cost, Feedback, Outcome, Reward, RewardSource

if TYPE_CHECKING:
    from ragbandit.router.config.learning import RewardSettings


Words = Callable[[str], list[str]]


def exact_match(prediction: str, *, gold: Sequence[str], words: Words = answer_words) -> float:
    """1.0 if the prediction and a gold answer have the same words, else 0.0."""
    return float(words(prediction) in map(words, gold))


def f1(prediction: str, *, gold: Sequence[str], words: Words = answer_words) -> float:
    """Best F1 of words over the gold answers. Without words, F1 is 1.0 if both texts have none, else 0.0."""
    predicted = words(prediction)
    return max(words_f1(predicted, words(answer)) for answer in gold)


def words_f1(prediction: list[str], gold: list[str]) -> float:
    if not prediction or not gold:
        return float(prediction == gold)
    same = sum((Counter(prediction) & Counter(gold)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(prediction), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def containment(prediction: str, *, gold: Sequence[str], words: Words = answer_words) -> float:
    """1.0 if the prediction contains all words of a gold answer in sequence, else 0.0. Only whole words count."""
    text = f" {' '.join(words(prediction))} "
    return float(any(f" {' '.join(answer)} " in text for answer in map(words, gold) if answer))


_QUALITIES = {"exact_match": exact_match, "f1": f1, "containment": containment}
#: names of the measures of a label
MEASURES: Final = tuple(_QUALITIES)


def quality_of(feedback: Feedback, *, outcome: Outcome | None, measure: str) -> float:
    """Quality of an answer by one feedback, in [0, 1]; for the kind "reward" any value that was sent.

    If the feedback is a label, a failed or blank answer has quality 0. If the arm failed and another arm answered in
    its place, the quality of the failed arm is 0, because the rater saw the other arm's answer. A task is judged as a
    whole, and its feedback counts for the arm that was drawn.
    """
    if outcome is not None and successor_of(outcome.made_by) is not None and not outcome.cost.turns:
        return 0.0
    if feedback.kind == "label":
        assert isinstance(feedback.value, tuple)
        assert outcome is not None, "the learner waits for the outcome before it reads a label"
        if outcome.status == "failed" or is_blank(outcome.answer):
            return 0.0
        return _QUALITIES[measure](outcome.answer or "", gold=feedback.value)
    assert isinstance(feedback.value, int | float)
    return float(feedback.value)


def cost_of_terms(steps: float, cost: Cost, *, terms: Mapping[str, float]) -> float:
    """Cost of an outcome: sum of price * amount over the terms. terms: cost term -> price per unit.

    Calls whose price is unknown count at an assumed price.
    """
    amounts = {"steps": steps, "dollars": cost.charged_dollars}
    return math.fsum(price * amounts.get(term, getattr(cost, term, 0.0)) for term, price in terms.items())


_AGGREGATES: Final[Mapping[Aggregate, Callable[[Sequence[float]], float]]] = MappingProxyType(
    {"first": itemgetter(0), "last": itemgetter(-1), "mean": fmean, "sum": math.fsum, "min": min, "max": max}
)


def aggregate(values: Sequence[float], *, method: Aggregate) -> float:
    return _AGGREGATES[method](values)


def explicit_reward(
    feedback: Sequence[Feedback], *, outcome: Outcome | None, settings: "RewardSettings", method: Aggregate
) -> Reward:
    """The reward from all used feedback. Raises InvalidInput if the reward is not finite.

    If there are raw rewards (kind "reward"), only these count, because they have another scale and include the cost.
    """
    raw = [item for item in feedback if item.kind == "reward"]
    values = [quality_of(item, outcome=outcome, measure=settings.quality) for item in raw or feedback]
    weight = 0.0 if raw else settings.weight
    kinds = {item.kind for item in feedback}
    if raw:
        preset = "reward"
    elif len(kinds) > 1:
        preset = "mixed"
    else:
        preset = settings.quality if "label" in kinds else "rating"
    quality = aggregate(values, method=method)
    return _reward(quality, outcome=outcome, weight=weight, preset=preset, settings=settings, source="explicit")


def default_reward(value: float, *, outcome: Outcome | None, settings: "RewardSettings") -> Reward:
    """The reward of a decision without judgements: `value`, without subtracting the cost."""
    return _reward(value, outcome=outcome, weight=0.0, preset="default", settings=settings, source="default")


def _reward(
    quality: float,
    *,
    outcome: Outcome | None,
    weight: float,
    preset: str,
    settings: "RewardSettings",
    source: RewardSource,
) -> Reward:
    cost = 0.0 if outcome is None else cost_of_terms(outcome.steps, outcome.cost, terms=settings.cost)
    value = quality - weight * cost
    if not math.isfinite(value) or not math.isfinite(cost):
        raise InvalidInput(f"reward is not finite: quality {quality}, cost {cost}", field="feedback.value")
    return Reward(
        value=min(max(value, settings.minimum), settings.maximum),
        quality=quality,
        cost=cost,
        weight=weight,
        minimum=settings.minimum,
        maximum=settings.maximum,
        terms=dict(settings.cost),
        preset=preset,
        source=source,
    )
