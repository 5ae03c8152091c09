"""Every arm where an index has nothing to show, a deadline cuts, and texts run wild."""

import pytest

from ragbandit.shared.types import Branch, Budget, Retrieved
from ragbandit.strategies.arms.basic import MultiStep
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.bm25 import Bm25Retriever, build_index
from ragbandit.testing.arms import generator, run
from ragbandit.testing.doubles import LateGenerator
from tests.support.arms.arm_runs import ARMS_HERE, example, made, outcomes


def test_a_question_beyond_the_model_is_no_fault_of_the_arm():
    """The stop reason is "question_too_long" if the question fills the model, and "error" if the arm's prompt does."""
    for name in ARMS_HERE:
        settings = example(name)
        long = run(made(name, **settings), question="long " * 5_000)
        narrow = run(made(name, **settings), generator_=generator(context_tokens=3))

        ended = long.status, long.stop_reason, long.cost.llm_calls
        assert ended == ("failed", "question_too_long", 0), (name, settings)
        assert "question: the prompt has" in long.error, (name, settings)
        assert (narrow.status, narrow.stop_reason) == ("failed", "error"), (name, settings)


@pytest.mark.parametrize(
    "text",
    ["", "director Jaws born " * 35_000, "director Jaws born " + "x" * 1_000_000],
    ids=["empty", "long", "solid"],
)
def test_an_index_with_nothing_to_show_is_answered(text, tmp_path):
    """bm25 over no words at all, or over one passage that fits no prompt: every arm answers, without passages."""
    build_index([Passage(id="only", title="", text=text)], tmp_path / "index")
    for name, outcome in outcomes(retriever=Bm25Retriever(tmp_path / "index")).items():
        assert outcome.status == "answered", (name, outcome.error)
        assert outcome.cost.passages == 0, name
        told = [event.value for event in outcome.trace if isinstance(event, Branch) and event.rule == "passage_skipped"]
        found = [event for event in outcome.trace if isinstance(event, Retrieved) and event.ids]
        assert len(told) == len(found), name
        assert all("more than 600" in each for each in told), name


def test_an_answer_that_the_deadline_cut_is_kept():
    """What was announced when the deadline passed is the answer."""
    outcome = run(MultiStep(), budget=Budget(seconds=60), generator_=LateGenerator("So the answer is: Ohio", calls=1))
    assert (outcome.status, outcome.answer, outcome.cost.llm_calls) == ("exhausted", "Ohio", 1)
