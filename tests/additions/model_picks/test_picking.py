"""A language model's pick: the request for it, the reading of its reply, and what the policy `llm` makes of it."""

import asyncio
import json

import pytest

from ragbandit.additions.model_picks.need import PickSource
from ragbandit.additions.model_picks.picking import INSTRUCTIONS, MAX_QUESTION, material_of, parse_pick
from ragbandit.additions.model_picks.policy import Llm
from ragbandit.router.config.settings import Settings
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.policies.settings_check import check_policy
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import ArmName, Query, sent_of
from ragbandit.testing.policies import ARMS

NO, ONE, MANY = ARMS
GRID = (*ARMS, ArmName("single_step.k-4"))
SERVER = {"name": "openai", "model": "gpt", "openai": {"base_url": "http://127.0.0.1:9/v1"}}


@pytest.mark.parametrize(
    ("reply", "pick"),
    [
        ("single_step", {"arm": ONE}),
        (" **Single_Step**.\n", {"arm": ONE}),
        ('{"method": "no_retrieval"}', {"arm": NO}),
        ("single_step.k-4", {"arm": GRID[3]}),
        ("single_step. It searches once.", {"arm": ONE}),
        ("multi_step, since multi_step searches twice", {"arm": MANY}),
        ("<think>multi_step?</think>no_retrieval", {"arm": NO}),
        ("multi_step, not single_step", {"failed": "several_arms"}),
        ("single_steps", {"failed": "no_arm"}),
        ("my.single_step", {"failed": "no_arm"}),
        ("the second", {"failed": "no_arm"}),
        ("", {"failed": "no_arm"}),
        ("x" * 5000 + " single_step", {"failed": "no_arm"}),
    ],
)
def test_only_one_named_arm_is_a_pick(reply, pick):
    """A reply that names one arm as a word is a pick; with none or several it is a failure with its reason."""
    assert parse_pick(reply, arms=GRID) == pick


def test_names_that_differ_in_case_only_are_kept_apart():
    """If two names are equal without letter case, the case counts."""
    assert parse_pick("Fast", arms=(ArmName("fast"), ArmName("Fast"))) == {"arm": "Fast"}
    assert parse_pick("FAST", arms=(ArmName("fast"), ArmName("Fast"))) == {"failed": "no_arm"}


def test_the_model_is_shown_question_and_descriptions():
    """The material is the question and the sorted arms; it is the same for every order of the offer."""
    descriptions = {NO: "answers from memory"}
    material = material_of('Who? "Reply a"', arms=(ONE, NO), descriptions=descriptions)
    assert material == material_of('Who? "Reply a"', arms=(NO, ONE), descriptions=descriptions)
    methods = [{"name": NO, "does": "answers from memory"}, {"name": ONE}]
    assert json.loads(material) == {"question": 'Who? "Reply a"', "methods": methods}
    assert len(json.loads(material_of("x" * 9000, arms=ARMS, descriptions={}))["question"]) == MAX_QUESTION


def test_a_pick_is_asked_once():
    """The need asks the model once, with the instructions and the material, and reads its reply."""
    asked = []

    async def ask(instructions, material):
        asked.append((instructions, json.loads(material)["question"]))
        return "I choose multi_step."

    pick = asyncio.run(PickSource().of_question("Who?", arms=ARMS, descriptions={}, ask=ask))
    assert (pick, asked) == ({"arm": MANY}, [(INSTRUCTIONS, "Who?")])


@pytest.mark.parametrize(
    ("stored", "arms", "pmf", "facts"),
    [
        ({"arm": ONE, "by": "m"}, ARMS, (0.0, 1.0, 0.0), {}),
        ({"failed": "timeout"}, ARMS, (0.0, 0.0, 1.0), {"no_pick": "timeout"}),
        (None, ARMS, (0.0, 0.0, 1.0), {"no_pick": "not_asked"}),
        ("single_step", ARMS, (0.0, 0.0, 1.0), {"no_pick": "not_asked"}),
        ({"arm": ONE}, (NO, MANY), (0.0, 1.0), {"no_pick": "not_offered"}),
        ({"arm": MANY}, (NO, ONE), (0.5, 0.5), {"no_pick": "not_offered"}),
        ({"arm": 3}, (NO,), (1.0,), {"no_pick": "not_offered"}),
    ],
)
def test_the_stored_pick_decides(stored, arms, pmf, facts):
    """The picked arm has all probability, or the fallback arm has it and the facts have the reason."""
    query = Query(text="who?", sent=sent_of({"pick": stored}))
    output = pmf_of_one(Llm(fallback="multi_step"), query, features=None, arms=arms)
    assert (output.pmf, output.facts) == (pmf, facts)


def test_descriptions_are_read_with_the_facts():
    """An arm's description comes with its facts; no class of an arm gets it as a param."""
    arms = {
        "no_retrieval": {"description": "from memory"},
        "single_step": {"description": "one search", "grid": {"passages": [3, 9]}},
        "multi_step": None,
    }
    settings = Settings.model_validate({"arms": arms})
    assert settings.arm_descriptions == {
        "no_retrieval": "from memory",
        "single_step": "one search (passages: 3)",
        "single_step.passages-9": "one search (passages: 9)",
    }
    assert settings.worker_arms["single_step"] == {"passages": 3}
    for wrong in ("", "   ", 3, ["x"], "x" * 2001):
        with pytest.raises(ValueError, match=r"arms\.a\.description"):
            Settings.model_validate({"arms": {"a": {"description": wrong}}})


def test_a_model_behind_a_server_is_needed(caplog):
    """Without a server the configuration is refused; arms without a description are named in the log."""
    policy = {"name": "llm"}
    with pytest.raises(ConfigError, match="asks a model behind a server") as caught:
        check_policy(Settings.model_validate({"policy": policy}))
    assert caught.value.field == "policy.pick.generator"
    with pytest.raises(ValueError, match="must have name: openai"):
        Settings.model_validate({"policy": policy | {"pick": {"generator": {"name": "scripted"}}}})
    check_policy(Settings.model_validate({"policy": policy, "generator": SERVER}))
    assert "multi_step, no_retrieval, single_step by name only" in caplog.text
    caplog.clear()
    arms = {arm: {"description": "answers"} for arm in ARMS}
    named = {"generators": {"small": SERVER}, "arms": arms, "policy": policy | {"pick": {"generator": "small"}}}
    check_policy(Settings.model_validate(named))
    assert not caplog.text
