"""Explain one decision: from its rows to a read model."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sqlalchemy import select

from ragbandit.router.learning.monitoring.diagnosis import read_diagnosis
from ragbandit.router.policies.draw import COLD_START_FLOOR, UNTRIED
from ragbandit.router.policies.mixing import HOLDBACK, INCUMBENT
from ragbandit.router.serving.checks.questions import checked_id
from ragbandit.router.serving.deciding.question import budget_factor, price_name
from ragbandit.router.serving.deciding.service import REBUILDING
from ragbandit.router.serving.explanations.values import (
    ArmChance,
    CostTerm,
    DrawShown,
    Explanation,
    PassageShown,
    SnapshotShown,
    StepShown,
    TextState,
    chances_of,
    draw_of,
    mapping_of,
    names_of,
)
from ragbandit.router.serving.health.circuit_breaker import EXCLUDED_ARMS
from ragbandit.router.storage.decisions.store import DecisionRecord, DecisionStore
from ragbandit.router.storage.sql.counters import ClosingRule
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import policies, snapshots
from ragbandit.shared.formats import moment
from ragbandit.shared.types import (
    CANDIDATE,
    ERASED,
    KILLED,
    STICKY,
    ArmName,
    Branch,
    CallFailed,
    Decision,
    DecisionId,
    Generated,
    Json,
    Outcome,
    Retrieved,
    Reward,
    Round,
    TraceEvent,
)

#: facts that an explanation tells in its own words
OWN_FACTS: Final = frozenset(
    {
        CANDIDATE,
        KILLED,
        INCUMBENT,
        HOLDBACK,
        EXCLUDED_ARMS,
        REBUILDING,
        STICKY,
        COLD_START_FLOOR,
        UNTRIED,
        "quality",
        "cost",
    }
    | {"weight", "erased"}
)
#: how a part of a probability is called
_PARTS: Final = {
    "policy": "the policy",
    "floor": "the exploration floor",
    "cold_start": "the higher floor of a new arm",
    "incumbent": "the incumbent's share",
    "holdback": "the holdback, a fixed share of the questions",
    "candidate": "the candidate",
    "given": "what was settled before any draw",
}


def excluded_of(decision: Decision) -> tuple[ArmName, ...]:
    """Arms that were not healthy when it was made."""
    return names_of(decision.facts.get(EXCLUDED_ARMS))


def reasons_of(decision: Decision, *, arms: Sequence[ArmChance], draw: DrawShown) -> tuple[str, ...]:
    """Why the arm was drawn, the main reason first."""
    return (
        *_given(decision, draw=draw),
        *_of_the_draw(decision, arms=arms, draw=draw),
        *_of_the_price(decision),
        *_of_the_policy(decision),
        *_of_versions(decision, arms=arms),
        *_of_the_offer(decision),
    )


def _given(decision: Decision, *, draw: DrawShown) -> Iterator[str]:
    """What came before any draw."""
    if draw.made_elsewhere:
        yield f"The decision came with an imported log: {decision.arm} was drawn elsewhere, and cannot be drawn again."
    sticky = mapping_of(decision.facts.get(STICKY))
    if sticky:
        yield (
            f"Turn {sticky.get('turn')} of {sticky.get('turns')} of the conversation stays on {decision.arm}, which "
            f"decision {sticky.get('first')} drew. It is no draw of its own."
        )
    killed = mapping_of(decision.facts.get(KILLED))
    if killed:
        pinned = killed.get("arm")
        here = "" if pinned == decision.arm else f", which this question does not allow, so that {decision.arm} plays"
        yield f"The kill switch was on with the arm {pinned} pinned{here}: no policy was asked, and nothing was drawn."
    if decision.query.forced:
        yield f"The caller chose {decision.arm}: nothing was drawn, and nothing is learned from it."


def _of_the_draw(decision: Decision, *, arms: Sequence[ArmChance], draw: DrawShown) -> Iterator[str]:
    drawn = next((arm for arm in arms if arm.drawn), None)
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
        alone = sum(arm.likeliest for arm in arms) == 1
        what = "the likeliest arm" if alone else "as likely as any arm"
        yield f"{drawn.arm} was {what}, with probability {drawn.probability:.4g}{_best(drawn, arms)}."
    else:
        yield (
            f"{drawn.arm} was drawn by chance, to explore: its probability was {drawn.probability:.4g}, that of the "
            f"likeliest arm, {likeliest.arm}, {likeliest.probability:.4g}."
        )
    if len(drawn.parts) > 1 or "policy" not in drawn.parts:
        parts = ", ".join(f"{part:.4g} from {_PARTS.get(name, name)}" for name, part in drawn.parts.items())
        yield f"Of that probability came {parts}."
    if not draw.made_elsewhere:
        yield f"The random draw u = {draw.u:.6f}, from the seed, fell in the range of {drawn.arm}: {_edges(drawn)}."
    if draw.fault is not None:
        yield f"The row does not fit together: {draw.fault}."


def _edges(arm: ArmChance) -> str:
    return f"from {arm.low:.6f} to {arm.high:.6f}"


def _best(drawn: ArmChance, arms: Sequence[ArmChance]) -> str:
    scores = [arm.score for arm in arms if arm.score is not None]
    if drawn.score is None or len(scores) != len(arms):
        return ""
    if drawn.score == max(scores):
        what = "the most of it" if scores.count(drawn.score) == 1 else "as much of it as of any"
        return f", and the policy expects {what} ({drawn.score:.4g})"
    best = max(arms, key=lambda arm: arm.score or 0.0)
    return f", though the policy expects more of {best.arm} ({best.score:.4g} against {drawn.score:.4g})"


def _of_the_price(decision: Decision) -> Iterator[str]:
    """The weight of cost, where it is not the service's."""
    if decision.cost_weight is None:
        return
    query, name = decision.query, price_name(decision.query)
    why = "as its caller wanted" if query.cost_weight is not None or query.aim else "as its key or tenant has it"
    named = "" if name is None else f" ({name})"
    factor = budget_factor(query)
    why += f", raised by the factor {factor:g} of a dollar budget" if factor > 1.0 else ""
    served = f"It was served at cost weight {decision.cost_weight:g}{named}, {why}"
    yield f"{served}; it is learned at that weight, and scores are read at it."


