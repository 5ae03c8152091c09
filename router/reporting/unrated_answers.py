"""Unrated answers of the arm that a report compares with: people may label them for a verdict.

A report treats the rated answers of an arm as a random sample of all its answers. So answers are labelled in a random
order, which follows from the store's secret and their ids: an answer's chance to be labelled depends neither on the
answer nor on its question. Only answers whose label the ledger would learn are taken. Rows that no comparison reads are
left out. So are answers for which the label queue or the judge's sample has already drawn, with another probability.
"""

from operator import itemgetter

from sqlalchemy import Text, cast, exists, null, select

from ragbandit.router.reporting.left_out import reason_to_leave_out
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.storage.access.shared_secrets import DRAWS, draw_number, shared_secret
from ragbandit.router.storage.jobs.scores import queue_for_labels
from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, QueriedFacts
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import WriteTransaction
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import decisions, jobs, outcomes, waiting
from ragbandit.shared.types import DecisionId, JudgeRequest, LabelRequest


def unrated_answers(connection: Connection, scope: ReportScope, *, arm: str) -> dict[DecisionId, bool]:
    """Answers of the arm that may be labelled -> whether they are in the label queue."""
    is_queued = exists().where(jobs.c.kind == "label", jobs.c.decision_id == decisions.c.id)
    query = select(
        *decisions.c["id", "arms", "facts"],
        *FACT_COLUMNS,
        outcomes.c.cost,
        scope.is_open.label("is_open"),
        cast(null(), Text).label("source"),
        is_queued.label("is_queued"),
    ).where(
        scope.condition,
        decisions.c.arm == arm,
        decisions.c.text != "",
        waiting.c.policy == scope.label,
        waiting.c.decision_id == decisions.c.id,
        ~waiting.c.has_feedback,
        outcomes.c.decision_id == decisions.c.id,
        outcomes.c.answer != "",
    )
    unrated = dict[DecisionId, bool]()
    for row in connection.execute(query).mappings():
        facts = object_or_empty(row["facts"])
        is_drawn = LabelRequest.key in facts or JudgeRequest.key in facts
        reason = reason_to_leave_out(row, facts=QueriedFacts.of_row(row), arms=[arm, arm])
        if (row["is_queued"] or not is_drawn) and reason is None:
            unrated[DecisionId(row["id"])] = bool(row["is_queued"])
    return unrated


def queue_unrated(database: Database, scope: ReportScope, *, arm: str, count: int, now: float) -> int:
    """Put unrated answers of the arm on the page Labels until `count` wait there, or all if there are fewer.

    Returns how many of them wait there now. now: seconds since 1970. Raises StoreError.
    """
    secret = shared_secret(database, name=DRAWS, now=now)
    with WriteTransaction(database) as (connection, tally):
        known = unrated_answers(connection, scope, arm=arm)
        queued = sum(known.values())
        others = sorted(
            (draw_number("rate", key, secret=secret), key) for key, is_queued in known.items() if not is_queued
        )
        chosen = list(map(itemgetter(1), others[: max(count - queued, 0)]))
        return queued + queue_for_labels(connection, chosen, now=now, tally=tally)
