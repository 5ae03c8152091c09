"""The option --decide of the verb `report`: prepares a bought verdict, prints its plan, and runs it."""

import contextlib
from collections.abc import Callable

from ragbandit.router.cli.console import errors
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.store import actor
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.texts.formats import counted, money
from ragbandit.workers.pairs.bought_verdict import BoughtVerdict
from ragbandit.workers.pairs.setup import asking_lease
from ragbandit.workers.setup.pipelines import named_pipelines


def decide(
    prepare: Callable[..., BoughtVerdict],
    *,
    database: Database,
    budget: float | None,
    module: str | None,
    folder: str,
) -> None:
    """Print the plan, and ask as many questions as the budget pays. The caller then makes a new report, which has the
    verdict. prepare: `prepare_verdict` with the period and the settings
    """
    pipelines = {} if module is None else named_pipelines(module, folder=folder)
    payer = actor()
    with contextlib.ExitStack() as stack:
        if budget is not None:
            stack.enter_context(asking_lease(database))
        verdict = prepare(actor=payer, pipelines=pipelines)
        stack.callback(verdict.close)
        for line in verdict.plan(budget=budget):
            errors.say(line)
        if budget is None:
            errors.say("nothing was asked: say with --budget how many dollars this may cost, for example --budget 1")
            return
        progress = stack.enter_context(show_progress(errors))
        ended = verdict.run(budget=budget, progress=progress, warn=errors.say)
    asked, spent = counted(verdict.asked_now, "question"), money(verdict.spent, "dollars")
    errors.say(f"asked {asked} for {spent}, booked to {payer}; ended: {ended}")
