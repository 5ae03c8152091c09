"""Generators and retrievers in the settings: by name, what tokens cost, and the way to the generator "openai"."""

import asyncio

import pytest

from ragbandit.router.config.loading import load
from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Prompt, Request
from ragbandit.workers.setup.generators import make_generator
from ragbandit.workers.setup.loading import check_generators
from tests.support.cases import every_case

SERVER = {"name": "openai", "model": "gpt", "openai": {"base_url": "http://127.0.0.1:9/v1"}}


def read(tmp_path, text):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return load(file, environ={}).settings


def test_the_judge_and_the_rewriter_may_be_named(tmp_path):
    """A name stands for the section of that name, the default one among them."""
    settings = read(
        tmp_path,
        "generators: {large: {name: openai, model: big}}\njudge: {generator: large}\n"
        "conversation: {rewrite: {generator: large}}",
    )
    assert settings.judge.generator == settings.conversation.rewrite.generator == settings.generators["large"]
    assert Settings.model_validate(settings.model_dump()) == settings
    own = read(tmp_path, "generator: {name: scripted}\njudge: {generator: default}")
    assert own.judge.generator == own.generator
    assert list(own.named_generators) == list(own.named_retrievers) == ["default"]


def test_a_section_by_name_is_shown_with_what_was_given(tmp_path):
    """`validate` shows the settings of the judge's named generator with their sources."""
    file = tmp_path / "config.yaml"
    file.write_text("generators: {large: {name: openai, model: big}}\njudge: {generator: large}")
    shown = {key: source for key, _, source in load(file, environ={}).rows if key.startswith("judge.generator.")}
    of_large = f"file {file}, generators.large"
    given = {"judge.generator.name": of_large, "judge.generator.model": of_large}
    assert {key: source for key, source in shown.items() if source != "default"} == given


WRONG = [
    ("judge: {generator: larg}\ngenerators: {large: {}}", "judge.generator", "did you mean large"),
    ("generators: {default: {}}", "generators", "the name 'default' is invalid"),
    ("retrievers: {a b: {}}", "retrievers", "the name 'a b' is invalid"),
    ("generators: {large: {modl: x}}", "generators.large.modl", "did you mean model"),
    ("retrievers: {wiki: {nme: x}}", "retrievers.wiki.nme", "did you mean name"),
    ("generator: {token_prices: {input: 1}}", "generator.token_prices.output", "is needed"),
    ("generators: {l: {token_prices: {input: -1, output: 1}}}", "generators.l.token_prices.input", "at least 0"),
    ("generator: {openai: {token_prices: {gpt: [1.0]}}}", "generator.openai.token_prices.gpt", ""),
    ("generator: {openai: {token_prices: {gpt: [1.0, -1.0]}}}", "generator.openai.token_prices.gpt.1", ""),
    ("generator: {openai: {prefix: talk}}", "generator.openai.prefix", ""),
    ("generator: {openai: {colour: blue}}", "generator.openai.colour", "unknown"),
    ("generator: {openai: {retries: -1}}", "generator.openai.retries", "at least 0"),
    (
        "generator: {model: m, token_prices: {input: 1, output: 1}, openai: {token_prices: {m: [1, 1]}}}",
        "token_prices",
        "leave out",
    ),
    (
        "judge: {generator: {name: scripted}, dollars_per_day: 1}",
        "judge.dollars_per_day",
        "judge.generator.token_prices",
    ),
]


def test_wrong_names_and_prices(tmp_path):
    """The error names the setting and what to do."""
    with every_case() as case:
        for text, field, words in WRONG:
            with case(text):
                with pytest.raises(ConfigError) as caught:
                    read(tmp_path, text)
                assert (caught.value.field, words in str(caught.value)) == (field, True), str(caught.value)


def test_a_price_of_any_generator():
    """It makes the dollars of every call, and so of the judge's caps."""
    price = {"input": 1e6, "output": 2e6}
    chosen = Settings(
        generator={"name": "scripted", "script": {"": "one two"}, "token_prices": price},
        judge={"generator": "default", "dollars_per_day": 1.0},
    ).generator
    asked = Request(prompt=Prompt(instructions="", body="Who was it?"), max_tokens=8)
    assert asyncio.run(make_generator(chosen).complete(asked)).dollars == 3 * 1.0 + 2 * 2.0
    rows = [{"above": 2, "input": 2e6, "output": 2e6}]
    chosen = GeneratorSettings.model_validate(chosen.model_dump() | {"token_prices": price | {"rows": rows}})
    done = asyncio.run(make_generator(chosen).complete(asked))
    assert (done.dollars, done.price) == (10.0, {"row": {"above": 2}})


@pytest.mark.parametrize("fetch", [False, True])
def test_a_generator_that_cannot_be_made_is_refused(monkeypatch, fetch):
    """A key that is missing is said before any worker starts, unless no arm is ours to run."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    given = Settings(generator={"name": "openai", "model": "gpt"})
    with pytest.raises(ConfigError) as caught:
        check_generators(given, fetch=fetch)
    assert caught.value.field == "generator.openai.api_key_env"
    check_generators(given.model_copy(update={"arms": {"mine": {"run_by": "caller"}}}), fetch=fetch)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    check_generators(given, fetch=fetch)
