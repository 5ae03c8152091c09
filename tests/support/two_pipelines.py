"""Two pipelines of known quality: `fast` is right on short questions, `deep` on all, at four times the steps."""

import random
from collections.abc import Callable

#: arm -> steps of an answer, and its chances to be right on a short and on a long question
STEPS = {"fast": 1, "deep": 4}
CHANCES = {"fast": (0.87, 0.20), "deep": (0.80, 0.80)}
WEIGHT = 0.05
CONFIG = f"""
data_dir: data
encoder: {{model: hashing, dimension: 64}}
reward: {{weight: {WEIGHT}}}
arms:
  fast: {{run_by: caller}}
  deep: {{run_by: caller}}
"""
_TOPICS = ("law", "trade", "river", "king", "novel", "border", "war", "music", "bridge", "score")


def questions(count: int, *, seed: int) -> dict[str, list[str]]:
    """Question -> right answers; every second question is long, in random order."""
    chance = random.Random(seed)
    texts = []
    for number in range(count):
        topics = (chance.choice(_TOPICS), chance.choice(_TOPICS))
        short = f"Who wrote the {topics[0]} {seed}-{number}?"
        case = f"the {topics[0]} and the {topics[1]} of case {seed}-{number}"
        long = f"Compare {case}, and explain which of them was decided first and why"
        texts.append((short, long)[number % 2])
    chance.shuffle(texts)
    return {text: ["yes"] for text in texts}


def is_long(question: str) -> bool:
    return question.startswith("Compare")


def expected_reward(arm: str, question: str) -> float:
    """The mean reward of this arm's answers to questions of this length."""
    return CHANCES[arm][is_long(question)] - WEIGHT * STEPS[arm]


def pipelines() -> dict[str, Callable[[str], tuple[str, int]]]:
    """Arm -> function of a question that returns (answer, steps): the same answer to the same question."""

    def answer(arm: str, question: str) -> tuple[str, int]:
        is_right = random.Random(f"{arm} {question}").random() < CHANCES[arm][is_long(question)]
        return "yes" if is_right else "no", STEPS[arm]

    return {arm: lambda question, arm=arm: answer(arm, question) for arm in STEPS}
