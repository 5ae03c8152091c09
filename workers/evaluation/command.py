"""`ragbandit evaluate`: run arms on labelled questions, keep every answer, judge them, write the routing table."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from ragbandit.router.cli.console import ConfigOption, JsonOption, bars, errors, interruptible
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import Settings
from ragbandit.router.encoders.base import embedded
from ragbandit.router.offline.logs.jsonl import line_of
from ragbandit.router.serving.checks.questions import capped
from ragbandit.router.serving.setup.bootstrap import encoder_of
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.files import new_lines
from ragbandit.shared.types import Budget
from ragbandit.strategies.retrievers.bm25 import build_index
from ragbandit.strategies.retrievers.corpus import read_corpus
from ragbandit.workers.evaluation.results import (
    Answered,
    AnswerQuality,
    Line,
    Qualities,
    labelled_quality,
    line_of_arm,
    log_records,
    quizzed_answers,
    show,
    table_records,
)
from ragbandit.workers.evaluation.runs import (
    CRUD,
    FAMILY_NAMES,
    Answers,
    Bench,
    LabelledQuestion,
    Work,
    check_family,
    in_parallel,
    parse_arms,
    read_questions,
)
from ragbandit.workers.judge.checks import judge_templates
from ragbandit.workers.judge.rubric import QuizModel, chinese_words
from ragbandit.workers.wiring.generators import WorkerArm, make_generator
from ragbandit.workers.wiring.loading import ArmLoader
from ragbandit.workers.wiring.retrievers import index_folder, with_choice


def evaluate(
    *,
    questions: Annotated[Path, typer.Option(help="JSONL: question and answers, a list; id, dataset, hops")],
    strategy: Annotated[list[str], typer.Option(help="NAME[,NAME...] or all; may be repeated")],
    corpus: Annotated[Path | None, typer.Option(help="JSONL or Parquet to search in; indexed once")] = None,
    index: Annotated[str | None, typer.Option(help="name or folder of an index; default: the configured")] = None,
    family: Annotated[str, typer.Option(help=f"how answers are judged: {', '.join(FAMILY_NAMES)}")] = "ours",
    judge: Annotated[
        str | None, typer.Option(help="configuration of the judge for family crud; default: --config")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="only the first so many questions")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="answers at a time; above 1 Time is that of a crowd")] = 1,
    answers: Annotated[Path | None, typer.Option(help="every answer; default: data_dir/evaluations")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="reuse stored answers, and run what is missing")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="as --resume, and repeat failures")] = False,
    table: Annotated[Path | None, typer.Option(help="write what `simulate` and `train` read")] = None,
    log: Annotated[Path | None, typer.Option(help="write a log for `ragbandit data import`, a warm start")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run strategies on labelled questions: quality, steps, time, tokens and price of each.

    Exit 0: judged. 1: written and judged, but every answer of some strategy failed, or was not judged. 2: the
    request cannot be done. 130: Ctrl-C.
    """
    settings = configuration.load(config).settings
    judging = _judging(settings, family=family, judge=judge)
    settings = _searching(settings, corpus=corpus, index=index)
    rows = read_questions(questions, family=family, limit=limit)
    arms, lacking = parse_arms(strategy, settings=settings)
    if len(arms) < 2 and (table or log):
        remedy = "name two, or leave out the table"
        raise InvalidInput("one strategy gives nothing to route", field="strategy", remedy=remedy)
    for name, reason in lacking.items():
        errors.print(f"left out: {escape(f'{name}: {reason}')}", soft_wrap=True, highlight=False)
    file = answers or Path(settings.data_dir) / "evaluations" / f"{questions.stem}.jsonl"
    with Answers(file, resume=resume or retry_failed) as stored:
        if retry_failed:
            stored.forget_failed()
        answered = _run(rows, arms=arms, settings=settings, answers=stored, concurrency=concurrency)
        quiz = None if judging is None else judging()
        if quiz is None:
            judged_as: Qualities = {
                arm: [labelled_quality(row, each, family=family) for row, each in zip(rows, theirs, strict=True)]
                for arm, theirs in answered.items()
            }
        else:
            judged_as = _quiz(rows, answered=answered, judge=quiz, answers=stored, concurrency=concurrency)
    results = [line_of_arm(rows, arm=arm, answered=answered, judged_as=judged_as[arm]) for arm in answered]
    if table is not None:
        write_records(table, table_records(rows, answered=answered, judged_as=judged_as, reward=settings.reward))
    if log is not None:
        records = log_records(rows, answered=answered, judged_as=judged_as, reward=settings.reward)
        write_records(log, _encoded(records, rows=rows, settings=settings))
    show(results, file=file, judge=None if quiz is None else quiz.generator.name, as_json=as_json)
    _tell_lost(results)


def _judging(settings: Settings, *, family: str, judge: str | None) -> Callable[[], QuizModel] | None:
    """Loader of the judge of family "crud", behind a cache; None for a family that needs no judge.

    Its prompts are read at once: what is wrong with them is said before anything is answered. The environment sets
    our generator and prompts, and not those of another configuration.
    """
    check_family(family)
    if family != CRUD:
        if judge is not None:
            raise InvalidInput(f"family {family} has no judge", field="judge", remedy="leave it out")
        return None
    chinese_words()  # only to have it checked
    chosen = settings if judge is None else configuration.load(judge, environ={}).settings
    templates = judge_templates(chosen.judge.templates)
    cache = chosen.generator.cache or str(Path(settings.data_dir) / "cache" / "judge")
    generator = chosen.generator.model_copy(update={"cache": cache})

    def load() -> QuizModel:
        with errors.status("loading the judge"):
            return QuizModel(generator=make_generator(generator), templates=templates)

    return load


