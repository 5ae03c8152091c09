"""`generator: {name: local}`: facts about it before it is loaded."""

import pytest

from ragbandit.additions.local_models.generator import LocalGenerator
from ragbandit.additions.local_models.settings import LocalSection
from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.workers.setup.generator_kinds import generator_kind
from ragbandit.workers.setup.generators import capabilities_of, check_worker_arms, generator_version


class Trained:
    """An arm of a user that reads the tokens of a trained model."""

    needs = frozenset({"completion", "trained_tokens"})

    def __init__(self, *, name):
        self.name, self.params = name, {}

    async def answer(self, question, *, run):
        raise AssertionError("never reached")


def test_it_is_the_default():
    """A configuration without a generator has this one, whose model shares the cores of the process."""
    kind = generator_kind(Settings().generator)
    assert (kind.settings.name, kind.is_local, kind.concurrency) == ("local", True, None)
    assert kind.settings.of(LocalSection).device == "auto"


def test_an_arm_check_loads_no_model():
    """What the model can do is read from its class; an arm that needs more is refused before anything is loaded."""
    settings = Settings(generator={"name": "local", "model": "no/such-model"})
    check_worker_arms(settings)
    assert capabilities_of(settings.generator) == LocalGenerator.capabilities
    trained = {"class": f"{__name__}:Trained"}
    with pytest.raises(ConfigError, match=r"needs .*trained_tokens"):
        check_worker_arms(settings.model_copy(update={"arms": {"own": trained}}))
    told = Settings(generator={"name": "local", "trained_tokens": ["[Retrieval]"]}, arms={"own": trained})
    check_worker_arms(told)


def test_speed_does_not_change_the_version_of_answers():
    """Threads and the size of a batch change no stored answer; the precision does."""
    plain = generator_version(GeneratorSettings())
    assert generator_version(GeneratorSettings(threads=2, max_batch=3)) == plain
    assert generator_version(GeneratorSettings(precision="float32")) != plain


SERVER = (
    '"openai": {"base_url": null, "api_key_env": "OPENAI_API_KEY", "api": "chat", "kind": null, "headers": {}, '
    '"stream": "auto", "prefix": "user", "max_tokens_field": "max_tokens", "seed": null, "fields": {}, "passed": null, '
    '"media_chars": 16000000, "logprobs": false, "first_piece_s": null, "template_tokens": 64, "bytes_per_token": 1.0}}'
)


def test_the_version_of_stored_answers_stays():
    """Versions are written as they have been stored: another order of keys would make a bought answer be paid again."""
    settings = GeneratorSettings(precision="float32", trained_tokens=["[x]"])
    assert generator_version(settings) == (
        '{"name": "local", "model": "HuggingFaceTB/SmolLM2-135M-Instruct", "precision": "float32", "device": "auto", '
        '"context_tokens": 2048, "trained_tokens": ["[x]"], "script": {"": "So the answer is: scripted."}, '
        '"script_s": 0.0, "token_prices": {}, ' + SERVER
    )
