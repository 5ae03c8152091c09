"""Wiring of generators: from settings to a language model, and checks that it can be made."""

import asyncio
import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from types import MappingProxyType

from ragbandit.router.config.named_sections import errors_of
from ragbandit.router.config.settings import GeneratorSettings, Settings, WorkerSettings
from ragbandit.router.encoders.weights import at_hand, resolve
from ragbandit.router.telemetry.logs import set_up_log
from ragbandit.shared.child_process import end_with_parent
from ragbandit.shared.errors import ConfigError, RagBanditError, missing_package
from ragbandit.shared.generator_options import OpenAiOptions
from ragbandit.strategies.base import Generator, Need
from ragbandit.strategies.generators.local import LocalGenerator
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from ragbandit.strategies.generators.priced import PricedGenerator
from ragbandit.strategies.generators.response_cache import CachedGenerator
from ragbandit.strategies.generators.scripted import ScriptedGenerator

#: questions at once where the generator sets no limit and workers.concurrency is not set
UNLIMITED_CONCURRENCY = 8

#: settings of a server that change only whether and when it answers
_PATIENCE = {
    "attempt_s",
    "concurrency",
    "connect_s",
    "longest_pause_s",
    "pause_s",
    "probe",
    "read_s",
    "requests_per_minute",
    "retries",
    "tokens_per_minute",
}

#: generator.name -> the packages that it cannot do without; another name needs none
_PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType({"local": ("torch", "transformers"), "openai": ("openai",)})


def offered(settings: GeneratorSettings) -> frozenset[Need]:
    """The capabilities of the configured generator, read from its class: nothing is loaded."""
    if settings.name == "scripted":
        return ScriptedGenerator.capabilities
    if settings.name == "openai":
        return OpenAiGenerator.capabilities | ({"logprobs"} if settings.openai.logprobs else set())
    return LocalGenerator.capabilities | ({"trained_tokens"} if settings.trained_tokens else set())


def make_generator(settings: GeneratorSettings, *, section: str = "generator") -> Generator:
    """The configured generator, loaded, behind its cache if it has one. section: of the settings, for its messages.

    With openai.probe it waits for the server, and not inside an event loop. Raises ConfigError, and NotReady for a
    server that is away.
    """
    return _wrapped(_made(settings, section=section), settings=settings)


def _made(settings: GeneratorSettings, *, section: str) -> Generator:
    with errors_of(section, kind="generator"):
        generator = _GENERATORS[settings.name](settings)
    if isinstance(generator, OpenAiGenerator):
        generator.section = section
    return generator


def generator_and_concurrency(
    settings: Settings, *, chosen: GeneratorSettings, section: str, models: int = 1
) -> tuple[Generator, int]:
    """`make_generator`, and how many questions one worker process works on at once with it.

    models: local ones that the process loads in all.
    """
    threads = chosen.threads or threads_of_worker(settings.workers, cores=os.cpu_count() or 1, models=models)
    generator = _made(chosen.model_copy(update={"threads": threads}), section=section)
    at_once = concurrency_of(chosen, wanted=settings.workers.concurrency, generator=generator)
    return _wrapped(generator, settings=chosen), at_once


