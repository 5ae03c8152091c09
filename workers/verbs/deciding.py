"""The part of the verb `report` that asks: --decide sets up a paired comparison of stored questions, and runs it."""

import contextlib

from ragbandit.router.cli.console import errors
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.store import actor
from ragbandit.router.config.settings import Settings
from ragbandit.router.reporting.reading import Report, ReportScope
from ragbandit.router.reporting.verdict_requests import VerdictRequest
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.texts.formats import counted, money
from ragbandit.workers.pairs.setup import alone, prepared
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
    """Print how many questions can be asked, for how much and how sure, and ask as many as the budget pays. The caller
    prints the verdict: by a new report, from the stored answers. result: report of the scope
    """
    pipelines = {} if module is None else named_pipelines(module, folder=folder)
    request = VerdictRequest(
        since=scope.since,
        until=scope.until,
        tenant=scope.tenant,
        against=against,
        judge=judge,
        budget=budget,
        actor=actor(),
    )
    with contextlib.ExitStack() as stack:
        if budget is not None:
            stack.enter_context(alone(ledger.database))
        verdict = prepared(ledger, request, settings=settings, pipelines=pipelines, result=result)
        stack.callback(verdict.close)
        for line in verdict.plan(budget=budget):
            errors.say(line)
        if budget is None:
            errors.say("nothing was asked: say with --budget how many dollars this may cost, for example --budget 1")
            return
        progress = stack.enter_context(show_progress(errors))
        done = verdict.run(budget=budget, progress=progress, warn=errors.say)
    asked, spent = counted(done.asked, "question"), money(done.dollars, "dollars")
    errors.say(f"asked {asked} for {spent}, booked to {done.payer}; ended: {done.ended}")
