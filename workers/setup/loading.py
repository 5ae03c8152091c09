"""Loads arms with their generators and retrievers. Generators with equal settings are loaded once and shared."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ragbandit.router.config.learning import RewardSettings
from ragbandit.router.config.named_sections import rename_errors, section_of
from ragbandit.router.config.sections import GeneratorSettings, RetrieverSettings, assumed_prices
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.types import ArmName, Budget, Json
from ragbandit.strategies.arm_parts.composite import ArmPart, Check, CompositeArm
from ragbandit.strategies.base import Generator, Prompt, Retriever
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import made_by
from ragbandit.strategies.registry import check_needs, generates, retrieves
from ragbandit.strategies.retrievers.without_index import NoRetriever
from ragbandit.strategies.run import Strategy
from ragbandit.workers.judge.judge import Judge
from ragbandit.workers.judge.reward_check import CheckProcess
from ragbandit.workers.setup import generators
from ragbandit.workers.setup.generator_kinds import generator_kind
from ragbandit.workers.setup.retrievers import named_kind, open_retriever


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoadedArm:
    strategy: Strategy
    generator: Generator
    retriever: Retriever
    #: maximum number of concurrent runs per process, counted over all arms with this generator
    most_runs: int
    named: Mapping[str, Json] = field(default_factory=dict)
    version: str = ""

    def made_by(self, budget: Budget) -> Mapping[str, Json]:
        """Facts about the arm that each of its outcomes stores (`Outcome.made_by`)."""
        return made_by(
            self.strategy, budget=budget, retriever=self.retriever, generator=self.generator, named=self.named
        )


def _refuse(_prompt: Prompt) -> str:
    raise ArmFailed("the arm asked a model, but its class sets generates = False", remedy="remove generates = False")


class ArmLoader:
    """Loads arms. Each generator and each retriever is made once. Safe to use from several threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: settings as JSON -> (generator, most concurrent questions per process)
        self._generators: dict[str, tuple[Generator, int]] = {}
        self._retrievers: dict[str, Retriever] = {}
        self._lock = threading.RLock()

    def load(self, arms: Mapping[str, generators.WorkerArm]) -> dict[ArmName, LoadedArm]:
        with self._lock:
            strategies = generators.make_strategies(self._settings, arms)
            sections = self._settings.named_generators
            names = sorted({arm.generator for arm, strategy in strategies.values() if generates(strategy)})
            models = sum(generator_kind(sections[name]).is_local for name in names)
            for name in names:
                self.generator(sections[name], section=section_of("generator", name), models=models)
            for name in sorted({arm.retriever for arm, strategy in strategies.values() if retrieves(strategy)}):
                key = _key(self._settings.named_retrievers[name])
                if key not in self._retrievers:
                    self._retrievers[key] = open_retriever(self._settings, name)
            loaded = {name: self._loaded(strategy, arm=arm) for name, (arm, strategy) in strategies.items()}
            bound = set[str]()
            for name in loaded:
                self._bind(name, loaded, bound=bound, within=())
            return {ArmName(name): loaded[ArmName(name)] for name in arms}

    def _bind(
        self, name: str, loaded: Mapping[ArmName, LoadedArm], *, bound: set[str], within: tuple[str, ...]
    ) -> None:
        """Bind an arm to the arms that it asks, inner ones first, and add it to `bound`. within: arms that ask it."""
        composite = loaded[ArmName(name)].strategy
        if not isinstance(composite, CompositeArm) or name in bound:
            return
        within = (*within, name)
        parts: dict[str, ArmPart] = {}
        for param, (part, _) in generators.parts_of_composite(composite, settings=self._settings).items():
            if part in within:
                message = f"{part} is a part of itself: {' > '.join((*within, part))}"
                raise ConfigError(message, field=f"arms.{name}.{param}", remedy="name another arm")
            self._bind(part, loaded, bound=bound, within=within)
            arm = loaded[ArmName(part)]
            parts[param] = ArmPart(arm.strategy, arm.generator, arm.retriever)
        check = judge = None
        if composite.check is not None:
            check = CheckProcess(RewardSettings(check=composite.check), field=f"arms.{name}.check")
            check.start()
        chosen = self._settings.judge.generator
        if composite.judged and chosen is not None:
            judge = Judge(self._settings.judge, generator=self.generator(chosen, section="judge.generator"))
        composite.bind(parts, check=check, judge=judge)
        bound.add(name)

    def generator(self, chosen: GeneratorSettings, *, section: str, models: int = 1) -> Generator:
        """The generator of these settings, loaded once. models: as in `threads_of_worker`. Raises ConfigError."""
        key = _key(chosen)
        with self._lock:
            if key not in self._generators:
                workers, cores = self._settings.workers, os.cpu_count() or 1
                threads = generators.threads_of_worker(workers, cores=cores, models=models)
                generator = generators.make_generator(chosen, section=section, threads=threads)
                generator.assumed_prices = assumed_prices(self._settings.named_generators)
                most_runs = generators.concurrency_of(chosen, requested=workers.concurrency, generator=generator)
                self._generators[key] = generator, most_runs
            return self._generators[key][0]

    def _loaded(self, strategy: Strategy, *, arm: generators.WorkerArm) -> LoadedArm:
        chosen = self._settings.named_generators[arm.generator]
        loaded = self._generators.get(_key(chosen))
        generator, most_runs = loaded or self._refusing_generator(chosen)
        if generates(strategy):  # a loaded model may offer less than its class, for example without attention
            check_needs(strategy, name=strategy.name, capabilities=generator.capabilities)
        retriever = self._settings.named_retrievers[arm.retriever]
        with named_kind(self._settings, arm.retriever) as kind:
            prices = kind.prices
        return LoadedArm(
            strategy=strategy,
            generator=generator,
            retriever=self._retrievers.get(_key(retriever)) or NoRetriever(),
            most_runs=most_runs,
            named=arm.named,
            version=generators.generator_version(chosen) + prices,
        )

    def _refusing_generator(self, chosen: GeneratorSettings) -> tuple[Generator, int]:
        """Returns (a generator that refuses every call, most concurrent runs), for arms without calls."""
        generator = ScriptedGenerator(_refuse, name=generator_kind(chosen).model, context_tokens=chosen.known_context)
        most_runs = generators.concurrency_of(chosen, requested=self._settings.workers.concurrency, generator=None)
        return self._generators.setdefault(f"unloaded: {_key(chosen)}", (generator, most_runs))


