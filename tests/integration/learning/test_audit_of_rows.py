"""A deep audit compares outcomes, feedback, learned rows and dollars with each other."""

import shutil
import time
from contextlib import closing

import pytest
from sqlalchemy import text

from ragbandit.router.storage.paired_answers import store_answer
from tests.conftest import World
from tests.support.examples import made_paired_answer

#: sums of dollars are kept for 400 days
NOW = time.time()


@pytest.fixture(scope="module")
def learned(module_settings):
    """The folder of a world with six learned decisions: labels and ratings, each with an outcome."""
    with closing(World(module_settings(), now=NOW)) as world:
        for number in range(6):
            decision = world.route()
            world.outcome(decision, cost={"dollars": 0.5, "llm_calls": 1})
            world.feedback(decision, **({"label": ["Paris"]} if number % 2 else {"rating": 0.75}))
            assert store_answer(world.database, made_paired_answer(decision, arm=decision.arm, is_stored=True))
        assert world.learn() == 6
    return world.settings.data_dir


@pytest.fixture
def world(make_world, learned, tmp_path):
    shutil.copytree(learned, tmp_path / "data")
    return make_world(now=NOW + 2)


ANY = "decision_id = (SELECT decision_id FROM updates WHERE seq = 3)"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DELETE FROM outcomes", "its outcome is missing"),
        (f"DELETE FROM outcomes WHERE {ANY}", "its outcome is missing"),
        ("UPDATE feedback SET value = '0.25'", "is not what was stored"),
        ("UPDATE outcomes SET cost = '[1', made_by = '3'", "cannot be read"),
        (f"UPDATE outcomes SET answer = 'no' WHERE {ANY}", "is not what was stored"),
        ("UPDATE outcomes SET cost = '{\"dollars\": 900.0}'", "are counted, its outcomes cost"),
        (f"UPDATE outcomes SET steps = 9 WHERE {ANY}", "does not follow from the outcome"),
        ("UPDATE updates SET feedback_ids = '[\"x\"]' WHERE seq = 3", "update 3"),
        ("DELETE FROM counters WHERE label LIKE 'spent:%'", "0 dollars are counted"),
        ("UPDATE updates SET quality = 0.5, value = 0.5 - weight * cost WHERE seq = 3", "the quality 0.5"),
        ("UPDATE paired_answers SET quality = 1.5", "has the quality 1.5"),
        ("UPDATE paired_answers SET arm = 'other'", "the arm was not offered"),
    ],
    ids=[
        *("outcomes", "outcome", "ratings", "broken", "answer", "dollars", "steps", "ids", "spent", "quality"),
        *("score", "paired arm"),
    ],
)
def test_rows_that_were_changed(world, statement, words):
    """A deep audit sees changed outcomes, feedback, rewards and dollars; a store that nobody touched has none."""
    assert world.router.verify(deep=True).ok
    world.write(text(statement))
    verdict = world.router.verify(deep=True)
    assert (verdict.ok, verdict.row_mismatches > 0) == (False, True)
    assert words in "\n".join(verdict.notes)
