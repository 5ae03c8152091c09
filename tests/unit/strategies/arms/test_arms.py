"""no_retrieval, single_step and multi_step, with a scripted model."""

from dataclasses import replace

import pytest

from ragbandit.strategies.arms.basic import MultiStep, NoRetrieval, SingleStep
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.testing.doubles import LateGenerator
from tests.support.arms.arm_runs import branches, outcome_of, purposes, queries


@pytest.mark.parametrize(
    ("arm", "script", "budget", "ended"),
    [
        (NoRetrieval(), ["So the answer is: Ohio.\nMore."], {}, ("Ohio", "answered", 0)),
        (NoRetrieval(), ["  "], {}, ("", "empty_answer", 0)),
        (SingleStep(), ["  "], {}, ("", "empty_answer", 1)),
        (MultiStep(), ["So the answer is: Toledo.", "Cincinnati"], {}, ("Cincinnati", "answer_found", 1)),
        (MultiStep(), ["Spielberg made Jaws.", "\n", "Ohio"], {}, ("Ohio", "empty_sentence", 2)),
        (MultiStep(think="reasoned"), ["Spielberg made Jaws.", "Ohio"], {"rounds": 1}, ("Ohio", "budget_rounds", 1)),
    ],
)
def test_every_end_has_its_reason(arm, script, budget, ended):
    """The reader's answer counts, not the chain's; one without words is "" and no error; all calls are made."""
    outcome = outcome_of(arm, script, **budget)
    assert (outcome.status, (outcome.answer, outcome.stop_reason, outcome.steps)) == ("answered", ended)
    assert outcome.cost.llm_calls == len(script)
    assert branches(outcome, "chain_ended") == ([ended[1]] if isinstance(arm, MultiStep) else [])
    assert (outcome.cost.retriever_calls, outcome.cost.passages > 0) == (outcome.steps, outcome.steps > 0)


def test_single_step_searches_the_cleaned_question_and_reads():
    """single_step searches without question words, shows what it found and takes one step."""
    outcome = outcome_of(SingleStep(passages=2), ["Cincinnati"])
    assert queries(outcome) == ["the maker of Jaws from?"]
    assert (outcome.answer, outcome.stop_reason, outcome.steps) == ("Cincinnati", "answered", 1)
    assert outcome.cost.passages == 2


def test_a_budget_without_rounds_or_passages_skips_the_search():
    """single_step within a budget of no round or no passage answers without searching and says why."""
    no_round = outcome_of(SingleStep(), ["x"], rounds=0)
    no_passage = outcome_of(SingleStep(), ["x"], passages=0)
    assert branches(no_round, "search_skipped") == ["the budget has no round"]
    assert branches(no_passage, "search_skipped") == ["the budget has no passage"]
    assert (no_round.steps, no_passage.steps) == (0, 1)
    assert {no_round.cost.retriever_calls, no_passage.cost.retriever_calls} == {0}
    assert (no_round.answer, no_passage.answer) == ("x", "x")


def test_multi_step_searches_with_its_last_sentence():
    """Round one searches the question, later rounds the last sentence; the reader answers from all passages."""
    script = ["Spielberg made Jaws. He is old.", "Spielberg came from Cincinnati.", "Cincinnati lies in Ohio.", "Ohio"]
    generator = ScriptedGenerator(script)
    outcome = outcome_of(MultiStep(rounds=3, passages_per_round=1), generator)
    assert queries(outcome) == ["the maker of Jaws from?", "Spielberg made Jaws.", "Spielberg came from Cincinnati."]
    assert purposes(outcome) == ["think", "think", "think", "read"]
    assert (outcome.answer, outcome.stop_reason, outcome.steps) == ("Ohio", "max_rounds", 3)
    assert generator.prompts[2].prefix.endswith("Spielberg made Jaws. Spielberg came from Cincinnati.")
    assert "came from Cincinnati. Cincinnati" not in generator.prompts[3].body
    assert "Jaws was made by Spielberg." in generator.prompts[3].body


class Endless(ScriptedGenerator):
    """Heeds neither stop nor length: "shark" for ever where it is to think."""

    async def complete(self, request):
        done = await super().complete(request)
        return replace(done, text="shark " * 150) if "passages say" in request.prompt.prefix else done


def test_multi_step_reads_what_it_holds_when_its_thoughts_fill_the_context():
    """A chain that leaves no room for its next prompt ends, and the reader answers from the passages."""
    model = Endless({"passages say": "shark", "": "Ohio"}, context_tokens=200)
    outcome = outcome_of(MultiStep(), model)
    assert (outcome.status, outcome.answer, outcome.stop_reason) == ("answered", "Ohio", "thoughts_too_long")
    assert branches(outcome, "chain_ended") == ["thoughts_too_long"]
    assert purposes(outcome) == ["think", "read"]
    assert "Jaws was made by Spielberg." in model.prompts[-1].body


def test_the_draft_of_multi_step_survives_the_budget():
    """When tokens run out in mid-chain, the answer is the latest sentence, or the chain's own answer if it has one."""
    sentence = outcome_of(MultiStep(rounds=3, think="reasoned"), ["Spielberg made Jaws.", "x", "x", "x"], tokens=100)
    announced = outcome_of(MultiStep(rounds=3, think="reasoned"), ["The answer is Ohio.", "x"], tokens=70)
    assert (sentence.status, sentence.answer) == ("exhausted", "Spielberg made Jaws.")
    assert (announced.status, announced.answer, announced.stop_reason) == ("exhausted", "Ohio", "budget_tokens")


@pytest.mark.parametrize(
    ("arm", "answers", "draft"),
    [
        (NoRetrieval(), ["In Ohio"], "In Ohio"),
        (NoRetrieval(), ["So the answer is"], None),
        (SingleStep(), [""], None),
        (SingleStep(style="reasoned"), ["Jaws was made by"], None),
        (SingleStep(style="reasoned"), ["Jaws. So the answer is: Ohio"], "Ohio"),
        (MultiStep(), ["So the answer is: Toledo.", "Ohio"], "Ohio"),
        (MultiStep(), ["So the answer is: Toledo.", " "], "Toledo"),
        (MultiStep(style="reasoned"), ["So the answer is: Toledo.", "Jaws was made by"], "Toledo"),
        (MultiStep(think="reasoned"), ["Jaws was made by"], None),
    ],
)
def test_what_the_reader_had_written_at_the_deadline_is_the_draft(arm, answers, draft):
    """The text of an interrupted reader becomes the answer if it is usable; else the earlier draft stays."""
    outcome = outcome_of(arm, LateGenerator(*answers, calls=len(answers)), seconds=60)
    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("exhausted", "budget_seconds", draft)
    assert purposes(outcome)[-1] in ("answer", "read", "think")
    assert outcome.cost.llm_calls == len(answers)


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        (NoRetrieval(preset="flan"), {"style": "direct", "max_tokens": 200}),
        (SingleStep(preset="flan"), {"style": "direct", "passages": 15}),
        (SingleStep(preset="gpt"), {"style": "reasoned", "passages": 6}),
        (SingleStep(preset="gpt", passages=4), {"style": "reasoned", "passages": 4}),
    ],
)
def test_presets_give_the_numbers_of_the_paper(arm, expected):
    """A preset sets Adaptive-RAG's numbers, and an explicit value wins."""
    assert {name: arm.params[name] for name in expected} == expected
