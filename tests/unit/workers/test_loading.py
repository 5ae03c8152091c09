"""Loading of arms: shared parts, parts that are not made, and unknown names."""

import asyncio

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.types import Budget
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.workers.setup import loading
from ragbandit.workers.setup.generators import check_worker_arms, hints, worker_arms
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
    (short,) = hints(Settings.model_validate({**given, "arms": {"a": named("plain"), "b": {"class": "multi_step"}}}))
    assert short.startswith("arms: a answer")


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


def test_functions_of_a_user_have_the_arm_of_stored_answers():
    """Answers that functions gave to earlier releases stay those of the same arm: they are neither paid nor labelled
    again after an upgrade.
    """
    arm = load_pipelines({"small": len}, prices={})["small"]
    assert arm.made_by(Budget())["arm"] == "ragbandit.workers.evaluation.pipelines:FunctionArm"
