"""Decisions of a store with what people and the judge said of each, also those that no ledger has learned.

The rows are for a replay that completes rewards (`replay --judged`): people's feedback is the reward, the judge's
stands beside it, and a decision with neither is a row without a reward.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import exists, or_, select

from ragbandit.router.config.settings import RewardSettings, Settings
from ragbandit.router.learning.reward import cost_of, explicit_reward
from ragbandit.router.learning.sources import class_of, most_trusted, standing
from ragbandit.router.offline.logs.records import (
    FAILED,
    JUDGE_PROBABILITY,
    JUDGE_SCORE,
    MISSING,
    Logged,
)
from ragbandit.router.storage.rows.conversion import decision_value, feedback_value
from ragbandit.router.storage.rows.outcome_rows import outcome_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, feedback, outcomes
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Decision, Feedback, Json, Outcome, Reward

#: decisions read at once
PAGE = 500
#: keys of a judge's facts that tell the chance with which the decision was sampled
_CHANCES = ("probability", "share")


def rated_rows(database: Database, *, settings: Settings, since: float | None = None) -> Iterator[Logged]:
    """The decisions that have an outcome or feedback, by id; since: seconds since the epoch, older ones are left out.

    A failed answer that nobody rated is worth 0, and known to be.
    """
    known = or_(
        exists().where(outcomes.c.decision_id == decisions.c.id),
        exists().where(feedback.c.decision_id == decisions.c.id),
    )
    query = select(decisions).where(known).order_by(decisions.c.id).limit(PAGE)
    if since is not None:
        query = query.where(decisions.c.made_at >= since)
    last, seq = "", 0
    while True:
        with database.read() as connection:
            page = connection.execute(query.where(decisions.c.id > last)).mappings().all()
            ids = [row["id"] for row in page]
            ended = select(outcomes).where(outcomes.c.decision_id.in_(ids))
            outcome_of = {row["decision_id"]: row for row in connection.execute(ended).mappings()}
            given = (
                select(feedback).where(feedback.c.decision_id.in_(ids)).order_by(feedback.c.received_at, feedback.c.id)
            )
            notes: dict[str, list[Any]] = {}
            for row in connection.execute(given).mappings():
                notes.setdefault(row["decision_id"], []).append(row)
        for row in page:
            outcome = outcome_of.get(row["id"])
            logged = _row(
                decision_value(row),
                outcome=None if outcome is None else outcome_value(outcome),
                notes=[feedback_value(note) for note in notes.get(row["id"], [])],
                settings=settings,
                seq=seq + 1,
            )
            if logged is not None:
                seq += 1
                yield logged
        if len(page) < PAGE:
            return
        last = page[-1]["id"]


def _row(
    decision: Decision, *, outcome: Outcome | None, notes: Sequence[Feedback], settings: Settings, seq: int
) -> Logged | None:
    """None for a decision of which nobody knows what it cost, or whose feedback cannot be read as a reward.

    And for one whose arm the caller chose: it is no draw of a policy.
    """
    if decision.query.forced:
        return None
    people = [note for note in standing(notes) if class_of(note) in ("label", "human")]
    if outcome is None and not any(note.kind == "reward" for note in people):
        return None
    extra: dict[str, Json] = {}
    for note in notes:  # of several scores the last
        if note.source == "judge" and isinstance(note.value, int | float):
            extra[JUDGE_SCORE] = float(note.value)
            chance = next((note.facts[key] for key in _CHANCES if key in note.facts), None)
            if isinstance(chance, int | float) and not isinstance(chance, bool) and 0.0 < chance <= 1.0:
                extra[JUDGE_PROBABILITY] = float(chance)
    try:
        reward = _reward(people, outcome=outcome, settings=settings, given=settings.reward.at(decision.cost_weight))
    except InvalidInput:
        return None
    return Logged(decision=decision, reward=reward, seq=seq, extra=extra)


def _reward(
    people: Sequence[Feedback], *, outcome: Outcome | None, settings: Settings, given: RewardSettings
) -> Reward:
    """given: the reward settings at the decision's own weight of cost."""
    if people:
        judged_by, used = most_trusted(people)
        reward = explicit_reward(used, outcome=outcome, settings=given, how=settings.learning.aggregate)
        return replace(reward, judged_by=judged_by)
    assert outcome is not None
    cost = cost_of(outcome, terms=given.cost)
    value = min(max(0.0 - given.weight * cost, given.minimum), given.maximum)
    return Reward(
        value=value,
        quality=0.0,
        cost=cost,
        weight=given.weight,
        minimum=given.minimum,
        maximum=given.maximum,
        terms=dict(given.cost),
        preset=FAILED if outcome.status == "failed" else MISSING,
        source="explicit",
    )
