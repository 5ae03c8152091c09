"""`ragbandit policy train`: a policy trained on a labelled table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Printed

from ragbandit.router.cli.console import JsonOption, bars, console, errors, print_json
from ragbandit.router.cli.store import parse_policies
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs.tables import read_table
from ragbandit.router.offline.training import read_questions, train


def train_verb(
    *,
    policy: Annotated[str, typer.Option(help="adaptive_rag or multi_label")],
    table: Annotated[Path, typer.Option(help="JSONL: question, correct and steps per arm")],
    out: Annotated[Path, typer.Option(help="the folder to write; not there yet, or empty")],
    questions: Annotated[
        Path | None, typer.Option(help="JSONL: question and hops, for labels by inductive bias")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="of the policy: NAME.KEY=VALUE, as multi_label.seed=1; may be repeated")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="passes over the rows")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a policy on a full-information table, for the param `trained`."""
    named = parse_policies([policy], params=param or [], settings=Settings()).get(policy, {})
    chosen = {**named, **({} if epochs is None else {"epochs": epochs})}
    rows = list(read_table(table).rows)
    if questions is not None:
        rows += read_questions(questions, known=rows)
    with bars(errors) as show:
        report = train(
            policy, params=chosen, rows=rows, out=out, progress=lambda done, total: show("batches", done, total)
        )
    if as_json:
        print_json(report)
    else:
        print_training(report, console=console)


def print_training(report: Mapping[str, Any], *, console: Console) -> None:
    """A line per epoch, then what was used and what to do with it."""
    table = Printed("epoch", "loss", "held-out loss", "held-out accuracy", "")
    for number, line in enumerate(report["epochs"], start=1):
        held = (f"{line['validation_loss']:.3f}", f"{line['accuracy']:.3f}") if "accuracy" in line else ("", "")
        table.add_row(str(number), f"{line['loss']:.3f}", *held, "kept" if number == report["best_epoch"] else "")
    console.print(table)
    labels = ", ".join(f"{arm} {count}" for arm, count in report["labels"].items())
    console.print(
        f"{report['used']} of {report['rows']} rows had a label ({report['inductive']} by their hops), "
        f"{report['validation_rows']} of them were held out; labels: {escape(labels)}",
        soft_wrap=True,
        highlight=False,
    )
    console.print(f"set policy.params.trained to {escape(report['folder'])}", soft_wrap=True, highlight=False)
