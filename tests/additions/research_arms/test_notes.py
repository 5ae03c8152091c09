"""adaptive_note, chain_of_note, self_refine and self_rerank, with a scripted model."""

from functools import partial

import pytest

from ragbandit.additions.research_arms.notes import AdaptiveNote, ChainOfNote, SelfRefine, SelfRerank
from ragbandit.strategies.base import Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from tests.support.arms import arm_runs
from tests.support.arms.arm_runs import branches, purposes, queries

JAWS = Passage(id="jaws", title="Jaws", text="Jaws was made by Spielberg.")
MAN = Passage(id="man", title="Spielberg", text="Spielberg did come from Cincinnati.")
TOWN = Passage(id="town", title="Cincinnati", text="Cincinnati lies beside Kentucky, inside Ohio.")
STATE = Passage(id="state", title="Ohio", text="Ohio borders Indiana and Michigan.")
QUESTION = "Who made Jaws?"
BOTH = "Where does the man who made Jaws come from?"
BETTER, WORSE = ' true, "why": "more facts"}', '{"status": false}'


outcome_of = partial(arm_runs.outcome_of, question=QUESTION, corpus=(JAWS, MAN, TOWN, STATE))


ROUND_TWO = [
    "1. Where did Spielberg come from?\n2. Which films?",
    "Spielberg made Jaws.\nHe came from Cincinnati.",
    BETTER,
]
ROUND_THREE = [
    "Which state lies beside Kentucky, and has Cincinnati inside?",
    "Spielberg made Jaws. Cincinnati lies in Ohio.",
    BETTER,
]


def test_a_note_grows_until_the_updates_are_used_up():
    """Each update asks, searches once with questions and question, extends and compares; the reader sees the note."""
    generator = ScriptedGenerator(["Spielberg made\nJaws.", *ROUND_TWO, *ROUND_THREE, "Ohio.\nIndeed."])
    outcome = outcome_of(AdaptiveNote(passages_per_round=1, passages=9), generator)
    assert queries(outcome) == [
        "made Jaws?",
        "did Spielberg come from? films? made Jaws?",
        "state lies beside Kentucky, and has Cincinnati inside? made Jaws?",
    ]
    steps = ["ask", "note_extend", "note_compare"]
    assert purposes(outcome) == ["note_first", *steps, *steps, "read"]
    assert (outcome.answer, outcome.stop_reason, outcome.steps) == ("Ohio", "max_rounds", 3)
    assert branches(outcome, "update") == ["accepted", "accepted"]
    prompts = generator.prompts
    assert "Note: Spielberg made Jaws.\nAsked already: none" in prompts[1].body
    assert "Asked already: Where did Spielberg come from? Which films?" in prompts[4].body
    assert "Old note: Spielberg made Jaws.\nNew note: Spielberg made Jaws. He came from Cincinnati." in prompts[3].body
    assert "Notes: Spielberg made Jaws. Cincinnati lies in Ohio." in prompts[-1].body
    assert "Jaws was made by" not in prompts[-1].body


@pytest.mark.parametrize("verdict", [WORSE, "No.", "It is not true that it is better", "Maybe", ""])
def test_a_note_that_is_not_better_is_dropped_and_ends_the_updates(verdict):
    """After one failed update the old note goes to the reader; a verdict that cannot be read is no, and counted."""
    generator = ScriptedGenerator(["First note.", *ROUND_TWO[:2], verdict, "Ohio"])
    outcome = outcome_of(AdaptiveNote(passages_per_round=1), generator)
    assert (outcome.stop_reason, outcome.steps) == ("failed_updates", 2)
    assert branches(outcome, "update") == ["failed: not better"]
    assert "Notes: First note." in generator.prompts[-1].body
    assert len(branches(outcome, "parse_failed")) == (verdict not in (WORSE, "No."))


@pytest.mark.parametrize(
    ("arm", "script", "budget", "ended", "found"),
    [
        (AdaptiveNote(passages_per_round=1, passages=1), ["First note."], {}, ("max_passages", 1), 1),
        (AdaptiveNote(passages_per_round=1), ["First note."], {"passages": 1}, ("budget_passages", 1), 1),
        (AdaptiveNote(), [], {"passages": 0}, ("budget_passages", 1), 0),
        (AdaptiveNote(passages_per_round=1), ["First note."], {"rounds": 1}, ("budget_rounds", 1), 1),
        (AdaptiveNote(), [], {"rounds": 0}, ("budget_rounds", 0), 0),
        # the passages of a note that was dropped count as well, as in the paper
        (
            AdaptiveNote(passages_per_round=1, passages=2, failures=2),
            ["First note.", "Where did Spielberg come from?", "Bad note.", WORSE],
            {},
            ("max_passages", 2),
            2,
        ),
    ],
)
def test_the_updates_end_when_passages_or_rounds_are_used_up(arm, script, budget, ended, found):
    """Before another question is asked, under the name of the cap; the reader answers with what there is."""
    outcome = outcome_of(arm, [*script, "Ohio"], **budget)
    assert (outcome.answer, (outcome.stop_reason, outcome.steps)) == ("Ohio", ended)
    assert outcome.cost.passages == outcome.cost.retriever_calls == found


@pytest.mark.parametrize("arm", [ChainOfNote(passages=2), SelfRefine(passages=2)])
def test_the_reader_sees_the_notes_in_place_of_the_passages(arm):
    """Notes are written on all passages; the answer comes only from the notes, after one step."""
    generator = ScriptedGenerator(["1. Spielberg made it.\n2. He came from Cincinnati.", "Cincinnati"])
    outcome = outcome_of(arm, generator, question=BOTH)
    assert purposes(outcome) == [arm.name, "read"]
    assert (outcome.answer, outcome.stop_reason, outcome.steps) == ("Cincinnati", "answered", 1)
    assert JAWS.text in generator.prompts[0].body
    assert MAN.text in generator.prompts[0].body
    assert "Notes: 1. Spielberg made it.\n2. He came from Cincinnati.\nQuestion:" in generator.prompts[1].body
    assert JAWS.text not in generator.prompts[1].body
    assert (outcome.cost.passages, outcome.cost.llm_calls) == (2, 2)


@pytest.mark.parametrize(
    ("verdicts", "shown", "failed", "branch"),
    [
        (" useless. Passage 2 is useful.", [MAN], [], ("kept", "man")),
        ("1. not useful\n2. useful, it names the town", [MAN], [], ("kept", "man")),
        ("1. useful", [JAWS], ["1 of 2 without verdict: man"], ("kept", "jaws")),
        ("1. useless\n2. It is not useful", [JAWS, MAN], [], ("kept_all", "none is useful")),
        ("I like both.", [JAWS, MAN], ["2 of 2 without verdict: jaws, man"], ("kept_all", "no verdict")),
    ],
)
def test_self_rerank_reads_the_useful_passages(verdicts, shown, failed, branch):
    """Passages called useful are read, all if there is none; verdicts that are missing are in the trace."""
    generator = ScriptedGenerator([verdicts, "Cincinnati"])
    outcome = outcome_of(SelfRerank(), generator, corpus=(JAWS, MAN), question=BOTH)
    assert [each for each in (JAWS, MAN) if each.text in generator.prompts[1].body] == shown
    assert branches(outcome, "parse_failed") == failed
    assert branches(outcome, branch[0]) == [branch[1]]
    assert "Passage 1: Jaws: Jaws was made" in generator.prompts[0].body
    assert (outcome.answer, outcome.steps, outcome.cost.passages) == ("Cincinnati", 1, 2)
