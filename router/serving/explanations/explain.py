"""Explanation of one decision. The texts below the fields are their descriptions in /openapi.json."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import GetPydanticSchema

from ragbandit.client.replies.decisions import RecordReply
from ragbandit.router.learning.audit.checks import draw_fault
from ragbandit.router.reporting.status import learning_of
from ragbandit.router.serving.checks.questions import checked_id
from ragbandit.router.serving.explanations.chances import (
    ArmChance,
    chances_of,
    effect_sentences,
    policy_sentences,
    turn_words,
)
from ragbandit.router.serving.setup.estimates import OWN_COSTS
from ragbandit.router.storage.decisions.store import DecisionRecord, DecisionStore
from ragbandit.router.storage.ledgers.closing import ClosingRule
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.additions import arm_parts
from ragbandit.shared.texts.formats import moment
from ragbandit.shared.types import (
    IMPORTED,
    ONE_ARM_LEFT,
    Decision,
    DecisionId,
    MovedTurn,
    Outcome,
    SafeStart,
)

_AS_REPLY: Final = GetPydanticSchema(lambda _source, handler: handler.generate_schema(RecordReply))


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
    chosen: str
    """Who or what chose the arm, in a few words."""
    reasons: tuple[str, ...]
    """Why this arm was chosen, in sentences, the main reason first."""
    progress: str
    """Whether the decision was learned, or what it waits for."""
    price: str | None
    """By which price its dollars were booked, in a few words; null without dollars."""
    arms: tuple[ArmChance, ...]
    """The offered arms, in the order of the draw."""
    draw: DrawShown
    """The draw."""
    record: Annotated[DecisionRecord, _AS_REPLY]
    """The reply of `GET /v1/decisions/{decision_id}`."""


def explain(
    store: DecisionStore,
    decision_id: str,
    *,
    rule: ClosingRule,
    known: Collection[str] = (),
    now: float | None = None,
) -> Explanation:
    """Explain one decision. Raises NotFound, InvalidInput, StoreError.

    known: names of all configured arms. now: seconds since 1970; None for the present time
    """
    record = store.record(DecisionId(checked_id(decision_id, field="decision_id")))
    decision = record.decision
    is_imported, arms = IMPORTED in decision.facts, chances_of(decision)
    fault = None if is_imported else draw_fault(decision)
    draw = DrawShown(u=(decision.seed >> 11) * 2.0**-53, fault=fault, made_elsewhere=is_imported)
    drawn = next((arm for arm in arms if arm.drawn), None)
    sentences = effect_sentences(decision)
    is_drawn = decision.arm_by in (None, *ONE_ARM_LEFT) and decision.turn_of is None
    # What left a single arm, or moved a turn, is the main reason; other effects only shift probabilities.
    is_certain = decision.turn_of is not None or (is_drawn and drawn is not None and drawn.probability == 1.0)
    chosen = [*_instead_of_a_draw(decision, draw=draw)]
    of_draw = [*_of_the_draw(arms, drawn=drawn, draw=draw, is_drawn=is_drawn), *policy_sentences(decision)]
    if is_certain:
        ordered = *sentences, *chosen, *of_draw
    else:
        ordered = (*chosen, *of_draw, *sentences) if is_drawn else (*chosen, *sentences, *of_draw)
    reasons = *ordered, *_of_the_caller(decision, known=known)
    learning = learning_of(Ledger(store.database, label=decision.policy))
    if learning is not None:
        reasons += (f"Its policy is now {learning.line}.",)
    return Explanation(
        decision_id=decision.id,
        chosen=choice_words(decision),
        reasons=reasons,
        progress=state_sentence(record, rule=rule, now=time.time() if now is None else now),
        price=None if record.outcome is None else booked_price(record.outcome),
        arms=arms,
        draw=draw,
        record=record,
    )


def amounts_in_words(amounts: Mapping[str, float]) -> dict[str, float]:
    """Amounts of a `Cost` that are not 0, by name in words. A limit counts all turns, but a cost only turns after the
    first, so the two amounts have different names.
    """
    named = {"turns": "later turns"}
    return {
        named.get(name, name.replace("_", " ")): amounts[name] for name in amounts if name != "price" and amounts[name]
    }


def booked_price(outcome: Outcome) -> str | None:
    """By which price the dollars of an outcome were booked; of several calls, the newest. None without dollars."""
    price, made_by = outcome.cost.price, outcome.made_by
    model = made_by.get("generator") if made_by.get("arm") not in arm_parts() else "the model of its part"
    words, row, refused = f"token_prices of {price.get('model', model)}", price.get("row"), price.get("refused")
    if isinstance(row, dict):
        named = {"above": "prompts above {above} tokens", "tier": "the tier {tier}", "hours": "{hours} {zone}"}
        conditions = " and ".join(text for name, text in named.items() if name in row)
        words += f", the row for {conditions.format_map({'zone': 'UTC', **row})}"
    if outcome.cost.assumed_dollars:
        words = "none: the most expensive listed price is assumed"
    elif price.get("by") == "told":
        words = "told by the model's server"
    elif outcome.run_by == "caller" or made_by.get("arm") in OWN_COSTS:
        words = "reported with the answer"
    words += f" (its server told ${refused}, which is implausible and does not count)" if refused else ""
    return words if outcome.cost.charged_dollars else None


def choice_words(decision: Decision) -> str:
    """Who or what chose the arm, in a few words: on pages, in `explain` and in replies."""
    facts, by, failed = decision.facts, decision.arm_by, decision.query.continues.failed
    safe_start, most = SafeStart.of(facts), max(decision.pmf, default=1.0)
    words = {
        "drawn elsewhere, in an imported log": IMPORTED in facts,
        f"it answers in place of {failed.arm if failed else ''}, which failed": failed is not None,
        f"{turn_words(decision)}: nothing was drawn": decision.turn_of is not None,
        "the caller chose it": by == "caller",
        "the kill switch chose it": by == "kill switch",
        "a limit chose it": by == "limit",
        "it stayed on the arm of an earlier turn": by == "task",
        "the only arm on offer": len(decision.arms) == 1,
        "the safe start chose it": safe_start is not None and safe_start.share == 0.0,
        "as probable as any arm": decision.propensity == most and decision.pmf.count(most) > 1,
        "explored: not the most probable arm": decision.explored,
    }
    return next((text for text, holds in words.items() if holds), "the most probable arm")


def _instead_of_a_draw(decision: Decision, *, draw: DrawShown) -> Iterator[str]:
    if draw.made_elsewhere:
        yield f"The decision came with an imported log: {decision.arm} was drawn elsewhere, and cannot be drawn again."
    if decision.turn_of is not None:
        is_kept = MovedTurn.of(decision.facts) is None and decision.arm_by in (None, "task", "calls")
        yield (
            f"{turn_words(decision).capitalize()} belongs to decision {decision.turn_of}"
            f"{' and keeps the arm of the turn before' if is_kept else ''}: nothing was drawn, and its "
            "cost and its feedback count for that decision."
        )
    if (failed := decision.query.continues.failed) is not None:
        yield (
            f"{decision.arm} answers in place of {failed.arm}, which failed ({failed.reason}) before its "
            f"first content; decision {failed.first} has the draw. Nothing was drawn here, and nothing is learned."
        )
    elif decision.arm_by == "caller" and decision.turn_of is None:
        yield f"The caller chose {decision.arm}: nothing was drawn, and nothing is learned from it."


def _of_the_draw(
    arms: Sequence[ArmChance], *, drawn: ArmChance | None, draw: DrawShown, is_drawn: bool
) -> Iterator[str]:
    if drawn is None:
        yield f"The row does not fit together: {draw.fault}."
        return
    if not is_drawn:
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
    if not draw.made_elsewhere and drawn.probability < 1.0:
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


def _of_the_caller(decision: Decision, *, known: Collection[str]) -> Iterator[str]:
    allowed = decision.query.arms
    if allowed is not None and decision.query.arm_by is None and not (known and {*known} <= {*allowed}):
        yield f"The caller or its key allowed only these arms: {', '.join(allowed)}."


def state_sentence(record: DecisionRecord, *, rule: ClosingRule, now: float) -> str:
    """The state of a decision in a sentence. A turn has the state of its decision."""
    sentence, first = _own_state(record, rule=rule, now=now), record.decision.turn_of
    return sentence if first is None else f"As part of decision {first}: {sentence[0].lower()}{sentence[1:]}"


def _own_state(record: DecisionRecord, *, rule: ClosingRule, now: float) -> str:
    if record.state == "learned":
        return f"Learned from feedback, as update {record.learned_seq} of its ledger."
    if record.state == "defaulted":
        return f"It was not rated in time: the default reward was learned, as update {record.learned_seq}."
    if record.state in ("closed", "quarantined"):
        end = "Closed, and nothing was learned of it" if record.state == "closed" else "Quarantined: not learned"
        return f"{end}: {record.reason}."
    decision, ends = record.decision, moment(record.begun_at + rule.wait_s + rule.expire_s)
    if record.open_until is not None and record.open_until > now:
        return f"Waits for the end of its task: at {moment(record.open_until)}, unless a further turn comes."
    judgements = [item for item in record.feedback if item.value is not None]
    if record.reason is not None:
        return f"Waits: {record.reason.removeprefix('waiting for ')}; without one it is closed at {ends}."
    if decision.run_by == "worker" and record.outcome is None:
        return f"Waits for a worker's answer; without one it is closed at {ends}."
    if not judgements:
        awaited = "the outcome and feedback" if record.outcome is None else "feedback"
        return f"Waits for {awaited}; else it is closed at {ends}."
    window = (record.open_until or record.begun_at) + rule.wait_s
    if rule.wait_s > 0:
        return f"Has feedback, and collects more until {moment(window)}; then the learner takes it."
    return "Has all it needs: the learner takes it next."
