"""Loading of a worker's judge: from settings to its model, its prompt and its passages."""

import os
import time
from collections.abc import Callable

from ragbandit.router.config.named_sections import errors_of, section_of
from ragbandit.router.config.settings import DEFAULT, GeneratorSettings, Settings
from ragbandit.router.storage.access.spending import shared_secret
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.judgements import DayBudget, ScoreQueue
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Generator, Retriever
from ragbandit.strategies.retrievers.reranking import NoRetriever
from ragbandit.workers.context import Judging
from ragbandit.workers.judge.checks import check_room, judge_templates
from ragbandit.workers.judge.judge import Judge
from ragbandit.workers.judge.rubric import RUBRIC
from ragbandit.workers.wiring.generators import concurrency_of, make_generator, model_name, names_in_use
from ragbandit.workers.wiring.retrievers import kind_of, with_retriever


def make_judging(
    settings: Settings,
    *,
    store: DecisionStore,
    loaded: Callable[[GeneratorSettings], Generator | None] | None,
) -> tuple[Judging, int]:
    """The judge, loaded, and how many answers it works on at once.

    loaded: the generator of these settings, where this process has it for an arm: the judge shares it. Raises
    ConfigError.
    """
    chosen = settings.judge
    if chosen.generator is None:
        raise ConfigError("there is no judge", field="judge.generator", remedy="set it, or leave out --queue judge")
    template = judge_templates(chosen.templates)[RUBRIC]
    shared = None if loaded is None else loaded(chosen.generator)
    own = chosen.generator.model_copy(update={"threads": chosen.generator.threads or _threads(settings)})
    model = shared or make_generator(own, section="judge.generator")
    at_once = concurrency_of(chosen.generator, wanted=chosen.concurrency, generator=model)
    check_room(settings, template=template, generator=model)
    retriever, *others = _retrievers(settings)
    judge = Judge(
        chosen,
        generator=model,
        template=template,
        retriever=retriever,
        others=others,
        model=model_name(chosen.generator),
        secret=shared_secret(store.database, name="judge", now=time.time()),
        owns_generator=shared is None,
    )
    budget = DayBudget(
        judgements=chosen.judgements_per_day, tokens=chosen.tokens_per_day, dollars=chosen.dollars_per_day
    )
    queue = ScoreQueue(store, kind="judge", budget=budget, expire_s=chosen.expire_s, attempts=chosen.attempts)
    return Judging(judge, queue=queue), at_once


def _retrievers(settings: Settings) -> list[Retriever]:
    """The retrievers of the arms without their rerankers, which look nothing up, the default one first; or none."""
    opened = list[Retriever]()
    for name in sorted(names_in_use(settings)[1], key=lambda name: (name != DEFAULT, name)):
        with errors_of(section_of("retriever", name), kind="retriever"):
            opened.append(kind_of(with_retriever(settings, name)).open())
    return opened or [NoRetriever()]


def _threads(settings: Settings) -> int:
    """Threads of a local judge: every core, or half of them where a local model answers beside it."""
    beside = any(settings.named_generators[name].name == "local" for name in names_in_use(settings)[0])
    return max(1, (os.cpu_count() or 1) // (2 if beside else 1))