def threads_of_worker(workers: WorkerSettings, *, cores: int, models: int = 1) -> int | None:
    """Threads of a local model in one of the answer workers of a host; None: one per core, where it is alone.

    Several models that each use every core wait for each other's threads. models: of one worker.
    """
    at_once = max(workers.answer, 1) * models
    return None if at_once <= 1 else max(1, cores // at_once)


def without_probe(settings: GeneratorSettings) -> GeneratorSettings:
    """The same generator, whose server nobody asks at the start."""
    return settings.model_copy(update={"openai": replace(settings.openai, probe=False)})


def model_name(settings: GeneratorSettings) -> str:
    """What outcomes call the generator."""
    return "scripted" if settings.name == "scripted" else settings.model


def _wrapped(generator: Generator, *, settings: GeneratorSettings) -> Generator:
    """With its price, and behind its cache, which keeps what the first call cost."""
    if settings.prices and settings.name != "openai":  # which knows what calls cost that broke off
        generator = PricedGenerator(generator, price=settings.prices[settings.model])
    if settings.cache is None:
        return generator
    return CachedGenerator(generator, folder=settings.cache, version=generator_version(settings))


def generator_version(settings: GeneratorSettings) -> str:
    """The settings that decide what is answered at what price, as JSON: those of speed and patience are not in it.

    Stored answers are found by this text, so a new setting may join it only where it changes what is answered.
    """
    beside: dict[str, bool | set[str]] = dict.fromkeys(_SPEED, True)
    if (
        settings.price is None or settings.name == "openai"
    ):  # whose price stands where it stood before there was `price`
        beside["price"] = True
    priced = settings.model_copy(update={"openai": _priced(settings)})
    return priced.model_dump_json(exclude=beside | {"openai": _PATIENCE})


def _priced(settings: GeneratorSettings) -> OpenAiOptions:
    """The options of the server, with the model's price among theirs."""
    return replace(settings.openai, prices=settings.prices) if settings.name == "openai" else settings.openai


def _make_scripted(settings: GeneratorSettings) -> Generator:
    return ScriptedGenerator(
        settings.script,
        seconds=settings.script_s,
        word_seconds=settings.script_word_s,
        context_tokens=settings.context_tokens,
    )


def _make_local(settings: GeneratorSettings) -> Generator:
    weights = resolve(settings.model, setting="generator.model")
    return LocalGenerator(
        weights.folder,
        name=settings.model,
        precision=settings.precision,
        device=settings.device,
        threads=settings.threads,
        context_tokens=settings.context_tokens,
        trained_tokens=settings.trained_tokens,
        max_batch=settings.max_batch,
    )


def _make_openai(settings: GeneratorSettings) -> Generator:
    generator = OpenAiGenerator(settings.model, options=_priced(settings), context_tokens=settings.context_tokens)
    if settings.openai.probe:
        asyncio.run(generator.probe())
    return generator


#: settings that change how fast an answer comes, and not what it says
_SPEED = ("cache", "threads", "max_batch", "script_word_s")

#: generator.name -> its maker
_GENERATORS: Mapping[str, Callable[[GeneratorSettings], Generator]] = MappingProxyType(
    {"local": _make_local, "openai": _make_openai, "scripted": _make_scripted}
)


def check_generator(chosen: GeneratorSettings, *, fetch: bool) -> None:
    """Refuse a generator that no worker here could make, without loading a model.

    fetch: weights that are not at hand are fetched and converted, and openai.probe asks the server. Without, nobody is
    asked. Raises ConfigError, and NotReady for a server that is away.
    """
    missing = [name for name in _PACKAGES.get(chosen.name, ()) if importlib.util.find_spec(name) is None]
    if missing:
        extra = "models" if chosen.name == "local" else chosen.name
        raise missing_package(missing[0], extra=extra, field="generator.name")
    if chosen.name != "local":
        quiet = replace(chosen.openai, probe=chosen.openai.probe and fetch)
        _GENERATORS[chosen.name](chosen.model_copy(update={"openai": quiet}))
    elif not at_hand(chosen.model, setting="generator.model") and fetch:
        # In a process of its own: what conversion takes of memory goes with it.
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawned, initializer=_begin_fetching) as fetching:
            try:
                fetching.submit(resolve, chosen.model, setting="generator.model").result()
            except RagBanditError:
                raise
            except BrokenProcessPool as error:
                raise ConfigError(
                    f"the process that made {chosen.model!r} ready was killed",
                    field="generator.model",
                    remedy="most often memory ran out: give a model that is in safetensors already, or a smaller one",
                ) from error
            except Exception as error:  # of whatever reads a file that somebody made
                raise ConfigError(
                    f"{chosen.model!r} cannot be made ready: {type(error).__name__}: {error}",
                    field="generator.model",
                    remedy="give another file or folder",
                ) from error


def _begin_fetching() -> None:
    """First step of the process that fetches weights: it does not outlive `up`."""
    end_with_parent()
    set_up_log()


def concurrency_of(settings: GeneratorSettings, *, wanted: int | None, generator: Generator | None) -> int:
    """Questions that one worker process works on at once with this generator: as wanted, else as many as it takes.

    generator: of these settings, without its price and cache; None: it is not asked.
    """
    if wanted is not None:
        return wanted
    if settings.name == "scripted" or (generator is None and settings.name == "local"):
        return UNLIMITED_CONCURRENCY
    if settings.name == "openai":
        return settings.openai.concurrency
    return int(getattr(generator, "max_batch", 1))
