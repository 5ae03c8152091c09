"""Each arm of a paper, from a configuration and an index on disk to an answer of a model with random weights."""

import pytest

from ragbandit.additions.research_arms import ADDITION
from ragbandit.additions.research_arms.notes import AdaptiveNoteParams
from tests.support.additions import needs
from tests.support.arms.evaluated_arms import check_answer, evaluated
from tests.support.tiny_models import tiny_writer

pytestmark = needs("evaluation", "local_models")

#: words that a model trained for Self-RAG writes (`self_rag_trained`)
REFLECTIONS = (
    *("[No Retrieval]", "[Retrieval]", "[Continue to Use Evidence]", "[Relevant]", "[Irrelevant]"),
    *("[Fully supported]", "[Partially supported]", "[No support / Contradictory]"),
    *(f"[Utility:{number}]" for number in range(1, 6)),
)
#: arm -> its params in config.yaml
ARMS = {
    **{name: {} for name in ADDITION.arms},
    "adaptive_note_every": {"class": "adaptive_note", "keep": "every"},
    "paper_notes": {"class": "adaptive_note", "prompts": "paper", "updates": 1},
    "rq_rag_tree": {"class": "rq_rag", "tree": True},
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Arm -> (its row of `evaluate`, its stored answer)."""
    model = tiny_writer("llama", positions=4096, words=REFLECTIONS)
    generator = {"model": model, "trained_tokens": list(REFLECTIONS)}
    return evaluated(tmp_path_factory.mktemp("rows"), arms=ARMS, strategy="all", generator=generator)


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_answers(rows, arm):
    """The arm answers by calls of its model, after a search unless it may do without."""
    check_answer(*rows[arm], may_know=arm == "seakr")


def test_a_note_without_comparison_is_extended_to_the_last_round(rows):
    """With `keep: every` no update is compared or dropped, so only the cap on rounds ends the note."""
    assert rows["adaptive_note_every"][1]["steps"] == 1 + AdaptiveNoteParams().updates
