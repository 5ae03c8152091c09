"""Makes generators and arms from settings, and checks these settings without loading a model."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from ragbandit.router.config.named_sections import DEFAULT, rename_errors, section_of
from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.config.settings import Settings, WorkerSettings
from ragbandit.router.serving.setup.estimates import OWN_COSTS
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.texts.formats import did_you_mean, known_choices
from ragbandit.shared.texts.redaction import describe_value
from ragbandit.shared.types import ArmName, Json
from ragbandit.strategies.arm_parts.composite import CompositeArm
from ragbandit.strategies.base import Generator, Need
from ragbandit.strategies.generators.wrappers import PricedGenerator
from ragbandit.strategies.registry import (
    built_in_arms,
    generates,
    make_arms,
    presets_by_default,
    registered_name,
    retrieves,
    takes_param,
    with_preset,
)
from ragbandit.strategies.run import Strategy
from ragbandit.workers.setup.generator_kinds import UNLIMITED_CONCURRENCY, generator_kind, kinds
from ragbandit.workers.setup.retrievers import named_kind

log = logging.getLogger("ragbandit.arms")


def capabilities_of(settings: GeneratorSettings) -> frozenset[Need]:
    """The capabilities of the configured generator, without loading it."""
    return generator_kind(settings).capabilities


def make_generator(settings: GeneratorSettings, *, section: str = "generator", threads: int | None = None) -> Generator:
    """Load the generator, with prices. section: name of its settings in errors. threads: see `GeneratorKind.load`.

    Raises ConfigError.
    """
    with rename_errors(section, kind="generator"):
        generator = generator_kind(settings, section=section).load(threads=threads)
        if settings.prices_by_model and settings.server is None:  # a server's generator adds prices itself
            return PricedGenerator(generator, price=settings.prices_by_model[settings.model])
    return generator


def threads_of_worker(workers: WorkerSettings, *, cores: int, models: int = 1) -> int | None:
    """Torch threads of each local model, so that the models of all workers share the cores; None for all cores."""
    total = max(workers.answer, 1) * models
    return None if total <= 1 else max(1, cores // total)


#: settings of a server that do not change answers, and token_prices, which `generator_version` adds again
_PATIENCE = {"concurrency", "read_s", "retries", "token_prices"}

#: order of the keys in the JSON of `generator_version`. Versions are compared as texts: in another order, stored
#: answers would no longer match and would be paid for again. Further keys follow by name
_VERSION_KEYS: Final = (
    *("name", "model", "precision", "device", "context_tokens", "trained_tokens", "script", "script_s"),
    *("token_prices", "openai", "anthropic"),
)


def generator_version(settings: GeneratorSettings) -> str:
    """The settings that influence answers or their prices, as JSON. Stored answers of another version are not used."""
    options = (name for name, one in GeneratorSettings.model_fields.items() if isinstance(one.default, OpenAiOptions))
    speed = frozenset[str]().union(*(kind.speed for kind in kinds().values()))
    excluded: dict[str, bool | set[str]] = dict.fromkeys((*speed, *options), True)
    excluded["openai"] = _PATIENCE
    if settings.prices == "told":  # the default is left out, so that stored versions from before it stay valid
        excluded["prices"] = True
    if settings.server is not None:
        excluded[settings.name] = _PATIENCE
    version = settings.model_dump(mode="json", exclude=excluded)
    version |= {"token_prices": settings.prices_by_model, "context_tokens": settings.known_context}
    return json.dumps({name: version[name] for name in sorted(version, key=_place_in_version)})


def _place_in_version(key: str) -> tuple[int, str]:
    return (_VERSION_KEYS.index(key) if key in _VERSION_KEYS else len(_VERSION_KEYS)), key


def concurrency_of(settings: GeneratorSettings, *, requested: int | None, generator: Generator | None) -> int:
    """Maximum questions at once in a process: `requested`, else the limit of `generator` (None before loading)."""
    if requested is not None:
        return requested
    known = generator_kind(settings).concurrency
    if known is not None:
        return known
    return UNLIMITED_CONCURRENCY if generator is None else int(getattr(generator, "max_batch", 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerArm:
    #: params of the arm's class, including "class"
    params: Mapping[str, object] = field(default_factory=dict)
    generator: str = DEFAULT
    retriever: str = DEFAULT

    @property
    def named(self) -> dict[str, Json]:
        """Names of the arm's generator and retriever, without default names; stored with the arm's outcomes."""
        names = {"generator": self.generator, "retriever": self.retriever}
        return {kind: name for kind, name in names.items() if name != DEFAULT}


def worker_arms(
    settings: Settings, *, inline: Mapping[str, Mapping[str, object]] = MappingProxyType({})
) -> dict[str, WorkerArm]:
    """The arms that workers run, with `arms_preset` applied. inline: further definitions. Raises ConfigError."""
    configured = {arm: _without(params, ["run_by"]) for arm, params in settings.worker_arms.items()}
    definitions = {**configured, **inline}
    names = {arm: _names(arm, definition, settings=settings) for arm, definition in definitions.items()}
    params = {arm: _without(definition, names[arm]) for arm, definition in definitions.items()}
    if settings.arms_preset is not None:
        params = with_preset(params, preset=settings.arms_preset)
    return {arm: WorkerArm(params=params[arm], **names[arm]) for arm in params}


def _without(params: Mapping[str, object], keys: Collection[str]) -> dict[str, object]:
    return {key: value for key, value in params.items() if key not in keys}


def _names(arm: str, definition: Mapping[str, object], *, settings: Settings) -> dict[str, str]:
    """The names of the arm's generator and retriever. Ignores keys that are params of the arm's class."""
    names = {}
    for kind, sections in (("generator", settings.named_generators), ("retriever", settings.named_retrievers)):
        if kind not in definition or takes_param(arm, path=definition.get("class"), param=kind):
            continue
        name = definition[kind]
        if not isinstance(name, str) or name not in sections:
            message = f"there is no {kind} {repr(name) if isinstance(name, str) else describe_value(name)}"
            remedy = f"{known_choices(sections, given=name)}; make one under {kind}s"
            raise ConfigError(message, field=f"arms.{arm}.{kind}", remedy=remedy)
        names[kind] = name
    return names


def make_strategies(settings: Settings, arms: Mapping[str, WorkerArm]) -> dict[ArmName, tuple[WorkerArm, Strategy]]:
    """Instances of the arms and of all arms that they ask. Loads no model. Raises ConfigError."""
    strategies: dict[ArmName, tuple[WorkerArm, Strategy]] = {}
    pending = dict(arms)
    while pending:
        name = next(iter(pending))
        arm = pending.pop(name)
        with rename_errors(section_of("generator", arm.generator), kind="generator"):
            capabilities = capabilities_of(settings.named_generators[arm.generator])
            strategy = make_arms({name: arm.params}, capabilities=capabilities)[ArmName(name)]
        if retrieves(strategy):
            with named_kind(settings, arm.retriever) as kind:
                kind.check_passages(name, _passages_per_search(strategy))
        strategies[ArmName(name)] = arm, strategy
        if isinstance(strategy, CompositeArm):
            parts = dict(parts_of_composite(strategy, settings=settings).values())
            pending |= {part: parts[part] for part in parts if part not in strategies and part not in pending}
    return strategies


def _passages_per_search(strategy: Strategy) -> int:
    """The arm's largest param `passages_per_...`, else its param `passages`; 0 without such a param."""
    params = {name: value for name, value in strategy.params.items() if isinstance(value, int)}
    of_search = [value for name, value in params.items() if name.startswith("passages_per_")]
    return int(max(of_search, default=params.get("passages", 0)))


