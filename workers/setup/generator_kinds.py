"""The kinds of generators, by `generator.name`: facts about one that is not loaded, and its loading."""

import importlib.util
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar, Final

from ragbandit.router.config.settings import GeneratorSettings
from ragbandit.router.encoders.weights import at_hand, config_at_hand, resolve
from ragbandit.router.telemetry.logs import set_up_log
from ragbandit.shared.additions import with_additions
from ragbandit.shared.errors import ConfigError, RagBanditError, missing_package
from ragbandit.shared.processes.this_process import end_with_parent
from ragbandit.strategies.base import Generator, Need
from ragbandit.strategies.generators.chat_generator import ChatGenerator
from ragbandit.strategies.generators.local import DECODER_ONLY, LocalGenerator
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from ragbandit.strategies.generators.scripted import ScriptedGenerator

#: maximum number of concurrent questions per process if neither the generator nor workers.concurrency sets a limit
UNLIMITED_CONCURRENCY: Final = 8


class GeneratorKind(ABC):
    """A configured generator that is not loaded. section: name of its settings in errors."""

    #: packages that it imports
    packages: ClassVar[tuple[str, ...]] = ()
    #: the extra of RagBandit that installs them
    extra: ClassVar[str] = ""
    #: whether its model shares the cores and the memory of this process
    is_local: ClassVar[bool] = False

    def __init__(self, settings: GeneratorSettings, *, section: str = "generator") -> None:
        self.settings, self.section = settings, section

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[Need]:
        """What it offers to arms."""

    @property
    def model(self) -> str:
        """Name of its model in outcomes."""
        return self.settings.model

    @property
    def concurrency(self) -> int | None:
        """Maximum number of concurrent questions in a process; None if only the loaded generator knows it."""
        return UNLIMITED_CONCURRENCY

    @abstractmethod
    def load(self) -> Generator:
        """Raises ConfigError."""

    def check(self, *, fetch: bool) -> None:
        """Raise ConfigError if it could not be loaded. Loads no model. fetch: download missing weights."""
        del fetch
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            raise missing_package(missing[0], extra=self.extra, field="generator.name")
        if not self.is_local:
            self.load()


class ScriptedKind(GeneratorKind):
    @property
    def capabilities(self) -> frozenset[Need]:
        return ScriptedGenerator.capabilities

    @property
    def model(self) -> str:
        return "scripted"

    def load(self) -> Generator:
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

    def load(self) -> Generator:
        options = replace(self.options, token_prices=self.settings.prices_by_model)
        server = self.generator(self.settings.model, options=options, context_tokens=self.settings.known_context)
        server.section = self.section
        return server


class LocalKind(GeneratorKind):
    packages = ("torch", "transformers")
    extra = "models"
    is_local = True

    @property
    def capabilities(self) -> frozenset[Need]:
        trained = frozenset[Need]({"trained_tokens"} if self.settings.trained_tokens else ())
        capabilities = LocalGenerator.capabilities | trained
        # A model that is not on this disk yet is checked when it is loaded.
        has_encoder = config_at_hand(self.settings.model).get("is_encoder_decoder") is True
        return capabilities - DECODER_ONLY if has_encoder else capabilities

    @property
    def concurrency(self) -> int | None:
        return None

    def load(self) -> Generator:
        chosen = self.settings
        folder = resolve(chosen.model, setting="generator.model").folder
        names = ("precision", "device", "threads", "trained_tokens", "max_batch")
        options = {name: getattr(chosen, name) for name in names} | {"context_tokens": chosen.known_context}
        return LocalGenerator(folder, name=chosen.model, **options)

    def check(self, *, fetch: bool) -> None:
        super().check(fetch=fetch)
        model = self.settings.model
        if not at_hand(model, setting="generator.model") and fetch:
            _fetch(model)


def _fetch(model: str) -> None:
    """Make a model ready in a child process: converting weights takes memory that only the end of one gives back."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned, initializer=_begin_fetching) as fetching:
        try:
            fetching.submit(resolve, model, setting="generator.model").result()
        except RagBanditError:
            raise
        except BrokenProcessPool as error:
            message = f"the process that made {model!r} ready was killed"
            remedy = "most often memory ran out: give a model that is in safetensors already, or a smaller one"
            raise ConfigError(message, field="generator.model", remedy=remedy) from error
        except Exception as error:  # parsers of the user's files may raise anything
            message = f"{model!r} cannot be made ready: {type(error).__name__}: {error}"
            raise ConfigError(message, field="generator.model", remedy="give another file or folder") from error


def _begin_fetching() -> None:
    end_with_parent()
    set_up_log("INFO")


#: `generator.name` -> kind, of the core; additions have more
KINDS: Final[Mapping[str, type[GeneratorKind]]] = MappingProxyType(
    {"local": LocalKind, "openai": ServerKind, "scripted": ScriptedKind}
)


def generator_kind(settings: GeneratorSettings, *, section: str = "generator") -> GeneratorKind:
    """The kind of a configured generator. The settings have checked its name."""
    kind: type[GeneratorKind] = with_additions(KINDS, hook="generators")[settings.name]
    return kind(settings, section=section)
