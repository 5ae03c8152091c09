"""Quizzes about the answers of a run (family crud): every answer is judged, and every reply of the judge is stored."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ragbandit.additions.evaluation.kept_answers import StoredAnswer
from ragbandit.additions.evaluation.kept_replies import ReplyCache
from ragbandit.additions.evaluation.labelled_questions import LabelledQuestion
from ragbandit.additions.evaluation.qualities import Measures
from ragbandit.additions.evaluation.quiz import MEASURES, QuizJudge, grade_with_quiz, load_chinese_splitter, write_quiz
from ragbandit.additions.evaluation.results import MOST_NAMED, Answered, Qualities
from ragbandit.router.config.settings import JUDGE_LINE, JudgeSettings
from ragbandit.router.offline.estimation import Progress
from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.workers.asking.question_run import in_parallel
from ragbandit.workers.setup.generators import make_generator


class Quizzes:
    """Judges answers by quizzes, for a `with` block. `unjudged` has (arm, id of a question, error) of failures.

    replies: file of the judge's replies, which are reused for equal prompts.
    Raises ConfigError without `judge.generator` or without the package jieba.
    """

    def __init__(self, settings: JudgeSettings, *, replies: Path) -> None:
        if settings.generator is None:
            message = "the family crud needs a judge, which answers a quiz from each answer"
            raise ConfigError(
                message, field="judge.generator", remedy=f"add this line to the configuration: {JUDGE_LINE}"
            )
        self._cut = load_chinese_splitter()
        limits: dict[str, Any] = {"seconds": settings.seconds, "max_tokens": settings.max_tokens}
        self.judge = QuizJudge(generator=make_generator(settings.generator), **limits)
        self.unjudged: list[tuple[str, str, str]] = []
        self._replies = ReplyCache(self.judge, file=replies)

    def __enter__(self) -> Self:
        self._replies.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._replies.__exit__()

    async def run(
        self, rows: Sequence[LabelledQuestion], *, answered: Answered, concurrency: int, progress: Progress
    ) -> Qualities:
        """The measures of every answer; 0 if the judge failed. Closes the judge's generator at the end."""
        by_position: dict[int, dict[str, Measures]] = {}

        async def judge_row(position: int) -> None:
            answers = {arm: stored[position] for arm, stored in answered.items()}
            by_position[position] = await self._judge_answers(rows[position], answers)
            progress(f"judged ({self.judge.dollars:.4g} dollars)", len(by_position), len(rows))

        try:
            await in_parallel(range(len(rows)), judge_row, concurrency=concurrency)
        finally:
            await self.judge.generator.close()
        return {arm: [by_position[position][arm] for position in range(len(rows))] for arm in answered}

    def facts(self) -> dict[str, Any]:
        """Cost of the judge's calls in this run, without reused replies."""
        return self.judge.facts

    def remarks(self) -> list[str]:
        judge = self.judge
        lines = [f"judge {judge.generator.name}: {judge.summary}; replies: {self._replies.file}"]
        lines += [f"not judged: {arm} {row}: {error}" for arm, row, error in self.unjudged[:MOST_NAMED]]
        if len(self.unjudged) > MOST_NAMED:
            lines.append(f"not judged: {len(self.unjudged) - MOST_NAMED} more, see --json")
        return lines

    async def _judge_answers(self, row: LabelledQuestion, answers: Mapping[str, StoredAnswer]) -> dict[str, Measures]:
        measures: dict[str, Measures] = {arm: dict.fromkeys(MEASURES, 0.0) for arm in answers}
        try:
            quiz = row.quiz or await write_quiz(str(row.answers[0]), judge=self.judge, ask=self._replies.ask)
        except ArmFailed as error:
            self.unjudged += [(arm, row.id, str(error)) for arm in answers]
            return measures
        for arm, stored in answers.items():  # in sequence, because equal answers share a reply
            text = "" if stored.failed else stored.answer or ""
            try:
                measures[arm] = await grade_with_quiz(
                    text, quiz=quiz, judge=self.judge, ask=self._replies.ask, cut=self._cut
                )
            except ArmFailed as error:
                self.unjudged.append((arm, row.id, str(error)))
        return measures