def inline_arms(settings: Settings) -> dict[str, WorkerArm]:
    """The arms that the HTTP service itself can run: they only wait for servers. Raises ConfigError."""
    if settings.workers.inline == 0:
        return {}
    arms = worker_arms(settings)
    strategies = make_strategies(settings, arms)
    return {
        name: arm for name, arm in arms.items() if _only_waits(strategies[ArmName(name)][1], arm=arm, settings=settings)
    }


def _only_waits(strategy: Strategy, *, arm: WorkerArm, settings: Settings) -> bool:
    if registered_name(type(strategy)) not in built_in_arms().keys() - {"callable"}:
        return False
    if isinstance(strategy, CompositeArm):
        return False
    if generates(strategy) and settings.named_generators[arm.generator].server is None:
        return False
    if not retrieves(strategy):
        return True
    with named_kind(settings, arm.retriever) as retriever:
        return retriever.only_waits


def needs_workers(settings: Settings) -> bool:
    """Whether some arm needs a worker process, because the HTTP service cannot run it. Raises ConfigError."""
    return len(settings.worker_arms) > len(inline_arms(settings))


def parts_of_composite(composite: CompositeArm, *, settings: Settings) -> dict[str, tuple[str, WorkerArm]]:
    """Returns param of the arm -> (name, definition) of the arm that it asks. Raises ConfigError."""
    arms = worker_arms(settings)
    parts: dict[str, tuple[str, WorkerArm]] = {}
    if composite.judged and settings.judge.generator is None:
        remedy = "set judge.generator, or use another condition"
        raise ConfigError("there is no judge", field=f"arms.{composite.name}.judge", remedy=remedy)
    for param, part in composite.part_names.items():
        if not isinstance(part, str):
            name = f"{composite.name}.{param}"
            # Made together with the configured arms, because only one of all these arms needs the preset `arms_preset`.
            parts[param] = name, worker_arms(settings, inline={name: part})[name]
        elif part not in arms or part == composite.name:
            names = [name for name in arms if name != composite.name]
            message = f"{part!r} is no other arm that our workers run"
            raise ConfigError(message, field=f"arms.{composite.name}.{param}", remedy=known_choices(names, given=part))
        else:
            parts[param] = part, arms[part]
    return parts


