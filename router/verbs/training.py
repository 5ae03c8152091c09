"""The verb `policy train`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ragbandit.router.cli.console import console, errors
from ragbandit.router.cli.options import ColumnsOption, HopsOption, JsonOption, MeasureOption, SkipBadOption
from ragbandit.router.cli.outcome_tables import read_outcome_table
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.store import parse_amounts, parse_policies
from ragbandit.router.cli.tables import show
from ragbandit.router.comparison.terminal import print_table
from ragbandit.router.config.learning import PolicySettings
from ragbandit.router.offline.logs.tables import read_unlabelled, with_hops, with_measure
from ragbandit.router.offline.training import train, trainable_policies
from ragbandit.shared.texts.formats import percent


def train_verb(
    *,
    policy: Annotated[str, typer.Option(help=", ".join(trainable_policies()))],
    table: Annotated[Path, typer.Option(help="table with question, and correct and steps of each arm")],
    out: Annotated[Path, typer.Option(help="folder to write; it must be missing or empty")],
    questions: Annotated[Path | None, typer.Option(help="JSONL file of question, hops; for inductive labels")] = None,
    param: Annotated[
        list[str] | None, typer.Option(help="NAME.KEY=VALUE, for example multi_label.epochs=5; repeat it")
    ] = None,
    columns: ColumnsOption = None,
    skip_bad: SkipBadOption = False,
    measure: MeasureOption = None,
    hops: HopsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a policy on a full-information table, and write a folder for the policy's param `trained`.

    Prints the accuracy of each label and the confusion matrix on the held-out rows; without any, on the training rows.
    """
    named = parse_policies([policy], params=param or [], settings=PolicySettings()).get(policy, {})
    outcomes, remarks = read_outcome_table(table, columns=columns, skip_bad=skip_bad)
    for remark in remarks:
        errors.say(remark)
    mapped = with_hops(outcomes, {name: int(n) for name, n in parse_amounts(hops, field="hops").items()})
    measured, by = with_measure(mapped, measure)
    rows = list(measured.rows)
    if questions is not None:
        rows += read_unlabelled(questions, known=rows)
    with show_progress(errors) as progress:
        trained = train(policy, params=named, rows=rows, out=out, progress=partial(progress, "batches"))
    if as_json:
        show({"measure": by, **trained.as_json()}, as_json=True)
        return
    accuracies = {**trained.confusion.accuracies, "all": trained.confusion.accuracy}
    by_label = {name: percent(share) for name, share in accuracies.items()}
    judged = {"judged_on": trained.judged_rows, "accuracy_by_label": by_label}
    show({"measure": by, **trained.report, **judged}, as_json=False)
    console.print()
    print_table(trained.table(), console=console)
    console.say(f"set policy.params.trained to {trained.report['folder']}")