def _of_the_policy(decision: Decision) -> Iterator[str]:
    if decision.fault is not None:
        yield f"The policy failed, so the fallback arm had all but the floors. It said: {decision.fault}."
    if decision.facts.get(REBUILDING):
        yield "The configured policy was being learned again, and another one decided meanwhile."
    held = mapping_of(decision.facts.get(INCUMBENT))
    share = held.get("share")
    if isinstance(share, int | float) and share < 1.0:
        why = held.get("reason")
        yield (
            f"The policy was held back to the incumbent {held.get('arm')}: it had a share of {share:.4g} of the draw, "
            f"the incumbent the rest{f' ({why})' if why else ''}."
        )
    if untried := names_of(decision.facts.get(UNTRIED)):
        yield f"The policy had learned nothing of {', '.join(untried)} then: untried: no estimate yet."
    if decision.facts.get("untrained"):
        yield "The policy was not trained yet, so all arms were alike to it."


def _of_versions(decision: Decision, *, arms: Sequence[ArmChance]) -> Iterator[str]:
    first = mapping_of(decision.facts.get(CANDIDATE))
    others = first.get("others")
    for facts in (first, *(map(mapping_of, others) if isinstance(others, list) else ())):
        if facts:
            yield _of_version(facts, drawn=next((arm for arm in arms if arm.drawn), None))


def _of_version(facts: Mapping[str, Json], *, drawn: ArmChance | None) -> str:
    name, weight = facts.get("version"), facts.get("weight")
    if facts.get("fault"):
        return f"The candidate {name} had no part in the draw: {facts['fault']}."
    if facts.get("state") == "canary" and isinstance(weight, int | float):
        shares = ""
        if drawn is not None and drawn.champion is not None and drawn.candidate is not None:
            shares = f": the champion gave {drawn.arm} {drawn.champion:.4g}, the candidate {drawn.candidate:.4g}"
        return f"The draw was a mixture, {1.0 - weight:.4g} champion and {weight:.4g} candidate {name}{shares}."
    return f"The candidate {name} was in the shadow: what it would have done is kept, and had no part in the draw."


def _of_the_offer(decision: Decision) -> Iterator[str]:
    if excluded := excluded_of(decision):
        yield f"Left out, since they were not healthy: {', '.join(excluded)}."
    if decision.query.arms is not None and not decision.query.forced:
        yield f"The caller or its key allowed these arms alone: {', '.join(decision.query.arms)}."


