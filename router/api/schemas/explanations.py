"""Explanation replies: one decision explained, as HTTP and `ragbandit explain --json` show it."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, Literal, cast

from typing_extensions import TypedDict

from ragbandit.router.api.schemas.reply_types import RecordReply
from ragbandit.router.api.schemas.responses import record_json
from ragbandit.router.serving.explanations.values import Explanation, Kept

__all__ = ["EXPLANATION_FIELDS", "ExplanationReply", "explanation_json"]

#: "Object.field" -> description, for /openapi.json
EXPLANATION_FIELDS: Final[Mapping[str, str]] = {
    "ChanceReply.arm": "An arm that was offered.",
    "ChanceReply.probability": "The probability that it was drawn with, floors included.",
    "ChanceReply.parts": "Its parts: policy, floor, cold_start, incumbent, candidate, given; they add up to it.",
    "ChanceReply.score": "The policy's value of it, in units of reward; null if it has none.",
    "ChanceReply.quality": "The quality that the policy expected; null where it keeps none apart.",
    "ChanceReply.cost": "The cost that the policy expected; null where it keeps none apart.",
    "ChanceReply.low": "It is drawn for u from here on,",
    "ChanceReply.high": "and below this.",
    "ChanceReply.drawn": "Whether it is the one that was drawn.",
    "ChanceReply.likeliest": "Whether none was likelier.",
    "ChanceReply.champion": "The probability that the champion gave it; null where no candidate had a part in it.",
    "ChanceReply.candidate": "The probability that the candidate gave it; null where none had a part in it.",
    "CostTermReply.name": "The cost term, as in `reward.cost`.",
    "CostTermReply.amount": "What the answer used of it.",
    "CostTermReply.price": "Its price per unit.",
    "CostTermReply.cost": "Amount times price.",
    "DrawReply.u": "The number in [0, 1) that the seed gives; the arm whose part of the line it lies in is drawn.",
    "DrawReply.weight": "Weight of cost in the scores; null where the policy keeps none.",
    "DrawReply.fault": "What does not fit together in the stored row; null where all does.",
    "DrawReply.made_elsewhere": "Whether it came with a log, so that the draw cannot be made again.",
    "ExplanationReply.place": "Where its rows are.",
    "ExplanationReply.texts": "What is left of its texts.",
    "ExplanationReply.reasons": "Why this arm, in plain sentences, the main reason first.",
    "ExplanationReply.progress": "Where it is on its way to the ledger, and why it waits.",
    "ExplanationReply.arms": "The offered arms, in the order of the draw.",
    "ExplanationReply.excluded": "Arms that were left out, since they were not healthy.",
    "ExplanationReply.draw": "The draw.",
    "ExplanationReply.snapshot": "The state of the policy that decided.",
    "ExplanationReply.neighbours": "The nearest questions that the policy had learned.",
    "ExplanationReply.steps": "The steps of the answer, in order.",
    "ExplanationReply.bill": "What the reward charged, term by term.",
    "ExplanationReply.held": "Ids of its feedback that is held back.",
    "ExplanationReply.facts": "What else the policy noted about it.",
    "ExplanationReply.record": "What `GET /v1/decisions/{decision_id}` gives.",
    "NeighbourReply.arm": "The arm that answered it.",
    "NeighbourReply.judged_by": "Whose word its reward rests on; null for a default reward.",
    "NeighbourReply.question": 'The question; "" where its text was erased or never kept.',
    "NeighbourReply.quality": "The quality that was learned of it.",
    "NeighbourReply.reward": "The reward that was learned of it.",
    "NeighbourReply.seq": "Its place in the ledger.",
    "NeighbourReply.similarity": "The cosine of the two questions' features, in [-1, 1].",
    "NeighboursReply.found": "The nearest first, five at most.",
    "NeighboursReply.compared": "Updates that were compared, the newest 2,000 at most.",
    "NeighboursReply.note": "Why there are none, or what to know about them; null where there is nothing to say.",
    "PassageReply.id": "Id of the passage.",
    "PassageReply.title": 'Its title; "" where the outcome does not keep it.',
    "SnapshotReply.label": "The ledger that it had learned.",
    "SnapshotReply.learned": "Updates that it had learned; null where its name does not say.",
    "SnapshotReply.algorithm": "Name of the policy; null where the store does not know it.",
    "SnapshotReply.made_at": "When it was made, seconds since 1970; null where its row is gone.",
    "StepReply.kind": "What was done.",
    "StepReply.name": "Which call, rule or round.",
    "StepReply.text": "What was searched for, written, seen or wrong.",
    "StepReply.seconds": "How long it took; null where that is not measured.",
    "StepReply.prompt_tokens": "Tokens read by the model; null for other steps.",
    "StepReply.completion_tokens": "Tokens written by the model; null for other steps.",
    "StepReply.passages": "The passages that were found, the best first.",
}


class ChanceReply(TypedDict):
    """An offered arm in the draw. parts: where its probability came from; it is drawn for low <= u < high.

    champion, candidate: what each gave it, where a candidate had a part in the draw.
    """

    arm: str
    probability: float
    parts: dict[str, float]
    score: float | None
    quality: float | None
    cost: float | None
    low: float
    high: float
    drawn: bool
    likeliest: bool
    champion: float | None
    candidate: float | None


class DrawReply(TypedDict):
    """The draw. u: in [0, 1), from the seed; fault: what is wrong with the row."""

    seed: str
    u: float
    floor: float
    weight: float | None
    fault: str | None
    made_elsewhere: bool


class SnapshotReply(TypedDict):
    """The state of the policy that decided. learned: updates that it had learned."""

    version: str
    label: str
    learned: int | None
    algorithm: str | None
    made_at: float | None


class NeighbourReply(TypedDict):
    """A question that the policy had learned."""

    decision_id: str
    seq: int
    similarity: float
    question: str
    arm: str
    reward: float
    quality: float
    judged_by: str | None


class NeighboursReply(TypedDict):
    """The nearest learned questions, the nearest first. compared: updates that were looked at."""

    found: list[NeighbourReply]
    compared: int
    note: str | None


class PassageReply(TypedDict):
    """A passage that was found; the title is "" where the outcome does not keep it."""

    id: str
    title: str
    score: float


class StepReply(TypedDict):
    """A step of the answer: what was searched for, written, seen or wrong."""

    kind: Literal["round", "retrieved", "generated", "branch", "call_failed"]
    name: str
    text: str
    seconds: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    passages: list[PassageReply]


class CostTermReply(TypedDict):
    """A line of the bill: cost = amount * price."""

    name: str
    amount: float
    price: float
    cost: float


class ExplanationReply(TypedDict):
    """One decision explained. record: what `GET /v1/decisions/{decision_id}` gives; reasons: why this arm.

    texts: what is left of its texts. progress: where it is on its way to the ledger, and why it waits.
    """

    decision_id: str
    place: Literal["database", "archive"]
    texts: Kept
    reasons: list[str]
    progress: str
    arms: list[ChanceReply]
    excluded: list[str]
    draw: DrawReply
    snapshot: SnapshotReply
    neighbours: NeighboursReply
    steps: list[StepReply]
    bill: list[CostTermReply]
    held: list[str]
    facts: dict[str, Any]
    record: RecordReply


def explanation_json(explained: Explanation) -> ExplanationReply:
    """An explanation as JSON."""
    near = explained.neighbours
    return {
        "decision_id": explained.record.decision.id,
        "place": explained.place,
        "texts": explained.texts,
        "reasons": list(explained.reasons),
        "progress": explained.progress,
        "arms": [cast(ChanceReply, asdict(arm)) for arm in explained.arms],
        "excluded": list(explained.excluded),
        "draw": cast(DrawReply, asdict(explained.draw) | {"seed": str(explained.draw.seed)}),
        "snapshot": cast(SnapshotReply, asdict(explained.snapshot)),
        "neighbours": {
            "found": [cast(NeighbourReply, asdict(one)) for one in near.found],
            "compared": near.compared,
            "note": near.note,
        },
        "steps": [
            cast(StepReply, asdict(step) | {"passages": [_passage(*passage) for passage in step.passages]})
            for step in explained.steps
        ],
        "bill": [cast(CostTermReply, asdict(line)) for line in explained.bill],
        "held": sorted(explained.held),
        "facts": dict(explained.facts),
        "record": record_json(explained.record),
    }


def _passage(key: str, title: str, score: float) -> PassageReply:
    return {"id": key, "title": title, "score": score}
