"""Vote limits: how many judgements a decision takes of one rater, and of how many raters, where tokens bring them.

A token is stateless, so what bounds its use is the feedback that is stored: it is counted in the transaction that
writes, which holds for all processes and after a restart.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from ragbandit.router.storage.sql.tables import decisions, feedback
from ragbandit.shared.errors import Conflict, Forbidden, RagBanditError
from ragbandit.shared.types import DecisionId, Feedback, FeedbackId


@dataclass(frozen=True, kw_only=True, slots=True)
class VoteLimit:
    """What a decision takes at most."""

    #: judgements of one rater
    votes: int
    #: different raters; those who have judged it before may judge again
    raters: int


def lock_votes(connection: Connection, ids: set[DecisionId]) -> None:
    """Let no other transaction that calls this judge these decisions before the end of this one.

    To be called before rows of `waiting` are locked, as erasure does: two writers never wait for each other in a
    circle. SQLite has one writer at a time.
    """
    if ids:
        # Not FOR UPDATE, which would wait for feedback that has no limit too.
        locked = select(decisions.c.id).where(decisions.c.id.in_(ids)).order_by(decisions.c.id)
        connection.execute(locked.with_for_update(key_share=True)).all()


def refused_votes(
    connection: Connection, group: Sequence[Feedback], *, limits: Mapping[FeedbackId, VoteLimit]
) -> dict[FeedbackId, RagBanditError]:
    """What of this new feedback is beyond its limit, and why; in the order of the group, as if all the rest was stored.

    limits: of feedback by its id; what is not among them has none. Exact while the decisions are locked (lock_votes).
    """
    limited = [item for item in group if item.id in limits]
    if not limited:
        return {}
    ids, names = {item.decision_id for item in limited}, {item.rater for item in limited if item.rater is not None}
    here = feedback.c.decision_id.in_(ids)
    different = select(feedback.c.decision_id, func.count(feedback.c.rater.distinct())).where(here)
    raters = Counter({row[0]: int(row[1]) for row in connection.execute(different.group_by(feedback.c.decision_id))})
    by_rater = feedback.c.decision_id, feedback.c.rater
    stored = select(*by_rater, func.count()).where(here, feedback.c.rater.in_(names)).group_by(*by_rater)
    votes = Counter({(row[0], row[1]): int(row[2]) for row in connection.execute(stored)})
    refused: dict[FeedbackId, RagBanditError] = {}
    for item in limited:
        limit, vote = limits[item.id], (item.decision_id, item.rater)
        if votes[vote] >= limit.votes:
            message = f"this token has been used {votes[vote]} times"
            refused[item.id] = Forbidden(message, field="token", remedy="the last judgement counts")
        elif not votes[vote] and raters[item.decision_id] >= limit.raters:
            refused[item.id] = Conflict(
                f"{raters[item.decision_id]} raters have judged this decision, and a token adds no further one",
                field="token",
                remedy="raise server.browser_feedback_raters if so many different people are shown one answer",
            )
        else:
            raters[item.decision_id] += not votes[vote]
            votes[vote] += 1
    return refused
