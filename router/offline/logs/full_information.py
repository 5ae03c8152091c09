"""Rows of a full-information table as rows of a log, so that a policy starts warm.

A question of a table has the outcome of each of K arms: K rows, one per arm, each logged with the probability 1 / K of
a uniform draw. That is what a uniform logger writes in the mean, without its chance: the propensities are exact, an
importance-weighted sum over the K rows is K times the sum over the arms, and no arm counts more than another. The K
rows are not independent: intervals from them as from K questions are too narrow.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from ragbandit.router.config.settings import Settings
from ragbandit.router.learning.reward import explicit_reward
from ragbandit.router.offline.logs.records import Logged
from ragbandit.router.policies.draw import seed_of
from ragbandit.router.serving.checks.reports import made_feedback, made_outcome
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.shared.types import IMPORTED, ArmName, Decision, DecisionId, Features, PolicyLabel, Query, TableRow

#: in the facts of the decisions, under IMPORTED
ORIGIN = "table"


def table_query(row: TableRow) -> Query:
    """What a policy is told of a row: question and context, no id and no data set."""
    return Query(text=row.question, context=row.context)


def arm_rows(
    row: TableRow,
    *,
    arms: Sequence[ArmName],
    features: Features | None,
    encoder_hash: str,
    settings: Settings,
    now: float,
    first: int = 1,
    occurrence: int = 0,
) -> list[Logged]:
    """The K rows of a table's row, in the order of the arms.

    first: place of the first of them in the log, from 1. occurrence: how many rows before this one ask the same: the
    ids follow from question, context, arm and this number, so the same table gives the same ids in any order of files.
    """
    share = 1.0 / len(arms)
    query = table_query(row)
    rows = []
    for number, arm in enumerate(arms):
        key = _id(query, arm=arm, occurrence=occurrence)
        decision = Decision(
            id=key,
            query=replace(query, id=key),
            arm=arm,
            arms=tuple(arms),
            pmf=(share,) * len(arms),
            propensity=share,
            scores=None,
            policy=PolicyLabel(settings.policy.label),
            version="",
            encoder_hash=encoder_hash,
            seed=seed_of(key),
            floor=0.0,
            explored=False,
            fault=None,
            facts={IMPORTED: ORIGIN},
            run_by="caller",
            features=features,
            made_at=now,
        )
        outcome = made_outcome(decision_id=key, now=now, status="answered", steps=row.steps[arm])
        rating = made_feedback(
            decision_id=key, settings=settings, now=now, feedback_id=key, rating=row.correct[arm], source="code"
        )
        reward = explicit_reward((rating,), outcome=outcome, settings=settings.reward, how=settings.learning.aggregate)
        rows.append(Logged(decision=decision, reward=reward, seq=first + number))
    return rows


def _id(query: Query, *, arm: ArmName, occurrence: int) -> DecisionId:
    body = canonical([query.text, dict(query.context), arm, occurrence])
    return DecisionId(f"labelled-{hashlib.sha256(body.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}")
