"""What kept answers are worth: a line per arm, a routing table, a log to start a policy from.

Every question counts for every arm: an answer that failed is wrong, and is listed. Nothing is left out of a mean.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from router.metrics import judged
from router.reward import COST_TERMS
from router.settings import RewardSettings
from router.types import Json
from workers.answers import Kept

__all__ = ["TIME_ONE", "Answered", "Asked", "Evaluated", "Mean", "evaluated", "log_records", "table_records"]

#: the arm whose mean seconds are Time 1.00 (Adaptive-RAG, section 4)
TIME_ONE = "single_step"
#: the measure of a short answer that `reward.quality` names
_MEASURES = {"exact_match": "exact_match", "f1": "f1", "containment": "accuracy"}

Answered = Mapping[str, Sequence[Kept]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A labelled question. `answers` has the shape that its family wants, see router.metrics."""

    id: str
    question: str
    answers: Sequence[str] | Sequence[Sequence[str]]
    #: where it comes from, and pieces of evidence it needs: for the table, where the file says it
    dataset: str | None = None
    hops: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """A mean over questions and its standard error, None for one question."""

    value: float
    error: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """One arm over all questions."""

    strategy: str
    questions: int
    #: by measure, in [0, 1]
    quality: Mapping[str, Mean]
    #: the papers' Step
    steps: Mean
    seconds: Mean
    #: mean seconds over those of TIME_ONE on the same questions; None where that arm was not run
    time: Mean | None
    prompt_tokens: Mean
    completion_tokens: Mean
    dollars: Mean
    #: ended by the budget; judged by the draft they left
    exhausted: int
    #: (question's id, error), in the order of the questions
    failures: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, Json]:
        """Plain values: every mean under its name, its standard error under "<name>_se"."""
        means = {
            **self.quality,
            "steps": self.steps,
            "seconds": self.seconds,
            "time": self.time,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "dollars": self.dollars,
        }
        said: dict[str, Json] = {"strategy": self.strategy, "questions": self.questions}
        for name, mean in means.items():
            said[name] = None if mean is None else mean.value
            said[f"{name}_se"] = None if mean is None else mean.error
        listed = [{"id": identity, "error": error} for identity, error in self.failures]
        return said | {"exhausted": self.exhausted, "failed": len(listed), "failures": listed}


def evaluated(asked: Sequence[Asked], *, answered: Answered, family: str) -> list[Evaluated]:
    """A line per arm, in the order of `answered`, which has per arm an answer per question in the order of `asked`."""
    return [_line(asked, arm=arm, answered=answered, family=family) for arm in answered]


def _line(asked: Sequence[Asked], *, arm: str, answered: Answered, family: str) -> Evaluated:
    kept = answered[arm]
    judgements = [_judged(row, kept=each, family=family) for row, each in zip(asked, kept, strict=True)]
    seconds = [each.cost.seconds_total for each in kept]
    first = answered.get(TIME_ONE)
    return Evaluated(
        strategy=arm,
        questions=len(asked),
        quality={name: _mean([judgement[name] for judgement in judgements]) for name in judgements[0]},
        steps=_mean([each.steps for each in kept]),
        seconds=_mean(seconds),
        time=None if first is None else _ratio(seconds, over=[each.cost.seconds_total for each in first]),
        prompt_tokens=_mean([each.cost.prompt_tokens for each in kept]),
        completion_tokens=_mean([each.cost.completion_tokens for each in kept]),
        dollars=_mean([each.cost.dollars for each in kept]),
        exhausted=sum(each.status == "exhausted" for each in kept),
        failures=tuple(
            (row.id, each.error or each.stop_reason)
            for row, each in zip(asked, kept, strict=True)
            if each.status == "failed"
        ),
    )


def _judged(asked: Asked, *, kept: Kept, family: str) -> Mapping[str, float]:
    answer = None if kept.status == "failed" else kept.answer
    return judged(answer, gold=asked.answers, family=family)


def _mean(values: Sequence[float]) -> Mean:
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Mean(value=mean, error=None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Mean(value=mean, error=math.sqrt(variance / count))


def _ratio(values: Sequence[float], *, over: Sequence[float]) -> Mean | None:
    """Mean of values / mean of over, paired by question; its error to first order, None where nothing took time."""
    below = math.fsum(over) / len(over)
    if below == 0.0:
        return None
    ratio = math.fsum(values) / len(values) / below
    rest = [value - ratio * other for value, other in zip(values, over, strict=True)]
    error = _mean(rest).error
    return Mean(value=ratio, error=None if error is None else error / below)


def table_records(
    asked: Sequence[Asked], *, answered: Answered, family: str, reward: RewardSettings
) -> Iterator[dict[str, Json]]:
    """The full-information table, a record per question (router/evaluation/table.py); quality as the reward has it."""
    for place, row in enumerate(asked):
        kept = {arm: answers[place] for arm, answers in answered.items()}
        more = {"dataset": row.dataset, "hops": row.hops}
        yield {
            "id": row.id,
            "question": row.question,
            "correct": {arm: _quality(row, kept=each, family=family, reward=reward) for arm, each in kept.items()},
            "steps": {arm: each.steps for arm, each in kept.items()},
            **{key: value for key, value in more.items() if value is not None},
        }


def log_records(
    asked: Sequence[Asked], *, answered: Answered, family: str, reward: RewardSettings
) -> Iterator[dict[str, Json]]:
    """The same as a log of uniform draws, a record per question and arm, from which a policy starts warm.

    Every arm stands once for every question, each with probability 1 / arms: what a uniform logger would have
    written in the mean, without its chance. So its rows are not independent, and intervals from them are too narrow.
    Features are not in it.
    """
    arms = list(answered)
    share = 1.0 / len(arms)
    for place, row in enumerate(asked):
        for arm in arms:
            kept = answered[arm][place]
            yield {
                "id": f"evaluated-{kept.key[:32]}",
                "made_at": kept.made_at,
                "text": row.question,
                "arms": arms,
                "pmf": [share] * len(arms),
                "arm": arm,
                "reward": {
                    "quality": _quality(row, kept=kept, family=family, reward=reward),
                    "cost": _cost(kept, reward=reward),
                    "weight": reward.weight,
                },
            }


def _quality(asked: Asked, *, kept: Kept, family: str, reward: RewardSettings) -> float:
    found = _judged(asked, kept=kept, family=family)
    return found["str_em"] if "str_em" in found else found[_MEASURES[reward.quality]]


def _cost(kept: Kept, *, reward: RewardSettings) -> float:
    assert set(reward.cost) <= set(COST_TERMS)
    return math.fsum(
        price * (kept.steps if term == "steps" else getattr(kept.cost, term)) for term, price in reward.cost.items()
    )
