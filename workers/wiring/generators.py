"""Wiring of generators: from settings to a language model, and checks that it can be made."""

import importlib.util
import json
import logging
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ragbandit.router.config.named_sections import errors_of, section_of
from ragbandit.router.config.settings import DEFAULT, GeneratorSettings, Settings, WorkerSettings
from ragbandit.router.encoders.weights import at_hand, resolve
from ragbandit.router.telemetry.logs import set_up_log
from ragbandit.shared.child_process import end_with_parent
from ragbandit.shared.errors import ConfigError, RagBanditError, missing_package
from ragbandit.shared.formats import did_you_mean, known_choices
from ragbandit.shared.redaction import described
from ragbandit.shared.types import ArmName, Json
from ragbandit.strategies.arms.cascade import Cascade
from ragbandit.strategies.base import Generator, Need
from ragbandit.strategies.generators.local import LocalGenerator
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from ragbandit.strategies.generators.response_cache import CachedGenerator, PricedGenerator
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.registry import generates, make_arms, presets_by_default, retrieves, takes, with_preset
from ragbandit.strategies.run import Strategy
from ragbandit.workers.wiring.retrievers import check_reranker, with_retriever

#: questions at once where the generator sets no limit and workers.concurrency is not set
UNLIMITED_CONCURRENCY = 8

#: settings of a server that change only whether and when it answers; and its prices, which are told apart
_PATIENCE = {"concurrency", "read_s", "retries", "token_prices"}

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
    """The configured generator, loaded, with its price, and behind its cache, which keeps what the first call cost.

    section: of the settings, for its messages. Raises ConfigError.
    """
    with errors_of(section, kind="generator"):
        generator = _loaded(settings, section=section)
        if settings.prices_by_model and settings.name != "openai":  # it records the cost of failed calls
            generator = PricedGenerator(generator, price=settings.prices_by_model[settings.model])
        if settings.cache is not None:
            generator = CachedGenerator(generator, folder=settings.cache, version=generator_version(settings))
    return generator


def _loaded(settings: GeneratorSettings, *, section: str) -> Generator:
    context_tokens = settings.known_context
    if settings.name == "scripted":
        seconds, word_seconds = settings.script_s, settings.script_word_s
        return ScriptedGenerator(
            settings.script, seconds=seconds, word_seconds=word_seconds, context_tokens=context_tokens
        )
    if settings.name == "openai":
        options = replace(settings.openai, token_prices=settings.prices_by_model)
        server = OpenAiGenerator(settings.model, options=options, context_tokens=context_tokens)
        server.section = section
        return server
    folder = resolve(settings.model, setting="generator.model").folder
    names = ("precision", "device", "threads", "trained_tokens", "max_batch")
    chosen = {name: getattr(settings, name) for name in names} | {"context_tokens": context_tokens}
    return LocalGenerator(folder, name=settings.model, **chosen)


def threads_of_worker(workers: WorkerSettings, *, cores: int, models: int = 1) -> int | None:
    """Torch threads of a local model in one of several answer workers; None (one per core) for a single one. Models
    that all use every core wait for each other. models: local models per worker.
    """
    at_once = max(workers.answer, 1) * models
    return None if at_once <= 1 else max(1, cores // at_once)


def model_name(settings: GeneratorSettings) -> str:
    """What outcomes call the generator."""
    return "scripted" if settings.name == "scripted" else settings.model


def generator_version(settings: GeneratorSettings) -> str:
    """The settings that influence answers or their prices, as JSON, without those of speed and timeouts. Stored answers
    are found by this text, so a new setting may be added only if it changes answers.
    """
    beside: dict[str, bool | set[str]] = {**dict.fromkeys(_SPEED, True), "openai": _PATIENCE}
    facts = settings.model_dump(mode="json", exclude=beside)
    return json.dumps(facts | {"token_prices": settings.prices_by_model, "context_tokens": settings.known_context})


#: settings that change the speed or the choice of requests, but not the answers
_SPEED = ("cache", "threads", "max_batch", "script_word_s", "supports")


def check_generator(chosen: GeneratorSettings, *, fetch: bool) -> None:
    """Refuse a generator that no worker here could make, without loading a model.

    fetch: weights that are not at hand are fetched and converted. Raises ConfigError.
    """
    missing = [name for name in _PACKAGES.get(chosen.name, ()) if importlib.util.find_spec(name) is None]
    if missing:
        extra = "models" if chosen.name == "local" else chosen.name
        raise missing_package(missing[0], extra=extra, field="generator.name")
    if chosen.name != "local":
        _loaded(chosen, section="generator")
    elif not at_hand(chosen.model, setting="generator.model") and fetch:
        # In a process of its own: what conversion takes of memory goes with it.
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawned, initializer=_begin_fetching) as fetching:
            try:
                fetching.submit(resolve, chosen.model, setting="generator.model").result()
            except RagBanditError:
                raise
            except Exception as error:  # raised by a parser of a user's file
                fault, remedy = f"cannot be made ready: {type(error).__name__}: {error}", "give another file or folder"
                message = f"{chosen.model!r} {fault}"
                if isinstance(error, BrokenProcessPool):
                    message = f"the process that made {chosen.model!r} ready was killed"
                    remedy = "most often memory ran out: give a model that is in safetensors already, or a smaller one"
                raise ConfigError(message, field="generator.model", remedy=remedy) from error


