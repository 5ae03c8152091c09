"""Verbs on policies that learn from tables and logs: `policy train` and `simulate`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ragbandit.router.cli.console import ConfigOption, JsonOption, bars, console, errors, print_json, show
from ragbandit.router.cli.store import parse_policies, parse_weights
from ragbandit.router.comparison.page import check_page, write_page
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs.tables import read_questions, read_table, train
from ragbandit.router.offline.processes import cores
from ragbandit.router.offline.simulation import simulate
from ragbandit.router.offline.simulation.measure import assessment, print_training
from ragbandit.router.policies.checks import check_fallback
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.shared.errors import InvalidInput


def train_verb(
    *,
    policy: Annotated[str, typer.Option(help="adaptive_rag or multi_label")],
    table: Annotated[Path, typer.Option(help="JSONL: question, correct and steps per arm")],
    out: Annotated[Path, typer.Option(help="the folder to write; not there yet, or empty")],
    questions: Annotated[Path | None, typer.Option(help="JSONL: question and hops, for inductive labels")] = None,
    param: Annotated[list[str] | None, typer.Option(help="NAME.KEY=VALUE, as multi_label.seed=1; repeat it")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="passes over the rows")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a policy on a full-information table, and write a folder for the policy's param `trained`."""
    named = parse_policies([policy], params=param or [], settings=Settings()).get(policy, {})
    chosen = {**named, **({} if epochs is None else {"epochs": epochs})}
    rows = list(read_table(table).rows)
    if questions is not None:
        rows += read_questions(questions, known=rows)
    with bars(errors) as progress:
        report = train(policy, params=chosen, rows=rows, out=out, progress=partial(progress, "batches"))
    show(report, as_json=as_json)
    if not as_json:
        console.say(f"set policy.params.trained to {report['folder']}")


def simulate_verb(
    *,
    table: Annotated[Path, typer.Option(help="JSONL: question, correct and steps per arm")],
    policy: Annotated[list[str], typer.Option(help="NAME[,NAME...]; may be repeated")],
    test: Annotated[Path | None, typer.Option(help="predict these rows; learn all of the table")] = None,
    folds: Annotated[int | None, typer.Option(help="without --test: parts of the table; default 5")] = None,
    weights: Annotated[
        str | None, typer.Option("--lambda", help="cost weights X[,X...]; default reward.weight")
    ] = None,
    seeds: Annotated[int, typer.Option(help="orders of the table and draws")] = 5,
    total: Annotated[int | None, typer.Option(help="questions in EM's denominator, those not in the table too")] = None,
    param: Annotated[list[str] | None, typer.Option(help="NAME.KEY=VALUE; may be repeated")] = None,
    incumbent: Annotated[
        str | None, typer.Option(help="ARM to compare learning with; default policy.incumbent, else best fixed")
    ] = None,
    warm: Annotated[int, typer.Option(help="rows learned before each pass, with the outcomes of all arms")] = 0,
    labelled: Annotated[float, typer.Option(help="chance that an outcome is learned, above 0, at most 1")] = 1.0,
    report: Annotated[Path | None, typer.Option(help="write the page as FILE.html")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="processes; default one per core")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a full-information table as live traffic, then evaluate the policies on rows that they did not learn."""
    settings = configuration.load(config).settings
    check_fallback(settings)
    if report is not None:
        check_page(report)
    if test is not None and folds is not None:
        raise InvalidInput("--test and --folds exclude each other", field="folds", remedy="leave out one of the two")
    policies = parse_policies(policy, params=param or [], settings=settings)
    with bars(errors) as progress:
        rows = simulate(
            read_table(table),
            policies=policies,
            test=None if test is None else read_table(test),
            folds=5 if folds is None else folds,
            weights=None if weights is None else parse_weights(weights),
            seeds=seeds,
            total=total,
            settings=settings,
            encoder=lambda: make_encoder(settings.encoder),
            incumbent=incumbent,
            warm=warm,
            labelled=labelled,
            jobs=jobs or cores(),
            progress=progress,
        )
    if as_json:
        print_json([row.as_json() for row in rows])
    else:
        print_training(rows, console=console)
    if report is not None:  # last, so that an error of writing does not lose the printed table
        write_page(report, assessment(rows))
