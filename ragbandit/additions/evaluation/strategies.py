"""Runs strategies on labelled questions, stores and judges every answer, and writes the table of outcomes."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from ragbandit.additions.evaluation import results
from ragbandit.additions.evaluation.assessments import show_assessment
from ragbandit.additions.evaluation.file_questions import FileQuestions
from ragbandit.additions.evaluation.kept_answers import AnswerFile, StoredAnswer
from ragbandit.additions.evaluation.labelled_questions import CRUD, LabelledQuestion, first_rows, read_questions
from ragbandit.additions.evaluation.quizzes import Quizzes
from ragbandit.additions.evaluation.routers.routing_table import time_one_of
from ragbandit.router.cli.console import errors, interruptible
from ragbandit.router.cli.progress import show_progress
from ragbandit.router.config.settings import Settings
from ragbandit.router.offline.logs.jsonl import write_records
from ragbandit.shared.errors import InvalidInput
from ragbandit.workers.asking.question_run import QuestionRun
from ragbandit.workers.setup.chosen_arms import parse_arms
from ragbandit.workers.setup.loading import ArmLoader
from ragbandit.workers.setup.retrievers import with_choice


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


def evaluate_strategies(options: StrategyOptions, *, settings: Settings, report: Path | None, as_json: bool) -> None:
    family, table, concurrency = options.family, options.table, options.concurrency
    rows = read_questions(options.questions, family=family, limit=options.limit)
    settings = with_choice(settings, index=options.index)
    arms, lacking = parse_arms(options.strategy, settings=settings)
    if len(arms) < 2 and table:
        remedy = "name two, or leave out the table"
        raise InvalidInput("one strategy gives nothing to route", field="strategy", remedy=remedy)
    if lacking:
        errors.say(_left_out_line(lacking))
    file = options.answers or Path(settings.data_dir) / "evaluations" / f"{options.questions.stem}.jsonl"
    quizzes = Quizzes(settings.judge, replies=file.with_suffix(".judge.jsonl")) if family == CRUD else None
    with AnswerFile(file, resume=options.resume or options.retry_failed) as stored, show_progress(errors) as progress:
        if options.retry_failed:
            stored.forget_failed()
        progress("loading the models", 0, 0)
        loaded = ArmLoader(settings).load(arms)
        keeping: dict[str, Any] = {"answers": stored, "reward": settings.reward, "limits": settings.budget}
        questions = FileQuestions(first_rows(rows), arms=loaded, family=family, **keeping)
        run = QuestionRun(
            questions=questions.all,
            arms=loaded,
            cost=settings.reward.cost,
            paid_before=questions.paid,
            progress=progress,
        )
        with interruptible(f"stopped; {file} keeps the answers so far: continue with --resume"):
            asyncio.run(run.run(concurrency=concurrency))
        kept = {one.row.question: one.stored_answers for one in questions.all}
        of_rows = [kept[row.question] for row in rows]
    answered: dict[str, list[StoredAnswer]] = {
        name: [answers[place] for answers in of_rows] for place, name in enumerate(loaded)
    }
    qualities = results.qualities_of(rows, answered=answered, family=family)
    if quizzes is not None:
        qualities = _add_quiz_measures(quizzes, rows, answered=answered, qualities=qualities, concurrency=concurrency)
    one = time_one_of(answered, arms=settings.worker_arms)
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
    show_assessment(
        replace(shown, arms=tuple(settings.arms)),
        reply=results.as_json(lines, comparisons=comparisons) if as_json else None,
        show_all=True,
        report=report,
    )
    _check_usable(lines)


def _add_quiz_measures(
    quizzes: Quizzes,
    rows: Sequence[LabelledQuestion],
    *,
    answered: results.Answered,
    qualities: results.Qualities,
    concurrency: int,
) -> results.Qualities:
    """Put the measures of the judge's quizzes before the other measures."""
    stopped = interruptible("stopped; the judge's replies so far are kept: continue with --resume")
    with quizzes, show_progress(errors) as progress, stopped:
        run = quizzes.run(rows, answered=answered, concurrency=concurrency, progress=progress)
        judged = asyncio.run(run)
    return {
        arm: [quiz | dict(others) for quiz, others in zip(map(dict, judged[arm]), qualities[arm], strict=True)]
        for arm in qualities
    }


def _check_usable(lines: Sequence[results.Line]) -> None:
    """End with exit code 1 if all answers of a strategy failed or are unjudged: zeros must not be learned."""
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


def _left_out_line(lacking: Mapping[str, str]) -> str:
    """One line about the strategies that do not run. lacking: name of a strategy -> the reason."""
    names: dict[str, list[str]] = {}
    for name, reason in lacking.items():
        names.setdefault(reason, []).append(name)
    return "left out: " + "; ".join(f"{', '.join(some)}: {reason}" for reason, some in names.items())
