"""The benchmark of tasks: prices with a cache, both units, and the claims of reports and replays."""

import numpy as np
import pytest

from benchmarks.tasks.claims import claims
from benchmarks.tasks.passes import always, played
from benchmarks.tasks.served import agreement
from benchmarks.tasks.worlds import Task, made_world, questions


@pytest.fixture(scope="module")
def known():
    return questions("hashing")


def test_dollars_with_a_cache():
    """A turn reads what the same arm has read in the last five minutes, writes the rest to the cache, and pays both."""
    numbers = {"kind": np.zeros(3), "question": np.zeros(3), "written": np.array([0, 0, 0])}
    task = Task(
        read=np.array([1000, 1500, 2000]), at=np.array([0.0, 100.0, 350.0]), luck=0.5, is_reported=True, **numbers
    )
    assert task.dollars([0, 0, 0]) * 1e6 == pytest.approx([1250.0, 100.0 + 625.0, 150.0 + 625.0])
    # The large arm has no cached prompt, and that of the small arm is too old when it answers again.
    assert task.dollars([0, 1, 0]) * 1e6 == pytest.approx([1250.0, 9375.0, 2500.0])


def test_both_units_serve_the_same_tasks(known):
    """With the unit `task` no turn changes the arm, and a decision costs as much as its task."""
    world = made_world(0, tasks=60, known=known)
    task, turn = (played(world, unit=unit, known=known) for unit in ("task", "turn"))
    assert (len(task.rows.arm), len(turn.rows.arm)) == (60, sum(len(one.kind) for one in world.tasks))
    assert task.rows.dollars == pytest.approx(task.dollars)
    assert (task.changes.max(), turn.changes.max() > 0.0) == (0.0, True)
    dollars, chance = always(world)
    assert task.dollars == pytest.approx(dollars[np.arange(60), task.rows.arm])
    assert task.chance == pytest.approx(chance[np.arange(60), task.rows.arm])
    assert turn.rows.dollars.sum() == pytest.approx(turn.dollars.sum())
    assert np.array_equal(task.rows.reported, [one.is_reported for one in world.tasks])


def test_a_claim_is_compared_with_the_truth(known):
    """Reports and replays compare a pass by task with each arm, and no verdict is false."""
    world = made_world(1, tasks=250, known=known)
    found = claims(played(world, unit="task", known=known))
    assert len(found) == 4
    assert not any(claim.is_false or claim.is_missed for claim in found.values())


def test_a_service_does_what_a_pass_does(known):
    """A service with the unit `task` draws the same arms, and a report reads the same costs and outcomes."""
    world = made_world(0, tasks=6, known=known)
    same = agreement(played(world, unit="task", known=known), tasks=6, encoder="hashing", known=known)
    assert (same.tasks, same.same_arm, same.same_outcome) == (6, 6, 6)
    assert same.pmf < 1e-9
    assert same.dollars < 1e-9
