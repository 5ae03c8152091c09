"""self_rag with a scripted model: grading, rewriting, answering again, and every way it ends."""

import pytest

from ragbandit.additions.research_arms.self_rag import SelfRag
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from tests.support.arms.arm_runs import JAWS, branches, outcome_of, purposes, queries


def end_of(outcome):
    return outcome.answer, outcome.stop_reason, outcome.steps


def test_self_rag_answers_where_all_graders_are_content():
    """One round: every passage is graded, the reader sees the relevant ones only, and two grades end the arm."""
    generator = ScriptedGenerator(["no", "yes", "Cincinnati", "yes", "Yes."])
    outcome = outcome_of(SelfRag(), generator)
    assert purposes(outcome) == ["grade_relevant", "grade_relevant", "read", "grade_supported", "grade_useful"]
    assert end_of(outcome) == ("Cincinnati", "answered", 1)
    assert branches(outcome, "relevant") == ["jaws: no", "man: yes"]
    assert ("made by" in generator.prompts[2].body, "came from" in generator.prompts[2].body) == (False, True)
    assert outcome.cost.passages == 2


def test_self_rag_rewrites_where_no_passage_is_relevant():
    """A round without a relevant passage gets no answer; the next one searches the rewritten question."""
    script = ["no", "no", '"Cincinnati"', "yes", "Cincinnati", "yes", "yes"]
    outcome = outcome_of(SelfRag(passages_per_round=2), script)
    assert queries(outcome) == ["the maker of Jaws from?", "Cincinnati"]
    assert end_of(outcome) == ("Cincinnati", "answered", 2)
    assert branches(outcome, "relevant") == ["jaws: no", "man: no", "town: yes"]


#: an answer that is supported and does not settle the question
UNSETTLED = ["yes", "Toledo", "yes", "no"]


@pytest.mark.parametrize(
    ("rewrites", "script", "limits", "ended", "unreadable"),
    [
        (1, ["hm", "Ohio", "hm", "hm"], {"corpus": (JAWS,)}, ("Ohio", "answered", 1), 3),
        (1, UNSETTLED, {"corpus": (JAWS,), "rounds": 1}, ("Toledo", "budget_rounds", 1), 0),
        (1, UNSETTLED, {"passages": 1}, ("Toledo", "max_passages", 1), 0),
        (1, ["Ohio"], {"rounds": 0}, ("Ohio", "budget_rounds", 0), 0),
        (1, ["Ohio"], {"passages": 0}, ("Ohio", "max_passages", 0), 0),
        (0, ["yes", " "], {"corpus": (JAWS,)}, ("", "empty_answer", 1), 0),
        (0, ["yes", "Toledo", "no", " "], {"corpus": (JAWS,)}, ("Toledo", "max_rewrites", 1), 0),
    ],
)
def test_self_rag_ends_by_every_rule(rewrites, script, limits, ended, unreadable):
    """Grades that cannot be read are yes, and counted; caps have names; a rejected answer outlives an empty one."""
    outcome = outcome_of(SelfRag(rewrites=rewrites), script, **limits)
    assert end_of(outcome) == ended
    assert outcome.cost.llm_calls == len(script)
    assert len(branches(outcome, "parse_failed")) == unreadable
