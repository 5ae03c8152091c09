"""Which steps of the core act when, and what the draw itself does."""

import pytest

from ragbandit.router.serving.deciding import steps
from ragbandit.router.serving.deciding.steps.step import Step
from ragbandit.router.serving.explanations.shares import share_sentences
from ragbandit.shared.types import HoldbackShare, SafeStart
from tests.support.examples import made_decision


def test_the_table_of_steps_names_who_acts():
    """The table of methods at the list of steps names, for each method, the steps that override it, in their order."""
    rows = [line.split(maxsplit=1) for line in steps.__doc__.splitlines() if line.startswith("    ")]
    for method, names in rows:
        acting = [kind.__name__ for kind in steps.STEPS if getattr(kind, method) is not getattr(Step, method)]
        assert names.split(", ") == (acting[::-1] if method == "after" else acting)
    assert [method for method, _ in rows] == ["check", "before", "after", "note_committed"]


@pytest.mark.parametrize("key", [SafeStart.key, HoldbackShare.key])
@pytest.mark.parametrize("damaged", [None, 1, "x", [], {}, {"arm": "a"}, {"share": "x", "arm": 1}])
def test_damaged_shares_are_explained(key, damaged):
    """Damaged facts of a safe start or a holdback give sentences or none, and raise nothing."""
    decision = made_decision(facts={key: damaged}, cost_weight=0.1)
    assert all(isinstance(sentence, str) for sentence in share_sentences(decision))
