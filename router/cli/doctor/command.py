"""Verb `doctor`: what is wrong with a running installation, and what to do."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from ragbandit.router.cli.console import ConfigOption, JsonOption, console, print_json
from ragbandit.router.cli.doctor.checks import examine, worst
from ragbandit.router.cli.doctor.findings import Installation
from ragbandit.router.config import loading as configuration

_SIGNS = {"ok": "[green]ok[/green]     ", "warning": "[yellow]warning[/yellow]", "problem": "[red]problem[/red]"}


def doctor(
    limit: Annotated[float, typer.Option("--limit", min=0.1, max=120, help="longest wait for a check, seconds")] = 8.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a running installation and say what to do; exit code 1 if there is a problem.

    Looks at schema, clocks, learner, weight of cost, keys, Redis, processes and their versions, indexes, disk; it
    changes nothing.
    """
    findings = examine(Installation(settings=configuration.load(config).settings), limit_s=limit)
    if as_json:
        print_json({"level": worst(findings), "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            line = escape(f"{finding.check}: {finding.found}")
            console.print(f"{_SIGNS[finding.level]}  {line}", soft_wrap=True, highlight=False)
            for what, text in (("means", finding.means), ("do", finding.remedy)):
                if text:
                    console.print(escape(f"         {what}: {text}"), soft_wrap=True, highlight=False)
    if worst(findings) == "problem":
        raise typer.Exit(1)
