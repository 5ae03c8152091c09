"""Prompts with the structure of the papers: fields, demonstrations, and the arms that use them."""

from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.arms.basic import MultiStep, NoRetrieval, SingleStep
from ragbandit.strategies.arms.notes import AdaptiveNote, ChainOfNote, SelfRefine, SelfRerank
from ragbandit.strategies.arms.self_rag import SelfRag
from ragbandit.strategies.base import Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.prompting import prompts as module
from ragbandit.strategies.prompting.passages import extract_answer
from ragbandit.strategies.prompting.prompts import load_templates, parsed_template
from ragbandit.strategies.registry import built_in_arms
from tests.support.arms import arm_runs
from tests.support.arms.arm_runs import queries

QUESTION = "Who is the maker of Jaws?"
JAWS = Passage(id="jaws", title="Jaws", text="Jaws was made by Spielberg.")
NEW = "1. Jaws was made by whom?\n2. Was Spielberg by Jaws?"
MAN = Passage(id="man", title="Spielberg", text="The maker of Jaws came from Cincinnati.")

#: template -> (its fields besides passages, whether it shows passages, number of demonstrations)
DECLARED = {
    "paper_recall_direct": ({"question"}, False, 20),
    "paper_recall_reasoned": ({"question"}, False, 20),
    "paper_read_direct": ({"question"}, True, 20),
    "paper_read_reasoned": ({"question"}, True, 20),
    "paper_think": ({"question", "thoughts"}, True, 20),
    "paper_recall_long": ({"question"}, False, 0),
    "paper_read_long": ({"question"}, True, 0),
    "recall_news": ({"question"}, False, 0),
    "read_news": ({"question"}, True, 0),
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
ARMS = (NoRetrieval, SingleStep, MultiStep, AdaptiveNote, ChainOfNote, SelfRefine, SelfRerank, SelfRag)


def outcome_of(arm, answers):
    return arm_runs.outcome_of(arm, answers, question=QUESTION, corpus=(JAWS, MAN))


def styles_of(arm):
    return get_args(get_type_hints(arm.kind)["style"])


def test_every_prompt_of_a_paper_has_the_declared_fields():
    """Fields, passages and the number of demonstrations are those of the papers."""
    shipped = {name for name in module._shipped(module._PACKAGE) if name.startswith("paper_") or "_news" in name}
    templates = load_templates(sorted(shipped), overrides={})
    found = {
        name: (set(template.fields), template.takes_passages, len(template.demonstrations))
        for name, template in templates.items()
    }
    assert found == DECLARED


def test_the_arms_use_them():
    """Every arm with the param `prompts` uses templates of the paper, and together they use all of them."""
    params = {name: arm.kind for name, arm in built_in_arms().items() if hasattr(arm, "kind")}
    with_prompts = {name for name, kind in params.items() if "prompts" in {part.name for part in fields(kind)}}
    assert {arm.arm for arm in ARMS} == with_prompts
    used = set()
    for arm in ARMS:
        for style in styles_of(arm):
            templates = arm(prompts="paper", style=style)._templates
            names = {use: template.name for use, template in templates.items()}
            own = {"read_direct"} if arm is SelfRerank else set()  # the paper's reader has the same structure
            assert {names[use] for use in arm.paper_prompts} <= {*DECLARED, *own}, (arm, style)
            used |= set(names.values())
            assert not any(t.name.startswith("paper_") for t in arm(style=style)._templates.values())
    assert used >= set(DECLARED)


def test_presets_of_papers_have_the_prompts_of_papers():
    """flan, gpt and paper set `prompts: paper`, chat does not, and the user's own value has precedence."""
    for arm in ARMS:
        sources = {preset: arm(preset=preset).params.get("prompts", "ours") for preset in arm.presets}
        assert sources == {preset: "ours" if preset == "chat" else "paper" for preset in arm.presets}
        assert "prompts" not in arm(preset=next(iter(arm.presets)), prompts="ours").params


@pytest.mark.parametrize("name", ["paper_read_reasoned", "paper_think", "paper_read_direct", "paper_recall_reasoned"])
def test_demonstrations_have_the_form_of_the_papers(name):
    """Needed and other passages, the question, a chain that ends with the answer; our own parser reads the answer."""
    examples = module._shipped_examples()["adaptive_rag"]
    template = load_templates([name], overrides={})[name]
    for example, text in zip(examples, template.demonstrations, strict=True):
        before, question, after = text.partition(f"\n{example['question']}\nA: ")
        assert question
        shown = [*example["gold"], *example["others"]]
        if "recall" in name:
            assert before.startswith("Q: ")
        else:
            blocks = [f"Title: {title}\n{passage}" for title, passage in sorted(shown)]
            assert before.startswith("\n\n".join(blocks) + "\n\nQ: ")
        if "direct" in name:
            assert after == example["answer"]
        else:
            assert after == f"{' '.join(example['thoughts'])} So the answer is: {example['answer']}."
            assert extract_answer(after) == example["answer"]


def test_examples_can_be_answered_from_their_passages():
    """An answer is in a needed passage, unless it is yes or no, and not in the others; there are two others."""
    examples = module._shipped_examples()["adaptive_rag"]
    assert len({example["question"] for example in examples}) == len(examples) == 20
    for example in examples:
        needed, others = (" ".join(" ".join(one) for one in example[part]) for part in ("gold", "others"))
        assert len(example["others"]) == 2
        assert len(example["gold"]) <= 3
        if example["answer"] not in ("yes", "no"):
            assert example["answer"].casefold() in needed.casefold()
            assert example["answer"].casefold() in " ".join(example["thoughts"]).casefold()
            assert f" {example['answer']} " not in f" {others} "


def test_own_templates_may_name_the_examples():
    """[examples] fills one [demonstration] with each example; wrong names, fields and numbers are refused."""
    form = "[examples]\nadaptive_rag\n[demonstration]\n{question}: {answer}\n[body]\n{demonstrations}{question}"
    assert parsed_template(form, name="own").demonstrations[0] == "Which river does the Ostra bridge cross?: Tarn-Leve"
    for old, new, message in (
        ("adaptive_rag", "adaptive", "unknown examples"),
        ("{answer}", "{title}", "unknown field {title}"),
        ("[body]", "[demonstration]\nmore\n[body]", "2 sections"),
    ):
        with pytest.raises(ConfigError, match=message):
            parsed_template(form.replace(old, new), name="own")


def test_a_reader_sees_the_demonstrations():
    """no_retrieval and single_step show 20 questions before their own; searches have no question words, as IRCoT's."""
    for arm, style in ((NoRetrieval, "direct"), (SingleStep, "direct"), (SingleStep, "reasoned")):
        generator = ScriptedGenerator(["So the answer is: Spielberg."])
        outcome = outcome_of(arm(prompts="paper", style=style), generator)
        (prompt,) = generator.prompts
        assert prompt.body.count("\nWhich river does the Ostra bridge cross?\nA: ") == 1
        assert prompt.body.count("Q: ") == 21
        assert prompt.body.endswith(f"\n{QUESTION}")
        assert prompt.prefix == "A:"
        assert ("Title: Jaws\nJaws was made" in prompt.body) == (arm is SingleStep)
        assert outcome.answer == "Spielberg"
        assert queries(outcome) == (["the maker of Jaws?"] if arm is SingleStep else [])


def test_the_chain_of_multi_step_begins_the_next_call():
    """Each call of IRCoT shows 20 demonstrations, and continues the sentences so far."""
    generator = ScriptedGenerator(["Jaws was made by Spielberg.", "So the answer is: Spielberg.", "Spielberg"])
    outcome = outcome_of(MultiStep(prompts="paper"), generator)
    assert outcome.answer == "Spielberg"
    assert [prompt.prefix for prompt in generator.prompts] == ["A:", "A: Jaws was made by Spielberg.", "A:"]
    assert [prompt.body.count("Q: ") for prompt in generator.prompts] == [21, 21, 21]


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
