"""The option --decide of the verb `report`: prepares a bought verdict, prints its plan, and runs it."""

import contextlib

from ragbandit.router.cli.console import errors
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.store import actor
from ragbandit.router.config.settings import Settings
from ragbandit.router.reporting.reading import Report, ReportScope
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.texts.formats import counted, money
from ragbandit.workers.pairs.setup import asking_lease, prepare_verdict
from ragbandit.workers.setup.pipelines import named_pipelines


def decide(
    scope: ReportScope,
    *,
    result: Report,
    against: str | None,
    judge: str | None,
    budget: float | None,
    settings: Settings,
    ledger: Ledger,
    module: str | None,
    folder: str,
) -> None:
    """Print the plan, and ask as many questions as the budget pays. The caller then makes a new report, which has the
    verdict. result: report of the scope
    """
    pipelines = {} if module is None else named_pipelines(module, folder=folder)
    payer = actor()
    with contextlib.ExitStack() as stack:
        if budget is not None:
            stack.enter_context(asking_lease(ledger.database))
        verdict = prepare_verdict(
            ledger,
            scope,
            settings=settings,
            against=against,
            judge=judge,
            actor=payer,
            pipelines=pipelines,
            result=result,
        )
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
