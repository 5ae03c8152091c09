"""Verb `report`: what the router earned, and with --decide the paired comparison that settles it."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ragbandit.router.cli.console import console, errors, print_json
from ragbandit.router.cli.options import AllOption, ConfigOption, JsonOption, LabelOption, check_dollars
from ragbandit.router.cli.store import open_store, parse_time, serving_policy
from ragbandit.router.comparison.page import check_page, write_page
from ragbandit.router.comparison.terminal import print_assessment
from ragbandit.router.config import loading as configuration
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.operation.budget_words import budget_lines
from ragbandit.router.operation.price_findings import findings_of_prices
from ragbandit.router.replies.values import json_ready
from ragbandit.router.reporting import words
from ragbandit.router.reporting.last_verdicts import report_with_last_verdict
from ragbandit.router.reporting.next_steps import options_of, rating_advice, verdict_step
from ragbandit.router.reporting.reading import Report, ReportScope
from ragbandit.router.reporting.report import report as plain_report
from ragbandit.router.reporting.status import status as status_now
from ragbandit.router.reporting.unrated_answers import queue_unrated
from ragbandit.router.serving.explanations.policy_map import with_kinds
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import counted


def report(
    since: Annotated[str, typer.Option(help="a date, a time or an age: 7d, 4w")] = "7d",
    until: Annotated[str | None, typer.Option(help="a date, a time or an age; default: now")] = None,
    tenant: Annotated[str | None, typer.Option(help="this tenant only")] = None,
    against: Annotated[str | None, typer.Option(metavar="ARM", help="default: holdback's arm or incumbent")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="write the report as one HTML file")] = None,
    decide: Annotated[
        bool,
        typer.Option(
            "--decide", help="compare both arms on the same stored questions; without --budget, only print the price"
        ),
    ] = False,
    budget: Annotated[float | None, typer.Option(min=0.0, help="dollars that --decide may spend")] = None,
    module: Annotated[str | None, typer.Option(metavar="MODULE:NAME", help="functions of your arms, by name")] = None,
    judge: Annotated[
        str | None, typer.Option(help="who scores both answers: judge, check, labels (people), or MODULE:NAME")
    ] = None,
    rate: Annotated[
        bool, typer.Option("--rate", help="put the answers whose ratings the verdict lacks on the page Labels")
    ] = False,
    show_all: AllOption = False,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Report what the router saved against always using one arm, and at what quality, with intervals and a verdict.

    Reads the database: costs of all outcomes, quality of rated answers. If there are more than 30,000 questions,
    it compares a uniform sample. --json prints the reply of /v1/report.

    --decide --budget DOLLARS asks the other arm stored questions, and the arm that answered if it has changed since.
    One judge scores both answers. A run ends with the verdict; the next run goes on. Without --budget it only plans.

    --rate chooses as many unrated answers of the compared arm as probably settle the verdict, at random, and lets
    people label them.
    """
    if html is not None:
        check_page(html, field="html")
    check_dollars(budget, without="then the command only says what all questions would cost")
    if not decide:
        _refuse_without_decide(budget=budget, module=module, judge=judge)
    now = time.time()
    with open_store(config, label=label) as (settings, ledger):
        begin, end = parse_time(since, now=now), now if until is None else parse_time(until, now=now, field="until")
        scope = ReportScope.of(settings, label=ledger.label, since=begin, until=end, tenant=tenant)

        def make_report(make: Callable[..., Report]) -> Report:
            return make(ledger.database, scope, policy=settings.policy, against=against, now=now)

        # With --decide only the last report stores its verdict: the first one would hide what the answers change.
        result = make_report(plain_report if decide else report_with_last_verdict)
        if rate:
            errors.say(_queue_answers(ledger.database, result, scope=scope, now=now))
        if decide:
            file = configuration.load(config).file or Path("config.yaml")
            folder = configuration.class_folder(file)
            # imported here, since reports alone load neither arms nor models
            from ragbandit.workers.pairs.setup import prepare_verdict
            from ragbandit.workers.verbs.deciding import decide as ask_both

            asked: dict[str, Any] = {"settings": settings, "against": against, "judge": judge, "result": result}
            prepare = partial(prepare_verdict, ledger, scope, **asked)
            ask_both(prepare, database=ledger.database, budget=budget, module=module, folder=folder)
            result = make_report(report_with_last_verdict)  # with the verdict from the stored answers
        weight = settings.reward.weight
        result = with_kinds(result, ledger.database, label=ledger.label, schema=settings.context, weight=weight)
        serving, rule = serving_policy(ledger, settings=settings), closing_rule(settings.learning)
        state = status_now(ledger, serving=serving, rule=rule, now=now).learning
        budgets = budget_lines(ledger.database, tenants=settings.tenants, policy=settings.policy, now=now)
        unpriced = [finding.line for finding in findings_of_prices(settings, database=ledger.database)]
        options, ours = options_of(result, label=label, now=now), settings.worker_arms
        step = verdict_step(ledger.database, result, scope, options=options, worker_arms=ours, judge=settings.judge)
    learning = None if state is None else state.line
    result = replace(result, learning=learning)
    steps = rating_advice(result, options=options), None if step is None else step.text
    shown = words.report_assessment(result, now=now, arms=[*settings.arms], steps=steps)
    shown = replace(shown, notes=(*budgets, *unpriced, *shown.notes))
    if html is not None:
        write_page(html, shown, field="html")
    if as_json:
        print_json(json_ready(result))
    else:
        print_assessment(shown, console, show_all=show_all, page=html, option="--html FILE.html")


def _queue_answers(database: Database, result: Report, *, scope: ReportScope, now: float) -> str:
    """Put answers of the compared arm on the page Labels. Returns what was done, in words."""
    arm = result.compared_arm
    if result.to_rate is None or arm is None:
        return "no answers were put on the page Labels: a verdict is known, or not known how many ratings it takes"
    count = queue_unrated(database, scope, arm=arm, count=result.to_rate, now=now)
    return f"{counted(count, 'answer')} of {arm} {'waits' if count == 1 else 'wait'} on the page Labels"


def _refuse_without_decide(**options: object) -> None:
    """Raise InvalidInput for an option that serves only --decide."""
    for name, value in options.items():
        if value is not None:
            raise InvalidInput("serves only --decide", field=name, remedy="add --decide, or leave it out")
