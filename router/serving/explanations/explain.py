"""Explain one decision: from its rows to a read model."""

import re
from collections.abc import Iterator
from typing import Final

from sqlalchemy import select

from ragbandit.router.learning.monitoring.diagnosis import read_diagnosis
from ragbandit.router.serving.checks.fields import checked_id
from ragbandit.router.serving.explanations.chances import chances_of, draw_of
from ragbandit.router.serving.explanations.progress import progress_of
from ragbandit.router.serving.explanations.reasons import OWN_FACTS, excluded_of, reasons_of
from ragbandit.router.serving.explanations.values import (
    CostTerm,
    Explanation,
    PassageShown,
    SnapshotShown,
    StepShown,
    TextState,
)
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.rows.held_rows import states_of
from ragbandit.router.storage.sql.closing import ClosingRule
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import policies, snapshots
from ragbandit.shared.types import (
    ERASED,
    Branch,
    CallFailed,
    Decision,
    DecisionId,
    Generated,
    Outcome,
    Retrieved,
    Reward,
    Round,
    TraceEvent,
)

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
    held = _held(store, key)
    return Explanation(
        decision_id=decision.id,
        texts=_text_state(decision),
        reasons=(*reasons_of(decision, arms=arms, draw=draw), *_learned(store.database, decision)),
        progress=progress_of(record, rule=rule, held=held),
        arms=arms,
        excluded=excluded_of(decision),
        draw=draw,
        snapshot=_snapshot(store.database, decision),
        steps=() if record.outcome is None else tuple(_step(event, record.outcome) for event in record.outcome.trace),
        bill=_bill(record.outcome, record.reward),
        held=tuple(sorted(held)),
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


def _held(store: DecisionStore, key: DecisionId) -> frozenset[str]:
    with store.database.read() as connection:
        states = states_of(connection, [key], label=store.label)
    return frozenset(feedback_id for feedback_id, released in states.items() if not released)


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