def _searching(settings: Settings, *, corpus: Path | None, index: str | None) -> Settings:
    """The settings with the index that was asked for."""
    if corpus is not None and index is not None:
        raise InvalidInput("--corpus and --index exclude each other", field="index", remedy="give one of them")
    return with_choice(settings, index=index if corpus is None else _indexed(corpus, settings=settings))


def _indexed(corpus: Path, *, settings: Settings) -> str:
    """The name of the corpus's index, built if nobody has built it before from the same bytes."""
    if corpus.is_dir():
        remedy = f"index it: ragbandit index build --corpus {corpus} --index NAME, then give --index NAME"
        raise InvalidInput(f"{corpus} is a folder", field="corpus", remedy=remedy)
    try:
        with corpus.open("rb") as file:
            name = f"corpus-{file_digest(file, 'sha256').hexdigest()[:12]}"
    except OSError as error:
        remedy = "name a file"
        raise InvalidInput(f"{corpus} cannot be read: {error.strerror}", field="corpus", remedy=remedy) from error
    folder = index_folder(settings, name=name)
    if not folder.exists():
        build_index(read_corpus(corpus), folder)
    return name


def _run(
    rows: Sequence[LabelledQuestion],
    *,
    arms: Mapping[str, WorkerArm],
    settings: Settings,
    answers: Answers,
    concurrency: int,
) -> Answered:
    """Answers per arm in the order of the questions. Ctrl-C ends the command; what was answered is kept."""
    with errors.status("loading the models"):
        loaded = ArmLoader(settings).load(arms)
    bench = Bench(arms=loaded, budget=capped(Budget(), limits=settings.budget), answers=answers)
    work = bench.work(rows)
    todo = list({each.key: each for each in work if each.key not in answers.found}.values())
    count = itertools.count(1)
    with bars(errors) as progress, interruptible(_stopped(answers)):

        async def answer(each: Work) -> None:
            await bench.answer(each)
            progress("answers", next(count), len(todo))

        async def run() -> None:
            try:
                await in_parallel(todo, answer, concurrency=concurrency)
            finally:
                await bench.close()

        asyncio.run(run())
    return {name: [answers.found[each.key] for each in work if each.arm == name] for name in loaded}


def _quiz(
    rows: Sequence[LabelledQuestion], *, answered: Answered, judge: QuizModel, answers: Answers, concurrency: int
) -> Qualities:
    """Judgements by the judge, closed then. Ctrl-C ends the command; what was judged is in the judge's cache."""
    cut, judged_as = chinese_words(), dict[int, dict[str, AnswerQuality]]()
    with bars(errors) as progress, interruptible(_stopped(answers)):

        async def quiz(number: int) -> None:
            theirs = {arm: stored[number] for arm, stored in answered.items()}
            judged_as[number] = await quizzed_answers(rows[number], answers=theirs, model=judge, cut=cut)
            progress("judged", len(judged_as), len(rows))

        async def run() -> None:
            try:
                await in_parallel(range(len(rows)), quiz, concurrency=concurrency)
            finally:
                await judge.generator.close()

        asyncio.run(run())
    return {arm: [judged_as[number][arm] for number in range(len(rows))] for arm in answered}


def _stopped(answers: Answers) -> str:
    return f"stopped; {answers.file} keeps the answers so far: continue with --resume"


def _encoded(
    records: Iterable[Mapping[str, Any]], *, rows: Sequence[LabelledQuestion], settings: Settings
) -> Iterator[Mapping[str, Any]]:
    """The records with the features by which a policy learns from them."""
    encoder = encoder_of(settings)
    texts = [row.question for row in rows]
    features = embedded(texts, encoder=encoder, data_dir=settings.data_dir)
    known = dict(zip(texts, features, strict=True))
    for record in records:
        yield {**record, "encoder_hash": encoder.hash, "features": known[record["text"]]}


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """The records as JSONL, whole or not at all."""
    with new_lines(path) as out:
        for record in records:
            out.write(line_of(dict(record)) + b"\n")


def _tell_lost(results: Sequence[Line]) -> None:
    """Ends the command with 1 where some strategy has no figure but zeros: what comes after it must not learn them."""
    failed = [row["strategy"] for row in results if row["failed"] == row["questions"]]
    unjudged = [row["strategy"] for row in results if len(row["unjudged"]) == row["questions"]]
    for names, fault in (
        (failed, "failed and counts as wrong; when its cause is removed, --retry-failed asks again"),
        (unjudged, "could not be judged and counts as wrong; the same command with --resume judges again"),
    ):
        if names:
            message = f"every answer of {', '.join(names)} {fault}"
            errors.print(message, style="red", soft_wrap=True, highlight=False, markup=False)
    if failed or unjudged:
        raise typer.Exit(1)
