"""Prompts with the structure of the papers: fields, demonstrations, and the arms that use them."""

import pytest

from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.arms.basic import MultiStep, NoRetrieval, SingleStep
from ragbandit.strategies.base import Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.prompting import prompts as module
from ragbandit.strategies.prompting.passages import extract_answer
from ragbandit.strategies.prompting.prompts import PACKAGE, load_templates, parsed_template
from tests.support.arms import arm_runs
from tests.support.arms.arm_runs import queries
from tests.support.arms.paper_prompts import arms_with_prompts, check_declared, check_presets, check_use

QUESTION = "Who is the maker of Jaws?"
JAWS = Passage(id="jaws", title="Jaws", text="Jaws was made by Spielberg.")
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
}


def outcome_of(arm, answers):
    return arm_runs.outcome_of(arm, answers, question=QUESTION, corpus=(JAWS, MAN))


def test_every_prompt_of_a_paper_has_the_declared_fields():
    """Fields, passages and the number of demonstrations are those of the papers."""
    check_declared(DECLARED, package=PACKAGE)


def test_the_arms_use_them():
    """Every arm with the param `prompts` uses templates of the paper, and together they use all of them."""
    assert {arm.arm for arm in arms_with_prompts(PACKAGE)} == {"no_retrieval", "single_step", "multi_step"}
    check_use(DECLARED, package=PACKAGE, ours={})


def test_presets_of_papers_have_the_prompts_of_papers():
    """The presets flan and gpt set `prompts: paper`, chat does not, and the user's own value has precedence."""
    check_presets(PACKAGE)


@pytest.mark.parametrize("name", ["paper_read_reasoned", "paper_think", "paper_read_direct", "paper_recall_reasoned"])
def test_demonstrations_have_the_form_of_the_papers(name):
    """Needed and other passages, the question, a chain that ends with the answer; our own parser reads the answer."""
    examples = module._package_examples()["adaptive_rag"]
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
    examples = module._package_examples()["adaptive_rag"]
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
