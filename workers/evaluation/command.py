"""`ragbandit evaluate`: runs arms on labelled questions, stores and judges every answer, writes a routing table."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ragbandit.router.cli.console import console, errors, interruptible, print_json
from ragbandit.router.cli.options import (
    ColumnsOption,
    ConfigOption,
    HopsOption,
    JsonOption,
    MeasureOption,
    SkipBadOption,
)
from ragbandit.router.cli.progress import bars
from ragbandit.router.comparison.assessment import Assessment
from ragbandit.router.comparison.page import check_page, write_page
from ragbandit.router.comparison.terminal import print_assessment
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs.jsonl import line_of
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import new_lines
from ragbandit.workers.asking.question_run import QuestionRun
from ragbandit.workers.evaluation import results, runs
from ragbandit.workers.evaluation.file_questions import FileQuestions
from ragbandit.workers.evaluation.quizzes import Quizzes
from ragbandit.workers.evaluation.routers import RouterOptions, evaluate_routers, print_routers
from ragbandit.workers.setup.loading import ArmLoader
from ragbandit.workers.setup.retrievers import with_choice


def evaluate(
    *,
    questions: Annotated[
        Path | None, typer.Option(help="JSONL: question and answers, a list; id, dataset, hops")
    ] = None,
    strategy: Annotated[list[str] | None, typer.Option(help="NAME[,NAME...] or all; may be repeated")] = None,
    index: Annotated[str | None, typer.Option(help="name or folder of an index; default: the configured")] = None,
    family: Annotated[
        str | None, typer.Option(help=f"how answers are judged: {', '.join(runs.FAMILY_NAMES)}; default: ours")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="only the first so many questions")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="answers at a time; above 1 an answer takes longer; default: 1")
    ] = None,
    answers: Annotated[Path | None, typer.Option(help="every answer; default: data_dir/evaluations")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="reuse stored answers, and run what is missing")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="as --resume, and repeat failures")] = False,
    table: Annotated[Path | None, typer.Option(help="outcomes: written, or with --policy read")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="NAME[,NAME...]: rows of routers on --table, without asking a model")
    ] = None,
    param: Annotated[list[str] | None, typer.Option(help="with --policy: NAME.KEY=VALUE; repeat it")] = None,
    train: Annotated[Path | None, typer.Option(help="with --policy: a table to learn instead of folds")] = None,
    folds: Annotated[
        int | None, typer.Option(min=1, help="with --policy: parts of --table; 1: a stream; default: 5")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="with --policy: orders of the questions; default: 5")] = None,
    columns: ColumnsOption = None,
    skip_bad: SkipBadOption = False,
    measure: MeasureOption = None,
    total: Annotated[
        str | None, typer.Option(help="with --policy: number of all questions, or DATASET=N[,...]")
    ] = None,
    train_total: Annotated[str | None, typer.Option(help="as --total, for the table of --train")] = None,
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
        with bars(errors) as progress:
            evaluated = evaluate_routers(options, settings=settings, progress=progress)
        print_routers(evaluated, report=report, as_json=as_json)
        return
    given: dict[str, Any] = {name: value for name, value in of_runs.items() if value is not None} | kept
    assert questions is not None, "_check_options has refused this"
    assert strategy, "_check_options has refused this"
    asked = StrategyOptions(questions=questions, strategy=strategy, retry_failed=retry_failed, **given)
    _evaluate_strategies(asked, settings=settings, report=report, as_json=as_json)


@dataclass(frozen=True, kw_only=True, slots=True)
class StrategyOptions:
    """The options of `evaluate` for runs of strategies."""

    questions: Path
    strategy: Sequence[str]
    index: str | None = None
    family: str = "ours"
    limit: int | None = None
    concurrency: int = 1
    table: Path | None = None
    answers: Path | None = None
    resume: bool = False
    retry_failed: bool = False


def _evaluate_strategies(options: StrategyOptions, *, settings: Settings, report: Path | None, as_json: bool) -> None:
    family, table, concurrency = options.family, options.table, options.concurrency
    rows = runs.read_questions(options.questions, family=family, limit=options.limit)
    settings = with_choice(settings, index=options.index)
    arms, lacking = runs.parse_arms(options.strategy, settings=settings)
    if len(arms) < 2 and table:
        remedy = "name two, or leave out the table"
        raise InvalidInput("one strategy gives nothing to route", field="strategy", remedy=remedy)
    if lacking:
        errors.say(runs.left_out(lacking))
    file = options.answers or Path(settings.data_dir) / "evaluations" / f"{options.questions.stem}.jsonl"
    quizzes = Quizzes(settings.judge, replies=file.with_suffix(".judge.jsonl")) if family == runs.CRUD else None
    with runs.Answers(file, resume=options.resume or options.retry_failed) as stored, bars(errors) as progress:
        if options.retry_failed:
            stored.forget_failed()
        progress("loading the models", 0, 0)
        loaded = ArmLoader(settings).load(arms)
        keeping: dict[str, Any] = {"answers": stored, "reward": settings.reward, "limits": settings.budget}
        questions = FileQuestions(runs.distinct(rows), arms=loaded, family=family, **keeping)
        run = QuestionRun(
            questions=questions.all,
            arms=loaded,
            cost=settings.reward.cost,
            paid_before=questions.paid,
            progress=progress,
        )
        with interruptible(f"stopped; {file} keeps the answers so far: continue with --resume"):
            asyncio.run(run.run(concurrency=concurrency))
        kept = {one.row.question: one.kept for one in questions.all}
        of_rows = [kept[row.question] for row in rows]
    answered: dict[str, list[runs.StoredAnswer]] = {
        name: [answers[place] for answers in of_rows] for place, name in enumerate(loaded)
    }
    qualities = results.qualities_of(rows, answered=answered, family=family)
    if quizzes is not None:
        qualities = _quizzed(quizzes, rows, answered=answered, qualities=qualities, concurrency=concurrency)
    one = results.time_one(answered, arms=settings.worker_arms)
    reference = None if one is None else answered[one]
    lines = [
        results.line_of_arm(rows, arm=arm, answered=answered, qualities=qualities[arm], reference=reference)
        for arm in answered
    ]
    if quizzes is not None:
        results.add_judge(lines, facts=quizzes.facts(), unjudged=quizzes.unjudged)
    judged: dict[str, Any] = {"answered": answered, "qualities": qualities, "reward": settings.reward}
    if table is not None:
        write_records(table, results.table_records(rows, **judged))
    comparisons = results.comparisons_with_best(**judged)
    remarks = quizzes.remarks() if quizzes is not None else ()
    shown = results.evaluation_assessment(lines, comparisons=comparisons, file=file, remarks=remarks)
    show(
        replace(shown, arms=tuple(settings.arms)),
        reply=results.as_json(lines, comparisons=comparisons) if as_json else None,
        show_all=True,
        report=report,
    )
    _check_usable(lines)


def _quizzed(
    quizzes: Quizzes,
    rows: Sequence[runs.LabelledQuestion],
    *,
    answered: results.Answered,
    qualities: results.Qualities,
    concurrency: int,
) -> results.Qualities:
    """The measures with those of the judge's quizzes before them."""
    stopped = interruptible("stopped; the judge's replies so far are kept: continue with --resume")
    with quizzes, bars(errors) as progress, stopped:
        run = quizzes.run(rows, answered=answered, concurrency=concurrency, progress=progress)
        judged = asyncio.run(run)
    return {
        arm: [quiz | dict(others) for quiz, others in zip(map(dict, judged[arm]), qualities[arm], strict=True)]
        for arm in qualities
    }


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


def show(assessment: Assessment, *, reply: object, show_all: bool, report: Path | None) -> None:
    """Write the page if `report` is its path. Print the reply as JSON; if there is no reply, print the assessment."""
    if report is not None:
        write_page(report, assessment)
    if reply is None:
        print_assessment(assessment, console, show_all=show_all, page=report)
    else:
        print_json(reply)


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with new_lines(path) as out:
        for record in records:
            out.write(line_of(dict(record)) + b"\n")


def _check_usable(lines: Sequence[results.Line]) -> None:
    """End with exit code 1 if all answers of a strategy failed, or none was judged: nothing should learn from zeros."""
    failed = [line["strategy"] for line in lines if line["failed"] == line["questions"]]
    unjudged = [line["strategy"] for line in lines if len(line.get("unjudged", ())) == line["questions"]]
    for names, fault in (
        (failed, "failed and counts as wrong; when its cause is removed, --retry-failed asks again"),
        (unjudged, "was not judged and counts as wrong; --resume asks the judge again"),
    ):
        if names:
            message = f"every answer of {', '.join(names)} {fault}"
            errors.print(message, style="red", soft_wrap=True, highlight=False, markup=False)
    if failed or unjudged:
        raise typer.Exit(1)
