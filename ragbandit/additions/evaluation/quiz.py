"""RAGQuestEval of CRUD-RAG (Lyu et al. 2024): a model answers a quiz about a gold text from the answer of an arm.

The judge writes the quiz and its right answers from the gold text, unless the data set has a quiz. Then it answers the
quiz from each text that is evaluated, and code compares its answers with the right ones, word by word.
"""

import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from ragbandit.additions.evaluation.booked_model import BookedModel
from ragbandit.shared.errors import ArmFailed, InvalidInput, required_module
from ragbandit.strategies.base import Prompt
from ragbandit.strategies.prompting.prompts import fit_template, load_templates

#: answer to a question that the text does not answer: Chinese for "cannot infer"
CANNOT_INFER: Final = "无法推断"
#: maximum number of questions of a quiz that the judge writes
QUESTIONS: Final = 10
#: a line such as "3: answer". The colon may also be a full stop or the Chinese comma
_NUMBERED_LINE: Final = re.compile(r"^[ \t]*(\d{1,3})[ \t]*[:\uff1a.、\uff0e][ \t]*(.*)$", re.MULTILINE)
_TEMPLATES: Final = ("quiz_questions", "quiz_answers")

#: splits a text into words
Cut = Callable[[str], Sequence[str]]
#: sends a prompt to the judge; raises ArmFailed
Ask = Callable[[Prompt], Awaitable[str]]

#: measures of one text, in [0, 1]. answered: share of the questions that the judge could answer from the text (Q-R, the
#: paper's recall). word_recall (T-R): share of the words of the right answer that are in the judge's answer.
#: word_precision (T-P): the reverse share. word_f1 (T-F1, the paper's precision). The last three are means over the
#: answered questions, 0 without any
MEASURES: Final = ("answered", "word_recall", "word_precision", "word_f1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Quiz:
    """Questions about a gold text, and the right answers in the same order. Raises InvalidInput."""

    questions: tuple[str, ...]
    answers: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.questions) != len(self.answers):
            message = f"{len(self.questions)} questions and {len(self.answers)} answers"
            raise InvalidInput(message, field="quiz", remedy="give one answer for each question")
        if not self.asked:
            message = "the gold text answers no question"
            raise InvalidInput(message, field="quiz", remedy="leave the row out, or give another quiz")

    @property
    def asked(self) -> tuple[tuple[str, str], ...]:
        """(question, right answer) of the questions that the gold text answers; only these are asked."""
        pairs = zip(self.questions, self.answers, strict=True)
        return tuple((question, answer) for question, answer in pairs if not _cannot_infer(answer))


def load_chinese_splitter() -> Cut:
    """Jieba's function that splits Chinese into words. Raises ConfigError if the package is missing."""
    jieba: Any = required_module("jieba", extra="families", field="family")
    jieba.setLogLevel(logging.WARNING)  # by default it logs that its dictionary is loaded
    cut: Cut = jieba.lcut
    return cut


@dataclass(kw_only=True)
class QuizJudge(BookedModel):
    """The model of the judge, with the templates of quizzes."""

    remedy: str = "raise judge.seconds or judge.max_tokens"

    def __post_init__(self) -> None:
        self._templates = load_templates(_TEMPLATES, overrides={}, package="ragbandit.additions.evaluation")

    def prompt(self, template: str, **fields: str) -> Prompt:
        """The prompt of a template with these fields. Raises PromptTooLong."""
        return fit_template(
            self._templates[template], fields=fields, generator=self.generator, max_tokens=self.max_tokens
        ).prompt


async def write_quiz(text: str, *, judge: QuizJudge, ask: Ask) -> Quiz:
    """Let the judge write questions about a gold text, and answer them. Raises ArmFailed if it can answer none."""
    reply = await ask(judge.prompt("quiz_questions", text=text, limit=str(QUESTIONS)))
    questions = tuple(dict.fromkeys(_parse_numbered(reply).values()))[:QUESTIONS]
    answers = await _answer_quiz(text, questions=questions, judge=judge, ask=ask) if questions else {}
    right = tuple(answers.get(number, CANNOT_INFER) for number in range(1, len(questions) + 1))
    if all(map(_cannot_infer, right)):
        remedy = "use a stronger judge, or give the row a quiz"
        raise ArmFailed(f"{judge.generator.name} made no question that the gold text answers", remedy=remedy)
    return Quiz(questions=questions, answers=right)


async def grade_with_quiz(text: str, *, quiz: Quiz, judge: QuizJudge, ask: Ask, cut: Cut) -> Mapping[str, float]:
    """MEASURES of a text. Raises ArmFailed if the judge fails. All are 0 for a blank text, without a call."""
    questions = [question for question, _ in quiz.asked]
    answers = await _answer_quiz(text, questions=questions, judge=judge, ask=ask) if text.strip() else {}
    overlaps = [
        _overlap(cut(answers[number]), cut(right))
        for number, (_, right) in enumerate(quiz.asked, start=1)
        if number in answers and not _cannot_infer(answers[number])
    ]
    means = [fmean(column) for column in zip(*overlaps, strict=True)] if overlaps else [0.0, 0.0, 0.0]
    return dict(zip(MEASURES, [len(overlaps) / len(questions), *means], strict=True))


async def _answer_quiz(text: str, *, questions: Sequence[str], judge: QuizJudge, ask: Ask) -> dict[int, str]:
    numbered = "\n".join(f"{number}: {question}" for number, question in enumerate(questions, start=1))
    return _parse_numbered(await ask(judge.prompt("quiz_answers", text=text, questions=numbered)))


def _parse_numbered(reply: str) -> dict[int, str]:
    """Number -> answer, from lines such as "3: answer". The first answer that is not blank counts."""
    answers: dict[int, str] = {}
    for number, answer in _NUMBERED_LINE.findall(reply):
        if answer.strip():
            answers.setdefault(int(number), answer.strip())
    return answers


def _cannot_infer(answer: str) -> bool:
    return answer.strip(" \t。.“”\"'") == CANNOT_INFER


def _overlap(words: Sequence[str], right: Sequence[str]) -> tuple[float, float, float]:
    """Returns (recall, precision, F1)."""
    same = sum((Counter(words) & Counter(right)).values())
    if same == 0:
        return 0.0, 0.0, 0.0
    recall, precision = same / len(right), same / len(words)
    return recall, precision, 2.0 * precision * recall / (precision + recall)