def _begin_fetching() -> None:
    """First step of the process that fetches weights: it does not outlive `up`."""
    end_with_parent()
    set_up_log()


def concurrency_of(settings: GeneratorSettings, *, wanted: int | None, generator: Generator | None) -> int:
    """Parallel questions of a worker process with this generator: the setting, else the generator's own number.
    generator: the generator of these settings; None: its number is unknown.
    """
    if wanted is not None:
        return wanted
    if settings.name == "scripted" or (generator is None and settings.name == "local"):
        return UNLIMITED_CONCURRENCY
    if settings.name == "openai":
        return settings.openai.concurrency
    return int(getattr(generator, "max_batch", 1))


log = logging.getLogger("ragbandit.arms")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerArm:
    """An arm that our workers run, as the settings have it."""

    #: params of its class, including "class"
    params: Mapping[str, object] = field(default_factory=dict)
    #: the names of its generator and its retriever
    generator: str = DEFAULT
    retriever: str = DEFAULT

    @property
    def named(self) -> dict[str, Json]:
        """Names of the generator and retriever that are not the default; they are facts of the arm."""
        names = {"generator": self.generator, "retriever": self.retriever}
        return {kind: name for kind, name in names.items() if name != DEFAULT}


def worker_arms(settings: Settings) -> dict[str, WorkerArm]:
    """The arms that our workers run: their params with `arms_preset` where they have it, without the router's own keys.

    Raises ConfigError for a preset that no arm has, a class that cannot be used, or an unknown generator or retriever.
    """
    ours = settings.worker_arms.items()
    return _worker_arms(
        {arm: {key: params[key] for key in params if key != "run_by"} for arm, params in ours}, settings
    )


def _worker_arms(given: Mapping[str, Mapping[str, object]], settings: Settings) -> dict[str, WorkerArm]:
    names = {arm: _names(arm, params, settings=settings) for arm, params in given.items()}
    params = {arm: {key: each[key] for key in each if key not in names[arm]} for arm, each in given.items()}
    if settings.arms_preset is not None:
        params = with_preset(params, preset=settings.arms_preset)
    return {arm: WorkerArm(params=params[arm], **names[arm]) for arm in params}


def _names(arm: str, given: Mapping[str, object], *, settings: Settings) -> dict[str, str]:
    """The generator and the retriever that the arm names; a class with a param of that name has it for itself."""
    names = {}
    for kind, known in (("generator", settings.named_generators), ("retriever", settings.named_retrievers)):
        if kind not in given or takes(arm, path=given.get("class"), param=kind):
            continue
        name = given[kind]
        if not isinstance(name, str) or name not in known:
            message = f"there is no {kind} {described(name) if not isinstance(name, str) else repr(name)}"
            remedy = f"{known_choices(known, given=name)}; make one under {kind}s"
            raise ConfigError(message, field=f"arms.{arm}.{kind}", remedy=remedy)
        names[kind] = name
    return names


