"""`ragbandit evaluate`: run arms on labelled questions, keep every answer, judge them, write the routing table."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as Printed

from router import config as configuration
from router.bootstrap import make_encoder
from router.cli import ConfigOption, JsonOption, console, errors, failing_well, print_json
from router.edge import capped
from router.errors import ConfigError, InvalidInput
from router.logs.files import new_lines
from router.logs.jsonl import line_of
from router.settings import GeneratorSettings, Settings
from router.simulation.embeddings import embedded
from router.simulation.report import bars
from router.types import Budget, DecisionId, Query
from strategies import known_arms, make_arms
from strategies.base import Generator, Need, Retriever, Strategy
from strategies.crud import chinese_words
from strategies.runner import made_by, run_strategy
from workers.answers import Answers, key_of
from workers.judging import (
    CRUD,
    FAMILY_NAMES,
    Answered,
    Asked,
    Evaluated,
    Judgements,
    Mean,
    check_family,
    evaluated,
    judgements,
    log_records,
    table_records,
)
from workers.main import arm_params, generator_version, index_folder, make_generator, make_retriever, offered
from workers.questions import read_asked
from workers.quizzing import quizzed_answers

__all__ = ["Bench", "Work", "add_evaluate_verb", "asked_arms"]

#: failures that are described; all are counted
MOST_NAMED = 20
#: the shell's code for a command that ctrl-C ended
INTERRUPTED = 130


def add_evaluate_verb(app: typer.Typer) -> None:
    """Put the verb on the command."""

    @app.command(name="evaluate")
    def evaluate(
        *,
        questions: Annotated[Path, typer.Option(help="JSONL: question and answers, a list; id, dataset, hops")],
        strategy: Annotated[list[str], typer.Option(help="NAME[,NAME...] or all; may be repeated")],
        corpus: Annotated[Path | None, typer.Option(help="JSONL to search in; indexed once")] = None,
        index: Annotated[str | None, typer.Option(help="name or folder of an index; default: the configured")] = None,
        family: Annotated[str, typer.Option(help=f"how answers are judged: {', '.join(FAMILY_NAMES)}")] = "ours",
        judge: Annotated[
            str | None, typer.Option(help="of family crud: configuration whose generator judges; default: --config's")
        ] = None,
        limit: Annotated[int | None, typer.Option(min=1, help="only the first so many questions")] = None,
        concurrency: Annotated[int, typer.Option(min=1, help="answers at a time; above 1 Time is that of a crowd")] = 1,
        answers: Annotated[Path | None, typer.Option(help="every answer; default: data_dir/evaluations")] = None,
        resume: Annotated[bool, typer.Option("--resume", help="go on with the answers that are there")] = False,
        retry_failed: Annotated[
            bool, typer.Option("--retry-failed", help="as --resume, and ask again where the answer failed")
        ] = False,
        table: Annotated[Path | None, typer.Option(help="write what `simulate` and `train` read")] = None,
        log: Annotated[Path | None, typer.Option(help="write what `import` reads, to start a policy warm")] = None,
        config: ConfigOption = None,
        as_json: JsonOption = False,
    ) -> None:
        """Run strategies on labelled questions: quality, steps, time, tokens and price of each."""
        with failing_well():
            settings = _searching(configuration.load(config).settings, corpus=corpus, index=index)
            judging = _judge_settings(settings, family=family, judge=judge)
            rows = read_asked(questions, family=family, limit=limit)
            arms, lacking = asked_arms(strategy, settings=settings)
            if len(arms) < 2 and (table or log):
                raise InvalidInput(
                    "one strategy gives nothing to route", field="strategy", remedy="name two, or leave out the table"
                )
            _tell_lacking(lacking)
            file = answers or Path(settings.data_dir) / "evaluations" / f"{questions.stem}.jsonl"
            with Answers(file, resume=resume or retry_failed) as kept:
                if retry_failed:
                    kept.forget_failed()
                answered = _run(rows, arms=arms, settings=settings, answers=kept, concurrency=concurrency)
                judging_model = None if judging is None else _loaded(judging, what="judge")
                judged_as = (
                    judgements(rows, answered=answered, family=family)
                    if judging_model is None
                    else _quiz(rows, answered=answered, judge=judging_model, answers=kept, concurrency=concurrency)
                )
            found = evaluated(rows, answered=answered, judged_as=judged_as)
            if table is not None:
                _write(table, table_records(rows, answered=answered, judged_as=judged_as, reward=settings.reward))
            if log is not None:
                records = log_records(rows, answered=answered, judged_as=judged_as, reward=settings.reward)
                _write(log, _encoded(records, asked=rows, settings=settings))
            _show(found, file=file, judge=None if judging_model is None else judging_model.name, as_json=as_json)


def _judge_settings(settings: Settings, *, family: str, judge: str | None) -> GeneratorSettings | None:
    """What judges answers of family "crud", behind a cache; None for a family that needs no judge.

    The environment sets our generator, and not that of another configuration.
    """
    check_family(family)
    if family != CRUD:
        if judge is not None:
            raise InvalidInput(f"family {family} has no judge", field="judge", remedy="leave it out")
        return None
    chinese_words()  # only to have it checked
    chosen = settings.generator if judge is None else configuration.load(judge, environ={}).settings.generator
    return chosen.model_copy(update={"cache": chosen.cache or str(Path(settings.data_dir) / "cache" / "judge")})


def _searching(settings: Settings, *, corpus: Path | None, index: str | None) -> Settings:
    """The settings with the index that was asked for."""
    if corpus is not None and index is not None:
        raise InvalidInput("--corpus and --index exclude each other", field="index", remedy="give one of them")
    name = index if corpus is None else _indexed(corpus, settings=settings)
    if name is None:
        return settings
    return settings.model_copy(update={"retriever": settings.retriever.model_copy(update={"index": name})})


def _indexed(corpus: Path, *, settings: Settings) -> str:
    """The name of the corpus's index, built if nobody has built it before from the same bytes."""
    from strategies.retrievers.bm25 import build_index, read_corpus

    try:
        name = f"corpus-{sha256(corpus.read_bytes()).hexdigest()[:12]}"
    except OSError as error:
        raise InvalidInput(
            f"{corpus} cannot be read: {error.strerror}", field="corpus", remedy="name a file"
        ) from error
    folder = index_folder(settings, name=name)
    if not folder.exists():
        build_index(read_corpus(corpus), folder)
    return name


