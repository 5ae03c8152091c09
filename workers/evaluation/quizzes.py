"""Quizzes about the answers of a run (family crud): every answer is judged, and every reply of the judge is kept."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from ragbandit.router.config.settings import JUDGE_LINE, JudgeSettings
from ragbandit.router.offline.estimation import Progress
from ragbandit.shared.errors import ArmFailed, ConfigError, InvalidInput
from ragbandit.shared.files import append_private
from ragbandit.shared.json_lines import parsed
from ragbandit.shared.texts.formats import counted, number
from ragbandit.strategies.base import Prompt
from ragbandit.workers.evaluation.results import MOST_NAMED, Answered, Measures, Qualities
from ragbandit.workers.evaluation.runs import LabelledQuestion, StoredAnswer, in_parallel
from ragbandit.workers.judge.quiz import MEASURES, QuizJudge, chinese_words, made_quiz, quizzed
from ragbandit.workers.setup.generators import make_generator


class Quizzes:
    """Judges answers by quizzes, for a `with` block. `unjudged` has (arm, id of a question, error) of failures.

    replies: file of the judge's replies; a reply to the same prompt of the same model is used again.
    Raises ConfigError without `judge.generator` or without the package jieba.
    """

    def __init__(self, settings: JudgeSettings, *, replies: Path) -> None:
        if settings.generator is None:
            message = "the family crud needs a judge, which answers a quiz from each answer"
            raise ConfigError(
                message, field="judge.generator", remedy=f"add this line to the configuration: {JUDGE_LINE}"
            )
        self._cut = chinese_words()
        self.judge = QuizJudge(settings=settings, generator=make_generator(settings.generator))
        self.unjudged: list[tuple[str, str, str]] = []
        self._file = replies
        self._known: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._stream = append_private(self._file)
        except OSError as error:
            message = f"the file cannot be opened: {error.strerror}"
            raise InvalidInput(message, field=str(self._file), remedy="name another file with --answers") from error
        self._read()
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    async def run(
        self, rows: Sequence[LabelledQuestion], *, answered: Answered, concurrency: int, progress: Progress
    ) -> Qualities:
        """The measures of every answer; 0 if the judge failed. Closes the judge's generator at the end."""
        by_place: dict[int, dict[str, Measures]] = {}

        async def judge_row(place: int) -> None:
            answers = {arm: stored[place] for arm, stored in answered.items()}
            by_place[place] = await self._judged(rows[place], answers)
            progress(f"judged ({self.judge.dollars:.4g} dollars)", len(by_place), len(rows))

        try:
            await in_parallel(range(len(rows)), judge_row, concurrency=concurrency)
        finally:
            await self.judge.generator.close()
        return {arm: [by_place[place][arm] for place in range(len(rows))] for arm in answered}

    def facts(self) -> dict[str, Any]:
        """Cost of the judge's calls in this run, without replies that were used again."""
        judge = self.judge
        tokens = {"prompt_tokens": judge.prompt_tokens, "completion_tokens": judge.completion_tokens}
        return {"model": judge.generator.name, "calls": judge.calls, **tokens, "dollars": judge.dollars}

    def remarks(self) -> list[str]:
        judge = self.judge
        tokens = f"{judge.prompt_tokens:,} prompt tokens, {judge.completion_tokens:,} written tokens"
        cost = f"{counted(judge.calls, 'call')}, {tokens}, {number(judge.dollars)} dollars"
        lines = [f"judge {judge.generator.name}: {cost}; replies: {self._file}"]
        lines += [f"not judged: {arm} {row}: {error}" for arm, row, error in self.unjudged[:MOST_NAMED]]
        if len(self.unjudged) > MOST_NAMED:
            lines.append(f"not judged: {len(self.unjudged) - MOST_NAMED} more, see --json")
        return lines

    async def _judged(self, row: LabelledQuestion, answers: Mapping[str, StoredAnswer]) -> dict[str, Measures]:
        measures: dict[str, Measures] = {arm: dict.fromkeys(MEASURES, 0.0) for arm in answers}
        try:
            quiz = row.quiz or await made_quiz(str(row.answers[0]), judge=self.judge, ask=self._ask)
        except ArmFailed as error:
            self.unjudged += [(arm, row.id, str(error)) for arm in answers]
            return measures
        for arm, stored in answers.items():  # in sequence, because equal answers share a reply
            text = "" if stored.failed else stored.answer or ""
            try:
                measures[arm] = await quizzed(text, quiz=quiz, judge=self.judge, ask=self._ask, cut=self._cut)
            except ArmFailed as error:
                self.unjudged.append((arm, row.id, str(error)))
        return measures

    async def _ask(self, prompt: Prompt) -> str:
        text = json.dumps([self.judge.generator.name, asdict(prompt)], sort_keys=True, default=str)
        key = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        if key not in self._known:
            self._known[key] = await self.judge.ask(prompt)
            self._stream.write(json.dumps({"key": key, "reply": self._known[key]}).encode() + b"\n")
            self._stream.flush()
        return self._known[key]

    def _read(self) -> None:
        length = 0
        self._stream.seek(0)
        for line_number, line in enumerate(self._stream, start=1):
            if not line.endswith(b"\n"):  # an incomplete last line, which a killed process may leave
                break
            length += len(line)
            entry = parsed(line)
            if not (isinstance(entry.get("key"), str) and isinstance(entry.get("reply"), str)):
                where, remedy = f"{self._file}:{line_number}", "take the line out"
                raise InvalidInput("this line is not a reply of a judge", field=where, remedy=remedy)
            self._known[entry["key"]] = entry["reply"]
        self._stream.truncate(length)
