"""Cascades from a configuration: their parts, checks and judges are loaded, and what is missing is refused by name."""

import asyncio

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.additions import arm_parts
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Budget, DecisionId, Query
from ragbandit.strategies.outcome import run_strategy
from ragbandit.workers.setup.generators import check_worker_arms, inline_arms, make_strategies, worker_arms
from ragbandit.workers.setup.loading import ArmLoader, parts_of

SCRIPTED = {"name": "scripted", "script": {"": "x"}}


def answered(arm):
    """The outcome of this loaded arm for a question."""
    parts = {"retriever": arm.retriever, "generator": arm.generator}
    query = Query(id=DecisionId("d"), text="Who wrote Dracula?")
    return asyncio.run(run_strategy(arm.strategy, query=query, budget=Budget(), **parts))


def named(name, **params):
    return {"class": "no_retrieval", "generator": name, **params}


CONFIGURED = {
    "generators": {
        "unsure": {"name": "scripted", "script": {"": "I don't know"}},
        "sure": {"name": "scripted", "script": {"": "Stoker"}},
    },
    "arms": {
        "small": named("unsure"),
        "large": named("sure"),
        "both": {"class": "cascade", "first": "small", "then": "large", "abstains": True},
    },
}


def test_parts_of_a_cascade_run_on_what_they_name():
    """Each part has the generator of the arm of that name, also where the cascade is loaded alone."""
    settings = Settings.model_validate(CONFIGURED)
    loader = ArmLoader(settings)
    arms = loader.load(worker_arms(settings))
    for arm in (arms["both"], loader.load({"both": worker_arms(settings)["both"]})["both"]):
        outcome = answered(arm)
        assert (outcome.status, outcome.answer, outcome.cost.llm_calls) == ("answered", "Stoker", 2)
    assert arms["small"].generator in parts_of([arms["both"]])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"first": "smal"}, "'smal' is no other arm that our workers run"),
        ({"then": "both"}, "'both' is no other arm that our workers run"),
        ({"first": "caller"}, "'caller' is no other arm that our workers run"),
    ],
)
def test_a_cascade_of_no_arm_is_refused_by_name(params, message):
    """Before anything is loaded: `validate` says it, too."""
    both = CONFIGURED["arms"]["both"] | params
    arms = CONFIGURED["arms"] | {"both": both, "caller": {"run_by": "caller"}}
    with pytest.raises(ConfigError, match=message) as caught:
        check_worker_arms(Settings.model_validate(CONFIGURED | {"arms": arms}))
    assert caught.value.field == f"arms.both.{next(iter(params))}"


def test_a_cascade_of_itself_is_refused():
    """Two cascades that name each other have no end."""
    other = {"class": "cascade", "first": "both", "then": "large", "empty": True}
    both = CONFIGURED["arms"]["both"] | {"first": "other"}
    settings = Settings.model_validate(CONFIGURED | {"arms": CONFIGURED["arms"] | {"both": both, "other": other}})
    with pytest.raises(ConfigError, match=r"is a part of itself: (both > other > both|other > both > other)"):
        ArmLoader(settings).load(worker_arms(settings))


def test_parts_defined_in_place():
    """They have generators, params and errors of their own, by the path of the cascade's param."""
    first = {"class": "no_retrieval", "generator": "unsure", "max_tokens": 20}
    both = CONFIGURED["arms"]["both"] | {"first": first}
    settings = Settings.model_validate(CONFIGURED | {"arms": CONFIGURED["arms"] | {"both": both}})
    outcome = answered(ArmLoader(settings).load(worker_arms(settings))["both"])
    assert (outcome.answer, outcome.cost.llm_calls) == ("Stoker", 2)
    assert outcome.made_by["params"]["parts"]["first"]["params"]["max_tokens"] == 20
    for wrong, field in (({"max_tokens": 0}, "max_tokens"), ({"generator": "nobody"}, "generator")):
        both = CONFIGURED["arms"]["both"] | {"first": first | wrong}
        with pytest.raises(ConfigError) as caught:
            check_worker_arms(Settings.model_validate(CONFIGURED | {"arms": CONFIGURED["arms"] | {"both": both}}))
        assert caught.value.field == f"arms.both.first.{field}"


@pytest.mark.parametrize(("first", "preset"), [("model", None), ("multi_step", "flan")])
def test_a_part_defined_in_place_needs_no_preset_of_its_own(first, preset):
    """`arms_preset` is the preset of a part that has it; a part without it is accepted if a configured arm has it."""
    both = {"class": "cascade", "first": {"class": first}, "then": "multi_step", "empty": True}
    arms = {"multi_step": {"run_by": "worker"}, "both": both}
    settings = Settings.model_validate({"generator": SCRIPTED, "arms": arms, "arms_preset": "flan"})
    check_worker_arms(settings)
    part, _ = make_strategies(settings, worker_arms(settings))["both.first"]
    assert part.params.get("preset") == preset


def test_a_check_and_a_judge_of_a_cascade(tmp_path, monkeypatch):
    """The check runs in a process of its own, the judge by its model; what is not there is refused by its field."""
    (tmp_path / "own_scores.py").write_text("def low(answer, question, sources):\n    return 0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    judge = {"generator": {"name": "scripted", "script": {"": '{"answers": {"score": 0.3, "reason": "thin"}}'}}}
    for condition, reason in (
        ({"check": "own_scores:low"}, "its check gave 0.1"),
        ({"judge": 0.5}, "its judge gave 0.3"),
    ):
        arms = CONFIGURED["arms"] | {"both": {"class": "cascade", "first": "large", "then": "small", **condition}}
        settings = Settings.model_validate(CONFIGURED | {"arms": arms, "judge": judge})
        arm = ArmLoader(settings).load(worker_arms(settings))["both"]
        outcome = answered(arm)
        assert [event.value for event in outcome.trace if getattr(event, "rule", "") == "first_answer"] == [reason]
        for part in parts_of([arm]):
            asyncio.run(part.close())
    for condition, field in (({"check": "own_scores:none"}, "check"), ({"judge": 0.5}, "judge")):
        arms = CONFIGURED["arms"] | {"both": {"class": "cascade", "first": "large", "then": "small", **condition}}
        settings = Settings.model_validate(CONFIGURED | {"arms": arms})
        with pytest.raises(ConfigError) as caught:
            ArmLoader(settings).load(worker_arms(settings))
        assert caught.value.field == f"arms.both.{field}"


def test_the_params_with_parts_are_those_that_routers_know():
    """What the addition tells routers about the arm's parts is what the arm asks."""
    settings = Settings.model_validate(CONFIGURED | {"arms": CONFIGURED["arms"] | {"third": named("sure")}})
    both = {**CONFIGURED["arms"]["both"], "differs_from": "third"}
    settings = settings.model_copy(update={"arms": {**settings.arms, "both": both}})
    _, arm = make_strategies(settings, worker_arms(settings))["both"]
    assert tuple(arm.part_names) == arm_parts()["cascade"]


def test_the_service_itself_runs_no_cascade():
    """A cascade is run by workers, also if its parts only wait for servers."""
    server = {"name": "openai", "model": "m", "openai": {"base_url": "http://127.0.0.1:9/v1"}}
    both = {"class": "cascade", "first": "a", "then": "b", "abstains": True}
    settings = Settings(generator=server, arms={"a": {"class": "model"}, "b": {"class": "model"}, "both": both})
    assert inline_arms(settings).keys() == {"a", "b"}
