"""Loading of arms: shared parts, parts that are not made, and unknown names."""

import asyncio

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.types import Budget, DecisionId, Query
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.workers.setup import loading
from ragbandit.workers.setup.generators import check_worker_arms, hints, make_strategies, worker_arms
from ragbandit.workers.setup.loading import ArmLoader, check_generators, full_arms, parts_of, runs_at_once
from ragbandit.workers.setup.pipelines import load_pipelines
from tests.support.additions import needs
from tests.support.cases import every_case

SCRIPTED = {"name": "scripted", "script": {"": "x"}}


class Graph:
    """An arm of a user with a param that has the name of one of ours."""

    needs = frozenset({"completion"})

    def __init__(self, *, name, retriever):
        self.name, self.params = name, {"retriever": retriever}

    async def answer(self, question, *, run):
        raise AssertionError("never reached")


class Doubting(Graph):
    """An arm of a user that reads the probabilities of its tokens."""

    needs = frozenset({"completion", "logprobs"})

    def __init__(self, *, name):
        self.name, self.params = name, {}


def loaded(**given):
    settings = Settings.model_validate(given)
    return ArmLoader(settings).load(worker_arms(settings))


def answered(arm):
    """The outcome of this loaded arm for a question."""
    parts = {"retriever": arm.retriever, "generator": arm.generator}
    query = Query(id=DecisionId("d"), text="Who wrote Dracula?")
    return asyncio.run(run_strategy(arm.strategy, query=query, budget=Budget(), **parts))


def named(name, **params):
    return {"class": "no_retrieval", "generator": name, **params}


def test_two_names_of_equal_settings_are_one_model():
    """Two names share a loaded model and what it takes at once; other settings are another one."""
    arms = loaded(
        generator=SCRIPTED,
        generators={"same": SCRIPTED, "other": {**SCRIPTED, "context_tokens": 999}},
        arms={"a": {"class": "no_retrieval"}, "b": named("same"), "c": named("other")},
        workers={"concurrency": 3},
    )
    assert arms["a"].generator is arms["b"].generator is not arms["c"].generator
    assert len([part for part in parts_of(arms.values()) if part.name == "scripted"]) == 2
    assert runs_at_once(arms.values()) == 6
    assert full_arms(arms, running=["a", "a", "b", "c", "unknown"]) == {"a", "b"}


@needs("local_models")
def test_nothing_is_loaded_that_no_arm_asks(monkeypatch):
    """Beside named generators the default is not made; for an arm behind a URL none is, and its facts stay."""
    made = []

    def noted(chosen, *, section, threads):
        made.append((section, chosen.model, threads))
        return ScriptedGenerator({"": ""})

    monkeypatch.setattr(loading.generators, "make_generator", noted)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    local = {"name": "local", "model": "one"}
    arms = loaded(
        generators={"small": local, "large": {**local, "model": "two"}, "idle": {"model": "three"}},
        arms={"a": named("small"), "b": named("large"), "far": {"class": "http", "url": "http://127.0.0.1:9/x"}},
    )
    assert made == [("generators.large", "two", 4), ("generators.small", "one", 4)]
    assert isinstance(arms["far"].generator, ScriptedGenerator)
    assert arms["far"].generator.name == Settings().generator.model
    with pytest.raises(ArmFailed, match="generates = False"):
        asyncio.run(arms["far"].generator.complete(Request(prompt=Prompt(instructions="", body="?"), max_tokens=1)))


def test_each_arm_is_checked_against_its_own_generator(caplog):
    """Capabilities, prices and the length of answers are those of the arm's generator."""
    server = {"name": "openai", "model": "m", "openai": {"base_url": "http://127.0.0.1:9/v1"}}
    told = {**server, "openai": {**server["openai"], "logprobs": True}, "token_prices": {"input": 1.0, "output": 1.0}}
    given = {"generator": SCRIPTED, "generators": {"plain": server, "told": told}, "budget": {"dollars": 1.0}}
    doubting = {"class": f"{__name__}:Doubting"}
    fits = Settings.model_validate({**given, "arms": {"f": {**doubting, "generator": "told"}}})
    check_worker_arms(fits)
    assert hints(fits) == ()
    lacks = Settings.model_validate({**given, "arms": {"f": {**doubting, "generator": "plain"}}})
    with pytest.raises(ConfigError, match=r"generators\.plain\.openai\.logprobs: true") as caught:
        check_worker_arms(lacks)
    assert caught.value.field == "arms.f"
    (short, free) = hints(
        Settings.model_validate({**given, "arms": {"a": named("plain"), "b": {"class": "multi_step"}}})
    )
    assert short.startswith("arms: a answer")
    assert "where they ask generator, generators.plain, whose calls have no price; set generator.token_prices" in free


