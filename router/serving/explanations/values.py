"""Explanation of a decision: frozen values that a page, an HTTP reply and a terminal show alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ragbandit.router.storage.decisions import DecisionRecord
from ragbandit.router.types import ArmName, DecisionId, Json, JudgedBy, Reward

__all__ = [
    "ArmChance",
    "CostTerm",
    "DrawShown",
    "Explanation",
    "Kept",
    "Neighbour",
    "Neighbours",
    "SnapshotShown",
    "StepShown",
]

#: what is left of a decision's texts
Kept = Literal["full", "sha256", "none", "erased", "erased with features"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmChance:
    """One offered arm in the draw: where its probability came from, and what the policy expected of it."""

    arm: ArmName
    #: in [0, 1], what was drawn from
    probability: float
    #: its parts: "policy", "floor", "cold_start", "incumbent", "candidate", "given"; they add up to `probability`
    parts: Mapping[str, float]
    #: the policy's value, in units of reward; None: it has none
    score: float | None
    #: what the value is made of, score = quality - weight * cost; None where the policy keeps them together
    quality: float | None
    cost: float | None
    #: place in the draw: it is drawn for low <= u < high
    low: float
    high: float
    drawn: bool
    #: the likeliest of the offered arms
    likeliest: bool
    #: the probability that champion and candidate each gave it; None where no candidate had a part in the draw
    champion: float | None = None
    candidate: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawShown:
    """The draw, so that anybody can make it again."""

    #: unsigned 64 bit, from the decision's id
    seed: int
    #: in [0, 1), from the seed
    u: float
    #: least probability of every arm
    floor: float
    #: weight of cost in the scores; None where the policy keeps none
    weight: float | None
    #: what is wrong with the row; None: seed, probabilities and arm fit together
    fault: str | None
    #: the decision came with a log, and was drawn elsewhere
    made_elsewhere: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotShown:
    """The state of the policy that decided."""

    version: str
    #: its ledger
    label: str
    #: updates of that ledger that it had learned; None: the version's name does not say it
    learned: int | None
    #: None: the store knows none by that name any more
    algorithm: str | None
    made_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A question that the policy had learned, and how it went."""

    decision_id: DecisionId
    seq: int
    #: cosine of the two embeddings, in [-1, 1]
    similarity: float
    #: "" where its text was erased or never kept
    question: str
    arm: ArmName
    reward: float
    quality: float
    judged_by: JudgedBy | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    """The nearest learned questions, the nearest first."""

    found: tuple[Neighbour, ...]
    #: updates that were compared
    compared: int
    #: why there are none, or what to know about them; None: nothing
    note: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepShown:
    """One step of the answer."""

    kind: Literal["round", "retrieved", "generated", "branch", "call_failed"]
    #: what was searched for, written, seen or wrong
    text: str
    #: which call, rule or round
    name: str
    seconds: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    #: (id, title, score) of what was found, the best first; the title is "" where the outcome does not keep it
    passages: tuple[tuple[str, str, float], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CostTerm:
    """One line of the bill of a reward: cost = amount * price."""

    name: str
    amount: float
    price: float
    cost: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One decision explained."""

    record: DecisionRecord
    #: where its rows are
    place: Literal["database", "archive"]
    texts: Kept
    #: why this arm, in plain sentences, the main reason first
    reasons: tuple[str, ...]
    #: in the order of the draw
    arms: tuple[ArmChance, ...]
    #: arms that were left out, since they were not healthy
    excluded: tuple[ArmName, ...]
    draw: DrawShown
    snapshot: SnapshotShown
    #: what else the policy wrote into the row; JSON values
    facts: Mapping[str, Json]
    neighbours: Neighbours
    steps: tuple[StepShown, ...]
    #: what the reward charged; empty where there is none, or nothing was charged
    bill: tuple[CostTerm, ...]
    #: feedback that is held back, by id
    held: frozenset[str]
    #: where the decision is on its way to the ledger, and why it waits, in a sentence
    progress: str

    @property
    def reward(self) -> Reward | None:
        """What was learned of it."""
        return self.record.reward