def _key(section: GeneratorSettings | RetrieverSettings) -> str:
    return section.model_dump_json()


def parts_of(arms: Iterable[LoadedArm]) -> list[Generator | Retriever | Check]:
    """The generators, retrievers and checks of these arms, each once."""
    parts: list[Generator | Retriever | Check] = []
    for arm in arms:
        parts += [arm.generator, arm.retriever]
        if isinstance(arm.strategy, CompositeArm):
            parts += arm.strategy.runs_on
    return list({id(part): part for part in parts}.values())


def full_arms(arms: Mapping[ArmName, LoadedArm], *, running: Iterable[ArmName]) -> set[ArmName]:
    """The arms whose generator has reached its `most_runs`. running: the arm of every run."""
    runs = Counter(id(arms[name].generator) for name in running if name in arms)
    return {name for name, arm in arms.items() if runs[id(arm.generator)] >= arm.most_runs}


def runs_at_once(arms: Iterable[LoadedArm]) -> int:
    """Maximum number of concurrent runs of a process with these arms: the sum over their generators."""
    return sum({id(arm.generator): arm.most_runs for arm in arms}.values())


def check_generators(settings: Settings, *, fetch: bool) -> None:
    for name in generators.names_in_use(settings)[0]:
        with rename_errors(section_of("generator", name), kind="generator"):
            generator_kind(settings.named_generators[name]).check(fetch=fetch)


def check_retrievers(settings: Settings) -> None:
    """Raise ConfigError if workers could not use a retriever. Loads no model and calls no function of the user."""
    for name in generators.names_in_use(settings)[1]:
        with named_kind(settings, name) as kind:
            kind.check()


def check_indexes(settings: Settings) -> None:
    """Open and close each retriever that workers use; loads no generator. Raises ConfigError."""
    for name in generators.names_in_use(settings)[1]:
        asyncio.run(open_retriever(settings, name).close())
