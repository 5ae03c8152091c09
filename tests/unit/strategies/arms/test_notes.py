"""adaptive_note, chain_of_note, self_refine and self_rerank, with a scripted model."""

from functools import partial

import pytest

from ragbandit.strategies.arms.notes import AdaptiveNote, ChainOfNote, SelfRefine, SelfRerank
from ragbandit.strategies.base import Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.testing.doubles import LateGenerator
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


def test_an_update_sees_new_passages_only_and_all_are_counted():
    """A passage found again is not shown again; the cost counts the distinct passages of all rounds."""
    generator = ScriptedGenerator(["Spielberg made Jaws.", *ROUND_TWO, "Ohio"])
    outcome = outcome_of(AdaptiveNote(passages_per_round=2, updates=1), generator, corpus=(JAWS, MAN))
    assert JAWS.text in generator.prompts[0].body
    assert (JAWS.text in generator.prompts[2].body, MAN.text in generator.prompts[2].body) == (False, True)
    assert branches(outcome, "passage_skipped") == ["jaws: held already"]
    assert outcome.cost.passages == 2


@pytest.mark.parametrize("verdict", [WORSE, "No.", "It is not true that it is better", "Maybe", ""])
def test_a_note_that_is_not_better_is_dropped_and_ends_the_updates(verdict):
    """After one failed update the old note goes to the reader; a verdict that cannot be read is no, and counted."""
    generator = ScriptedGenerator(["First note.", *ROUND_TWO[:2], verdict, "Ohio"])
    outcome = outcome_of(AdaptiveNote(passages_per_round=1), generator)
    assert (outcome.stop_reason, outcome.steps) == ("failed_updates", 2)
    assert branches(outcome, "update") == ["failed: not better"]
    assert "Notes: First note." in generator.prompts[-1].body
    assert len(branches(outcome, "parse_failed")) == (verdict not in (WORSE, "No."))


def test_more_failures_may_be_allowed():
    """With two failures allowed a dropped note is followed by another update on the old one."""
    failed = ["Where did Spielberg come from?", "Bad note.", WORSE]
    generator = ScriptedGenerator(["First note.", *failed, *ROUND_THREE, "Ohio"])
    outcome = outcome_of(AdaptiveNote(passages_per_round=1, failures=2), generator)
    assert branches(outcome, "update") == ["failed: not better", "accepted"]
    assert outcome.stop_reason == "max_rounds"
    assert "Note: First note." in generator.prompts[5].body


def test_every_note_may_be_kept():
    """With `keep: every` nothing is compared, each new note stands, and an update that found nothing ends nothing."""
    second, third = ("Where did Spielberg come from?", "Bad note."), (ROUND_THREE[0], "Ohio note.")
    generator = ScriptedGenerator(["First note.", *second, "Spielberg?", *third, "Ohio"])
    outcome = outcome_of(AdaptiveNote(passages_per_round=1, updates=3, keep="every"), generator)
    assert branches(outcome, "update") == ["accepted", "failed: no new passage", "accepted"]
    assert "note_compare" not in purposes(outcome)
    assert (outcome.stop_reason, outcome.steps) == ("max_rounds", 4)
    assert "Notes: Ohio note." in generator.prompts[-1].body


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


def test_near_the_cap_only_what_fits_is_taken():
    """The last update before the cap takes as many new passages as there is room for, and says what it left."""
    outcome = outcome_of(
        AdaptiveNote(passages_per_round=3, passages=2),
        ["First note.", "Where did Spielberg of Cincinnati, beside Kentucky, come from?", "More.", BETTER, "Ohio"],
    )
    assert (outcome.stop_reason, outcome.cost.passages) == ("max_passages", 2)
    assert any(each.endswith("pool full at 2") for each in branches(outcome, "passage_skipped"))


def test_no_new_question_ends_the_updates():
    """A model that asks nothing, or repeats its questions, ends the updates without another search or step."""
    blank = outcome_of(AdaptiveNote(passages_per_round=1), ["First note.", " \n", "Ohio"])
    again = ["1. WHERE did Spielberg come from?\n2. Who made Jaws?"]
    repeated = outcome_of(AdaptiveNote(passages_per_round=1), ["First note.", *ROUND_TWO, *again, "Ohio"])
    assert (blank.stop_reason, blank.cost.retriever_calls, blank.steps) == ("no_new_question", 1, 1)
    assert branches(blank, "parse_failed") == ["ask: no question"]
    assert (repeated.stop_reason, repeated.cost.retriever_calls, repeated.steps) == ("no_new_question", 2, 2)
    assert branches(repeated, "question_repeated") == ["WHERE did Spielberg come from?", "Who made Jaws?"]


