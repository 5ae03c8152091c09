"""The closing rule: its conditions on rows and its tests of one decision."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import example, given, settings, strategies as st
from sqlalchemy import Engine, create_engine, insert, select
from sqlalchemy.pool import StaticPool

from ragbandit.router.serving.checks.reports import make_outcome
from ragbandit.router.storage.ledgers.closing import ClosingRule
from ragbandit.router.storage.rows.conversion import decision_row, feedback_row
from ragbandit.router.storage.sql.counters import MISSING_OUTCOME, UNANSWERED, is_missing_outcome
from ragbandit.router.storage.sql.tables import decisions, feedback, jobs, metadata, waiting
from ragbandit.shared.types import DecisionId, Feedback, JoinedDecision
from tests.support.examples import made_decision

#: times lie on a grid, so that decisions made, feedback received and windows over at one moment are common
moments = st.integers(0, 12).map(float)

DECISION = made_decision("d", made_at=0.0)
JOB = {"kind": "answer", "decision_id": "turn", "turn": 1, "made_at": 0.0, "due_at": 0.0, "tries": 0, "facts": "{}"}
OUTCOME = make_outcome(decision_id="d", now=0.0, status="answered", answer="x", steps=1.0)


@st.composite
def joined_decisions(draw):
    """A decision at some time, by either side, with or without outcome and unanswered turn, with up to three judgements
    of any time.
    """
    made_at = draw(moments)
    judged = draw(
        st.lists(st.tuples(st.sampled_from(["label", "rating", "reward", "event", "null"]), moments), max_size=3)
    )
    return JoinedDecision(
        decision=replace(DECISION, run_by=draw(st.sampled_from(["caller", "worker"])), made_at=made_at),
        outcome=draw(st.sampled_from([None, OUTCOME])),
        has_open_turn=draw(st.booleans()),
        feedback=tuple(
            Feedback(
                id=f"f{number}",
                decision_id="d",
                kind="event" if kind == "null" else kind,
                value={"label": ("x",), "null": None}.get(kind, 1.0),
                source="human",
                received_at=made_at + later,
            )
            for number, (kind, later) in enumerate(sorted(judged, key=lambda one: one[1]))
        ),
    )


@cache
def engine() -> Engine:
    made = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(made, tables=[waiting, feedback, decisions, jobs])
    return made


def row_of(joined: JoinedDecision) -> dict[str, object]:
    """The row of `waiting` as the decision store keeps it."""
    return {
        "decision_id": "d",
        "policy": "main",
        "decided_at": joined.decision.made_at,
        "run_by": joined.decision.run_by,
        "has_outcome": joined.outcome is not None,
        "has_feedback": any(item.value is not None for item in joined.feedback),
        "has_reward": any(item.kind == "reward" for item in joined.feedback),
    }


def holds(joined: JoinedDecision, *conditions) -> list[bool]:
    """Whether SQL finds the decision by each of these conditions."""
    with engine().connect() as connection:
        connection.execute(insert(waiting), [row_of(joined)])
        if joined.feedback:
            connection.execute(insert(feedback), [feedback_row(item) for item in joined.feedback])
        turn = replace(made_decision("turn", made_at=0.0), turn_of=DecisionId("d"))
        connection.execute(insert(decisions), [decision_row(turn)])
        if joined.has_open_turn:
            connection.execute(insert(jobs), [JOB])
        found = [connection.execute(select(waiting).where(one)).first() is not None for one in conditions]
        connection.rollback()
    return found


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    joined=joined_decisions(),
    wait_s=st.sampled_from([0.0, 3.0]),
    expire_s=st.sampled_from([2.0, 6.0]),
    now=st.integers(0, 24).map(float),
)
@example(joined=JoinedDecision(decision=DECISION, outcome=None, feedback=()), wait_s=3.0, expire_s=6.0, now=3.0)
@example(joined=JoinedDecision(decision=DECISION, outcome=None, feedback=()), wait_s=3.0, expire_s=6.0, now=9.0)
def test_rows_and_values_agree(joined, wait_s, expire_s, now):
    """SQL finds a decision exactly where the test of its value lets it be closed."""
    rule = ClosingRule(wait_s=wait_s, expire_s=expire_s)
    expired, *ranges = holds(joined, rule.expired_rows(now=now), *rule.closable_ranges(now=now))
    assert sum(ranges) <= 1
    assert expired == rule.is_expired(joined, now=now)
    assert (any(ranges) or expired) == rule.is_closable(joined, now=now)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(joined=joined_decisions())
def test_missing_outcome_agrees(joined):
    """SQL finds a decision that misses its outcome exactly where the test of its row does; no such one is usable."""
    missing, unanswered = holds(joined, MISSING_OUTCOME, UNANSWERED)
    assert missing == is_missing_outcome(row_of(joined))
    if missing or unanswered:
        assert ClosingRule(wait_s=0.0, expire_s=1.0).usable_feedback(joined) == ()


@pytest.mark.parametrize("wait_s", [0.0, 3.0])
def test_times_do_not_round_apart(wait_s):
    """At the exact end of a period both forms agree, also if the sum of two floats is rounded."""
    rule = ClosingRule(wait_s=wait_s + 0.1, expire_s=0.2)
    joined = JoinedDecision(decision=replace(DECISION, made_at=1.7e9 + 0.3), outcome=None, feedback=())
    for now in (1.7e9 + 0.6, 1.7e9 + 0.3 + wait_s + 0.1 + 0.2, 1.7e9 + 0.3 + (wait_s + 0.1 + 0.2)):
        (expired,) = holds(joined, rule.expired_rows(now=now))
        assert expired == rule.is_expired(joined, now=now)


def test_the_next_decisions_are_ranges_of_an_index():
    """What is learned next is found by the flags in the index, not by walking over all that waits."""
    with engine().connect() as connection:
        for part in ClosingRule(wait_s=0.0, expire_s=1.0).closable_ranges(now=9.0):
            query = select(waiting.c.decision_id).where(waiting.c.policy == "main", part)
            asked = (
                query.order_by(waiting.c.decided_at)
                .limit(9)
                .compile(connection, compile_kwargs={"literal_binds": True})
            )
            plan, *more = (row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked}"))
            assert "waiting_rated (policy=? AND has_outcome=? AND has_reward=?)" in plan
            # Nothing is sorted, and indexes find the turns of each row.
            assert all(step.startswith(("SEARCH ", "CORRELATED ")) for step in more), more
