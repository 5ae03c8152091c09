"""What a label out of the queue counts as when it is learned."""

import pytest
from sqlalchemy import update

from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.types import LABEL_QUEUE


@pytest.mark.parametrize(
    ("source", "asked", "q", "rows"),
    [
        ("label", True, 0.5, 0.2),
        ("label", True, 0.05, 2.0),
        ("label", True, 0.001, 5.0),
        ("label", False, 0.05, 1.0),
        ("human", True, 0.05, 1.0),
    ],
)
def test_a_label_counts_by_its_probability(make_world, source, asked, q, rows):
    """Share / q rows, 5 at most; one that the queue did not ask for, and a user's rating, count as one."""
    world = make_world()
    decision = world.route()
    facts = {**decision.facts, LABEL_QUEUE: {"asked": asked, "q": q, "share": 0.1}}
    world.write(update(decisions).where(decisions.c.id == decision.id).values(facts=canonical(facts)))
    world.outcome(decision)
    world.feedback(decision, rating=True, source=source)
    world.learn()
    [row] = world.updates()
    assert row["sample_weight"] == pytest.approx(rows)
    assert row["judged_by"] == ("label" if source == "label" else "human")
    assert world.router.verify(deep=True).ok
