"""Explanation of a decision: one value that the page, the HTTP reply and the terminal show alike.

The texts below the fields are their descriptions in /openapi.json.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated, Any, Literal

from ragbandit.client.replies.decisions import RecordReply
from ragbandit.router.learning.audit.rules import draw_fault
from ragbandit.router.policies.draw import UNTRIED, raised_floors
from ragbandit.router.policies.mixing import INCUMBENT, configured_floor, holdback_of
from ragbandit.router.storage.decisions.store import DecisionRecord
from ragbandit.shared.types import CANDIDATE, IMPORTED, KILLED, STICKY, ArmName, Decision, DecisionId, Json

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
    facts: Mapping[str, Json]
    """What else the policy noted about it."""
    record: Annotated[DecisionRecord, ShownAs(kind=RecordReply)]
    """What `GET /v1/decisions/{decision_id}` gives."""


def draw_of(decision: Decision) -> DrawShown:
    """The draw of a decision."""
    elsewhere = IMPORTED in decision.facts
    weight = decision.facts.get("weight")
    return DrawShown(
        seed=str(decision.seed),
        u=(decision.seed >> 11) * 2.0**-53,
        floor=decision.floor,
        weight=float(weight) if isinstance(weight, int | float) else None,
        fault=None if elsewhere else draw_fault(decision),
        made_elsewhere=elsewhere,
    )


def chances_of(decision: Decision) -> tuple[ArmChance, ...]:
    """The offered arms, in the order of the draw. A row that does not fit together gives what it has."""
    count = min(len(decision.arms), len(decision.pmf))
    parts = _parts(decision)
    quality, cost = (numbers_of(decision.facts.get(name), count=count) for name in ("quality", "cost"))
    scores = numbers_of(decision.scores, count=count)
    trial = _trial(decision)
    champion, candidate = trial if trial is not None else (None, None)
    untried = frozenset(names_of(decision.facts.get(UNTRIED)))
    edges = [0.0, *accumulate(decision.pmf)]
    most = max(decision.pmf, default=0.0)
    return tuple(
        ArmChance(
            arm=decision.arms[at],
            probability=decision.pmf[at],
            parts=parts[at],
            untried=decision.arms[at] in untried,
            **{
                name: None if values is None or decision.arms[at] in untried else values[at]
                for name, values in (("score", scores), ("quality", quality), ("cost", cost))
            },
            low=edges[at],
            high=1.0 if at == count - 1 else edges[at + 1],
            drawn=decision.arms[at] == decision.arm,
            likeliest=decision.pmf[at] == most,
            champion=None if champion is None else champion[at],
            candidate=None if candidate is None else candidate[at],
        )
        for at in range(count)
    )


def names_of(value: Json) -> tuple[ArmName, ...]:
    """The value where it is a list of names: rows may hold anything."""
    return tuple(ArmName(str(name)) for name in value) if isinstance(value, list | tuple) else ()


def mapping_of(value: Json) -> Mapping[str, Json]:
    """The value where it is an object, else an empty one: rows may hold anything."""
    return value if isinstance(value, Mapping) else {}


def numbers_of(value: Json, *, count: int) -> list[float] | None:
    """The value where it is a list of so many numbers."""
    if not isinstance(value, list | tuple) or len(value) != count:
        return None
    sound = all(isinstance(each, int | float) and not isinstance(each, bool) for each in value)
    return [float(each) for each in value] if sound else None


def _trial(decision: Decision) -> tuple[list[float], list[float]] | None:
    """The pmfs of champion and candidate, where both had a part in the draw."""
    facts, count = mapping_of(decision.facts.get(CANDIDATE)), len(decision.pmf)
    champion, candidate = (numbers_of(facts.get(name), count=count) for name in ("champion", "pmf"))
    return None if champion is None or candidate is None else (champion, candidate)


def _parts(decision: Decision) -> list[dict[str, float]]:
    """The parts of every arm's probability, those that are 0 left out."""
    if STICKY in decision.facts or KILLED in decision.facts or decision.query.forced:
        return [{"given": p} for p in decision.pmf]
    if IMPORTED in decision.facts or not decision.pmf:
        return [{"policy": p} for p in decision.pmf]
    facts, trial = mapping_of(decision.facts.get(CANDIDATE)), _trial(decision)
    weight, floor, added = facts.get("weight"), facts.get("floor"), facts.get("added")
    if trial is None or not isinstance(weight, int | float):
        return _of_one_policy(decision, decision.arms, decision.pmf, floor=configured_floor(decision))
    champion, candidate = trial
    count = len(champion) - (len(added) if isinstance(added, list) else 0)  # those of the candidate alone come last
    floor = configured_floor(replace(decision, floor=float(floor) if isinstance(floor, int | float) else 0.0))
    own_parts = _of_one_policy(decision, decision.arms[:count], champion[:count], floor=floor)
    own_parts += [{} for _ in champion[count:]]
    parts = []
    for own, theirs in zip(own_parts, candidate, strict=True):
        scaled = {name: (1.0 - weight) * part for name, part in own.items()}
        parts.append(scaled | ({"candidate": weight * theirs} if weight * theirs > 0.0 else {}))
    return parts


def _of_one_policy(
    decision: Decision, arms: Sequence[ArmName], pmf: Sequence[float], *, floor: float
) -> list[dict[str, float]]:
    """As `with_floor`, `held_back` and the holdback have put them together, taken apart again."""
    count = len(pmf)
    held = mapping_of(decision.facts.get(INCUMBENT))
    share, incumbent = held.get("share"), held.get("arm") if held.get("arm") in decision.arms else None
    share = float(share) if isinstance(share, int | float) and incumbent is not None else 1.0
    floor = min(floor, 1.0 / count)
    room = 1.0 - count * floor
    raised = raised_floors(decision.facts) or {}
    more = [max(0.0, float(raised.get(arm, 0.0)) - floor) for arm in arms]
    wanted = sum(more)
    scale = 1.0 if wanted <= room else room / wanted
    holdback = holdback_of(decision.facts)
    rest = 1.0 if holdback is None else 1.0 - holdback.share
    parts = []
    for arm, p, cold in zip(arms, pmf, more, strict=True):
        fixed = {
            "floor": rest * share * floor,
            "cold_start": rest * share * scale * cold,
            "incumbent": rest * (1.0 - share) if arm == incumbent else 0.0,
            "holdback": holdback.share if holdback is not None and arm == holdback.arm else 0.0,
        }
        own = p - sum(fixed.values())
        if own < -1e-9:  # of a floor that the row does not tell: say no more than is known
            parts.append({"policy": p})
            continue
        named = {name: part for name, part in fixed.items() if part > 0.0}
        # What is left below a rounding error is none of the policy's.
        parts.append(({"policy": own} if own > 1e-12 else {}) | named)
    return parts
