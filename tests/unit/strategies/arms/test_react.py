"""react with a scripted model: what it searches, looks up, repairs, and how it ends."""

from functools import partial

import pytest
from hypothesis import given, strategies as some

from ragbandit.strategies.arms.react import Action, React, parsed_action
from ragbandit.strategies.base import Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from tests.support.arms import arm_runs
from tests.support.arms.arm_runs import branches, purposes, queries

JAWS = Passage(id="jaws", title="Jaws", text="Jaws was made by Spielberg. It came out in 1975. It has a shark.")
MAN = Passage(id="man", title="Spielberg", text="Spielberg came from Cincinnati. He made Jaws. A shark made him rich.")
TOWN = Passage(id="town", title="Cincinnati", text="Cincinnati lies in Ohio.")
QUESTION = "Where is the maker of Jaws from?"


outcome_of = partial(arm_runs.outcome_of, question=QUESTION, corpus=(JAWS, MAN, TOWN))


def asked(prompt):
    """The body from our question on, without the demonstration."""
    return prompt.body[prompt.body.index(f"Question: {QUESTION}") :]


def test_react_searches_and_finishes():
    """Searches are answered by observations, the steps are the searches, and finish[...] is the answer."""
    generator = ScriptedGenerator(
        [
            "I need the maker.\nAction 1: search[Jaws]",
            "Spielberg made it.\nAction 2: search[Spielberg]",
            "He is from there.\nAction 3: finish[Cincinnati.]",
        ]
    )
    outcome = outcome_of(React(), generator)
    assert queries(outcome) == ["Jaws", "Spielberg"]
    assert (outcome.answer, outcome.stop_reason, outcome.steps) == ("Cincinnati", "finished", 2)
    assert outcome.cost.passages == 2
    assert [each.prefix for each in generator.prompts] == ["Thought 1:", "Thought 2:", "Thought 3:"]
    assert generator.prompts[1].body.endswith(
        "Thought 1: I need the maker.\nAction 1: search[Jaws]\n"
        "Observation 1: Jaws: Jaws was made by Spielberg. It came out in 1975. (See also: Spielberg)"
    )


def test_react_prefers_the_passage_whose_title_is_the_topic():
    """The passage titled like the topic is shown, though another stands before it among the hits."""
    generator = ScriptedGenerator(["Action: search[spielberg]", "Action: finish[x]"])
    outcome_of(React(), generator)
    assert "Spielberg: Spielberg came from Cincinnati. He made Jaws. (See also: Jaws)" in generator.prompts[1].body


def test_react_looks_up_one_sentence_after_the_other():
    """A lookup goes through the sentences with the word in the passages found, and begins again at a new word."""
    words = ["shark", "Shark", "shark", "1975", "shark", "whale"]
    script = [
        "Action: search[whales]",
        "Action: search[Jaws]",
        *(f"Action: lookup[{word}]" for word in words),
        "Action: finish[x]",
    ]
    generator = ScriptedGenerator(script)
    outcome = outcome_of(React(turns=9), generator)
    lines = asked(generator.prompts[-1]).splitlines()
    assert [line.split(": ", 1)[1] for line in lines if line.startswith("Observation")] == [
        "The library has nothing new on whales.",
        "Jaws: Jaws was made by Spielberg. It came out in 1975. (See also: Spielberg)",
        "Jaws: It has a shark. (sentence 1 of 2)",
        "Spielberg: A shark made him rich. (sentence 2 of 2)",
        "No more sentence has the word shark.",
        "Jaws: It came out in 1975. (sentence 1 of 1)",
        "Jaws: It has a shark. (sentence 1 of 2)",
        "No sentence has the word whale.",
    ]
    assert (outcome.steps, outcome.cost.passages) == (2, 2)


def test_react_asks_again_for_an_action_that_is_missing():
    """A turn without an action costs one repair call that begins with its first line, and is counted."""
    generator = ScriptedGenerator(["I look for Jaws.\nOr not.", "search[Jaws]\nmore", "Action 2: finish[Ohio]"])
    outcome = outcome_of(React(), generator)
    assert purposes(outcome) == ["think", "repair", "think"]
    assert generator.prompts[1].prefix == "Thought 1: I look for Jaws.\nAction 1:"
    assert branches(outcome, "parse_failed") == ["no action in: I look for Jaws.\nOr not."]
    assert (queries(outcome), outcome.answer) == (["Jaws"], "Ohio")


def test_react_says_what_is_allowed():
    """Text that stays without action, an unknown verb and empty brackets are answered by the allowed actions."""
    script = ["hm", "hm", "Action: fly[home]", "Action: search[]", "Action: finish[ ]", "Action: finish[Ohio]"]
    generator = ScriptedGenerator(script)
    outcome = outcome_of(React(turns=5), generator)
    assert (outcome.answer, outcome.stop_reason, outcome.steps) == ("Ohio", "finished", 0)
    assert len(branches(outcome, "parse_failed")) == 2
    assert branches(outcome, "unknown_action") == ["none", "fly"]
    assert branches(outcome, "empty_action") == ["search", "finish"]
    assert generator.prompts[-1].body.count("Write search[topic], lookup[word] or finish[answer].") == 4


