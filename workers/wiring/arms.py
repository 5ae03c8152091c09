"""Wiring of arms: from settings to the params of each arm that workers run, and checks of them."""

import logging

from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.formats import did_you_mean
from ragbandit.shared.redaction import described
from ragbandit.strategies.registry import make_arms, presets_by_default, with_preset
from ragbandit.workers.wiring.generators import offered
from ragbandit.workers.wiring.retrievers import check_reranker

log = logging.getLogger("ragbandit.arms")


def arm_params(settings: Settings) -> dict[str, dict[str, object]]:
    """The arms that our workers run, without the router's own keys, with `arms_preset` where they have it.

    Raises ConfigError for a preset that no arm has, or a class that cannot be used.
    """
    arms: dict[str, dict[str, object]] = {
        name: {key: value for key, value in params.items() if key != "run_by"}
        for name, params in settings.worker_arms.items()
    }
    return arms if settings.arms_preset is None else with_preset(arms, preset=settings.arms_preset)


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
        make_arms(arm_params(settings), capabilities=offered(settings.generator))
        check_reranker(settings)
    for hint in hints(settings):
        log.warning("%s", hint)


def hints(settings: Settings) -> tuple[str, ...]:
    """Sentences about settings that can be used and most likely do not do what was meant."""
    generator, texts = settings.generator, list[str]()
    if not settings.worker_arms:
        return ()
    if generator.name == "openai" and settings.arms_preset is None:
        small = presets_by_default(arm_params(settings), preset="chat")
        if small:
            texts.append(
                f"arms: {', '.join(small)} answer with a few words, as suits a small model, and generator.name is "
                "openai; set arms_preset: chat for paragraphs, or arms_preset: small to keep them as they are"
            )
    if settings.budget.dollars is not None and not generator.prices:
        texts.append(
            f"budget.dollars: {settings.budget.dollars:g} caps only what arms report by themselves, since calls of the "
            f"generator {generator.name} have no price; set generator.price, or cap budget.tokens instead"
        )
    return tuple(texts)
