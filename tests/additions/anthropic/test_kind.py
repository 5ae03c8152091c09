"""`generator: {name: anthropic}`: facts about it before it is loaded, and the class that is loaded."""

import pytest

from ragbandit.additions.anthropic.generator import AnthropicGenerator
from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.shared.errors import ConfigError
from ragbandit.workers.setup.generator_kinds import generator_kind
from ragbandit.workers.setup.generators import make_generator

SERVER = {"base_url": "http://127.0.0.1:9", "api_key_env": "NO_KEY", "concurrency": 3}


def test_a_configured_server_is_an_anthropic_generator():
    """The name leads to the generator of this addition, with the limits and capabilities of its options."""
    settings = GeneratorSettings(name="anthropic", model="claude", anthropic=SERVER)
    kind = generator_kind(settings)
    assert (kind.model, kind.concurrency, kind.is_local) == ("claude", 3, False)
    assert "chat" in kind.capabilities
    generator = make_generator(settings)
    assert isinstance(generator, AnthropicGenerator)
    assert (generator.name, generator.capabilities) == ("claude", kind.capabilities)


def test_a_missing_key_is_refused_with_its_section(monkeypatch):
    """Anthropic's own server needs a key; the error has the section in which the generator stands."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError) as caught:
        make_generator(GeneratorSettings(name="anthropic", model="claude"), section="generators.claude")
    assert caught.value.field == "generators.claude.anthropic.api_key_env"
    assert "ANTHROPIC_API_KEY" in caught.value.message
