"""The kinds of generators, by `generator.name`: facts about a generator before it is loaded, and its loading."""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final, get_args

from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.shared.additions import with_additions
from ragbandit.shared.errors import ConfigError, missing_package
from ragbandit.shared.texts.formats import known_choices
from ragbandit.strategies.base import Generator, Need
from ragbandit.strategies.generators.chat_generator import ChatGenerator
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from ragbandit.strategies.generators.scripted import ScriptedGenerator

#: maximum number of concurrent questions per process if neither the generator nor workers.concurrency sets a limit
UNLIMITED_CONCURRENCY: Final = 8


class GeneratorKind(ABC):
    """A configured generator that is not loaded. section: name of its settings in errors."""

    #: packages that the generator imports
    packages: ClassVar[tuple[str, ...]] = ()
    #: the extra of RagBandit that installs these packages
    extra: ClassVar[str] = ""
    #: whether the generator's model shares the cores and the memory of this process
    is_local: ClassVar[bool] = False
    #: keys of `generator` that only this kind reads, and that do not change its answers
    speed: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, settings: GeneratorSettings, *, section: str = "generator") -> None:
        self.settings, self.section = settings, section

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[Need]:
        """The capabilities that the generator offers to arms."""

    @property
    def model(self) -> str:
        """Name of the generator's model in outcomes."""
        return self.settings.model

    @property
    def concurrency(self) -> int | None:
        """Maximum number of concurrent questions in a process; None if only the loaded generator knows it."""
        return UNLIMITED_CONCURRENCY

    @abstractmethod
    def load(self, *, threads: int | None = None) -> Generator:
        """Load the generator. Raises ConfigError. threads: default for a local model; None for all cores"""

    def check(self, *, fetch: bool) -> None:
        """Raise ConfigError if the generator cannot be loaded. Loads no model. fetch: download missing weights."""
        del fetch
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise missing_package(missing[0], extra=self.extra, field="generator.name")
        if not self.is_local:
            self.load()


class ScriptedKind(GeneratorKind):
    speed = frozenset({"script_word_s"})

    @property
    def capabilities(self) -> frozenset[Need]:
        return ScriptedGenerator.capabilities

    @property
    def model(self) -> str:
        return "scripted"

    def load(self, *, threads: int | None = None) -> Generator:
        del threads
        chosen = self.settings
        return ScriptedGenerator(
            chosen.script,
            seconds=chosen.script_s,
            word_seconds=chosen.script_word_s,
            context_tokens=chosen.known_context,
        )


class ServerKind(GeneratorKind):
    """A model behind a server of chat completions. A subclass names the generator of another form of requests."""

    extra = "openai"
    speed = frozenset({"supports"})
    generator: ClassVar[type[OpenAiGenerator]] = ChatGenerator

    def __init__(self, settings: GeneratorSettings, *, section: str = "generator") -> None:
        super().__init__(settings, section=section)
        assert settings.server is not None, "the kind of a server is chosen by its name"
        self.options = settings.server
        self.packages = self.options.packages  # type: ignore[misc] # of this server

    @property
    def capabilities(self) -> frozenset[Need]:
        return self.generator.offered_by(self.options)

    @property
    def concurrency(self) -> int | None:
        return self.options.concurrency

    def load(self, *, threads: int | None = None) -> Generator:
        del threads
        chosen = self.settings
        server = self.generator(chosen.model, options=self.options, context_tokens=chosen.known_context)
        server.section, server.prices, server.lists = self.section, chosen.prices, chosen.prices_by_model
        return server


class MissingKind(GeneratorKind):
    """The default generator without its addition. Arms without a model work; loading the generator is refused."""

    @property
    def capabilities(self) -> frozenset[Need]:
        return frozenset(get_args(Need))  # so that an arm is refused only because the generator is missing

    def load(self, *, threads: int | None = None) -> Generator:
        del threads
        message = f"there is no generator {self.settings.name!r}"
        raise ConfigError(message, field="generator.name", remedy=known_choices(kinds(), given=self.settings.name))


#: `generator.name` -> kind, of the core; additions have more
KINDS: Final[Mapping[str, type[GeneratorKind]]] = MappingProxyType({"openai": ServerKind, "scripted": ScriptedKind})


def kinds() -> Mapping[str, type[GeneratorKind]]:
    """`generator.name` -> kind, of the core and of additions."""
    return with_additions(KINDS, hook="generators")


def generator_kind(settings: GeneratorSettings, *, section: str = "generator") -> GeneratorKind:
    """The kind of a configured generator. The settings have checked its name, unless it is the default."""
    return kinds().get(settings.name, MissingKind)(settings, section=section)
