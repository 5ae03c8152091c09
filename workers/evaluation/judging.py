"""Judging of stored answers: a line per arm, a routing table, a log to start a policy from.

Every question counts for every arm: an answer that failed is wrong, and is listed. Nothing is left out of a mean.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ragbandit.router.config.settings import RewardSettings
from ragbandit.router.errors import InvalidInput
from ragbandit.router.learning.answer_metrics import FAMILIES, judged
from ragbandit.router.types import COST_TERMS, Json
from ragbandit.workers.evaluation.answers import StoredAnswer
from ragbandit.workers.evaluation.ragquesteval import Quiz

__all__ = [
    "CRUD",
    "FAMILY_NAMES",
    "TIME_ONE",
    "Answered",
    "Evaluated",
    "Judgement",
    "Judgements",
    "LabelledQuestion",
    "Mean",
    "check_family",
    "evaluated",
    "judgements",
    "log_records",
    "table_records",
]

#: the family whose answers a model judges, see ragbandit.workers.evaluation.quiz
CRUD = "crud"
FAMILY_NAMES = tuple(sorted({*FAMILIES, CRUD}))
#: the arm whose mean seconds are Time 1.00 (Adaptive-RAG, section 4)
TIME_ONE = "single_step"
#: the measure of a short answer that `reward.quality` names
_MEASURES = {"exact_match": "exact_match", "f1": "f1", "containment": "accuracy"}

Answered = Mapping[str, Sequence[StoredAnswer]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledQuestion:
    """A labelled question. `answers` has the shape that its family wants, see router.learning.answer_metrics; of
    "crud" it is empty.
    """

    id: str
    question: str
    answers: Sequence[str] | Sequence[Sequence[str]] = ()
    #: of "crud": the gold text, or the quiz that was made from it; one of the two at least
    reference: str | None = None
    quiz: Quiz | None = None
    #: where it comes from, and pieces of evidence it needs: for the table, where the file says it
    dataset: str | None = None
    hops: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Quality measures of one answer."""

    #: by name, in [0, 1]
    measures: Mapping[str, float]
    #: why a judge could not judge, which counts as 0; None where it did
    error: str | None = None


#: per arm a judgement per question, in the order of the questions
Judgements = Mapping[str, Sequence[Judgement]]


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
    #: mean seconds over those of TIME_ONE, of the questions that neither failed on; None where there is none
    time: Mean | None
    prompt_tokens: Mean
    completion_tokens: Mean
    dollars: Mean
    #: ended by the budget; judged by the draft they left
    exhausted: int
    #: (question's id, error), in the order of the questions
    failures: tuple[tuple[str, str], ...]
    #: the same for answers that the judge of family "crud" failed on
    unjudged: tuple[tuple[str, str], ...]

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
        failed, unjudged = (
            [{"id": identity, "error": error} for identity, error in listed]
            for listed in (self.failures, self.unjudged)
        )
        return said | {
            "exhausted": self.exhausted,
            "failed": len(failed),
            "failures": list[Json](failed),
            "unjudged": list[Json](unjudged),
        }


def check_family(family: str) -> None:
    """Raises InvalidInput with the known names."""
    if family not in FAMILY_NAMES:
        raise InvalidInput(f"{family!r} is unknown", field="family", remedy=f"known: {', '.join(FAMILY_NAMES)}")


def judgements(asked: Sequence[LabelledQuestion], *, answered: Answered, family: str) -> Judgements:
    """By the rules of a family with gold answers; a failed answer is wrong."""
    return {
        arm: [
            Judgement(
                measures=judged(None if each.status == "failed" else each.answer, gold=row.answers, family=family)
            )
            for row, each in zip(asked, kept, strict=True)
        ]
        for arm, kept in answered.items()
    }


def evaluated(asked: Sequence[LabelledQuestion], *, answered: Answered, judged_as: Judgements) -> list[Evaluated]:
    """A line per arm, in the order of `answered`, which has per arm an answer per question in the order of `asked`."""
    return [_line(asked, arm=arm, answered=answered, judged_as=judged_as[arm]) for arm in answered]


def _line(
    asked: Sequence[LabelledQuestion], *, arm: str, answered: Answered, judged_as: Sequence[Judgement]
) -> Evaluated:
    kept = answered[arm]
    seconds = [each.cost.seconds_total for each in kept]
    first = answered.get(TIME_ONE)
    return Evaluated(
        strategy=arm,
        questions=len(asked),
        quality={name: _mean([each.measures[name] for each in judged_as]) for name in judged_as[0].measures},
        steps=_mean([each.steps for each in kept]),
        seconds=_mean(seconds),
        time=None if first is None else _time(kept, over=first),
        prompt_tokens=_mean([each.cost.prompt_tokens for each in kept]),
        completion_tokens=_mean([each.cost.completion_tokens for each in kept]),
        dollars=_mean([each.cost.dollars for each in kept]),
        exhausted=sum(each.status == "exhausted" for each in kept),
        failures=tuple(
            (row.id, each.error or each.stop_reason)
            for row, each in zip(asked, kept, strict=True)
            if each.status == "failed"
        ),
        unjudged=tuple(
            (row.id, each.error) for row, each in zip(asked, judged_as, strict=True) if each.error is not None
        ),
    )


def _mean(values: Sequence[float]) -> Mean:
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Mean(value=mean, error=None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Mean(value=mean, error=math.sqrt(variance / count))


def _time(kept: Sequence[StoredAnswer], *, over: Sequence[StoredAnswer]) -> Mean | None:
    """The papers' Time. An answer that failed may have taken milliseconds, or until a timeout: neither is answering."""
    pairs = [
        (each.cost.seconds_total, other.cost.seconds_total)
        for each, other in zip(kept, over, strict=True)
        if "failed" not in (each.status, other.status)
    ]
    return _ratio([value for value, _ in pairs], over=[other for _, other in pairs]) if pairs else None


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
    asked: Sequence[LabelledQuestion], *, answered: Answered, judged_as: Judgements, reward: RewardSettings
) -> Iterator[dict[str, Json]]:
    """The full-information table, a record per question (router/offline/simulation/table.py); quality as the reward
    has it.
    """
    for place, row in enumerate(asked):
        kept = {arm: answers[place] for arm, answers in answered.items()}
        more = {"dataset": row.dataset, "hops": row.hops}
        yield {
            "id": row.id,
            "question": row.question,
            "correct": {arm: _quality(judged_as[arm][place], reward=reward) for arm in kept},
            "steps": {arm: each.steps for arm, each in kept.items()},
            **{key: value for key, value in more.items() if value is not None},
        }


def log_records(
    asked: Sequence[LabelledQuestion], *, answered: Answered, judged_as: Judgements, reward: RewardSettings
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
                    "quality": _quality(judged_as[arm][place], reward=reward),
                    "cost": _cost(kept, reward=reward),
                    "weight": reward.weight,
                },
            }


def _quality(judgement: Judgement, *, reward: RewardSettings) -> float:
    """Quality for the routing table: of a quiz the mean word F1 over its questions, 0 for one without an answer."""
    found = judgement.measures
    if "str_em" in found:
        return found["str_em"]
    return found["answered"] * found["word_f1"] if "answered" in found else found[_MEASURES[reward.quality]]


def _cost(kept: StoredAnswer, *, reward: RewardSettings) -> float:
    assert set(reward.cost) <= set(COST_TERMS)
    return math.fsum(
        price * (kept.steps if term == "steps" else getattr(kept.cost, term)) for term, price in reward.cost.items()
    )
