"""Which questions the demo asks live, and which recorded ones its policy learns before.

Half of the questions are templates filled with names. So questions are held out by the property that they ask for: no
question that the policy learns before the first live question asks for the property of a live question.
"""

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ragbandit.examples.handbook.command import Row
from ragbandit.examples.handbook.side_by_side import rewards_of
from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.offline.logs.tables import LabelledTable

#: small words, skipped in the search for the word that names the property
_SMALL: Final = (
    *("a", "after", "an", "are", "at", "by", "can", "did", "do", "does", "for", "from", "how", "in", "into", "is"),
    *("many", "much", "of", "on", "the", "to", "was", "were", "what", "which", "who", "whom", "with", "within"),
)


def asked_for(question: str) -> str:
    """The first word that is not small, such as `phone` for phone extensions. Questions of one template share it."""
    return next((word for word in re.findall(r"[a-z']+", question.lower()) if word not in _SMALL), "")


def split(questions: Sequence[Row], *, limit: int, seed: int) -> tuple[list[Row], list[Row]]:
    """Returns (live questions, others). No question of one list asks for a property of the other list.

    At most `limit` questions are live; the share of each kind is at most its share of all questions. The seed decides
    which questions are live, and their order.
    """
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in questions:
        groups[asked_for(row["question"])].append(row)
    kinds = Counter(row["kind"] for row in questions)
    left = {kind: limit * count // len(questions) for kind, count in kinds.items()}
    rng, live, held = random.Random(seed), [], set()
    for name in rng.sample(sorted(groups), len(groups)):
        needed = Counter(row["kind"] for row in groups[name])
        if all(count <= left[kind] for kind, count in needed.items()):
            left = {kind: count - needed[kind] for kind, count in left.items()}
            live += groups[name]
            held.add(name)
    return rng.sample(live, len(live)), [row for row in questions if asked_for(row["question"]) not in held]


def recorded(table: LabelledTable, *, settings: RewardSettings) -> dict[str, Row]:
    """Map each question's id and arm to the recorded quality, steps and reward."""
    return {
        str(row.id): {
            str(arm): {"quality": row.correct[arm], "steps": row.steps[arm], "reward": float(reward)}
            for arm, reward in zip(table.arms, mine, strict=True)
        }
        for row, mine in zip(table.rows, rewards_of(table, reward=settings), strict=True)
    }


def warmed(table: Path, *, others: Sequence[Row], file: Path, ragbandit: Callable[[list[str]], str]) -> Row:
    """Write the table's rows of the other questions to the file, and let the policy learn them. Returns the advice."""
    ids = {row["id"] for row in others}
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(line for line in lines if json.loads(line)["id"] in ids), encoding="utf-8")
    advice: Row = json.loads(ragbandit(["advise", "--table", str(file), "--warm", "--json"]))
    return advice