def names_in_use(settings: Settings) -> tuple[list[str], list[str]]:
    """Sorted names of the generators and of the retrievers that workers use. Raises ConfigError."""
    strategies = make_strategies(settings, worker_arms(settings)).values()
    generators = {arm.generator for arm, strategy in strategies if generates(strategy)}
    return sorted(generators), sorted({arm.retriever for arm, strategy in strategies if retrieves(strategy)})


def prices_by_arm(settings: Settings) -> Mapping[str, Mapping[str, Sequence[float]]]:
    """Arm -> model -> configured prices, for the built-in arms that call one generator. Raises ConfigError."""
    generators, priced = settings.named_generators, built_in_arms().keys() - OWN_COSTS
    return {
        name: dict(generators[arm.generator].prices_by_model)
        for name, (arm, strategy) in make_strategies(settings, worker_arms(settings)).items()
        if registered_name(type(strategy)) in priced and generates(strategy)
    }


def check_worker_arms(settings: Settings) -> None:
    """Raise ConfigError if an arm cannot be used, without loading models. Logs probable mistakes."""
    for name, params in settings.arms.items():
        run_by = params.get("run_by", "worker")
        if run_by not in ("worker", "caller"):
            suggestion = did_you_mean(run_by, ("worker", "caller"))
            message = f"must be worker or caller, not {repr(run_by) if suggestion else describe_value(run_by)}"
            remedy = f"{suggestion}worker: our workers run this arm; caller: your own pipeline does"
            raise ConfigError(message, field=f"arms.{name}.run_by", remedy=remedy)
    if settings.worker_arms:
        make_strategies(settings, worker_arms(settings))
    for hint in hints(settings):
        log.warning("%s", hint)


def hints(settings: Settings) -> tuple[str, ...]:
    """Warnings about valid settings that are probably mistakes."""
    if not settings.worker_arms or settings.arms_preset is not None:
        return ()
    generators = settings.named_generators
    arms = {name: arm for name, arm in worker_arms(settings).items() if generators[arm.generator].server is not None}
    small = presets_by_default({name: arm.params for name, arm in arms.items()}, preset="chat")
    text = (
        f"arms: {', '.join(small)} answer with a few words, as suits a small model, and the generator is "
        "a server; set arms_preset: chat for paragraphs, or arms_preset: small to keep them as they are"
    )
    return (text,) if small else ()
