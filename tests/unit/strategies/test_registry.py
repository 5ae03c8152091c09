"""Making arms out of a configuration, and what the door offers."""

from typing import get_args

import pytest

from ragbandit import strategies
from ragbandit.shared.additions import arm_parts
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies import Answer
from ragbandit.strategies.base import Need
from ragbandit.strategies.registry import built_in_arms, make_arms
from tests.support.arms.arm_runs import ARMS_HERE

EVERYTHING = frozenset(get_args(Need))


class OwnArm:
    """A caller's own arm."""

    needs = frozenset({"completion"})

    def __init__(self, *, name, shout=False):
        self.name = name
        self.params = {"shout": shout}

    async def answer(self, question, *, run):
        return Answer(text="own", stop_reason="own")


class NeedyArm(OwnArm):
    needs = frozenset({"completion", "entropy", "logprobs"})


class TrainedArm(OwnArm):
    needs = frozenset({"completion", "trained_tokens"})


class StrangeArm(OwnArm):
    needs = frozenset({"telepathy"})


class ListingArm(OwnArm):
    needs = ["completion"]  # noqa: RUF012 - what is refused


class SyncArm(OwnArm):
    def answer(self, question, *, run):
        return None


class NamelessArm(OwnArm):
    def __init__(self, *, name):
        self.params = {}


class StubbornArm(OwnArm):
    def __init__(self, *, name):
        super().__init__(name="mine")


def here(attribute):
    return f"{__name__}:{attribute}"


def test_the_door_is_sorted_and_true():
    """Everything in __all__ exists, in sorted order."""
    assert list(strategies.__all__) == sorted(strategies.__all__)
    assert all(hasattr(strategies, name) for name in strategies.__all__)


def test_arms_come_in_the_order_of_the_configuration():
    """Every configured arm is made under its name, with defaults for missing params."""
    arms = make_arms({"single_step": {"passages": 7}, "no_retrieval": None, "multi_step": {}}, capabilities=EVERYTHING)
    assert list(arms) == ["single_step", "no_retrieval", "multi_step"]
    assert [arm.name for arm in arms.values()] == list(arms)
    assert arms["single_step"].params["passages"] == 7
    assert arms["multi_step"].params["rounds"] == 3


def test_every_registered_arm_can_be_made_bare():
    """No built-in arm needs a param, except arms that need an address or an object."""
    bare = {name: {} for name in built_in_arms()} | {"http": {"url": "http://localhost:9"}}
    bare["callable"] = {"object": "json:JSONDecoder.decode"}  # also what stands in a class
    bare |= {name: {"first": "a", "then": "b", "empty": True} for name in arm_parts()}
    assert set(make_arms(bare, capabilities=EVERYTHING)) == set(built_in_arms())


def test_an_own_arm_comes_in_by_import_path():
    """The param `class` makes a caller's class an arm, called with its name and the other params."""
    arms = make_arms({"loud": {"class": here("OwnArm"), "shout": True}}, capabilities=EVERYTHING)
    assert isinstance(arms["loud"], OwnArm)
    assert arms["loud"].params == {"shout": True}


