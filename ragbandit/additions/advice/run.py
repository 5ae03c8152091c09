"""A run of arms on questions that ends when the verdict is known."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.markup import escape

from ragbandit.additions.advice.verdict import Advice, Criteria, advice_of, check_question_count
from ragbandit.additions.evaluation.compared_arms import load_compared_arms
from ragbandit.additions.evaluation.file_questions import FileQuestions
from ragbandit.additions.evaluation.kept_answers import AnswerFile
from ragbandit.additions.evaluation.labelled_questions import LabelledQuestion, first_rows, read_questions
from ragbandit.additions.evaluation.outcomes import OutcomeReader
from ragbandit.additions.evaluation.warm import WarmRows
from ragbandit.router.cli.console import errors
from ragbandit.router.config.settings import JUDGE_LINE
from ragbandit.router.offline.logs.jsonl import write_records
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import counted
from ragbandit.shared.types import Json
from ragbandit.workers.asking.question_run import QuestionRun
from ragbandit.workers.asking.scoring import JUDGE, make_scorer
from ragbandit.workers.asking.stop import Stop, planned_looks, shared_confidence
from ragbandit.workers.setup.pipelines import Pipelines


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


@dataclass(kw_only=True)
class AdviceRun:
    """Runs arms on the questions of a file, and makes the verdict on their outcomes."""

    outcomes: OutcomeReader
    ask: Criteria
    warn: Callable[[str], None] = lambda text: errors.print(escape(text), soft_wrap=True, highlight=False)

    def finish(self, questions: Path, *, run: RunOptions, learns: bool) -> tuple[dict[str, Any], WarmRows, Advice]:
        """Run the arms. Returns (facts, rows, verdict on these rows). Ctrl-C ends the run early.

        Raises InvalidInput if there are fewer questions than folds (before any arm is asked), or if no question was
        answered by every arm.
        """
        settings = self.outcomes.settings
        rows = self._rows(questions, options=run)
        check_question_count(len(rows), folds=self.ask.folds, source=str(questions))
        arms = load_compared_arms(settings, names=run.arms, pipelines=run.pipelines, learns=learns)
        judge = None
        if settings.judge.generator is not None and any(not row.answers for row in rows):
            judge = make_scorer(settings.judge, reward=settings.reward, chosen=JUDGE)
        file = run.answers or Path(settings.data_dir) / "evaluations" / f"{questions.stem}.jsonl"
        log = file.with_name(f"{file.stem}.outcomes.jsonl")
        ask = replace(self.ask, confidence=shared_confidence(len(rows)))
        with AnswerFile(file, resume=True) as stored:
            asked = FileQuestions(
                rows,
                arms=arms,
                answers=stored,
                reward=settings.reward,
                limits=settings.budget,
                family=run.family,
                by_judge=judge is not None,
            )
            is_known = partial(self._is_known, log, asked.records, ask=ask)
            asking = QuestionRun(
                questions=asked.all,
                arms=arms,
                cost=settings.reward.cost,
                stop=Stop(budget=run.budget, is_known=is_known, looks=planned_looks(len(rows))),
                scorer=judge,
                paid_before=asked.paid,
                progress=self.outcomes.progress,
                warn=self.warn,
            )
            asking.finish(concurrency=run.concurrency)
        if not asked.records:
            remedy = "give it more time or money; the same command reuses the stored answers"
            raise InvalidInput("no question was answered by every arm", field="questions", remedy=remedy)
        write_records(log, asked.records)
        material = self.outcomes.read_log(log, skip_bad=False)
        return asking.facts(), material, self._advice(material, ask=ask)

    def _rows(self, questions: Path, *, options: RunOptions) -> Sequence[LabelledQuestion]:
        unlabelled = self.outcomes.settings.judge.generator is not None
        remedy = f"add this line to the configuration, or right answers to each question: {JUDGE_LINE}"
        rows = read_questions(
            questions, family=options.family, limit=options.limit, unlabelled=unlabelled, remedy=remedy
        )
        kept_rows = first_rows(rows)
        repeated = len(rows) - len(kept_rows)
        if repeated:
            self.warn(f"left out: {counted(repeated, 'row')} with a repeated question, whose first row counts")
        return kept_rows

    def _advice(self, material: WarmRows, *, ask: Criteria) -> Advice:
        outcomes = self.outcomes
        return advice_of(
            material.rows, source=material.source, settings=outcomes.settings, ask=ask, progress=outcomes.progress
        )

    def _is_known(self, file: Path, records: list[dict[str, Json]], *, ask: Criteria) -> bool:
        """Write the records to `file`. Returns whether they suffice for a verdict."""
        write_records(file, [*records])  # a copy, because concurrent answers add records
        material = self.outcomes.read_log(file, skip_bad=False)
        return self._advice(material, ask=ask).verdict != "not enough"
