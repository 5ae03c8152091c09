"""react with a scripted model: what it searches, looks up, repairs, and how it ends."""

from functools import partial

import pytest

from ragbandit.additions.research_arms.react import Action, React, parse_action
from ragbandit.strategies.arms.basic import Model
from ragbandit.strategies.base import Passage
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from tests.support.arms import arm_runs
from tests.support.arms.arm_runs import branches, queries

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
    assert parse_action(text) == action


def test_turns_that_end_without_an_answer():
    """`unfinished` decides: a reader answers from the passages, or the answer is empty, as in the paper's preset."""
    script = ["Thought.\nAction 1: search[Jaws]", "More.\nAction 2: search[Spielberg]", "Cincinnati"]
    reading = outcome_of(React(turns=2), ScriptedGenerator(script))
    assert (reading.answer, reading.stop_reason, reading.cost.llm_calls) == ("Cincinnati", "max_turns", 3)
    for arm in (React(turns=2, unfinished="empty"), React(preset="paper", turns=2)):
        empty = outcome_of(arm, ScriptedGenerator(script[:2]))
        assert (empty.status, empty.answer, empty.stop_reason) == ("answered", "", "max_turns")
        assert (empty.steps, empty.cost.llm_calls) == (2, 2)
        assert arm.params["unfinished"] == "empty"


def test_a_param_of_a_later_release_is_recorded_if_it_is_set():
    """At its default it is not recorded, so that an upgrade makes no other arm of a configured one."""
    assert "unfinished" not in React().params
    assert "unfinished" not in React(unfinished="read").params
    assert "effort" not in Model(max_tokens=5).params
    assert Model(effort="low").params["effort"] == "low"
