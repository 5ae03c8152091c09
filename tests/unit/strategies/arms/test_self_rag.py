"""self_rag with a scripted model: grading, rewriting, answering again, and every way it ends."""

from typing import get_args

import pytest

from ragbandit.strategies.arms.self_rag import SelfRag
from ragbandit.strategies.base import Need
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from tests.support.arms.arm_runs import JAWS, TOWN, branches, outcome_of, purposes, queries


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


def test_self_rag_grades_with_the_original_question():
    """After a rewriting the graders and the reader still see the question as it was asked."""
    generator = ScriptedGenerator(["no", "Cincinnati Ohio", "yes", "Ohio", "yes", "yes"])
    outcome_of(SelfRag(), generator, corpus=(JAWS, TOWN), question="Who made Jaws?")
    assert [prompt.body.count("Question: Who made Jaws?") for prompt in generator.prompts] == [1] * 6
    assert generator.prompts[1].body.endswith("Tried: Who made Jaws?")
    assert not any("Question: Cincinnati Ohio" in prompt.body for prompt in generator.prompts)


def test_self_rag_answers_again_while_unsupported():
    """An unsupported answer is named to the model, which answers again, as often as allowed."""
    script = ["yes", "Toledo", "no", "Akron", "no", "Ohio", "yes", "yes"]
    generator = ScriptedGenerator(script)
    outcome = outcome_of(SelfRag(regenerations=2), generator, corpus=(JAWS,))
    assert purposes(outcome).count("read_again") == 2
    assert generator.prompts[5].instructions.endswith("give another one: Toledo; Akron")
    assert end_of(outcome) == ("Ohio", "answered", 1)


def test_self_rag_does_not_grade_a_repeated_answer_again():
    """A model that repeats the rejected answer ends the regeneration, and the question is rewritten."""
    script = ["yes", "Toledo", "no", "Toledo", "Cincinnati", "yes", "Ohio", "yes", "yes"]
    outcome = outcome_of(SelfRag(regenerations=5), script, corpus=(JAWS, TOWN), question="Who made Jaws?")
    assert branches(outcome, "answer_repeated") == ["Toledo"]
    assert end_of(outcome) == ("Ohio", "answered", 2)


def test_self_rag_gives_its_latest_answer_when_the_rewrites_are_used_up():
    """An answer that never settles the question is given after the last rewriting, and the stop reason tells it."""
    script = ["yes", "Toledo", "yes", "no", "Cincinnati", "yes", "Ohio", "yes", "no"]
    outcome = outcome_of(SelfRag(rewrites=1), script, corpus=(JAWS, TOWN), question="Who made Jaws?")
    assert end_of(outcome) == ("Ohio", "max_rewrites", 2)


def test_self_rag_keeps_relevant_passages_for_later_rounds():
    """The reader of a later round sees the relevant passages of all rounds, and no passage is graded twice."""
    generator = ScriptedGenerator(["yes", "Toledo", "yes", "no", "Jaws Cincinnati", "yes", "Ohio", "yes", "yes"])
    outcome = outcome_of(SelfRag(), generator, corpus=(JAWS, TOWN), question="Who made Jaws?")
    assert branches(outcome, "relevant") == ["jaws: yes", "town: yes"]
    assert "made by" in generator.prompts[6].body
    assert "lies in" in generator.prompts[6].body
    assert outcome.cost.passages == 2


def test_self_rag_answers_without_passages_where_none_was_ever_relevant():
    """After the last rewriting without a relevant passage the model answers from memory."""
    generator = ScriptedGenerator(["no", "Cincinnati", "no", "Ohio"])
    outcome = outcome_of(SelfRag(), generator, corpus=(JAWS, TOWN), question="Who made Jaws?")
    assert end_of(outcome) == ("Ohio", "no_relevant_passage", 2)
    assert "Jaws was" not in generator.prompts[-1].body
    assert outcome.cost.passages == 2


@pytest.mark.parametrize("rewritten", [" ", "where is THE maker of Jaws from?"])
def test_self_rag_ends_where_rewriting_brings_no_new_query(rewritten):
    """A rewriting that is empty or repeats a query ends the arm without another search, and without another step."""
    outcome = outcome_of(SelfRag(rewrites=3), ["yes", "Ohio", "yes", "no", rewritten], corpus=(JAWS,))
    assert end_of(outcome) == ("Ohio", "no_new_query", 1)
    assert len(queries(outcome)) == 1
    assert len(branches(outcome, "parse_failed")) == (rewritten == " ")


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


def test_self_rag_ends_with_its_draft_when_the_budget_ends():
    """Tokens that end in the midst of grading leave the answer that was written."""
    script = ["yes", "Toledo", "yes", "yes"]
    free = outcome_of(SelfRag(), script, corpus=(JAWS,))
    used = free.cost.prompt_tokens + free.cost.completion_tokens
    outcome = outcome_of(SelfRag(), script, corpus=(JAWS,), tokens=used - 1)
    assert (outcome.status, outcome.answer, outcome.stop_reason) == ("exhausted", "Toledo", "budget_tokens")


def test_self_rag_ends_though_no_grader_is_ever_content():
    """A model that always says no is held by the caps on rewriting and on answering again."""

    def answer(prompt):
        return "no" if "Reply" in prompt.prefix else f"{sum(prompt.body.encode()) + len(prompt.instructions)} Jaws"

    generator = ScriptedGenerator(answer, capabilities=get_args(Need))
    outcome = outcome_of(SelfRag(preset="paper"), generator)
    assert outcome.status == "answered"
    assert outcome.steps <= 4
    assert outcome.cost.llm_calls < 30
