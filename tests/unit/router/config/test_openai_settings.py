"""The way from config.yaml to the generator "openai"."""

import asyncio

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Prompt, Request
from ragbandit.strategies.generators.response_cache import CachedGenerator
from ragbandit.workers.wiring.generators import make_generator
from ragbandit.workers.wiring.loading import check_generators


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


def test_cache_goes_around_any_generator(tmp_path):
    """generator.cache puts a cache around the generator; other settings do not share its answers."""
    asked = Request(prompt=Prompt(instructions="", body="Where?"), max_tokens=8)
    texts = []
    for said in ("here", "there", "here"):
        given = {"name": "scripted", "script": {"": said}, "cache": str(tmp_path / "answers")}
        generator = make_generator(Settings(generator=given).generator)
        assert isinstance(generator, CachedGenerator)
        texts.append(asyncio.run(generator.complete(asked)))
    assert [done.text for done in texts] == ["here", "there", "here"]
    assert [done.seconds is None for done in texts] == [True, True, False]
