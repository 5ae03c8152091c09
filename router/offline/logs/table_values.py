"""Values of routing tables: our keys, the usual names of their columns in other tables, and what their cells become."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ragbandit.router.offline.logs import cells
from ragbandit.shared.types import AMOUNTS

#: keys with costs by arm. "seconds" must come after the longer names, see `nest_columns`
COSTS: Final = ("steps", "cost", *sorted(AMOUNTS, reverse=True), "seconds")
#: key with another measure of quality by arm -> its head in the papers' tables
MEASURES: Final = {
    "exact_match": "EM",
    "f1": "F1",
    "accuracy": "Acc",
    "str_em": "str-em",
    "str_hit": "str-hit",
    "answered": "Q-R",
    "word_recall": "T-R",
    "word_precision": "T-P",
    "word_f1": "T-F1",
    "character_f1": "char F1",
    "bleu": "BLEU",
}
#: keys whose values are objects by arm in a wide table
BY_ARM: Final = ("correct", *COSTS, *MEASURES)
#: keys that all answers of a question share
OF_TASK: Final = ("id", "question", "dataset", "hops")
#: signs between a key and an arm in the names of columns
SIGNS: Final = "._:/|"
#: our key -> usual names of its column, besides our own, in order of precedence
USUAL: Final[Mapping[str, Sequence[str]]] = {
    "question": ("prompt", "query", "user_query", "user_prompt", "instruction", "input", "task", "text"),
    "arm": ("model", "model_name", "model_id", "llm", "llm_name", "llm_selected", "strategy", "pipeline"),
    "correct": (
        "score",
        "is_correct",
        "quality",
        "performance",
        "evaluation_result.score",
        "resolved",
        "passed",
        "pass",
        "accuracy",
        "exact_match",
    ),
    "id": (
        "task_id",
        "question_id",
        "prompt_id",
        "query_id",
        "sample_id",
        "instance_id",
        "example_id",
        "item_id",
        "global_index",
    ),
    "dataset": ("dataset_name", "eval_name", "benchmark", "bench"),
    "dollars": ("cost_usd", "usd", "price_usd", "total_cost_usd", "inference_cost", "evaluation_result.inference_cost"),
    "cost": ("total_cost",),
    "seconds": ("latency_ms", "latency_s", "latency", "duration_ms", "duration_s", "duration", "elapsed"),
}
#: names of arms that a configuration also allows, so that a service can use what a policy learns from a table
ARM: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: largest amount of a cost that the service accepts
MOST_AMOUNT: Final = 1e9


def arm_name(model: str) -> str:
    """The name of a model as an arm may have it: other signs become _. The result may still be invalid, see ARM."""
    return model if ARM.fullmatch(model) else re.sub(r"[^A-Za-z0-9_.-]+", "_", model).strip("_")


def column_value(entry: Mapping[str, Any], column: str) -> Any:
    """The value of a column, or of a member of an object; None if there is none."""
    inner: Any = entry
    while isinstance(inner, Mapping):
        if column in inner:
            return inner[column]
        head, dot, column = column.partition(".")
        inner = cells.parsed_cell(inner.get(head)) if dot else None
    return None


#: name of a column whose times are milliseconds
_MILLISECONDS: Final = re.compile(r"(?:.*[\W_])?(?:ms|milliseconds|millis)|.*Ms", re.DOTALL)


def is_in_milliseconds(key: str, *, column: str) -> bool:
    return key.startswith("seconds") and _MILLISECONDS.fullmatch(column) is not None


def as_quality(value: Any) -> float:
    with suppress(ValueError, TypeError, OverflowError):
        number = cells.outcome(value)
        if 0.0 <= number <= 1.0:
            return number
    raise ValueError("Give a number from 0 to 1, or words such as passed and failed")


def as_amount(value: Any) -> float:
    number = cells.cell_number(value)
    if not 0.0 <= number <= MOST_AMOUNT:
        raise ValueError(f"Give a number from 0 to {MOST_AMOUNT:g}")
    return number