def asked_arms(asked: Sequence[str], *, settings: Settings) -> tuple[dict[str, Strategy], dict[str, str]]:
    """The arms to run, and of "all" those that cannot be run with the reason, both by name.

    An arm of the configuration has its params from there, another one has its defaults. "all" is every arm of
    ours, of installed packages and of the configuration. Raises ConfigError for an arm that is named and cannot be run.
    """
    names = list(dict.fromkeys(name.strip() for words in asked for name in words.split(",") if name.strip()))
    if not names:
        raise InvalidInput("no strategy is named", field="strategy", remedy=f"known: {', '.join(known_arms())}, all")
    known: dict[str, dict[str, object]] = {name: {} for name in known_arms()} | arm_params(settings)
    capabilities = offered(settings.generator)
    if "all" not in names:
        given = {name: known.get(name, {}) for name in names}
        return {str(name): arm for name, arm in make_arms(given, capabilities=capabilities).items()}, {}
    arms: dict[str, Strategy] = {}
    lacking: dict[str, str] = {}
    for name, params in known.items():
        try:
            arm = next(iter(make_arms({name: params}, capabilities=frozenset(get_args(Need))).values()))
        except ConfigError as error:
            lacking[name] = str(error)
            continue
        if unmet := sorted(arm.needs - capabilities):
            lacking[name] = f"the generator lacks {', '.join(unmet)}"
        else:
            arms[name] = arm
    return arms, lacking


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One arm on one question."""

    key: str
    arm: str
    question: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What the arms are run with."""

    arms: Mapping[str, Strategy]
    retriever: Retriever
    generator: Generator
    #: of the generator, see workers.main.generator_version
    version: str
    #: caps on every answer
    budget: Budget

    def work(self, asked: Sequence[Asked]) -> list[Work]:
        """Every arm on every question, question by question: what is cut short has whole questions, but for one."""
        parts = {"budget": self.budget, "retriever": self.retriever, "generator": self.generator}
        making = {name: made_by(arm, **parts) for name, arm in self.arms.items()}  # type: ignore[arg-type]
        return [
            Work(
                key=key_of(row.question, arm=name, made_by=making[name], version=self.version),
                arm=name,
                question=row.question,
            )
            for row in asked
            for name in self.arms
        ]

    async def answer(
        self, work: Iterable[Work], *, answers: Answers, concurrency: int, done: Callable[[], None]
    ) -> None:
        """Do the work, at most `concurrency` at a time, and keep each answer as it comes. A failing arm is an answer.

        What is under way when this is cancelled is lost, and nothing else. Closes generator and retriever.
        """
        left = iter(work)

        async def take() -> None:
            for each in left:
                query = Query(id=DecisionId(each.key), text=each.question)
                outcome = await run_strategy(
                    self.arms[each.arm],
                    query=query,
                    budget=self.budget,
                    retriever=self.retriever,
                    generator=self.generator,
                )
                answers.add(outcome, key=each.key, arm=each.arm, question=each.question)
                done()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(take())
        except ExceptionGroup as several:
            raise several.exceptions[0] from several
        finally:
            await self.generator.close()
            await self.retriever.close()


