"""Verb `report`: what the router spent and at what quality, against always one arm."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ragbandit.router.api.schemas.replies import report_json
from ragbandit.router.cli.arguments import parse_time
from ragbandit.router.cli.console import ConfigOption, JsonOption, LabelOption, console, print_json, show_rows
from ragbandit.router.cli.store import opened, registered_policy
from ragbandit.router.learning.examples import closing_rule
from ragbandit.router.learning.status import status
from ragbandit.router.reporting import words
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import Line, Report
from ragbandit.router.reporting.report import report as report_in_store
from ragbandit.router.serving.explanations.policy_map import policy_map
from ragbandit.shared.formats import one_line


def report(
    since: Annotated[str, typer.Option(help="a date, a time or an age: 7d, 4w")] = "7d",
    until: Annotated[str | None, typer.Option(help="a date, a time or an age; default: now")] = None,
    tenant: Annotated[str | None, typer.Option(help="of this tenant alone")] = None,
    against: Annotated[
        str | None, typer.Option(metavar="ARM", help="default: the holdback's arm, the incumbent")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="write it as one page that can be sent")] = None,
    label: LabelOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What the router saved, and at what quality, against always one arm, with intervals and a verdict.

    Read from the database: costs of all outcomes, quality of rated answers, the newest 200,000 questions of the time.
    --json prints what /v1/report has.
    """
    now = time.time()
    with opened(config, label=label) as (settings, ledger):
        scope = ReportScope(
            label=ledger.label,
            since=parse_time(since, now=now),
            until=now if until is None else parse_time(until, now=now, field="until"),
            tenant=tenant,
        )
        result = report_in_store(ledger.database, scope, policy=settings.policy, against=against)
        mapped = policy_map(
            ledger.database, label=ledger.label, schema=settings.context, weight=settings.reward.weight, tenant=tenant
        )
        serving, rule = registered_policy(ledger), closing_rule(settings.learning)
        state = status(ledger, serving=serving, rule=rule, now=now).learning
    learning = None if state is None else state.line
    if html is not None:
        from ragbandit.router.api.ui.operation import report_file  # of the service's pages

        html.write_text(report_file(result, now=now, learning=learning, mapped=mapped), encoding="utf-8")
    if as_json:
        print_json(report_json(result, now=now, learning=learning))
        return
    console.print(one_line(words.sentence(result, now=now)), markup=False)
    for title, lines in words.tables(result):
        console.print()
        _table(title, lines, report=result)
    if mapped is not None:
        console.print()
        cells = [[one_line(cell) for cell in leaf.values()] for leaf in mapped.cells]
        show_rows(["What the policy does", "Share", "Arms", "Reward", "For example"], cells, none="")
        console.print(one_line(mapped.sentence), markup=False)
    console.print()
    if learning is not None:
        console.print(one_line(f"- {learning}"), markup=False)
    for note in words.footnotes(result):
        console.print(one_line(f"- {note}"), markup=False)
    if html is not None:
        console.print(f"written to {html}", markup=False)


def _table(title: str, lines: Sequence[Line], *, report: Report) -> None:
    rows = [[one_line(cell) for cell in words.cells(line, report.unit)] for line in lines]
    show_rows([title, *words.COLUMNS], rows, none="")