def progress_of(record: DecisionRecord, *, rule: ClosingRule) -> str:
    """One sentence."""
    if record.state == "learned":
        return f"Learned from feedback, as update {record.learned_seq} of its ledger."
    if record.state == "defaulted":
        return f"Nobody judged it in time: the default reward was learned, as update {record.learned_seq}."
    if record.state in ("closed", "quarantined"):
        what = "Closed, and nothing was learned of it" if record.state == "closed" else "Quarantined: not learned"
        return f"{what}: {record.reason}."
    return _waiting(record, rule=rule)


def _waiting(record: DecisionRecord, *, rule: ClosingRule) -> str:
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


#: "<label>-<updates learned>-<first 12 of sha256>", or "none" in place of the last
_VERSION: Final = re.compile(r"(?P<label>.+)-(?P<learned>\d+)-(?:[0-9a-f]{12}|none)")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def explain(
    store: DecisionStore,
    decision_id: str,
    *,
    rule: ClosingRule,
) -> Explanation:
    """One decision explained.

    rule: when a waiting decision is closed. Raises NotFound, InvalidInput, StoreError.
    """
    key = DecisionId(checked_id(decision_id, field="decision_id"))
    record = store.record(key)
    decision = record.decision
    arms, draw = chances_of(decision), draw_of(decision)
    return Explanation(
        decision_id=decision.id,
        texts=_text_state(decision),
        reasons=(*reasons_of(decision, arms=arms, draw=draw), *_learned(store.database, decision)),
        progress=progress_of(record, rule=rule),
        arms=arms,
        excluded=excluded_of(decision),
        draw=draw,
        snapshot=_snapshot(store.database, decision),
        steps=() if record.outcome is None else tuple(_step(event, record.outcome) for event in record.outcome.trace),
        bill=_bill(record.outcome, record.reward),
        facts={name: value for name, value in decision.facts.items() if name not in OWN_FACTS},
        record=record,
    )


def _learned(database: Database, decision: Decision) -> Iterator[str]:
    """How far the policy has learned by now, if it says."""
    query = select(policies.c.diagnosis).where(policies.c.label == decision.policy)
    with database.read() as connection:
        read = read_diagnosis(connection.execute(query).scalar(), unlabelled=0)
    if read is not None:
        yield f"Its policy is now {read.line}."


def _text_state(decision: Decision) -> TextState:
    erased = decision.facts.get(ERASED)
    if erased is not None:
        return "erased with features" if erased == "texts and features" else "erased"
    if not decision.query.text:
        return "none"
    return "sha256" if _SHA256.fullmatch(decision.query.text) else "full"


def _snapshot(database: Database, decision: Decision) -> SnapshotShown:
    """The snapshot that decided; of one that is forgotten, what its ledger is now."""
    named = _VERSION.fullmatch(decision.version)
    label = named["label"] if named else decision.policy
    with database.read() as connection:
        row = connection.execute(select(snapshots).where(snapshots.c.version == decision.version)).mappings().first()
        known = row or connection.execute(select(policies).where(policies.c.label == label)).mappings().first()
    return SnapshotShown(
        version=decision.version,
        label=label,
        learned=int(named["learned"]) if named else None,
        algorithm=None if known is None else known["algorithm"],
        made_at=None if row is None else row["made_at"],
    )


def _step(event: TraceEvent, outcome: Outcome) -> StepShown:
    match event:
        case Round():
            return StepShown(kind="round", name=str(event.number), text="")
        case Retrieved():
            titles = {source.id: source.title for source in outcome.sources}
            passages = tuple(
                PassageShown(id=key, title=titles.get(key, ""), score=score)
                for key, score in zip(event.ids, event.scores, strict=False)
            )
            return StepShown(kind="retrieved", name="", text=event.query, seconds=event.seconds, passages=passages)
        case Generated():
            return StepShown(
                kind="generated",
                name=event.purpose,
                text=event.text,
                seconds=event.seconds,
                prompt_tokens=event.prompt_tokens,
                completion_tokens=event.completion_tokens,
            )
        case Branch():
            return StepShown(kind="branch", name=event.rule, text=event.value)
        case CallFailed():
            return StepShown(kind="call_failed", name=event.purpose, text=event.error, seconds=event.seconds)


def _bill(outcome: Outcome | None, reward: Reward | None) -> tuple[CostTerm, ...]:
    if outcome is None or reward is None:
        return ()
    lines = []
    for name, price in reward.terms.items():
        amount = outcome.steps if name == "steps" else getattr(outcome.cost, name, None)
        if isinstance(amount, int | float):
            lines.append(CostTerm(name=name, amount=float(amount), price=price, cost=price * amount))
    return tuple(lines)