def _run(
    asked: Sequence[Asked], *, arms: Mapping[str, Strategy], settings: Settings, answers: Answers, concurrency: int
) -> Answered:
    """Answers per arm in the order of the questions. Ctrl-C ends the command; what was answered is kept."""
    bench = Bench(
        arms=arms,
        retriever=make_retriever(settings),
        generator=_loaded(settings.generator, what="model"),
        version=generator_version(settings.generator),
        budget=capped(Budget(), limits=settings.budget),
    )
    work = bench.work(asked)
    todo = list({each.key: each for each in work if each.key not in answers}.values())
    count = itertools.count(1)
    with bars(errors) as progress, _interruptible(answers):
        asyncio.run(
            bench.answer(
                todo,
                answers=answers,
                concurrency=concurrency,
                done=lambda: progress("answers", next(count), len(todo)),
            )
        )
    return {name: [answers[each.key] for each in work if each.arm == name] for name in arms}


def _loaded(settings: GeneratorSettings, *, what: str) -> Generator:
    with errors.status(f"loading the {what}"):
        return make_generator(settings)


def _quiz(
    asked: Sequence[Asked], *, answered: Answered, judge: Generator, answers: Answers, concurrency: int
) -> Judgements:
    """Judgements by the judge. Ctrl-C ends the command; what was judged is in the judge's cache."""
    count = itertools.count(1)
    with bars(errors) as progress, _interruptible(answers):
        return asyncio.run(
            quizzed_answers(
                asked,
                answered=answered,
                judge=judge,
                concurrency=concurrency,
                done=lambda: progress("judged", next(count), len(asked)),
            )
        )


@contextmanager
def _interruptible(answers: Answers) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        file = escape(str(answers.file))
        errors.print(f"stopped; {file} keeps what was answered: go on with --resume", soft_wrap=True, highlight=False)
        raise typer.Exit(INTERRUPTED) from None


def _encoded(
    records: Iterable[Mapping[str, Any]], *, asked: Sequence[Asked], settings: Settings
) -> Iterator[Mapping[str, Any]]:
    """The records with the features by which a policy learns from them."""
    encoder = make_encoder(settings.encoder)
    texts = [row.question for row in asked]
    features = embedded(texts, encoder=encoder, folder=Path(settings.data_dir) / "cache" / "features")
    known = dict(zip(texts, features, strict=True))
    for record in records:
        yield {**record, "encoder_hash": encoder.hash, "features": known[record["text"]]}


def _write(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """The records as JSONL, whole or not at all."""
    with new_lines(path) as out:
        for record in records:
            out.write(line_of(dict(record)) + b"\n")


def _tell_lacking(lacking: Mapping[str, str]) -> None:
    for name, reason in lacking.items():
        errors.print(f"left out: {escape(f'{name}: {reason}')}", soft_wrap=True, highlight=False)


#: as the papers head their columns
_HEADS = {
    "exact_match": "EM",
    "f1": "F1",
    "accuracy": "Acc",
    "str_em": "str-em",
    "str_hit": "str-hit",
    "answered": "Q-R",
    "word_precision": "T-P",
    "word_recall": "T-R",
    "word_f1": "T-F1",
}


def _show(found: Sequence[Evaluated], *, file: Path, judge: str | None, as_json: bool) -> None:
    if as_json:
        print_json([row.as_json() for row in found])
        return
    measures = list(found[0].quality)
    heads = [*(f"{_HEADS[name]} %" for name in measures), "Step", "Time", "s"]
    table = Printed("strategy", *heads, "prompt", "written", "dollars", "failed")
    for column in table.columns:
        column.justify, column.no_wrap = "right", True
    table.columns[0].justify = "left"
    for row in found:
        table.add_row(
            escape(row.strategy),
            *(_said(row.quality[name], scale=100.0, digits=1) for name in measures),
            *(_said(mean) for mean in (row.steps, row.time, row.seconds)),
            *(_said(mean, digits=0) for mean in (row.prompt_tokens, row.completion_tokens)),
            _said(row.dollars, digits=5),
            str(len(row.failures)),
        )
    table.caption = f"{found[0].questions} questions; mean ± standard error; failures count as wrong"
    if judge is not None:
        table.caption += f"; judged by {escape(judge)}"
    wide = Measurement.get(console, console.options.update(width=1000), table).maximum
    Console(file=console.file, width=max(wide, console.width), emoji=False).print(table)
    _list("failed", {row.strategy: row.failures for row in found})
    _list("not judged", {row.strategy: row.unjudged for row in found})
    console.print(f"answers: {escape(str(file))}", soft_wrap=True, highlight=False)


def _list(what: str, faults: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """The first of them, and how many more."""
    named = [f"{strategy} {identity}: {error}" for strategy, listed in faults.items() for identity, error in listed]
    for line in named[:MOST_NAMED]:
        console.print(f"{what}: {escape(line)}", soft_wrap=True, highlight=False)
    if len(named) > MOST_NAMED:
        console.print(f"{what}: {len(named) - MOST_NAMED} more, see --json", highlight=False)


def _said(mean: Mean | None, *, scale: float = 1.0, digits: int = 2) -> str:
    if mean is None:
        return "-"
    value = f"{scale * mean.value:.{digits}f}"
    return value if mean.error is None else f"{value} ± {scale * mean.error:.{digits}f}"