def test_names_that_nobody_knows():
    """The error names the arm's setting, the most similar name and all known names."""
    given = {"generators": {"large": SCRIPTED}, "retrievers": {"wiki": {}}}
    with every_case() as case:
        for kind, name, words in (
            ("generator", "larg", "did you mean large? known: default, large; make one under generators"),
            ("retriever", "wkii", "did you mean wiki? known: default, wiki; make one under retrievers"),
            ("generator", 7, "known: default, large"),
        ):
            with case(kind, name):
                arms = {"deep": {"class": "single_step", kind: name}}
                with pytest.raises(ConfigError) as caught:
                    check_worker_arms(Settings.model_validate({**given, "arms": arms}))
                assert caught.value.field == f"arms.deep.{kind}"
                assert words in caught.value.remedy


def test_errors_name_the_section(tmp_path):
    """An error about a named generator or retriever names its own section."""
    keyless = {"name": "openai", "model": "m", "openai": {"api_key_env": "NO_SUCH_KEY"}}
    settings = Settings.model_validate({"generators": {"large": keyless}, "arms": {"a": named("large")}})
    with pytest.raises(ConfigError) as caught:
        check_generators(settings, fetch=False)
    assert caught.value.field == "generators.large.openai.api_key_env"
    with pytest.raises(ConfigError) as caught:
        loaded(
            data_dir=str(tmp_path),
            generator=SCRIPTED,
            retrievers={"wiki": {"index": "gone"}},
            arms={"a": {"class": "single_step", "retriever": "wiki"}},
        )
    assert caught.value.field == "retrievers.wiki.index"


CASCADE = {
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
    settings = Settings.model_validate(CASCADE)
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
    both = CASCADE["arms"]["both"] | params
    arms = CASCADE["arms"] | {"both": both, "caller": {"run_by": "caller"}}
    with pytest.raises(ConfigError, match=message) as caught:
        check_worker_arms(Settings.model_validate(CASCADE | {"arms": arms}))
    assert caught.value.field == f"arms.both.{next(iter(params))}"


def test_a_cascade_of_itself_is_refused():
    """Two cascades that name each other have no end."""
    other = {"class": "cascade", "first": "both", "then": "large", "empty": True}
    both = CASCADE["arms"]["both"] | {"first": "other"}
    with pytest.raises(ConfigError, match=r"is a part of itself: (both > other > both|other > both > other)"):
        loaded(**(CASCADE | {"arms": CASCADE["arms"] | {"both": both, "other": other}}))


def test_parts_defined_in_place():
    """They have generators, params and errors of their own, by the path of the cascade's param."""
    first = {"class": "no_retrieval", "generator": "unsure", "max_tokens": 20}
    both = CASCADE["arms"]["both"] | {"first": first}
    settings = Settings.model_validate(CASCADE | {"arms": CASCADE["arms"] | {"both": both}})
    outcome = answered(ArmLoader(settings).load(worker_arms(settings))["both"])
    assert (outcome.answer, outcome.cost.llm_calls) == ("Stoker", 2)
    assert outcome.made_by["params"]["parts"]["first"]["params"]["max_tokens"] == 20
    for wrong, field in (({"max_tokens": 0}, "max_tokens"), ({"generator": "nobody"}, "generator")):
        both = CASCADE["arms"]["both"] | {"first": first | wrong}
        with pytest.raises(ConfigError) as caught:
            check_worker_arms(Settings.model_validate(CASCADE | {"arms": CASCADE["arms"] | {"both": both}}))
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
        arms = CASCADE["arms"] | {"both": {"class": "cascade", "first": "large", "then": "small", **condition}}
        settings = Settings.model_validate(CASCADE | {"arms": arms, "judge": judge})
        arm = ArmLoader(settings).load(worker_arms(settings))["both"]
        outcome = answered(arm)
        assert [event.value for event in outcome.trace if getattr(event, "rule", "") == "first_answer"] == [reason]
        for part in parts_of([arm]):
            asyncio.run(part.close())
    for condition, field in (({"check": "own_scores:none"}, "check"), ({"judge": 0.5}, "judge")):
        arms = CASCADE["arms"] | {"both": {"class": "cascade", "first": "large", "then": "small", **condition}}
        settings = Settings.model_validate(CASCADE | {"arms": arms})
        with pytest.raises(ConfigError) as caught:
            ArmLoader(settings).load(worker_arms(settings))
        assert caught.value.field == f"arms.both.{field}"


def test_functions_of_a_user_have_the_arm_of_stored_answers():
    """Answers that functions gave to earlier releases stay those of the same arm: they are neither paid nor labelled
    again after an upgrade.
    """
    arm = load_pipelines({"small": len}, prices={})["small"]
    assert arm.made_by(Budget())["arm"] == "ragbandit.workers.evaluation.pipelines:FunctionArm"