def test_an_update_without_news_has_failed_without_a_comparison():
    """No new passage, an empty note and the same note again are failed updates, and cost no comparison."""
    stale = outcome_of(AdaptiveNote(), ["First note.", "Who?", "Ohio"], corpus=(JAWS,))
    empty = outcome_of(AdaptiveNote(passages_per_round=1), ["First note.", ROUND_TWO[0], " ", "Ohio"])
    same = outcome_of(AdaptiveNote(passages_per_round=1), ["First note.", ROUND_TWO[0], "First\nnote.", "Ohio"])
    assert branches(stale, "update") == ["failed: no new passage"]
    assert branches(empty, "update") == branches(same, "update") == ["failed: nothing added"]
    assert {each.stop_reason for each in (stale, empty, same)} == {"failed_updates"}
    assert all("note_compare" not in purposes(each) for each in (stale, empty, same))


def test_a_question_that_finds_nothing_may_still_be_helped_by_new_questions():
    """Without a first passage no note is invented; the first note of an update is taken without comparison."""
    outcome = outcome_of(
        AdaptiveNote(updates=1, passages_per_round=1),
        ["Who was Spielberg?", "Spielberg came from Cincinnati.", "Cincinnati"],
        question="Whence cometh he?",
    )
    assert purposes(outcome) == ["ask", "note_extend", "read"]
    assert (outcome.answer, branches(outcome, "update")) == ("Cincinnati", ["accepted"])


def test_a_long_search_is_cut_and_says_so():
    """The characters of a search are capped, which the trace tells; without a cap it is whole."""
    script = ["First note.", *ROUND_TWO, "Ohio"]
    cut = outcome_of(AdaptiveNote(passages_per_round=1, updates=1, query_characters=19), script)
    whole = outcome_of(AdaptiveNote(passages_per_round=1, updates=1), script)
    assert queries(cut)[1] == "did Spielberg"
    assert branches(cut, "query_cut") == ["to 19 of 58 characters"]
    assert branches(whole, "query_cut") == []


def test_the_long_style_gives_the_whole_text():
    """A long answer keeps its lines; a short one ends with the first."""
    text = "So the answer is: Ohio.\nIt borders Indiana."
    assert outcome_of(AdaptiveNote(updates=0, style="long"), ["First note.", text]).answer == text
    assert outcome_of(AdaptiveNote(updates=0), ["First note.", text]).answer == "Ohio"
    assert outcome_of(SelfRefine(style="long"), [text, text]).answer == text
    assert outcome_of(SelfRerank(style="long"), ["1. useful", text]).answer == text


@pytest.mark.parametrize(
    ("arm", "answers", "draft"),
    [
        (AdaptiveNote(), ["First"], None),
        (AdaptiveNote(), ["First note.", "Who"], "First note."),
        (AdaptiveNote(), ["First note.", *ROUND_TWO[:2], BETTER[:4]], "First note."),
        (AdaptiveNote(updates=1), ["First note.", *ROUND_TWO, "Oh"], "Oh"),
        (AdaptiveNote(updates=1), ["First note.", *ROUND_TWO, ""], "Spielberg made Jaws. He came from Cincinnati."),
        (AdaptiveNote(updates=0, style="long"), ["First note.", "Ohio is\nthe"], "Ohio is\nthe"),
        (ChainOfNote(), ["1. Jaws."], None),
        (ChainOfNote(), ["1. Jaws. So the answer is: Ohio.", ""], "Ohio"),
        (SelfRefine(), ["It says Ohio.", ""], "It says Ohio."),
        (SelfRerank(), ["1. useful", "Oh"], "Oh"),
        (SelfRerank(), ["1. useful", ""], None),
    ],
)
def test_what_stands_at_the_deadline_is_the_draft(arm, answers, draft):
    """The latest kept note, or what the reader had written, is the answer when the seconds run out."""
    outcome = outcome_of(arm, LateGenerator(*answers, calls=len(answers)), seconds=60)
    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("exhausted", "budget_seconds", draft)
    assert outcome.cost.llm_calls == len(answers)


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


@pytest.mark.parametrize("make", [ChainOfNote, SelfRefine, SelfRerank])
def test_without_passages_the_reader_is_alone(make):
    """No round, no passage and an empty corpus skip the first stage, which the trace says."""
    for limits in ({"rounds": 0}, {"passages": 0}, {"corpus": ()}):
        outcome = outcome_of(make(), ["Ohio"], **limits)
        assert (outcome.answer, outcome.stop_reason, purposes(outcome)) == ("Ohio", "answered", ["read"])
        assert branches(outcome, "first_stage_skipped") == ["there is no passage"]
    assert branches(outcome_of(make(), ["Ohio"], rounds=0), "search_skipped") == ["the budget has no round"]


@pytest.mark.parametrize("arm", [ChainOfNote(), SelfRefine(), SelfRerank(), AdaptiveNote(updates=0)])
def test_an_answer_without_words_is_called_empty(arm):
    """A reader that says nothing gives "" and empty_answer, also after good notes."""
    outcome = outcome_of(arm, ["1. useful", " "])
    assert (outcome.status, outcome.answer, outcome.stop_reason) == ("answered", "", "empty_answer")


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
