"""The quality of a stored answer, and its record in a log. A failure counts as wrong."""

from collections.abc import Mapping, Sequence

from ragbandit.additions.evaluation.answer_metrics import metric_values
from ragbandit.additions.evaluation.kept_answers import StoredAnswer
from ragbandit.additions.evaluation.labelled_questions import LabelledQuestion
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.shared.types import Json

#: name of a measure of an answer's quality -> its value in [0, 1]
Measures = Mapping[str, float]


def labelled_quality(row: LabelledQuestion, stored: StoredAnswer, *, family: str) -> Measures:
    return metric_values(None if stored.failed else stored.answer, gold=row.answers, family=family)


def measured_quality(measures: Measures, *, reward: RewardSettings) -> float:
    """Quality for a reward: `str_em`, the product of the quiz's Q-R and T-F1, or `character_f1`, if these are measured;
    else the measure `reward.quality`.
    """
    if "str_em" in measures:
        return measures["str_em"]
    if "answered" in measures:
        return measures["answered"] * measures["word_f1"]
    if "character_f1" in measures:
        return measures["character_f1"]
    return measures["accuracy" if reward.quality == "containment" else reward.quality]


def log_record(
    question: str, stored: StoredAnswer, *, quality: float, arms: Sequence[str], reward: RewardSettings
) -> dict[str, Json]:
    """An answer as a logged decision, as if its arm had been drawn uniformly from `arms`.

    The rows of a question are not independent, so intervals that count them as several questions are too narrow.
    """
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
