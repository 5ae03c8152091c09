"""Calibration in the ledger, on SQLite and PostgreSQL: pairs in time and late, replay, verify, erasure."""

import numpy as np
import pytest
from sqlalchemy import select, update

from ragbandit.router.erasure import Selection, erase
from ragbandit.router.storage.rows.calibration_rows import read_pairs
from ragbandit.router.storage.sql.tables import calibration_due, calibration_pairs, updates
from tests.conftest import World

WINDOW = {"wait_s": 60.0, "aggregate": "mean"}


def pairs_of(world, label="main"):
    return read_pairs(world.router.database, label=label)


def audited(world):
    return world.router.verify(deep=True)


def ask(world: World, number: int, *, person: bool, judge: bool = True) -> None:
    """A question with a score, and maybe a person's word; the judge favours one arm."""
    decision = world.route()
    world.outcome(decision)
    rng = np.random.default_rng(number)
    quality = float(rng.random() < 0.5)
    score = 0.5 + 0.2 * (quality - 0.5) + 0.1 * rng.standard_normal() + 0.15 * (decision.arm == "no_retrieval")
    if judge:
        said = {"rating": float(np.clip(score, 0, 1)), "source": "judge", "rater": "a-model"}
        world.feedback(decision, feedback_id=f"j-{number}", **said)
    if person:
        world.feedback(decision, feedback_id=f"h-{number}", rating=quality)


def test_scores_are_calibrated_from_fifty_pairs_on(make_world, database_url):
    """Before, the score with the configured weight; then its worth, the score beside it; verify makes it again."""
    world = make_world(database_url=database_url, learning=WINDOW)
    for number in range(40):
        ask(world, number, person=number >= 5)
    world.now += 100
    world.learn()
    assert len(pairs_of(world)) == 35
    assert {row["raw_quality"] for row in world.updates()} == {None}
    assert {row["sample_weight"] for row in world.updates()} == {1.0, 0.3}
    for number in range(40, 70):
        ask(world, number, person=number < 60)
    world.now += 100
    world.learn()
    scored = [row for row in world.updates() if row["raw_quality"] is not None]
    assert len(pairs_of(world)) == 55
    assert len(scored) == 10
    assert all(0.0 <= row["quality"] <= 1.0 and row["judged_by"] == "judge" for row in scored)
    assert audited(world).ok
    with world.router.database.write() as connection:
        here = updates.c.seq == scored[3]["seq"]
        connection.execute(update(updates).where(here).values(sample_weight=updates.c.sample_weight + 0.5))
    found = audited(world)
    assert found.ledger_mismatches == 1
    assert any("by the pairs before it" in note for note in found.notes)


def test_batches_and_restarts_do_not_matter(make_world, tmp_path):
    """One learner in one batch, or one that starts anew after every few decisions: the same rows, bit for bit."""
    rows = []
    for batch, step in ((5000, 1000), (3, 17)):
        world = make_world(data_dir=str(tmp_path / f"b{batch}"), learning={"batch": batch, **WINDOW})
        for number in range(80):
            decision = world.route()
            world.outcome(decision)
            rng = np.random.default_rng(number)
            world.feedback(decision, feedback_id=f"j-{number}", rating=float(rng.random()), source="judge")
            if number % 4:
                world.feedback(decision, feedback_id=f"h-{number}", rating=float(rng.random() < 0.5))
            if number % step == step - 1:
                world.now += 100
                world.learn()
        world.now += 100
        world.learn()
        assert audited(world).ok
        rows.append([(row["raw_quality"], row["judged_by"]) for row in world.updates()])
    assert [row[1] for row in rows[0]] == [row[1] for row in rows[1]]
    assert [row[0] for row in rows[0]] == [row[0] for row in rows[1]]


@pytest.mark.parametrize("first", ["judge", "human"])
def test_late_judgements_make_pairs(make_world, database_url, first):
    """With no window the second judgement is late; the pair is there all the same, in either order, and once."""
    world = make_world(database_url=database_url)
    decision = world.route()
    world.outcome(decision)
    said = {"judge": {"rating": 0.75, "source": "judge"}, "human": {"rating": 0.25}}
    world.feedback(decision, **said.pop(first))
    assert world.learn() == 1
    assert pairs_of(world) == []
    (second,) = said.values()
    assert world.feedback(decision, **second).late
    world.learn()
    world.feedback(decision, rating=1.0)
    world.learn()
    (pair,) = pairs_of(world)
    assert (pair.number, pair.decision_id, pair.arm) == (1, decision.id, decision.arm)
    assert (pair.score, pair.quality, pair.after_seq) == (0.75, 0.25, 1)
    with world.router.database.read() as connection:
        assert not connection.execute(select(calibration_due)).all()


def test_feedback_between_window_and_closing_makes_a_pair(make_world, database_url):
    """A score that comes after the window, before the learner has looked, is not learned and is not lost."""
    world = make_world(database_url=database_url, learning=WINDOW)
    decision = world.route()
    world.outcome(decision)
    world.feedback(decision, rating=0.5)
    world.now += 100
    world.feedback(decision, rating=0.75, source="judge")
    assert world.learn() == 1
    world.learn()
    assert [(pair.score, pair.quality) for pair in pairs_of(world)] == [(0.75, 0.5)]


def test_a_new_label_finds_its_own_pairs(make_world):
    """Every ledger calibrates by its own order: a new one has as many pairs, and passes verify."""
    world = make_world(learning=WINDOW)
    for number in range(70):
        ask(world, number, person=number % 4 != 0)
    world.now += 100
    world.learn()
    other = make_world(learning=WINDOW, policy={"label": "other"}, now=world.now)
    while other.learn():
        pass
    assert len(pairs_of(other, "other")) == len(pairs_of(world)) == 52
    assert audited(other).ok


def test_erased_labels_make_no_pairs(make_world):
    """What waited to become a pair is forgotten with its texts; pairs that are there stay."""
    world = make_world()
    decision = world.route()
    world.outcome(decision, answer="Bram Stoker")
    world.feedback(decision, rating=0.75, source="judge")
    world.learn()
    world.feedback(decision, label=["Bram Stoker"])
    erase(world.router.database, Selection(decision=decision.id), features=False, now=world.now)
    world.learn()
    assert pairs_of(world) == []
    assert audited(world).ok


def test_without_calibration_scores_stay_as_they_are(make_world):
    """`learning.calibrate: false` goes on with the configured weight; the pairs are kept for later."""
    world = make_world(learning={"calibrate": False, **WINDOW})
    for number in range(60):
        ask(world, number, person=number < 55)
    world.now += 100
    world.learn()
    assert len(pairs_of(world)) == 55
    assert {row["raw_quality"] for row in world.updates()} == {None}
    assert audited(world).ok
    with world.router.database.read() as connection:
        assert connection.execute(select(calibration_pairs.c.after_seq)).scalars().all() == list(range(1, 56))