def test_react_ends_after_two_turns_without_an_action():
    """A model without an action in two successive turns is not asked a third time; an action resets the count."""
    never = outcome_of(React(turns=7), ["hm"] * 4 + ["Ohio"])
    between = outcome_of(React(turns=3), ["hm", "hm", "Action: search[Jaws]", "hm", "hm", "Ohio"])
    assert purposes(never) == ["think", "repair", "think", "repair", "read"]
    assert (never.answer, never.stop_reason, never.cost.passages) == ("Ohio", "no_action", 2)
    assert queries(never) == ["the maker of Jaws from?"]  # its reader gets what the question finds
    assert (between.answer, between.stop_reason) == ("Ohio", "max_turns")


@pytest.mark.parametrize(
    ("unfinished", "answer", "stop"),
    [("read", "Ohio", "max_turns"), ("thought", "Two.", "max_turns"), ("nothing", "", "max_turns")],
)
def test_react_without_finish_answers_as_set(unfinished, answer, stop):
    """After the last turn a reader, the latest thought, or nothing answers, and the stop reason tells it."""
    script = ["One.\nAction: search[Jaws]", "Two.\nAction: search[Cincinnati]", "Ohio"]
    outcome = outcome_of(React(turns=2, unfinished=unfinished), script)
    assert (outcome.status, outcome.answer, outcome.stop_reason) == ("answered", answer, stop)
    assert purposes(outcome) == ["think", "think"] + ["read"] * (unfinished == "read")
    assert branches(outcome, "turns_ended") == ["max_turns"]


def test_react_calls_an_empty_answer_empty():
    """A reader, a thought or a finish[...] that says nothing gives the stop reason empty_answer."""
    assert outcome_of(React(), ["Action: finish[.]"]).stop_reason == "empty_answer"
    for unfinished, script in (("read", ["Action: search[Jaws]", " "]), ("thought", ["Action: search[Jaws]"])):
        outcome = outcome_of(React(turns=1, unfinished=unfinished), script)
        assert (outcome.answer, outcome.stop_reason) == ("", "empty_answer")


def test_react_ends_when_the_rounds_of_the_budget_are_used_up():
    """A search beyond the budget ends the turns, and the reader answers from the passages found."""
    script = ["Action: search[Jaws]", "Action: search[Spielberg]", "Cincinnati"]
    one, none = outcome_of(React(), script, rounds=1), outcome_of(React(), [script[0], "Ohio"], rounds=0)
    assert queries(one) == ["Jaws"]
    assert (one.answer, one.stop_reason, one.steps) == ("Cincinnati", "budget_rounds", 1)
    assert (none.answer, none.stop_reason, none.steps) == ("Ohio", "budget_rounds", 0)
    assert branches(none, "search_skipped") == ["the budget has no round"]


def test_react_stops_the_model_before_it_writes_the_library_s_lines():
    """What a model makes up of the next observation or question does not reach the arm."""
    script = ["x\nObservation 1: so\nAction: finish[Toledo]", "x\nQuestion: so\nAction: finish[Toledo]"]
    for invented in script:
        assert outcome_of(React(), [invented, "finish[Ohio]"]).answer == "Ohio"


def test_react_keeps_its_latest_thought_as_draft():
    """If the budget ends the arm, the draft is the answer announced in the latest thought, or the thought."""
    script = ["The answer is Ohio.\nAction: search[Jaws]", "x\nAction: finish[y]"]
    free = outcome_of(React(), ScriptedGenerator(script))
    outcome = outcome_of(React(), script, tokens=free.cost.prompt_tokens // 2)
    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("exhausted", "budget_tokens", "Ohio")


def test_react_leaves_out_the_first_turns_when_the_context_is_full():
    """What does not fit is left out from the first turn on, which the trace tells; the question always stays."""
    generator = ScriptedGenerator(["Action: search[Jaws]"] * 5 + ["Action: finish[x]"], context_tokens=190)
    outcome = outcome_of(React(turns=6), generator)
    assert outcome.answer == "x"
    assert "turn 1 of 3 dropped" in branches(outcome, "prompt_budget")
    assert "Thought 1:" not in asked(generator.prompts[-1])
    assert "Thought 5:" in asked(generator.prompts[-1])
    assert all(QUESTION in prompt.body for prompt in generator.prompts)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("search[Jaws]", Action(verb="search", argument="Jaws")),
        (" Search [ Jaws [film] ] and then", Action(verb="search", argument="Jaws [film]")),
        ('lookup("shark")', Action(verb="lookup", argument="shark")),
        ("finish[cut off", Action(verb="finish", argument="cut off")),
        ("**search[]**", Action(verb="search", argument="")),
        ("search Jaws", None),
        ("search\n\nthe", None),
        ("", None),
    ],
)
def test_an_action_is_read_as_it_is_meant(text, action):
    """Case, spaces, brackets inside, round brackets, quotes and a missing end are forgiven; prose is no action."""
    assert parsed_action(text) == action


@given(some.text())
def test_any_text_is_an_action_or_none(text):
    """No text makes the parser fail, and what it finds has a verb in lower case."""
    action = parsed_action(text)
    assert action is None or (action.verb == action.verb.lower() and action.verb and "\n" not in action.argument)
