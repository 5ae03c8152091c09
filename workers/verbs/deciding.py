"""The part of the verb `report` that asks: --decide sets up a paired comparison of stored questions, and runs it."""

import contextlib

from ragbandit.router.cli.console import errors
from ragbandit.router.cli.progress import bars
from ragbandit.router.config.settings import Settings
from ragbandit.router.reporting.reading import Report
from ragbandit.router.reporting.verdict_requests import VerdictRequest
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.texts.formats import counted, money
from ragbandit.workers.pairs.setup import alone, prepared
from ragbandit.workers.setup.pipelines import named_pipelines


def decide(
    request: VerdictRequest, *, result: Report, settings: Settings, ledger: Ledger, module: str | None, folder: str
) -> None:
    """Carry out a request here: print how many questions can be asked, for how much and how sure, and ask as many as
    the budget pays. result: the request's report
    """
    pipelines, budget = {} if module is None else named_pipelines(module, folder=folder), request.budget
    with contextlib.ExitStack() as stack:
        if budget is not None:
            stack.enter_context(alone(ledger.database))
        verdict = prepared(ledger, request, settings=settings, pipelines=pipelines, result=result)
        stack.callback(verdict.close)
        for line in verdict.plan(budget=budget).sentences:
            errors.say(line)
        if budget is None:
            errors.say("nothing was asked: say with --budget how many dollars this may cost, for example --budget 1")
            return
        progress = stack.enter_context(bars(errors))
        facts = verdict.run(budget=budget, progress=progress, warn=errors.say)
    asked, spent = counted(facts["asked"], "question"), money(facts["dollars"], "dollars")
    errors.say(f"asked {asked} for {spent}, booked to {request.payer}; ended: {facts['ended']}")
