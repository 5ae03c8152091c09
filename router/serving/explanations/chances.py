"""What a decision says by itself, without the store: its arms with their probabilities, and why they have them.

The texts below the fields are their descriptions in /openapi.json.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ragbandit.router.serving.deciding.steps import all_steps
from ragbandit.router.serving.explanations.shares import share_sentences
from ragbandit.shared.types import ArmName, Decision, Json, TaskTurn, UntriedArms


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmChance:
    """An offered arm in the draw."""

    arm: ArmName
    """Name of the arm."""
    probability: float
    """Probability of the arm in the draw, floors included."""
    untried: bool
    """Whether the policy had no outcomes of the arm; then `score`, `quality` and `cost` are null."""
    score: float | None
    """Expected reward by the policy; null if the policy has no scores."""
    quality: float | None
    """Expected quality: score = quality - weight * cost; null if the policy does not predict it."""
    cost: float | None
    """Expected cost; null if the policy does not predict it."""
    low: float
    """The arm is drawn if low <= u < high."""
    high: float
    """Upper end of the arm's range of u."""
    drawn: bool
    """Whether this arm was drawn."""
    likeliest: bool
    """Whether no other arm was more probable."""


def preview_of(decision: Decision) -> tuple[list[str], tuple[ArmChance, ...]]:
    """Reasons and arms of a decision that was not drawn (`Router.preview`)."""
    reasons = effect_sentences(decision)
    if decision.turn_of is not None:
        reasons.insert(
            0, f"It would be {turn_words(decision)}, of decision {decision.turn_of}, and nothing would be drawn."
        )
    return [*reasons, *policy_sentences(decision)], chances_of(decision)


def effect_sentences(decision: Decision) -> list[str]:
    """Sentences about the effects of the draw's shares and of the steps on a decision, the last step first."""
    return [*share_sentences(decision), *(line for step in reversed(all_steps()) for line in step.explain(decision))]


def chances_of(decision: Decision) -> tuple[ArmChance, ...]:
    """The offered arms, in the order of the draw. Values are None if a damaged row lacks them."""
    count = min(len(decision.arms), len(decision.pmf))
    quality, cost = (numbers_of(decision.facts.get(name), count=count) for name in ("quality", "cost"))
    scores = numbers_of(decision.scores, count=count)
    untried = UntriedArms.of(decision.facts)
    untried_arms = frozenset(() if untried is None else untried.arms)
    edges = [0.0, *accumulate(decision.pmf)]
    highest = max(decision.pmf, default=0.0)
    chances = []
    for place, (arm, probability) in enumerate(zip(decision.arms, decision.pmf, strict=False)):
        predicted = place if arm not in untried_arms else None
        chances.append(
            ArmChance(
                arm=arm,
                probability=probability,
                untried=arm in untried_arms,
                score=_at(scores, predicted),
                quality=_at(quality, predicted),
                cost=_at(cost, predicted),
                low=edges[place],
                high=1.0 if place == count - 1 else edges[place + 1],
                drawn=arm == decision.arm,
                likeliest=probability == highest,
            )
        )
    return tuple(chances)


def _at(values: Sequence[float] | None, place: int | None) -> float | None:
    return None if values is None or place is None else values[place]


def numbers_of(value: Json, *, count: int) -> list[float] | None:
    if not isinstance(value, list | tuple) or len(value) != count:
        return None
    are_numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in value)
    return [float(number) for number in value] if are_numbers else None


def turn_words(decision: Decision) -> str:
    """Which turn it is of its task or loop of tools: "turn 6 of a task"; "a decision" for other decisions."""
    task, loop = TaskTurn.of(decision.facts), decision.query.continues.loop
    if decision.turn_of is None:
        return "a decision"
    if task is not None:
        return f"turn {task.turn} of a task"
    return "a later turn of a task" if loop is None else f"turn {loop.turn} of a loop of tools"


def policy_sentences(decision: Decision) -> Iterator[str]:
    if decision.fault is not None:
        yield f"The policy failed, so the fallback arm had all but the floors. It said: {decision.fault}."
    if untried := UntriedArms.of(decision.facts):
        yield f"The policy had no estimate of {', '.join(untried.arms)} yet: untried."
    if decision.facts.get("untrained"):
        yield "The policy was not trained yet, so all arms were alike to it."
