"""Wiring of arms: from settings to the params of each arm that workers run, and checks of them."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from ragbandit.router.config.named_sections import errors_of, section_of
from ragbandit.router.config.settings import DEFAULT, Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.formats import did_you_mean, known_choices
from ragbandit.shared.redaction import described
from ragbandit.shared.types import ArmName, Json
from ragbandit.strategies.registry import generates, make_arms, presets_by_default, retrieves, takes, with_preset
from ragbandit.strategies.run import Strategy
from ragbandit.workers.wiring.generators import offered
from ragbandit.workers.wiring.retrievers import check_reranker, with_retriever

log = logging.getLogger("ragbandit.arms")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerArm:
    """An arm that our workers run, as the settings have it."""

    #: of its class, "class" among them
    params: Mapping[str, object] = field(default_factory=dict)
    #: the names of its generator and its retriever
    generator: str = DEFAULT
    retriever: str = DEFAULT

    @property
    def named(self) -> dict[str, Json]:
        """The names that are not the default: facts of the arm, beside its params."""
        names = {"generator": self.generator, "retriever": self.retriever}
        return {kind: name for kind, name in names.items() if name != DEFAULT}


def worker_arms(settings: Settings) -> dict[str, WorkerArm]:
    """The arms that our workers run: their params with `arms_preset` where they have it, without the router's own keys.

    Raises ConfigError for a preset that no arm has, a class that cannot be used, or an unknown generator or retriever.
    """
    params, names = dict[str, dict[str, object]](), dict[str, dict[str, str]]()
    for arm, given in settings.worker_arms.items():
        names[arm] = _names(arm, given, settings=settings)
        params[arm] = {key: value for key, value in given.items() if key != "run_by" and key not in names[arm]}
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
            raise ConfigError(
                f"there is no {kind} {described(name) if not isinstance(name, str) else repr(name)}",
                field=f"arms.{arm}.{kind}",
                remedy=f"{known_choices(known, given=name)}; make one under {kind}s",
            )
        names[kind] = name
    return names


def make_strategies(settings: Settings, arms: Mapping[str, WorkerArm]) -> dict[ArmName, Strategy]:
    """The arms themselves, each checked against what its own generator offers; nothing is loaded.

    Raises ConfigError as `make_arms`.
    """
    if not arms:
        return make_arms({}, capabilities=frozenset())
    made: dict[ArmName, Strategy] = {}
    for name, arm in arms.items():
        with errors_of(section_of("generator", arm.generator), kind="generator"):
            capabilities = offered(settings.named_generators[arm.generator])
            made |= make_arms({name: arm.params}, capabilities=capabilities)
    return made


def names_in_use(settings: Settings) -> tuple[list[str], list[str]]:
    """The names of the generators that arms of our workers ask, and of the retrievers that they search, sorted.

    Raises ConfigError.
    """
    arms = worker_arms(settings)
    made = make_strategies(settings, arms) if arms else {}
    asked = {arms[name].generator for name, each in made.items() if generates(each)}
    return sorted(asked), sorted({arms[name].retriever for name, each in made.items() if retrieves(each)})


def check_arms(settings: Settings) -> None:
    """Refuse unknown arms, wrong params, unmet needs and a reranker that is not there, without loading a model.

    What is allowed and most likely not meant is logged, see `hints`. Raises ConfigError.
    """
    for name, params in settings.arms.items():
        run_by = params.get("run_by", "worker")
        if run_by not in ("worker", "caller"):
            alike = did_you_mean(run_by, ("worker", "caller"))
            raise ConfigError(
                f"must be worker or caller, not {repr(run_by) if alike else described(run_by)}",
                field=f"arms.{name}.run_by",
                remedy=f"{alike}worker: our workers run this arm; caller: your own pipeline does",
            )
    if settings.worker_arms:
        arms = worker_arms(settings)
        make_strategies(settings, arms)
        for name in sorted({arm.retriever for arm in arms.values()}):
            with errors_of(section_of("retriever", name), kind="retriever"):
                check_reranker(with_retriever(settings, name))
    for hint in hints(settings):
        log.warning("%s", hint)


def hints(settings: Settings) -> tuple[str, ...]:
    """Sentences about settings that can be used and most likely do not do what was meant."""
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
    free = sorted({section_of("generator", arms[name].generator) for name, each in chosen.items() if not each.prices})
    if settings.budget.dollars is not None and free:
        texts.append(
            f"budget.dollars: {settings.budget.dollars:g} caps only what arms report by themselves where they ask "
            f"{', '.join(free)}, whose calls have no price; set {free[0]}.price, or cap budget.tokens instead"
        )
    return tuple(texts)
