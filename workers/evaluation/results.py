"""Results of stored answers: their quality, a line per arm, a routing table, a log to start a policy from.

Every question counts for every arm: an answer that failed is wrong, and is listed. Nothing is left out of a mean.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.markup import escape

from ragbandit.router.cli.console import console, print_json
from ragbandit.router.config.settings import RewardSettings
from ragbandit.router.learning.reward import cost_of_terms, judged
from ragbandit.router.offline.charts import number_table, print_whole
from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.formats import NOTHING, number
from ragbandit.shared.types import Json
from ragbandit.workers.evaluation.runs import LabelledQuestion, StoredAnswer
from ragbandit.workers.judge.rubric import QUIZ_MEASURES, Cut, QuizModel, made_quiz, quizzed

#: the arm whose mean seconds are Time 1.00 (Adaptive-RAG, section 4)
TIME_ONE = "single_step"
#: the measure of a short answer that `reward.quality` names
_QUALITY = {"exact_match": "exact_match", "f1": "f1", "containment": "accuracy"}

#: by arm, in the order of the questions
Answered = Mapping[str, Sequence[StoredAnswer]]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerQuality:
    """Quality measures of one answer."""

    #: by name, in [0, 1]
    measures: Mapping[str, float]
    #: why a model could not judge it, which counts as 0; None if it did
    error: str | None = None


#: by arm, in the order of the questions
Qualities = Mapping[str, Sequence[AnswerQuality]]


#: a mean over questions and its standard error, None for one question
Mean = tuple[float, float | None]


#: an arm over all questions, as `--json` prints it: a mean is under its name, its standard error under "<name>_se".
#: Measures of quality are in [0, 1]; `steps` are the papers'; `time` is mean seconds over those of TIME_ONE
Line = dict[str, Any]


def labelled_quality(row: LabelledQuestion, stored: StoredAnswer, *, family: str) -> AnswerQuality:
    """By the rules of a family with gold answers; a failed answer is wrong."""
    return AnswerQuality(measures=judged(None if stored.failed else stored.answer, gold=row.answers, family=family))


async def quizzed_answers(
    row: LabelledQuestion, *, answers: Mapping[str, StoredAnswer], model: QuizModel, cut: Cut
) -> dict[str, AnswerQuality]:
    """The judge's scores of one question, by arm. One after the other: arms that answer alike share the cached reply.

    A question without a quiz gets one from its gold text. Where the judge fails the answer counts 0, with the error.
    """
    quiz = row.quiz
    if quiz is None:
        assert row.reference is not None
        try:
            quiz = await made_quiz(row.reference, model=model)
        except ArmFailed as error:
            return dict.fromkeys(answers, _unjudged(error))
    judged_as = {}
    for arm, stored in answers.items():
        text = "" if stored.failed else stored.answer or ""
        try:
            judged_as[arm] = AnswerQuality(measures=await quizzed(text, quiz=quiz, model=model, cut=cut))
        except ArmFailed as error:
            judged_as[arm] = _unjudged(error)
    return judged_as


def _unjudged(error: ArmFailed) -> AnswerQuality:
    return AnswerQuality(measures=dict.fromkeys(QUIZ_MEASURES, 0.0), error=str(error))


def line_of_arm(
    rows: Sequence[LabelledQuestion], *, arm: str, answered: Answered, judged_as: Sequence[AnswerQuality]
) -> Line:
    """The line of one of the arms that answered these questions."""
    stored, first = answered[arm], answered.get(TIME_ONE)
    means: dict[str, Mean | None] = {
        **{name: _mean([each.measures[name] for each in judged_as]) for name in judged_as[0].measures},
        "steps": _mean([each.steps for each in stored]),
        "seconds": _mean([each.cost.seconds_total for each in stored]),
        "time": None if first is None else _time(stored, over=first),
    }
    for name in ("passages", "prompt_tokens", "completion_tokens", "dollars"):
        means[name] = _mean([getattr(each.cost, name) for each in stored])
    line: Line = {"strategy": arm, "questions": len(rows)}
    for name, mean in means.items():
        line[name], line[f"{name}_se"] = mean or (None, None)
    lost = [(row.id, each.error or each.stop_reason) for row, each in zip(rows, stored, strict=True) if each.failed]
    unjudged = [(row.id, each.error) for row, each in zip(rows, judged_as, strict=True) if each.error is not None]
    return line | {
        "exhausted": sum(each.status == "exhausted" for each in stored),
        "failed": len(lost),
        "failures": [{"id": identity, "error": error} for identity, error in lost],
        "unjudged": [{"id": identity, "error": error} for identity, error in unjudged],
    }


def _mean(values: Sequence[float]) -> Mean:
    count = len(values)
    return fmean(values), stdev(values) / math.sqrt(count) if count > 1 else None


def _time(stored: Sequence[StoredAnswer], *, over: Sequence[StoredAnswer]) -> Mean | None:
    """The papers' Time: mean seconds over the mean of another arm's, paired by question; its error to first order.

    An answer that failed may have taken milliseconds, or until a timeout: neither is answering. None if none is
    left, or nothing took time.
    """
    pairs = [
        (each.cost.seconds_total, other.cost.seconds_total)
        for each, other in zip(stored, over, strict=True)
        if not (each.failed or other.failed)
    ]
    below = fmean(other for _, other in pairs) if pairs else 0.0
    if below == 0.0:
        return None
    ratio = fmean(value for value, _ in pairs) / below
    _, error = _mean([value - ratio * other for value, other in pairs])
    return ratio, None if error is None else error / below


def table_records(
    rows: Sequence[LabelledQuestion], *, answered: Answered, judged_as: Qualities, reward: RewardSettings
) -> Iterator[dict[str, Json]]:
    """The full-information table, a record per question (router/offline/logs/tables.py); quality as the reward
    has it.
    """
    for place, row in enumerate(rows):
        stored = {arm: answers[place] for arm, answers in answered.items()}
        more = {"dataset": row.dataset, "hops": row.hops}
        yield {
            "id": row.id,
            "question": row.question,
            "correct": {arm: quality_of(judged_as[arm][place], reward=reward) for arm in stored},
            "steps": {arm: each.steps for arm, each in stored.items()},
            "seconds": {arm: each.cost.seconds_total for arm, each in stored.items()},
            **{key: value for key, value in more.items() if value is not None},
        }


def log_records(
    rows: Sequence[LabelledQuestion], *, answered: Answered, judged_as: Qualities, reward: RewardSettings
) -> Iterator[dict[str, Json]]:
    """The same as a log of uniform draws, a record per question and arm, from which a policy starts warm.

    Every arm stands once for every question, each with probability 1 / arms: what a uniform logger would have
    written in the mean, without its chance. So its rows are not independent, and intervals from them are too narrow.
    Features are not in it.
    """
    arms = list(answered)
    for place, row in enumerate(rows):
        for arm in arms:
            quality = quality_of(judged_as[arm][place], reward=reward)
            yield log_record(row.question, answered[arm][place], quality=quality, arms=arms, reward=reward)


def log_record(
    question: str, stored: StoredAnswer, *, quality: float, arms: Sequence[str], reward: RewardSettings
) -> dict[str, Json]:
    """One answer as a logged decision between these arms, with the probability of a uniform draw."""
    return {
        "id": f"evaluated-{stored.key[:32]}",
        "made_at": stored.made_at,
        "text": question,
        "arms": list(arms),
        "pmf": [1.0 / len(arms)] * len(arms),
        "arm": stored.arm,
        "reward": {
            "quality": quality,
            "cost": cost_of_terms(stored.steps, stored.cost, terms=reward.cost),
            "weight": reward.weight,
        },
    }


def quality_of(judged_as: AnswerQuality, *, reward: RewardSettings) -> float:
    """Quality for the routing table: of a quiz the mean word F1 over its questions, 0 for one without an answer."""
    measures = judged_as.measures
    if "str_em" in measures:
        return measures["str_em"]
    name = _QUALITY[reward.quality.removeprefix("ascii_")]
    return measures["answered"] * measures["word_f1"] if "answered" in measures else measures[name]


#: failures that are described; all are counted
MOST_NAMED = 20
#: as the papers head their columns
_HEADS = {
    "exact_match": "EM",
    "f1": "F1",
    "accuracy": "Acc",
    "str_em": "str-em",
    "str_hit": "str-hit",
    "answered": "Q-R",
    "word_precision": "T-P",
    "word_recall": "T-R",
    "word_f1": "T-F1",
}


def show(results: Sequence[Line], *, file: Path, judge: str | None, as_json: bool) -> None:
    """The table, what failed and where the answers lie; or the same as JSON. judge: the name of its model."""
    if as_json:
        print_json(results)
        return
    measures = [name for name in results[0] if name in _HEADS]
    heads = [*(f"{_HEADS[name]} %" for name in measures), "Step", "passages", "Time", "s"]
    table = number_table("strategy", *heads, "prompt", "written", "dollars", "failed")
    for row in results:
        table.add_row(
            escape(row["strategy"]),
            *(_cell(row, name, scale=100.0, digits=1) for name in measures),
            *(_cell(row, name) for name in ("steps", "passages", "time", "seconds")),
            *(_cell(row, name, digits=0) for name in ("prompt_tokens", "completion_tokens")),
            _pair(number(row["dollars"]), row["dollars_se"], number(row["dollars_se"], digits=2)),
            str(row["failed"]),
        )
    table.caption = f"{results[0]['questions']} questions; mean ± standard error; failures count as wrong"
    if judge is not None:
        table.caption += f"; judged by {escape(judge)}"
    print_whole(table, console=console)
    _list("failed", [(row["strategy"], each) for row in results for each in row["failures"]])
    _list("not judged", [(row["strategy"], each) for row in results for each in row["unjudged"]])
    console.print(f"answers: {escape(str(file))}", soft_wrap=True, highlight=False)


def _list(what: str, faults: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    """Prints the first failures, and how many more there are."""
    for strategy, fault in faults[:MOST_NAMED]:
        line = f"{strategy} {fault['id']}: {fault['error']}"
        console.print(f"{what}: {escape(line)}", soft_wrap=True, highlight=False)
    if len(faults) > MOST_NAMED:
        console.print(f"{what}: {len(faults) - MOST_NAMED} more, see --json", highlight=False)


def _cell(row: Line, name: str, *, scale: float = 1.0, digits: int = 2) -> str:
    mean, error = row[name], row[f"{name}_se"]
    if mean is None:
        return NOTHING
    return _pair(f"{scale * mean:.{digits}f}", error, f"{scale * (error or 0.0):.{digits}f}")


def _pair(mean: str, error: float | None, error_text: str) -> str:
    return mean if error is None else f"{mean} ± {error_text}"