def test_one_of_our_arms_can_be_had_twice():
    """The same class under two names gives two arms with their own settings."""
    wide = {"class": "single_step", "passages": 10}
    arms = make_arms({"single_step": {}, "wide_step": wide}, capabilities=EVERYTHING)
    assert (arms["wide_step"].name, arms["wide_step"].params["passages"]) == ("wide_step", 10)


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        ({}, "arms", ["known: ", "callable, ", "multi_step, no_retrieval"]),
        ({"singel": {}}, "arms.singel", ["'singel'", "known: ", "single_step"]),
        ({"multi_step": {"round": 3}}, "arms.multi_step.round", ["unknown parameter", "known: max_tokens", "rounds"]),
        ({"multi_step": {"rounds": "3"}}, "arms.multi_step.rounds", ["a text cannot be used", "valid integer"]),
        ({"multi_step": {"rounds": True}}, "arms.multi_step.rounds", ["True", "valid integer"]),
        ({"multi_step": {"rounds": 0}}, "arms.multi_step.rounds", ["0", "greater than or equal to 1"]),
        ({"multi_step": {"preset": "llama"}}, "arms.multi_step.preset", ["a text", "'flan'"]),
        (
            {"multi_step": {"style": "reasonned"}},
            "arms.multi_step.style",
            ["'reasonned'", "did you mean reasoned?", "'direct', 'reasoned', 'long' or 'news'"],
        ),
        ({"multi_step": {"templates": {"think_quoted": 4}}}, "arms.multi_step.templates.think_quoted", ["4", "string"]),
        ({"multi_step": {"templates": {"thnk": "x"}}}, "arms.multi_step.templates.thnk", ["think_quoted, read_direct"]),
        ({"no_retrieval": {"templates": {"recall_direct": "x"}}}, "arms.no_retrieval.templates.recall_direct", ["'x'"]),
        ({"multi_step": [1]}, "arms.multi_step", ["a list is not a mapping"]),
        ({"own": {"class": "nocolon"}}, "arms.own.class", ["'nocolon'", "package.module:Class"]),
        ({"own": {"class": 5}}, "arms.own.class", ["5", "package.module:Class"]),
        (
            {"own": {"class": "no_such_module:X"}},
            "arms.own.class",
            ["no_such_module", "PYTHONPATH", "next to the configuration file"],
        ),
        ({"own": {"class": "no_such.inside:X"}}, "arms.own.class", ["next to the configuration file"]),
        ({"own": {"class": here("Nobody")}}, "arms.own.class", ["Nobody", f"correct the module {__name__}"]),
        ({"own": {"class": ".relative:Arm"}}, "arms.own.class", ["'.relative:Arm' cannot be imported: ValueError"]),
        ({"own": {"class": here("OwnArm"), "volume": 3}}, "arms.own", ["with volume", "keywords"]),
        ({"own": {"class": here("SyncArm")}}, "arms.own", ["async def answer", "ragbandit.strategies.run.Strategy"]),
        ({"own": {"class": here("NamelessArm")}}, "arms.own", ["has no name"]),
        ({"own": {"class": here("StubbornArm")}}, "arms.own", ["calls itself 'mine'"]),
        ({"own": {"class": here("StrangeArm")}}, "arms.own", ["telepathy", "known: completion"]),
        ({"own": {"class": here("ListingArm")}}, "arms.own", ["has needs ['completion'], which is not a set"]),
    ],
)
def test_a_wrong_configuration_names_field_value_and_remedy(config, field, words):
    """Every mistake is a ConfigError with the setting's path, what was given, and what would be right."""
    with pytest.raises(ConfigError) as caught:
        make_arms(config, capabilities=EVERYTHING)
    assert caught.value.field == field
    assert caught.value.remedy
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("name", sorted(set(ARMS_HERE) - {"self_rag_trained"}))
def test_our_arms_need_stop_strings(name):
    """An arm of ours is refused at the start where the generator cannot stop at a string."""
    with pytest.raises(ConfigError, match=r"needs .*stop, and the generator offers completion"):
        make_arms({name: {}}, capabilities=frozenset({"completion"}))


def test_an_unmet_need_names_what_would_meet_it():
    """An arm that the generator cannot serve is refused with what it lacks and which generator has it."""
    with pytest.raises(ConfigError) as caught:
        make_arms({"own": {"class": here("NeedyArm")}}, capabilities=frozenset({"completion", "stop"}))
    message = str(caught.value)
    assert caught.value.field == "arms.own"
    assert "needs entropy, logprobs, and the generator offers completion, stop" in message
    assert "logprobs: use a local model, or an OpenAI-compatible server" in message
    assert "generator.openai.logprobs: true" in message


def test_an_untrained_model_is_told_the_setting():
    """Tokens of a model that was trained for an arm are named in a setting, and the refusal names it."""
    with pytest.raises(ConfigError, match=r"trained_tokens: use .*generator\.trained_tokens"):
        make_arms({"own": {"class": here("TrainedArm")}}, capabilities=EVERYTHING - {"trained_tokens"})
