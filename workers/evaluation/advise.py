"""`ragbandit advise`: decides whether routing pays on given questions, and can train the policy with their outcomes."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from ragbandit.router.cli.console import errors
from ragbandit.router.cli.options import ColumnsOption, ConfigOption, JsonOption, SkipBadOption, check_dollars
from ragbandit.router.cli.outcome_tables import left_out as left_out_rows, outcome_table
from ragbandit.router.cli.progress import bars
from ragbandit.router.cli.store import opened, split_commas
from ragbandit.router.comparison import WORTH
from ragbandit.router.comparison.page import check_page
from ragbandit.router.config import loading as configuration
from ragbandit.router.config.settings import JUDGE_LINE, Settings
from ragbandit.router.encoders.base import Encoder
from ragbandit.router.learning.examples import policy_of
from ragbandit.router.offline.advice import Advice, Ask, advice_of as advice_on
from ragbandit.router.offline.estimation import Progress, no_progress
from ragbandit.router.offline.logs import BadRow, form_of
from ragbandit.router.offline.replay import open_log
from ragbandit.router.offline.replay.parts import LeftOut
from ragbandit.router.offline.warm import WarmRows, check_warm_policy, enter, learner_of, log_material, table_material
from ragbandit.router.policies.base import Policy, TableTrained
from ragbandit.router.reporting.before_start import keep_comparisons
from ragbandit.router.serving.checks.questions import check_type, checked_number
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import encoder_of, make_encoder
from ragbandit.router.serving.setup.requirements import has_store
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.json_lines import rereadable
from ragbandit.shared.texts.formats import counted
from ragbandit.shared.types import ArmName, Json, PolicyLabel
from ragbandit.workers.asking.question_run import QuestionRun
from ragbandit.workers.asking.scoring import JudgeScorer
from ragbandit.workers.asking.stop import Stop, looks_at, shared_confidence
from ragbandit.workers.evaluation import runs
from ragbandit.workers.evaluation.applying import set_incumbent
from ragbandit.workers.evaluation.assessment import advice_assessment
from ragbandit.workers.evaluation.command import show, write_records
from ragbandit.workers.evaluation.file_questions import FileQuestions
from ragbandit.workers.evaluation.pipelines import Pipelines, Questions, load_pipelines, named_pipelines, question_file
from ragbandit.workers.judge.judge import Judge
from ragbandit.workers.setup.generators import make_generator
from ragbandit.workers.setup.loading import ArmLoader, LoadedArm

log = logging.getLogger("ragbandit.worker")

#: `WarmRows.origin` of rows that were read from the store
STORE: Final = "store"
EXITS: Final = {"route": 0, "wrong log": 2, "fix": 3, "not enough": 4}


def advise_verb(
    questions: Annotated[Path | None, typer.Argument(help="JSONL: question, and answers unless a judge scores")] = None,
    *,
    table: Annotated[Path | None, typer.Option(help="question, correct and a cost per arm; runs no arm")] = None,
    log: Annotated[Path | None, typer.Option(help="logged decisions with rewards; default: the store")] = None,
    columns: ColumnsOption = None,
    skip_bad: SkipBadOption = False,
    module: Annotated[str | None, typer.Option(metavar="MODULE:NAME", help="your functions, by name")] = None,
    arms: Annotated[str | None, typer.Option(help="NAME[,NAME...]; default: all of --module, else of workers")] = None,
    budget: Annotated[float | None, typer.Option(min=0.0, help="dollars that the answers may cost")] = None,
    worth: Annotated[float, typer.Option(min=0.0, help="least gain a question that is worth a router")] = WORTH,
    folds: Annotated[int, typer.Option(min=2, help="parts of the questions, each held out once")] = 5,
    family: Annotated[str, typer.Option(help="how answers are judged, see evaluate")] = "ours",
    limit: Annotated[int | None, typer.Option(min=1, help="only the first so many questions")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="answers at a time")] = 1,
    answers: Annotated[Path | None, typer.Option(help="every answer; default: data_dir/evaluations")] = None,
    warm: Annotated[bool, typer.Option("--warm", help="let the policy learn the outcomes: a warm start")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="as --warm, and write incumbent and holdback")] = False,
    report: Annotated[Path | None, typer.Option(help="write the page as FILE.html")] = None,
    every: Annotated[bool, typer.Option("--all", help="every number, and how it was measured")] = False,
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
    with bars(errors) as progress:
        ask = Ask(folds=folds, worth=worth)
        sources = Sources(settings=settings, ask=ask, progress=progress)
        if warm or apply:
            check_warm_policy(sources.policy, name=settings.policy.name)
        details: dict[str, Any] = {}
        if questions is not None:
            folder = configuration.class_folder(loaded.file or Path("config.yaml"))
            pipelines = {} if module is None else named_pipelines(module, folder=folder)
            limits: dict[str, Any] = {"family": family, "limit": limit, "budget": budget, "concurrency": concurrency}
            run = RunOptions(arms=split_commas([arms or ""]), pipelines=pipelines, answers=answers, **limits)
            details, material, advice = sources.of_run(questions, run=run, learns=warm or apply)
        else:
            if table is not None:
                material = sources.of_table(table, columns=columns, skip_bad=skip_bad)
            else:
                material = sources.of_log(log, skip_bad=skip_bad)
            _check_configured(material.arms, configured=settings.arms, source=f"{material.source} arms")
            advice = sources.advice(material, ask=ask)
        if advice.verdict != "wrong log" and (apply or (warm and material.origin != STORE)):
            with opened(config, make=True) as (settings, ledger):
                encoder = make_encoder(settings.encoder, ledger=ledger)
                common: dict[str, Any] = {"ledger": ledger, "settings": settings, "encoder": encoder}
                details |= _applied(advice, material, apply=apply, file=loaded.file, progress=progress, **common)
    notes = [*_arm_notes(material, incumbent=settings.policy.incumbent, configured=settings.arms), *advice.notes]
    if sources.is_trained:
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
    show(shown, reply=reply, show_all=every, report=report)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    pipelines: Pipelines
    #: arms to run. By default all pipelines, or without pipelines all arms that workers run
    arms: Sequence[str] = ()
    family: str = "ours"
    limit: int | None = None
    budget: float | None = None
    concurrency: int = 1
    #: file of the answers; by default a file in data_dir/evaluations
    answers: Path | None = None

    def arms_of(self, settings: Settings, *, learns: bool) -> dict[ArmName, LoadedArm]:
        """Load the arms to run. learns: whether a configured arm is needed. Raises ConfigError and InvalidInput."""
        default = sorted(settings.worker_arms if len(settings.worker_arms) > 1 else settings.arms)
        selected = list(self.arms or self.pipelines or default)
        runnable, _ = runs.parse_arms(selected, settings=settings, others=self.pipelines)
        functions = {name: function for name, function in self.pipelines.items() if name in selected}
        if len(runnable) + len(functions) < 2:
            remedy = "add another arm or pipeline: with one there is nothing to route"
            raise InvalidInput(f"there is only {', '.join(selected)} to run", field="arms", remedy=remedy)
        if learns:
            _check_configured([*runnable, *functions], configured=settings.arms, source="arms")
        return ArmLoader(settings).load(runnable) | load_pipelines(functions, prices=settings.reward.cost)


def advise(
    router: Router,
    pipelines: Pipelines,
    questions: Questions,
    *,
    budget: float | None = None,
    family: str = "ours",
    apply: bool = False,
) -> Advice:
    """Run your pipelines on the same questions until the verdict is known: route, fix, or not enough.

    Stored answers are used again. pipelines: arm -> function of the question that returns a text, (text, cost) or
    a mapping with `answer`, `steps` and `cost`. questions: question -> right answers, rows of `question` and
    `answers`, or a JSONL file. budget: most dollars. apply: let the policy learn the outcomes for this router, and
    write the best arm as incumbent and holdback for the next one. Raises InvalidInput, ConfigError.
    """
    check_type(pipelines, Mapping, field="pipelines", wanted="a mapping of names to functions")
    budget = None if budget is None else checked_number(budget, field="budget")
    settings = router.settings
    warnings: list[str] = []
    sources = Sources(settings=settings, ask=Ask(), progress=no_progress, warn=warnings.append, router=router)
    run = RunOptions(pipelines=pipelines, family=family, budget=budget)
    file = question_file(questions, folder=Path(settings.data_dir))
    details, material, advice = sources.of_run(file, run=run, learns=apply)
    if apply:
        ledger = Ledger(router.database, label=PolicyLabel(settings.policy.label))
        common: dict[str, Any] = {"ledger": ledger, "settings": settings, "encoder": router.encoder}
        applied = _applied(advice, material, apply=True, file=router.config_file, progress=no_progress, **common)
        warnings.append(f"policy.incumbent: {'; '.join(applied['incumbent'])}")
        router.refresh()
    warnings.insert(0, f"ended: {details['ended']}")
    return replace(
        advice,
        notes=(
            *warnings,
            *_arm_notes(material, incumbent=settings.policy.incumbent, configured=settings.arms),
            *advice.notes,
        ),
    )


@dataclass(kw_only=True)
class Sources:
    """Reads outcomes from a run, a table or a log, and makes the verdict on them."""

    settings: Settings
    ask: Ask
    progress: Progress
    warn: Callable[[str], None] = lambda text: errors.print(escape(text), soft_wrap=True, highlight=False)
    #: a router whose encoder is used; None if the configured encoder should be loaded
    router: Router | None = None

    def __post_init__(self) -> None:
        self.policy: Policy = learner_of(policy_of(self.settings))
        if not self.is_trained:
            check_warm_policy(self.policy, name=self.settings.policy.name)

    @property
    def is_trained(self) -> bool:
        """Whether the policy was trained on a table before, and is judged as it is."""
        return isinstance(self.policy, TableTrained) and bool(self.policy.trained_arms)

    @cached_property
    def encoder(self) -> Encoder:
        self.progress("loading the encoder", 0, 0)
        return encoder_of(self.settings) if self.router is None else self.router.encoder

    def advice(self, material: WarmRows, *, ask: Ask) -> Advice:
        return advice_on(material.rows, source=material.source, settings=self.settings, ask=ask, progress=self.progress)

    def of_table(self, path: Path, *, columns: Sequence[str] | None, skip_bad: bool) -> WarmRows:
        table, remarks = outcome_table(path, columns=columns, skip_bad=skip_bad, schema=self.settings.context)
        for remark in remarks:
            errors.say(remark)
        return table_material(
            table,
            source=str(path),
            settings=self.settings,
            encoder=self.encoder,
            now=time.time(),
            progress=self.progress,
        )

    def of_log(self, path: Path | None, *, skip_bad: bool) -> WarmRows:
        """The rows of a log. path: None to read the store."""
        skipped, left_out = list[BadRow](), LeftOut()
        with nullcontext() if path is None else rereadable(path) as readable:
            origin = STORE if readable is None else form_of(readable)
            opened_log = open_log(readable, config=self.settings, mixed_arms=True, skip_bad=skip_bad)
            rows, _ = opened_log.judged_rows(skipped=skipped, left_out=left_out, progress=self.progress)
        for remark in left_out_rows(skipped):
            errors.say(remark)
        if left_out.undrawn:
            errors.print(f"left out: {left_out.undrawn:,} decisions whose arm was not drawn", soft_wrap=True)
        return log_material(
            rows,
            source="the store" if path is None else str(path),
            origin=origin,
            settings=self.settings,
            encoder=self.encoder,
            needs_features="features" in self.policy.needs,
            progress=self.progress,
        )

    def of_run(self, questions: Path, *, run: RunOptions, learns: bool) -> tuple[dict[str, Any], WarmRows, Advice]:
        """Run the arms. Returns (facts, rows, verdict on these rows). Ctrl-C ends the run early."""
        settings, chosen = self.settings, self.settings.judge.generator
        rows = self._rows(questions, options=run)
        arms = run.arms_of(settings, learns=learns)
        judge = None
        if chosen is not None and any(not row.answers for row in rows):
            judge = JudgeScorer(Judge(settings.judge, generator=make_generator(chosen)))
        file = run.answers or Path(settings.data_dir) / "evaluations" / f"{questions.stem}.jsonl"
        outcomes = file.with_name(f"{file.stem}.outcomes.jsonl")  # in the format of a log
        ask = replace(self.ask, confidence=shared_confidence(len(rows)))
        with runs.Answers(file, resume=True) as stored:
            asked = FileQuestions(
                rows,
                arms=arms,
                answers=stored,
                reward=settings.reward,
                limits=settings.budget,
                family=run.family,
                by_judge=judge is not None,
            )
            is_known = partial(self._is_known, outcomes, asked.records, ask=ask)
            asking = QuestionRun(
                questions=asked.all,
                arms=arms,
                cost=settings.reward.cost,
                stop=Stop(budget=run.budget, is_known=is_known, looks=looks_at(len(rows))),
                scorer=judge,
                paid_before=asked.paid,
                progress=self.progress,
                warn=self.warn,
            )
            asking.finish(concurrency=run.concurrency)
        if not asked.records:
            remedy = "give it more time or money; the same command reuses the stored answers"
            raise InvalidInput("no question was answered by every arm", field="questions", remedy=remedy)
        write_records(outcomes, asked.records)
        material = self.of_log(outcomes, skip_bad=False)
        return asking.facts(), material, self.advice(material, ask=ask)

    def _rows(self, questions: Path, *, options: RunOptions) -> Sequence[runs.LabelledQuestion]:
        unlabelled = self.settings.judge.generator is not None
        remedy = f"add this line to the configuration, or right answers to each question: {JUDGE_LINE}"
        rows = runs.read_questions(
            questions, family=options.family, limit=options.limit, unlabelled=unlabelled, remedy=remedy
        )
        first_rows = runs.distinct(rows)
        repeated = len(rows) - len(first_rows)
        if repeated:
            self.warn(f"left out: {counted(repeated, 'row')} with a repeated question, whose first row counts")
        return first_rows

    def _is_known(self, file: Path, records: list[dict[str, Json]], *, ask: Ask) -> bool:
        """Whether these records suffice for a verdict."""
        write_records(file, [*records])  # others are added meanwhile
        material = self.of_log(file, skip_bad=False)
        return self.advice(material, ask=ask).verdict != "not enough"


def _check_configured(names: Sequence[str], *, configured: Collection[str], source: str) -> None:
    """Raise InvalidInput if none of these arms is configured, because nothing could use the learned policy."""
    if not {*configured} & {*names}:
        arms = ", ".join(f"{name}: {{run_by: caller}}" for name in names)
        message = f"has the arms {', '.join(names)}, the configuration {', '.join(configured)}"
        remedy = f"name the arms of the file as those that will serve; if your code runs them, set arms: {{{arms}}}"
        raise InvalidInput(message, field=source, remedy=remedy)


def _arm_notes(material: WarmRows, *, incumbent: str | None, configured: Collection[str]) -> list[str]:
    notes = []
    if incumbent is not None:
        notes.append(f"in service policy.harm holds the policy back to {incumbent}; in the comparisons it does not")
    without_rows = [arm for arm in configured if arm not in material.arms]
    if without_rows:
        notes.append(f"nothing is known of {', '.join(without_rows)}: explored as on the first day")
    unconfigured = [arm for arm in material.arms if arm not in configured]
    if unconfigured:
        notes.append(f"never drawn in service, since not configured: {', '.join(unconfigured)}")
    if material.encoded:
        notes.append(f"the features of {material.encoded} rows were made with the configured encoder")
    return notes


def _applied(
    advice: Advice,
    material: WarmRows,
    *,
    apply: bool,
    file: Path | None,
    ledger: Ledger,
    settings: Settings,
    encoder: Encoder,
    progress: Progress,
) -> dict[str, Any]:
    """Let the policy learn rows that are not from the store. apply: whether to set the incumbent in the file, too."""
    details: dict[str, Any] = {}
    common: dict[str, Any] = {"ledger": ledger, "settings": settings, "encoder": encoder}
    if material.origin != STORE:
        details = {**asdict(enter(material, **common, progress=progress)), "label": settings.policy.label}
        weight, label = settings.reward.weight, str(ledger.label)
        keep_comparisons(ledger.database, advice.comparisons, label=label, weight=weight, now=time.time())
    if apply:
        details["incumbent"] = set_incumbent(advice, file=file, **common)
    return details
