"""`ragbandit evaluate`: strategies on labelled questions, or rows of routers on a table of outcomes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ragbandit.additions.evaluation.labelled_questions import FAMILY_NAMES
from ragbandit.additions.evaluation.routers.run import RouterOptions, evaluate_routers, print_routers
from ragbandit.additions.evaluation.strategies import StrategyOptions, evaluate_strategies
from ragbandit.router.cli.console import errors
from ragbandit.router.cli.options import (
    ColumnsOption,
    ConfigOption,
    HopsOption,
    JsonOption,
    MeasureOption,
    SkipBadOption,
)
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.comparison.page import check_page
from ragbandit.router.config import loading as configuration
from ragbandit.shared.errors import InvalidInput


def evaluate(
    *,
    questions: Annotated[
        Path | None, typer.Option(help="JSONL: question and answers, a list; id, dataset, hops")
    ] = None,
    strategy: Annotated[list[str] | None, typer.Option(help="NAME[,NAME...] or all; may be repeated")] = None,
    index: Annotated[str | None, typer.Option(help="name or folder of an index; default: as configured")] = None,
    family: Annotated[
        str | None, typer.Option(help=f"how answers are judged: {', '.join(FAMILY_NAMES)}; default: ours")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="number of questions to ask; default: all")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="answers at the same time; above 1 each takes longer; default: 1")
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(help="file of the answers, default: in data_dir/evaluations; with --policy of plays")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="reuse stored answers, and run what is missing")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="like --resume; also repeat failures")] = False,
    table: Annotated[Path | None, typer.Option(help="table of outcomes: written, or read with --policy")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="NAME[,NAME...]: rows of routers on --table, without running an arm")
    ] = None,
    param: Annotated[list[str] | None, typer.Option(help="with --policy: NAME.KEY=VALUE; repeat it")] = None,
    train: Annotated[Path | None, typer.Option(help="with --policy: table to learn, instead of folds")] = None,
    folds: Annotated[
        int | None, typer.Option(min=1, help="with --policy: number of parts of --table, 1 for a stream; default: 5")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="with --policy: number of orders of the questions; default: 5")
    ] = None,
    columns: ColumnsOption = None,
    skip_bad: SkipBadOption = False,
    measure: MeasureOption = None,
    total: Annotated[
        str | None, typer.Option(help="with --policy: number of all questions, or DATASET=N[,...]")
    ] = None,
    train_total: Annotated[str | None, typer.Option(help="like --total, for the table of --train")] = None,
    hops: HopsOption = None,
    datasets: Annotated[str | None, typer.Option(help="with --policy: NAME[,NAME...], only these data sets")] = None,
    report: Annotated[Path | None, typer.Option(help="write the page as FILE.html")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run strategies on labelled questions, or compare routers on a table of outcomes (--table with --policy).

    Prints quality, steps, time, tokens and price of each strategy; or the rows of policies, arms and oracle.

    Exit 0: judged. 1: written and judged, but every answer of some strategy failed or was not judged. 2: the
    request cannot be done. 130: Ctrl-C.
    """
    settings = configuration.load(config).settings
    if report is not None:
        check_page(report)
    of_routers: dict[str, Any] = {
        "param": param,
        "train": train,
        "folds": folds,
        "seeds": seeds,
        "columns": columns,
        "skip_bad": skip_bad,
        "measure": measure,
        "total": total,
        "train_total": train_total,
        "hops": hops,
        "datasets": datasets,
    }
    of_runs = {"index": index, "limit": limit, "family": family, "concurrency": concurrency}
    _check_options(
        policy,
        table=table,
        needed={"questions": questions, "strategy": strategy},
        of_runs=of_runs | {"retry-failed": retry_failed},
        of_routers=of_routers,
    )
    kept: dict[str, Any] = {"table": table, "answers": answers, "resume": resume}
    if policy:
        options = RouterOptions(policies=policy, **of_routers, **kept)
        with show_progress(errors) as progress:
            evaluated = evaluate_routers(options, settings=settings, progress=progress)
        print_routers(evaluated, report=report, as_json=as_json)
        return
    given: dict[str, Any] = {name: value for name, value in of_runs.items() if value is not None} | kept
    assert questions is not None, "_check_options has refused this"
    assert strategy, "_check_options has refused this"
    asked = StrategyOptions(questions=questions, strategy=strategy, retry_failed=retry_failed, **given)
    evaluate_strategies(asked, settings=settings, report=report, as_json=as_json)


def _check_options(
    policy: list[str] | None,
    *,
    table: Path | None,
    needed: Mapping[str, object],
    of_runs: Mapping[str, object],
    of_routers: Mapping[str, object],
) -> None:
    """Raise InvalidInput for a missing option, and for an option of the other use: runs of strategies, or routers."""
    if policy and table is None:
        remedy = "give --table T.jsonl, which `ragbandit evaluate --questions QUESTIONS.jsonl --table T.jsonl` writes"
        raise InvalidInput("rows of routers need a table of outcomes", field="table", remedy=remedy)
    for name, value in needed.items():
        if not policy and not value:
            remedy = f"give --{name}, or --table and --policy for rows of routers"
            raise InvalidInput("is missing", field=name, remedy=remedy)
    for name, value in ({**needed, **of_runs} if policy else of_routers).items():
        if value:
            reason = "--policy asks no question" if policy else "serves only rows of routers (--policy)"
            raise InvalidInput(
                reason, field=name.replace("_", "-"), remedy="leave one of the two out" if policy else "leave it out"
            )
