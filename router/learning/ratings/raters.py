"""Raters: whose judgement of a decision counts, where several came in time.

Feedback has four classes, the most trusted first: gold answers and raw rewards, and where there are none checks by code
("label"); people's ratings ("human"); a model's scores ("judge"); what users did with the answer ("event"). A reward is
made of the most trusted class that is there; the others are kept, and tell how far raters disagree.
"""

import math
from collections.abc import Sequence
from typing import Final, get_args

from ragbandit.router.learning.reward import quality_of
from ragbandit.shared.types import Feedback, JudgedBy, Outcome

_CLASSES: Final[tuple[JudgedBy, ...]] = get_args(JudgedBy)


def class_of(item: Feedback) -> JudgedBy:
    """How far a judgement is trusted: what a model says is a model's word, whatever its kind."""
    if item.source in ("judge", "event"):
        return "judge" if item.source == "judge" else "event"
    return "label" if item.source == "code" or item.kind in ("label", "reward") else "human"


def standing(feedback: Sequence[Feedback]) -> tuple[Feedback, ...]:
    """The judgements that stand, in the order received: a rater's later one of a kind replaces the earlier.

    A retraction replaces it with nothing. Raters are those of an API key: a key cannot replace what came with another.
    Feedback that does not say its rater is its key's; without a key, each is of a rater of its own.
    """
    last = {_key(item): item.id for item in feedback}
    return tuple(item for item in feedback if last[_key(item)] == item.id and not is_retraction(item))


def is_retraction(item: Feedback) -> bool:
    """Whether it takes back what its rater said before, of its kind. (An event without a value is worth nothing.)"""
    return item.value is None and item.kind != "event"


def _key(item: Feedback) -> tuple[str, ...]:
    if item.rater is None and item.api_key is None:
        return (item.id,)
    return (item.source, item.api_key or "", item.rater or "", item.kind, item.event or "")


def most_trusted(feedback: Sequence[Feedback]) -> tuple[JudgedBy, tuple[Feedback, ...]]:
    """The most trusted class that is there, and its judgements, of code where nobody else's are. Needs at least one."""
    first = min((class_of(item) for item in feedback), key=_CLASSES.index)
    trusted = tuple(item for item in feedback if class_of(item) == first)
    return first, tuple(item for item in trusted if item.source != "code") or trusted


def disagreement(feedback: Sequence[Feedback], *, outcome: Outcome | None, measure: str) -> float | None:
    """How far the judgements of one decision lie apart in quality; None where fewer than two can be compared.

    Raw rewards have a scale of their own and are left out. measure: how a label becomes quality.
    """
    qualities = [quality_of(one, outcome=outcome, measure=measure) for one in feedback if one.kind != "reward"]
    qualities = [quality for quality in qualities if math.isfinite(quality)]
    return max(qualities) - min(qualities) if len(qualities) > 1 else None
