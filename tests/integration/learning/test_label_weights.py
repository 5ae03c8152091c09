"""What a label out of the queue counts as when it is learned."""

import pytest
from sqlalchemy import update

from ragbandit.router.offline.logs import write_rows
from ragbandit.router.offline.logs.ledger_transfer import ledger_rows
from ragbandit.router.offline.replay import open_log, replay
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.sql.tables import decisions
from ragbandit.shared.types import LabelRequest


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
    facts = {**decision.facts, LabelRequest.key: {"asked": asked, "q": q, "share": 0.1}}
    world.write(update(decisions).where(decisions.c.id == decision.id).values(facts=canonical(facts)))
    world.outcome(decision)
    world.feedback(decision, rating=True, source=source)
    world.learn()
    [row] = world.updates()
    assert row["sample_weight"] == pytest.approx(rows)
    assert row["judged_by"] == ("label" if source == "label" else "human")
    assert world.router.verify(deep=True).ok


def test_replay_takes_the_uniform_part(make_world, tmp_path):
    """Labels that were chosen for their use are left out of replay, of the store and of a file, and of no other row."""
    world = make_world()
    for number in range(40):
        decision = world.route()
        queue = {"asked": number % 4 < 3, "q": 0.5, "share": 0.1, "uniform": number % 4 == 0}
        facts = {**decision.facts, LabelRequest.key: queue}
        world.write(update(decisions).where(decisions.c.id == decision.id).values(facts=canonical(facts)))
        world.outcome(decision)
        world.feedback(decision, rating=number % 3 == 0, source="human" if number % 4 == 1 else "label")
    world.learn()
    kept = [number for number in range(40) if number % 4 != 2]
    assert replay(open_log(config=world.settings), candidates=["uniform"]).rows == len(kept)
    in_memory = open_log(config=world.settings).read()
    assert (len(in_memory.log), in_memory.undrawn) == (len(kept), 10)
    for kind in ("jsonl", "parquet"):
        file = tmp_path / f"log.{kind}"
        write_rows(file, ledger_rows(world.ledger))
        assert replay(open_log(file, config=world.settings), candidates=["uniform"]).rows == len(kept)
