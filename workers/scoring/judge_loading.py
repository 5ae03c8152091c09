"""Loads the judge of a worker process, with its model, its retriever and its budget."""

from collections.abc import Sequence

from ragbandit.router.config.named_sections import DEFAULT
from ragbandit.router.storage.judgements import DayBudget, ScoreQueue
from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.retrievers.without_index import NoRetriever
from ragbandit.workers.judge.judge import Judge
from ragbandit.workers.running.context import Context
from ragbandit.workers.scoring.scorers import Judging
from ragbandit.workers.setup.generator_kinds import generator_kind
from ragbandit.workers.setup.generators import concurrency_of, names_in_use
from ragbandit.workers.setup.judge_checks import check_room
from ragbandit.workers.setup.retrievers import open_retriever


def load_judge(context: Context) -> tuple[Judging, int]:
    """Load the judge. Returns (judge, number of answers that it scores at the same time). Raises ConfigError."""
    settings, store = context.settings, context.store
    chosen = settings.judge
    if chosen.generator is None:
        raise ConfigError("there is no judge", field="judge.generator", remedy="set it, or leave out --queue judge")
    generators, retrievers = names_in_use(settings)
    arms_use_local = any(generator_kind(settings.named_generators[name]).is_local for name in generators)
    model = context.loader.generator(chosen.generator, section="judge.generator", models=2 if arms_use_local else 1)
    at_once = concurrency_of(chosen.generator, requested=chosen.concurrency, generator=model)
    check_room(chosen, generator=model)
    budget = DayBudget(
        judgements=chosen.judgements_per_day, tokens=chosen.tokens_per_day, dollars=chosen.dollars_per_day
    )
    queue = ScoreQueue(store, kind="judge", budget=budget, expire_s=chosen.expire_s, attempts=chosen.attempts)
    queue.make_postponed_due(now=context.deadlines.now())
    name = _judge_retriever(retrievers)
    retriever = NoRetriever() if name is None else open_retriever(settings, name, wrapped=False)
    judge = Judge(chosen, generator=model)
    judging = Judging(judge, queue=queue, model=generator_kind(chosen.generator).model, retriever=retriever)
    context.scorers.append(judging)
    context.open_loop()
    return judging, at_once


def _judge_retriever(names: Sequence[str]) -> str | None:
    """The default retriever if an arm uses it, else the first by name; None without names. names: retrievers of arms"""
    return min(names, key=lambda name: (name != DEFAULT, name), default=None)
