"""Loading of a worker's judge: from settings to its model, its prompt and its passages."""

import os

from ragbandit.router.config.settings import Settings
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.judgements import DayBudget, Judgements
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Generator, Retriever
from ragbandit.strategies.registry import make_arms
from ragbandit.strategies.retrievers.memory import NoRetriever
from ragbandit.workers.context import Judging
from ragbandit.workers.judge.checks import as_the_judges, check_room, judge_templates
from ragbandit.workers.judge.judge import Judge
from ragbandit.workers.judge.rubric import RUBRIC
from ragbandit.workers.wiring.arms import arm_params
from ragbandit.workers.wiring.generators import concurrency_of, make_generator, offered
from ragbandit.workers.wiring.retrievers import kind_of, searches


def make_judging(settings: Settings, *, store: DecisionStore, generator: Generator | None) -> tuple[Judging, int]:
    """The judge, loaded, and how many answers it works on at once.

    generator: of the arms, where this process has it: a judge of the same settings shares it. Raises ConfigError.
    """
    chosen = settings.judge
    if chosen.generator is None:
        raise ConfigError("there is no judge", field="judge.generator", remedy="set it, or leave out --queue judge")
    template = judge_templates(chosen.templates)[RUBRIC]
    shared = generator if chosen.generator == settings.generator else None
    with as_the_judges():
        own = chosen.generator.model_copy(update={"threads": chosen.generator.threads or _threads(settings)})
        model = shared or make_generator(own)
        at_once = concurrency_of(chosen.generator, wanted=chosen.concurrency, generator=model)
    check_room(settings, template=template, generator=model)
    judge = Judge(
        chosen,
        generator=model,
        template=template,
        retriever=_passages(settings),
        model="scripted" if chosen.generator.name == "scripted" else chosen.generator.model,
        owns_generator=shared is None,
    )
    budget = DayBudget(
        judgements=chosen.judgements_per_day, tokens=chosen.tokens_per_day, dollars=chosen.dollars_per_day
    )
    judgements = Judgements(store, budget=budget, expire_s=chosen.expire_s, attempts=chosen.attempts)
    return Judging(judge, store=judgements), at_once


def _passages(settings: Settings) -> Retriever:
    """The retriever of the arms without its reranker, which looks nothing up; none where no arm searches."""
    arms = make_arms(arm_params(settings), capabilities=offered(settings.generator)) if settings.worker_arms else {}
    return kind_of(settings).open() if searches(arms.values()) else NoRetriever()


def _threads(settings: Settings) -> int:
    """Threads of a local judge: every core, or half of them where a local model answers beside it."""
    return max(1, (os.cpu_count() or 1) // (2 if settings.generator.name == "local" else 1))
