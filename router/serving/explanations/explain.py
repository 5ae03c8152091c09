"""Explanation of one decision. The texts below the fields are their descriptions in /openapi.json."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Final

from pydantic import GetPydanticSchema
from sqlalchemy import select

from ragbandit.client.replies.decisions import RecordReply
from ragbandit.router.learning.audit.checks import draw_fault
from ragbandit.router.learning.monitoring.diagnosis import read_diagnosis
from ragbandit.router.policies.draw import HOLDBACK, INCUMBENT, UNTRIED
from ragbandit.router.rollouts.overview import candidates_in
from ragbandit.router.serving.checks.questions import checked_id
from ragbandit.router.serving.deciding.needs import LACKING
from ragbandit.router.serving.deciding.prices import budget_factor, price_name
from ragbandit.router.serving.health.circuit_breaker import EXCLUDED_ARMS
from ragbandit.router.storage.decisions.store import DecisionRecord, DecisionStore
from ragbandit.router.storage.decisions.tool_turns import TOOL_TURN
from ragbandit.router.storage.sql.counters import ClosingRule
from ragbandit.router.storage.sql.tables import policies
from ragbandit.shared.failures import link_of
from ragbandit.shared.formats import moment
from ragbandit.shared.types import CANDIDATE, IMPORTED, KILLED, REBUILDING, STICKY, ArmName, Decision, DecisionId, Json

_AS_REPLY: Final = GetPydanticSchema(lambda _source, handler: handler.generate_schema(RecordReply))


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmChance:
    """An offered arm in the draw."""

    arm: ArmName
    """Name of the arm."""
    probability: float
    """Probability of the arm in the draw, floors included."""
    untried: bool
    """Whether the policy had no outcomes of the arm; then `score`, `quality` and `cost` are null."""
    score: float | None
    """Expected reward by the policy; null if the policy has no scores."""
    quality: float | None
    """Expected quality: score = quality - weight * cost; null if the policy does not predict it."""
    cost: float | None
    """Expected cost; null if the policy does not predict it."""
    low: float
    """The arm is drawn if low <= u < high."""
    high: float
    """Upper end of the arm's range of u."""
    drawn: bool
    """Whether this arm was drawn."""
    likeliest: bool
    """Whether no other arm was more probable."""
    champion: float | None
    """Probability by the champion; null if no candidate had a part in the draw."""
    candidate: float | None
    """Probability by the candidate; null if no candidate had a part in the draw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawShown:
    """The draw. It can be repeated from the seed and the probabilities of the record."""

    u: float
    """Number in [0, 1) computed from the seed; the arm whose range contains it is drawn."""
    fault: str | None
    """Contradiction in the stored row; null if there is none."""
    made_elsewhere: bool
    """Whether the decision came with an imported log, so that the draw cannot be repeated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One decision explained."""

    decision_id: DecisionId
    """Id of the decision."""
    reasons: tuple[str, ...]
    """Why this arm was chosen, in sentences, the main reason first."""
    progress: str
    """Whether the decision was learned, or what it waits for."""
    arms: tuple[ArmChance, ...]
    """The offered arms, in the order of the draw."""
    draw: DrawShown
    """The draw."""
    record: Annotated[DecisionRecord, _AS_REPLY]
    """The reply of `GET /v1/decisions/{decision_id}`."""


def explain(store: DecisionStore, decision_id: str, *, rule: ClosingRule, known: Collection[str] = ()) -> Explanation:
    """Explain one decision. known: names of all configured arms. Raises NotFound, InvalidInput, StoreError."""
    record = store.record(DecisionId(checked_id(decision_id, field="decision_id")))
    decision = record.decision
    is_imported, arms = IMPORTED in decision.facts, chances_of(decision)
    fault = None if is_imported else draw_fault(decision)
    draw = DrawShown(u=(decision.seed >> 11) * 2.0**-53, fault=fault, made_elsewhere=is_imported)
    drawn = next((arm for arm in arms if arm.drawn), None)
    reasons = (
        *_before_the_draw(decision, draw=draw),
        *_of_the_draw(decision, drawn=drawn, arms=arms, draw=draw),
        *_of_the_price(decision),
        *_of_the_policy(decision),
        *(_of_version(note, drawn=drawn) for note in candidates_in(decision.facts)),
        *_of_the_offer(decision, known=known),
    )
    query = select(policies.c.diagnosis).where(policies.c.label == decision.policy)
    with store.database.read() as connection:
        diagnosis = read_diagnosis(connection.execute(query).scalar(), unlabelled=0)
    if diagnosis is not None:
        reasons += (f"Its policy is now {diagnosis.line}.",)
    return Explanation(
        decision_id=decision.id,
        reasons=reasons,
        progress=progress_of(record, rule=rule),
        arms=arms,
        draw=draw,
        record=record,
    )


def chances_of(decision: Decision) -> tuple[ArmChance, ...]:
    """The offered arms, in the order of the draw. Values are None if a damaged row lacks them."""
    count = min(len(decision.arms), len(decision.pmf))
    quality, cost = (numbers_of(decision.facts.get(name), count=count) for name in ("quality", "cost"))
    scores = numbers_of(decision.scores, count=count)
    trial = mapping_of(decision.facts.get(CANDIDATE))
    champion, candidate = (numbers_of(trial.get(name), count=len(decision.pmf)) for name in ("champion", "pmf"))
    if champion is None or candidate is None:  # the draw was not a mixture of champion and candidate
        champion = candidate = None
    untried = frozenset(names_of(decision.facts.get(UNTRIED)))
    edges = [0.0, *accumulate(decision.pmf)]
    highest = max(decision.pmf, default=0.0)
    chances = []
    for place, (arm, probability) in enumerate(zip(decision.arms, decision.pmf, strict=False)):
        predicted = place if arm not in untried else None
        chances.append(
            ArmChance(
                arm=arm,
                probability=probability,
                untried=arm in untried,
                score=_at(scores, predicted),
                quality=_at(quality, predicted),
                cost=_at(cost, predicted),
                low=edges[place],
                high=1.0 if place == count - 1 else edges[place + 1],
                drawn=arm == decision.arm,
                likeliest=probability == highest,
                champion=_at(champion, place),
                candidate=_at(candidate, place),
            )
        )
    return tuple(chances)


def _at(values: Sequence[float] | None, place: int | None) -> float | None:
    return None if values is None or place is None else values[place]


def names_of(value: Json) -> tuple[ArmName, ...]:
    """The value as a tuple of names; () if it is not a list, because a row may be damaged."""
    return tuple(ArmName(str(name)) for name in value) if isinstance(value, list | tuple) else ()


def mapping_of(value: Json) -> Mapping[str, Json]:
    """The value if it is an object; {} otherwise, because a row may be damaged."""
    return value if isinstance(value, Mapping) else {}


def numbers_of(value: Json, *, count: int) -> list[float] | None:
    if not isinstance(value, list | tuple) or len(value) != count:
        return None
    are_numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in value)
    return [float(number) for number in value] if are_numbers else None


def _before_the_draw(decision: Decision, *, draw: DrawShown) -> Iterator[str]:
    if draw.made_elsewhere:
        yield f"The decision came with an imported log: {decision.arm} was drawn elsewhere, and cannot be drawn again."
    sticky = mapping_of(decision.facts.get(STICKY))
    if "saves" in sticky:
        yield (
            f"The turn stays on {decision.arm}, which decision {sticky.get('first')} drew: its cached prompt saves "
            f"{sticky.get('saves'):.4g} in reward, and another arm would gain {sticky.get('gain'):.4g}."
        )
    elif sticky:
        yield (
            f"Turn {sticky.get('turn')} of {sticky.get('turns')} of the conversation stays on {decision.arm}, which "
            f"decision {sticky.get('first')} drew. It is no draw of its own."
        )
    killed = mapping_of(decision.facts.get(KILLED))
    if killed:
        pinned = killed.get("arm")
        note = "" if pinned == decision.arm else f", which this question does not allow, so that {decision.arm} plays"
        yield f"The kill switch was on with the arm {pinned} pinned{note}: no policy was asked, and nothing was drawn."
    turn = mapping_of(decision.query.request.get(TOOL_TURN))
    if turn:
        yield (
            f"Turn {turn.get('turn')} of a loop of tools goes on with decision {turn.get('first')}, which drew "
            f"{decision.arm}: nothing was drawn, and its cost and its feedback are those of that decision."
        )
    elif link := link_of(decision.query.request):
        yield (
            f"{decision.arm} answers in place of {link.get('arm')}, which failed ({link.get('reason')}) before its "
            f"first content; decision {link.get('first')} has the draw. Nothing was drawn here, and nothing is learned."
        )
    elif decision.query.forced:
        yield f"The caller chose {decision.arm}: nothing was drawn, and nothing is learned from it."


def _of_the_draw(
    decision: Decision, *, drawn: ArmChance | None, arms: Sequence[ArmChance], draw: DrawShown
) -> Iterator[str]:
    if drawn is None:
        yield f"The row does not fit together: {draw.fault}."
        return
    if STICKY in decision.facts or KILLED in decision.facts or decision.query.forced:
        return
    if len(arms) == 1:
        yield f"{drawn.arm} was the only arm on offer, so it had probability 1."
        return
    likeliest = next(arm for arm in arms if arm.likeliest)
    if drawn.likeliest:
        is_single = sum(arm.likeliest for arm in arms) == 1
        rank = "the likeliest arm" if is_single else "as likely as any arm"
        yield f"{drawn.arm} was {rank}, with probability {drawn.probability:.4g}{_best(drawn, arms)}."
    else:
        yield (
            f"{drawn.arm} was drawn by chance, to explore: its probability was {drawn.probability:.4g}, that of the "
            f"likeliest arm, {likeliest.arm}, {likeliest.probability:.4g}."
        )
    if not draw.made_elsewhere:
        place = f"the range of {drawn.arm}: from {drawn.low:.6f} to {drawn.high:.6f}"
        yield f"The random draw u = {draw.u:.6f}, from the seed, fell in {place}."
    if draw.fault is not None:
        yield f"The row does not fit together: {draw.fault}."


def _best(drawn: ArmChance, arms: Sequence[ArmChance]) -> str:
    scores = [arm.score for arm in arms if arm.score is not None]
    if drawn.score is None or len(scores) != len(arms):
        return ""
    if drawn.score == max(scores):
        expected = "the most of it" if scores.count(drawn.score) == 1 else "as much of it as of any"
        return f", and the policy expects {expected} ({drawn.score:.4g})"
    best = max(arms, key=lambda arm: arm.score or 0.0)
    return f", though the policy expects more of {best.arm} ({best.score:.4g} against {drawn.score:.4g})"


def _of_the_price(decision: Decision) -> Iterator[str]:
    if decision.cost_weight is None:
        return
    query, name = decision.query, price_name(decision.query)
    why = "as its caller wanted" if query.cost_weight is not None or query.aim else "as its key or tenant has it"
    named = "" if name is None else f" ({name})"
    factor = budget_factor(query)
    why += f", raised {factor:g}-fold by a dollar budget" if factor > 1.0 else ""
    served = f"It was served at cost weight {decision.cost_weight:g}{named}, {why}"
    yield f"{served}; it is learned at that weight, and scores are read at it."


def _of_the_policy(decision: Decision) -> Iterator[str]:
    if decision.fault is not None:
        yield f"The policy failed, so the fallback arm had all but the floors. It said: {decision.fault}."
    if decision.facts.get(REBUILDING):
        yield "The configured policy was being learned again, and another one decided meanwhile."
    restraint = mapping_of(decision.facts.get(INCUMBENT))
    share = restraint.get("share")
    if isinstance(share, int | float) and share < 1.0:
        arm, why = restraint.get("arm"), restraint.get("reason") or "it holds the policy back"
        why = "too few of its answers are rated yet" if why == "too few outcomes of it are learned" else why
        if share == 0.0:
            yield f"The safe start gave this question to {arm}: {why}."
        else:
            shares = f"the policy had a share of {share:.4g} of the draw, {arm} the rest"
            yield f"The safe start held the policy back to {arm}: {shares} ({why})."
    if holdback := mapping_of(decision.facts.get(HOLDBACK)):
        yield f"The holdback gives {holdback.get('arm')} a fixed share of every draw, {holdback.get('share')}."
    if untried := names_of(decision.facts.get(UNTRIED)):
        yield f"The policy had no estimate of {', '.join(untried)} yet: untried."
    if decision.facts.get("untrained"):
        yield "The policy was not trained yet, so all arms were alike to it."


def _of_version(note: Mapping[str, Json], *, drawn: ArmChance | None) -> str:
    name, weight = note.get("version"), note.get("weight")
    if note.get("fault"):
        return f"The candidate {name} had no part in the draw: {note['fault']}."
    if note.get("state") == "canary" and isinstance(weight, int | float):
        shares = ""
        if drawn is not None and drawn.champion is not None and drawn.candidate is not None:
            shares = f": the champion gave {drawn.arm} {drawn.champion:.4g}, the candidate {drawn.candidate:.4g}"
        return f"The draw was a mixture, {1.0 - weight:.4g} champion and {weight:.4g} candidate {name}{shares}."
    return f"The candidate {name} was in the shadow: what it would have done is kept, and had no part in the draw."


def _of_the_offer(decision: Decision, *, known: Collection[str]) -> Iterator[str]:
    if excluded := names_of(decision.facts.get(EXCLUDED_ARMS)):
        yield f"Left out, since they were not healthy: {', '.join(excluded)}."
    for arm, lacks in mapping_of(decision.facts.get(LACKING)).items():
        yield f"Left out, since the request needs what it cannot do: {arm} ({', '.join(names_of(lacks))})."
    allowed = decision.query.arms
    if allowed is not None and not decision.query.forced and not (known and {*known} <= {*allowed}):
        yield f"The caller or its key allowed only these arms: {', '.join(allowed)}."


def progress_of(record: DecisionRecord, *, rule: ClosingRule) -> str:
    if record.state == "learned":
        return f"Learned from feedback, as update {record.learned_seq} of its ledger."
    if record.state == "defaulted":
        return f"It was not judged in time: the default reward was learned, as update {record.learned_seq}."
    if record.state in ("closed", "quarantined"):
        end = "Closed, and nothing was learned of it" if record.state == "closed" else "Quarantined: not learned"
        return f"{end}: {record.reason}."
    decision, ends = record.decision, moment(record.decision.made_at + rule.wait_s + rule.expire_s)
    judgements = [item for item in record.feedback if item.value is not None]
    if record.reason is not None:
        return f"Waits: {record.reason.removeprefix('waiting for ')}; without one it is closed at {ends}."
    if decision.run_by == "worker" and record.outcome is None:
        return f"Waits for a worker's answer; without one it is closed at {ends}."
    if not judgements:
        awaited = "the outcome and feedback" if record.outcome is None else "feedback"
        return f"Waits for {awaited}; else it is closed at {ends}."
    window = decision.made_at + rule.wait_s
    if rule.wait_s > 0:
        return f"Has feedback, and collects more until {moment(window)}; then the learner takes it."
    return "Has all it needs: the learner takes it next."
