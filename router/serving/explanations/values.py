"""Explanation of a decision: one value that the page, the HTTP reply and the terminal show alike.

The texts below the fields are their descriptions in /openapi.json.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from ragbandit.client.replies.decisions import RecordReply
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.shared.types import ArmName, DecisionId, Json

#: what is left of a decision's texts
TextState = Literal["full", "sha256", "none", "erased", "erased with features"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownAs:
    """Marks a field that replies show as a value of another type."""

    kind: Any

    def __get_pydantic_core_schema__(self, _source: Any, handler: Any) -> Any:
        """The schema of the type that is shown."""
        return handler.generate_schema(self.kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmChance:
    """An offered arm in the draw: where its probability came from, and what the policy expected of it."""

    arm: ArmName
    """An arm that was offered."""
    probability: float
    """The probability that it was drawn with, floors included."""
    parts: Mapping[str, float]
    """Its parts: policy, floor, cold_start, incumbent, holdback, candidate, given; they add up to `probability`."""
    untried: bool
    """Whether the policy had learned nothing of it; `score`, `quality` and `cost` are null then."""
    score: float | None
    """The policy's value of it, in units of reward; null if it has none."""
    quality: float | None
    """The expected quality: score = quality - weight * cost; null where the policy keeps none apart."""
    cost: float | None
    """The expected cost; null where the policy keeps none apart."""
    low: float
    """It is drawn for low <= u < high."""
    high: float
    """Upper end of its part of the line."""
    drawn: bool
    """Whether it is the one that was drawn."""
    likeliest: bool
    """Whether none was likelier."""
    champion: float | None
    """The probability that the champion gave it; null where no candidate had a part in the draw."""
    candidate: float | None
    """The probability that the candidate gave it; null where none had a part in the draw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawShown:
    """The draw, so that anybody can repeat it."""

    seed: str
    """Seed of the draw, made from the decision's id and a secret of the store: an unsigned number of 64 bits."""
    u: float
    """The number in [0, 1) that the seed gives; the arm whose part of the line it lies in is drawn."""
    floor: float
    """Exploration floor in force, per arm."""
    weight: float | None
    """Weight of cost in the scores; null where the policy keeps none."""
    fault: str | None
    """What does not fit together in the stored row; null where all does."""
    made_elsewhere: bool
    """Whether it came with an imported log, so that the draw cannot be repeated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotShown:
    """The state of the policy that decided."""

    version: str
    """Snapshot of the policy that decided."""
    label: str
    """The ledger that it had learned."""
    learned: int | None
    """Updates of that ledger that it had learned; null where its name does not say."""
    algorithm: str | None
    """Name of the policy; null where the store does not know it."""
    made_at: float | None
    """When it was made, seconds since 1970; null where its row is gone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PassageShown:
    """A passage that was found."""

    id: str
    """Id of the passage."""
    title: str
    """Its title; "" where the outcome does not have it."""
    score: float
    """Score in the search that found it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepShown:
    """A step of the answer."""

    kind: Literal["round", "retrieved", "generated", "branch", "call_failed"]
    """Kind of step."""
    name: str
    """Which call, rule or round."""
    text: str
    """What was searched for, written, seen or wrong."""
    seconds: float | None = None
    """How long it took; null where that is not measured."""
    prompt_tokens: int | None = None
    """Tokens read by the model; null for other steps."""
    completion_tokens: int | None = None
    """Tokens written by the model; null for other steps."""
    passages: tuple[PassageShown, ...] = ()
    """The passages that were found, the best first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CostTerm:
    """A line of the bill: cost = amount * price."""

    name: str
    """The cost term, as in `reward.cost`."""
    amount: float
    """What the answer used of it."""
    price: float
    """Its price per unit."""
    cost: float
    """Amount times price."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One decision explained."""

    decision_id: DecisionId
    """Id of the decision."""
    texts: TextState
    """What is left of its texts."""
    reasons: tuple[str, ...]
    """Why this arm, in plain sentences, the main reason first."""
    progress: str
    """Where it is on its way to the ledger, and why it waits."""
    arms: tuple[ArmChance, ...]
    """The offered arms, in the order of the draw."""
    excluded: tuple[ArmName, ...]
    """Arms that were left out because they were not healthy."""
    draw: DrawShown
    """The draw."""
    snapshot: SnapshotShown
    """The state of the policy that decided."""
    steps: tuple[StepShown, ...]
    """The steps of the answer, in order."""
    bill: tuple[CostTerm, ...]
    """What the reward charged, term by term."""
    held: tuple[str, ...]
    """Ids of its feedback that is held back."""
    facts: Mapping[str, Json]
    """What else the policy noted about it."""
    record: Annotated[DecisionRecord, ShownAs(kind=RecordReply)]
    """What `GET /v1/decisions/{decision_id}` gives."""
