"""`ragbandit advise`: decides whether routing pays on given questions, and can train the policy with their outcomes."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ragbandit.additions.advice.applying import apply_advice
from ragbandit.additions.advice.assessment import advice_assessment, arm_notes
from ragbandit.additions.advice.run import AdviceRun, RunOptions
from ragbandit.additions.advice.verdict import Criteria, advice_of
from ragbandit.additions.evaluation.assessments import show_assessment
from ragbandit.additions.evaluation.compared_arms import check_configured
from ragbandit.additions.evaluation.outcomes import STORE, OutcomeReader
from ragbandit.additions.evaluation.warm import check_warm_policy
from ragbandit.router.cli.console import errors
from ragbandit.router.cli.options import ColumnsOption, ConfigOption, JsonOption, SkipBadOption, check_dollars
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.cli.store import open_store, split_commas
from ragbandit.router.comparison import WORTH
from ragbandit.router.comparison.page import check_page
from ragbandit.router.config import loading as configuration
from ragbandit.router.serving.setup.bootstrap import make_encoder
from ragbandit.router.serving.setup.requirements import has_store
from ragbandit.shared.errors import InvalidInput
from ragbandit.workers.setup.pipelines import named_pipelines

EXITS: Final = {"route": 0, "wrong log": 2, "fix": 3, "not enough": 4}


def advise_verb(
    questions: Annotated[Path | None, typer.Argument(help="JSONL: question, and answers unless a judge scores")] = None,
    *,
    table: Annotated[Path | None, typer.Option(help="table with correct and a cost by arm; runs no arm")] = None,
    log: Annotated[Path | None, typer.Option(help="file of decisions with rewards; default: the store")] = None,
    columns: ColumnsOption = None,
    skip_bad: SkipBadOption = False,
    module: Annotated[str | None, typer.Option(metavar="MODULE:NAME", help="your functions, by name")] = None,
    arms: Annotated[str | None, typer.Option(help="NAME[,NAME...]; default: all of --module, else of workers")] = None,
    budget: Annotated[float | None, typer.Option(min=0.0, help="most dollars that the answers may cost")] = None,
    worth: Annotated[float, typer.Option(min=0.0, help="smallest gain in reward that justifies a router")] = WORTH,
    folds: Annotated[int, typer.Option(min=2, help="number of parts of the questions; each is held out once")] = 5,
    family: Annotated[str, typer.Option(help="how answers are judged, see evaluate")] = "ours",
    limit: Annotated[int | None, typer.Option(min=1, help="number of questions to ask; default: all")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="number of answers at the same time")] = 1,
    answers: Annotated[Path | None, typer.Option(help="file of the answers; default: in data_dir/evaluations")] = None,
    warm: Annotated[bool, typer.Option("--warm", help="let the policy learn the outcomes: a warm start")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="like --warm; also write incumbent and holdback")] = False,
    report: Annotated[Path | None, typer.Option(help="write the page as FILE.html")] = None,
    every: Annotated[bool, typer.Option("--all", help="print every number, and how it was measured")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether routing is worth it: route, fix (always one arm), or not enough (and how many questions decide).

    Runs the configured arms, or your own functions (--module), on the same labelled questions until the verdict is
    certain; or takes stored outcomes. Example: `ragbandit advise questions.jsonl --budget 5`

    Exit 0: route. 3: fix. 4: not enough. 2: the log is wrong, or the request cannot be done.
    """
    _check_sources(questions, table=table, log=log, module=module, columns=columns)
    if report is not None:
        check_page(report)
    check_dollars(budget, without="then every question may be asked")
    loaded = configuration.load(config)
    settings = loaded.settings
    with show_progress(errors) as progress:
        ask = Criteria(folds=folds, worth=worth)
        outcomes = OutcomeReader(settings=settings, progress=progress)
        if warm or apply:
            check_warm_policy(outcomes.policy, name=settings.policy.name)
        details: dict[str, Any] = {}
        if questions is not None:
            folder = configuration.class_folder(loaded.file or Path("config.yaml"))
            pipelines = {} if module is None else named_pipelines(module, folder=folder)
            limits: dict[str, Any] = {"family": family, "limit": limit, "budget": budget, "concurrency": concurrency}
            run = RunOptions(arms=split_commas([arms or ""]), pipelines=pipelines, answers=answers, **limits)
            details, material, advice = AdviceRun(outcomes=outcomes, ask=ask).finish(
                questions, run=run, learns=warm or apply
            )
        else:
            if table is not None:
                material = outcomes.read_table(table, columns=columns, skip_bad=skip_bad)
            else:
                material = outcomes.read_log(log, skip_bad=skip_bad)
            check_configured(material.arms, configured=settings.arms, source=f"{material.source} arms")
            advice = advice_of(material.rows, source=material.source, settings=settings, ask=ask, progress=progress)
        if advice.verdict != "wrong log" and (apply or (warm and material.origin != STORE)):
            with open_store(config, make=True) as (settings, ledger):
                encoder = make_encoder(settings.encoder, ledger=ledger)
                common: dict[str, Any] = {"ledger": ledger, "settings": settings, "encoder": encoder}
                details |= apply_advice(advice, material, apply=apply, file=loaded.file, progress=progress, **common)
    notes = [*arm_notes(material, incumbent=settings.policy.incumbent, configured=settings.arms), *advice.notes]
    if outcomes.is_trained:
        notes.append(
            f"{settings.policy.name} was trained before: on questions that it was trained on, the gain is too high"
        )
    facts = {name: "; ".join(value) if name == "incumbent" else value for name, value in details.items()}
    reply = {**advice.as_json(), **facts, "notes": notes} if as_json else None
    shown = advice_assessment(
        advice,
        details=details,
        notes=notes,
        incumbent=settings.policy.incumbent,
        reward=settings.reward,
        arms=[*settings.arms],
        log=log,
        is_live=has_store(settings),
    )
    show_assessment(shown, reply=reply, show_all=every, report=report)
    if EXITS[advice.verdict]:
        raise typer.Exit(EXITS[advice.verdict])


def _check_sources(
    questions: Path | None, *, table: Path | None, log: Path | None, module: str | None, columns: list[str] | None
) -> None:
    """Raise InvalidInput for sources and options that exclude each other."""
    if sum(file is not None for file in (questions, table, log)) > 1:
        raise InvalidInput("QUESTIONS, --table and --log exclude each other", field="table", remedy="give one of them")
    if columns and table is None:
        remedy = "give --table, or leave --columns out"
        raise InvalidInput("--columns names the columns of --table", field="columns", remedy=remedy)
    if module is not None and questions is None:
        remedy = f"`ragbandit advise QUESTIONS.jsonl --module {module}`"
        raise InvalidInput("there are no questions to ask the pipelines", field="questions", remedy=remedy)