def make_strategies(settings: Settings, arms: Mapping[str, WorkerArm]) -> dict[ArmName, tuple[WorkerArm, Strategy]]:
    """Make the arms and the parts of cascades, each checked against its generator's abilities. Loads nothing. Raises
    ConfigError like `make_arms` and `parts_of_cascade`.
    """
    made: dict[ArmName, tuple[WorkerArm, Strategy]] = {}
    todo = dict(arms)
    while todo:
        name = next(iter(todo))
        arm = todo.pop(name)
        with errors_of(section_of("generator", arm.generator), kind="generator"):
            capabilities = offered(settings.named_generators[arm.generator])
            strategy = make_arms({name: arm.params}, capabilities=capabilities)[ArmName(name)]
        made[ArmName(name)] = arm, strategy
        if isinstance(strategy, Cascade):
            parts = parts_of_cascade(strategy, settings=settings)
            todo |= {part: each for part, each in parts.values() if part not in made and part not in todo}
    return made


def parts_of_cascade(cascade: Cascade, *, settings: Settings) -> dict[str, tuple[str, WorkerArm]]:
    """Param -> the name of the arm that it asks, and that arm; one that is defined in place has the param's path.

    Raises ConfigError for an arm that our workers do not run, for itself, and for a judge that is not there.
    """
    known, parts = worker_arms(settings), dict[str, tuple[str, WorkerArm]]()
    if cascade.judged and settings.judge.generator is None:
        remedy = "set judge.generator, or use another condition"
        raise ConfigError("there is no judge", field=f"arms.{cascade.name}.judge", remedy=remedy)
    for param, part in cascade.part_names.items():
        if not isinstance(part, str):
            own = f"{cascade.name}.{param}"
            # Beside an arm that has the preset of the settings, if any has it.
            parts[param] = own, _worker_arms({"no_retrieval": {}, own: part}, settings)[own]
        elif part not in known or part == cascade.name:
            others = [each for each in known if each != cascade.name]
            message = f"{part!r} is no other arm that our workers run"
            raise ConfigError(message, field=f"arms.{cascade.name}.{param}", remedy=known_choices(others, given=part))
        else:
            parts[param] = part, known[part]
    return parts


def names_in_use(settings: Settings) -> tuple[list[str], list[str]]:
    """The names of the generators that arms of our workers ask, and of the retrievers that they search, sorted.

    Raises ConfigError.
    """
    made = make_strategies(settings, worker_arms(settings)).values()
    asked = {arm.generator for arm, each in made if generates(each)}
    return sorted(asked), sorted({arm.retriever for arm, each in made if retrieves(each)})


def check_arms(settings: Settings) -> None:
    """Refuse unknown arms, wrong params, unmet needs and a reranker that is not there, without loading a model.

    What is allowed and most likely not meant is logged, see `hints`. Raises ConfigError.
    """
    for name, params in settings.arms.items():
        run_by = params.get("run_by", "worker")
        if run_by not in ("worker", "caller"):
            alike = did_you_mean(run_by, ("worker", "caller"))
            message = f"must be worker or caller, not {repr(run_by) if alike else described(run_by)}"
            remedy = f"{alike}worker: our workers run this arm; caller: your own pipeline does"
            raise ConfigError(message, field=f"arms.{name}.run_by", remedy=remedy)
    if settings.worker_arms:
        made = make_strategies(settings, worker_arms(settings)).values()
        for name in sorted({arm.retriever for arm, _ in made}):
            with errors_of(section_of("retriever", name), kind="retriever"):
                check_reranker(with_retriever(settings, name))
    for hint in hints(settings):
        log.warning("%s", hint)


def hints(settings: Settings) -> tuple[str, ...]:
    """Warnings about valid settings that are probably mistakes."""
    if not settings.worker_arms:
        return ()
    arms, texts = worker_arms(settings), list[str]()
    chosen = {name: settings.named_generators[arm.generator] for name, arm in arms.items()}
    if settings.arms_preset is None:
        served = {name: arm.params for name, arm in arms.items() if chosen[name].name == "openai"}
        if small := presets_by_default(served, preset="chat"):
            texts.append(
                f"arms: {', '.join(small)} answer with a few words, as suits a small model, and generator.name is "
                "openai; set arms_preset: chat for paragraphs, or arms_preset: small to keep them as they are"
            )
    free = sorted(
        {section_of("generator", arms[name].generator) for name, each in chosen.items() if not each.prices_by_model}
    )
    if settings.budget.dollars is not None and free:
        texts.append(
            f"budget.dollars: {settings.budget.dollars:g} caps only what arms report by themselves where they ask "
            f"{', '.join(free)}, whose calls have no price; set {free[0]}.token_prices, or cap budget.tokens instead"
        )
    return tuple(texts)
