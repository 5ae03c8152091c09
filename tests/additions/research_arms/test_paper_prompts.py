"""Prompts with the structure of the papers: fields, and the arms that use them."""

import pytest

from ragbandit.additions.research_arms.notes import AdaptiveNote, SelfRerank
from ragbandit.additions.research_arms.self_rag import SelfRag
from ragbandit.strategies.base import Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from tests.support.arms import arm_runs
from tests.support.arms.arm_runs import queries
from tests.support.arms.paper_prompts import arms_with_prompts, check_declared, check_presets, check_use

PACKAGE = "ragbandit.additions.research_arms"
QUESTION = "Who is the maker of Jaws?"
JAWS = Passage(id="jaws", title="Jaws", text="Jaws was made by Spielberg.")
NEW = "1. Jaws was made by whom?\n2. Was Spielberg by Jaws?"
MAN = Passage(id="man", title="Spielberg", text="The maker of Jaws came from Cincinnati.")

#: template -> (its fields besides passages, whether it shows passages, number of demonstrations)
DECLARED = {
    "paper_note_first": ({"question"}, True, 0),
    "paper_note_questions": ({"question", "note", "asked"}, False, 0),
    "paper_note_extend": ({"question", "note"}, True, 0),
    "paper_note_compare": ({"question", "old", "new"}, False, 0),
    "paper_note_first_news": ({"question"}, True, 0),
    "paper_note_questions_news": ({"question", "note", "asked"}, False, 0),
    "paper_note_extend_news": ({"question", "note"}, True, 0),
    "paper_note_compare_news": ({"question", "old", "new"}, False, 0),
    "paper_read_notes_short": ({"question", "notes"}, False, 0),
    "paper_read_notes_long": ({"question", "notes"}, False, 0),
    "read_notes_news": ({"question", "notes"}, False, 0),
    "paper_chain_of_note": ({"question"}, True, 0),
    "paper_self_refine": ({"question"}, True, 0),
    "paper_self_rerank": ({"question"}, True, 0),
    "paper_self_rag_relevant": ({"question"}, True, 0),
    "paper_self_rag_supported": ({"answer"}, True, 0),
    "paper_self_rag_useful": ({"question", "answer"}, False, 0),
    "paper_self_rag_rewrite": ({"latest"}, False, 0),
}
#: the paper's reader has the same structure
OURS = {"self_rerank": {"read_direct"}}


def outcome_of(arm, answers):
    return arm_runs.outcome_of(arm, answers, question=QUESTION, corpus=(JAWS, MAN))


def test_every_prompt_of_a_paper_has_the_declared_fields():
    """Fields, passages and the number of demonstrations are those of the papers."""
    check_declared(DECLARED, package=PACKAGE)


def test_the_arms_use_them():
    """Every arm with the param `prompts` uses templates of the paper, and together they use all of them."""
    assert {arm.arm for arm in arms_with_prompts(PACKAGE)} == {
        "adaptive_note",
        "chain_of_note",
        "self_rag",
        "self_refine",
        "self_rerank",
    }
    check_use(DECLARED, package=PACKAGE, ours=OURS)


def test_presets_of_papers_have_the_prompts_of_papers():
    """The preset paper sets `prompts: paper`, chat does not, and the user's own value has precedence."""
    check_presets(PACKAGE)


def test_adaptive_note_asks_as_the_paper_does():
    """Note, two questions, larger note, comparison by four criteria, answer; searches keep question words."""
    generator = ScriptedGenerator(
        [
            "A note.",
            NEW,
            "A larger note.",
            '{"status": "True"}',
            "Cincinnati",
        ]
    )
    outcome = outcome_of(AdaptiveNote(prompts="paper", passages_per_round=1, updates=1), generator)
    first, new, extend, compare, answer = (prompt.body for prompt in generator.prompts)
    assert not any(prompt.instructions for prompt in generator.prompts)
    assert QUESTION in first
    assert "Passage 1, title: " in first
    assert "Note: A note.\n\nQuestions of the list: none" in new
    assert "Note: A note.\n" in extend
    assert [line[:2] for line in compare.splitlines() if line[:1].isdigit()] == ["1.", "2.", "3.", "4."]
    assert "Note 1: A note.\nNote 2: A larger note." in compare
    assert "Note:\nA larger note.\n\nQuestion: " in answer
    assert outcome.answer == "Cincinnati"
    assert queries(outcome) == [QUESTION, f"Jaws was made by whom?\nWas Spielberg by Jaws?\n{QUESTION}"]


@pytest.mark.parametrize(("style", "words"), [("short", "no other word"), ("long", "journalist"), ("news", "新闻编辑")])
def test_the_three_generators_of_adaptive_note(style, words):
    """A short answer, a paragraph of a journalist, and one of a news editor; the last makes the whole arm Chinese."""
    generator = ScriptedGenerator(["A note.", NEW, "More.", "no", "An answer\nof two lines"])
    outcome = outcome_of(AdaptiveNote(prompts="paper", passages_per_round=1, updates=1, style=style), generator)
    assert words in generator.prompts[-1].body
    assert outcome.answer == ("An answer" if style == "short" else "An answer\nof two lines")
    chinese = [any("\u4e00" <= sign <= "\u9fff" for sign in prompt.body) for prompt in generator.prompts]
    assert chinese == [style == "news"] * 5


def test_self_rerank_reads_the_first_of_two_labels():
    """Passages with the label useful are read, whatever the label of relevance is."""
    labels = "1. label: <useless><relevant>, reason: none\n2. label: <useful><irrelevant>, reason: none"
    generator = ScriptedGenerator([labels, "Cincinnati"])
    outcome = outcome_of(SelfRerank(prompts="paper"), generator)
    assert "<useless><irrelevant>" in generator.prompts[0].body
    assert generator.prompts[1].body.startswith("Jaws: Jaws was made")
    assert "Cincinnati" not in generator.prompts[1].body
    assert outcome.answer == "Cincinnati"


def test_self_rag_grades_as_langchain_does():
    """Binary grades, a grader of support that does not see the question, a rewriter that sees the latest question."""
    script = ["yes", "no", "Bram", "no", "Tom", "no", "What is Jaws about?", "no", "When was Jaws?", "Eve"]
    generator = ScriptedGenerator(script)
    arm = SelfRag(prompts="paper", passages_per_round=2, passages=9, rewrites=2)
    outcome = outcome_of(arm, generator)
    graders = [prompt for prompt in generator.prompts if '"yes"' in prompt.instructions]
    assert len(graders) == 4
    assert all('"no"' in prompt.instructions for prompt in graders)
    supported = [prompt for prompt in graders if "What the model wrote:" in prompt.body]
    assert [QUESTION in prompt.body for prompt in supported] == [False, False]
    rewritten = [prompt.body for prompt in generator.prompts if prompt.body.endswith("Better question:")]
    assert [text.split("\n\n")[1] for text in rewritten] == [QUESTION, "What is Jaws about?"]
    assert queries(outcome)[:2] == [QUESTION, "What is Jaws about?"]
