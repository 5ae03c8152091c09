"""RAGQuestEval of CRUD-RAG (Lyu et al. 2024): is what the gold text says also in the answer?

Questions and their reference answers are made from the gold text beforehand, by `made_quiz` or by somebody else. A
judge, which is any generator, answers the questions from the text that is evaluated; its answers are compared with the
references.

Different from the published code, whose figures are too good where things go wrong: a text whose judge failed counts 0
and stays in the denominator; an answer belongs to its question by number and not by its place, so that a missing one is
an unanswered question and not an error of the whole text.
"""

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragbandit.shared.errors import ArmFailed, InvalidInput, required_module
from ragbandit.strategies.base import Generator, Request
from ragbandit.strategies.prompting.prompts import Template, fit

#: reply of the judge, and entry of the references, where a text has no answer
CANNOT_INFER = "无法推断"
#: "3: answer" at the start of a line; the colon may be of either kind, or a full stop or comma of a list
_NUMBERED = re.compile(r"^[ \t]*(\d{1,3})[ \t]*[:\uff1a.、\uff0e][ \t]*(.*)$", re.MULTILINE)
#: questions of a quiz that the judge makes, at most
QUESTIONS = 10
#: characters that may surround CANNOT_INFER
_AROUND = " \t。.“”\"'"

ASKS_FOR_QUESTIONS, ASKS_FOR_ANSWERS = "crud_questions", "crud_answer"

Cut = Callable[[str], Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuizModel:
    """The model that makes quizzes and answers them, with its prompts by name."""

    generator: Generator
    templates: Mapping[str, Template]


@dataclass(frozen=True, kw_only=True, slots=True)
class Quiz:
    """Questions about one gold text with their reference answers, in one order.

    Raises InvalidInput where these do not belong together, or where no question has an answer in the gold text.
    """

    questions: tuple[str, ...]
    references: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.questions) != len(self.references):
            raise InvalidInput(
                f"{len(self.questions)} questions and {len(self.references)} references",
                field="references",
                remedy="give one reference per question",
            )
        if not self.asked:
            raise InvalidInput(
                "no question has an answer in the gold text", field="references", remedy="leave the question out"
            )

    @property
    def asked(self) -> tuple[tuple[str, str], ...]:
        """(question, reference) of the questions that the gold text answers; the others are not asked."""
        pairs = zip(self.questions, self.references, strict=True)
        return tuple((question, reference) for question, reference in pairs if not _cannot(reference))


@dataclass(frozen=True, kw_only=True, slots=True)
class QuizScore:
    """Scores of one text; shares in [0, 1], all 0.0 where the judge failed or answered nothing."""

    #: share of the asked questions that the judge could answer: Q-R, the paper's "recall"
    answered: float
    #: words of the judge's answers that are in the references, T-P, and the reverse, T-R; means over answered questions
    word_precision: float
    word_recall: float
    #: mean F1 of the two: T-F1, the paper's "precision"
    word_f1: float
    #: questions to which the judge's reply had no line; they count as unanswered
    unread: int = 0
    #: why the judge failed, None where it did not
    error: str | None = None


def chinese_words() -> Cut:
    """Jieba's word cutter. Raises ConfigError where the package is not installed."""
    jieba: Any = required_module("jieba", extra="crud", field="cut")
    jieba.setLogLevel(logging.WARNING)  # it tells standard error how it loads its dictionary
    cut: Cut = jieba.lcut
    return cut


async def quizzed(text: str, *, quiz: Quiz, model: QuizModel, cut: Cut, max_tokens: int = 512) -> QuizScore:
    """The score of a text. `cut` splits an answer into words, as `chinese_words` does; nothing is normalised.

    A text of nothing but white space is not shown to the judge and counts 0. A judge that fails counts 0 too, with
    its error.
    """
    if not text.strip():
        return _score([], unread=0, asked=len(quiz.asked))
    try:
        questions = [question for question, _ in quiz.asked]
        answers = await _answers(text, questions=questions, model=model, max_tokens=max_tokens)
    except ArmFailed as error:
        return QuizScore(answered=0.0, word_precision=0.0, word_recall=0.0, word_f1=0.0, error=str(error))
    read = [(answers[number], pair[1]) for number, pair in enumerate(quiz.asked, start=1) if number in answers]
    overlaps = [_overlap(cut(answer), cut(reference)) for answer, reference in read if not _cannot(answer)]
    return _score(overlaps, unread=len(quiz.asked) - len(read), asked=len(quiz.asked))


async def made_quiz(text: str, *, model: QuizModel, max_tokens: int = 512) -> Quiz:
    """A quiz about a gold text: the judge writes at most QUESTIONS questions, then answers them from the same text.

    Raises ArmFailed if the judge fails, or writes no question that it can answer from the text.
    """
    fields = {"text": text, "limit": str(QUESTIONS)}
    reply = await _reply(ASKS_FOR_QUESTIONS, fields=fields, model=model, max_tokens=max_tokens)
    questions = tuple(dict.fromkeys(_numbered(reply).values()))[:QUESTIONS]
    answers = await _answers(text, questions=questions, model=model, max_tokens=max_tokens) if questions else {}
    references = tuple(answers.get(number, CANNOT_INFER) for number in range(1, len(questions) + 1))
    if all(map(_cannot, references)):
        raise ArmFailed(
            f"{model.generator.name} made no question that the gold text answers", remedy="use a stronger judge"
        )
    return Quiz(questions=questions, references=references)


async def _answers(text: str, *, questions: Sequence[str], model: QuizModel, max_tokens: int) -> dict[int, str]:
    """The judge's answers from the text, by the questions' numbers from 1."""
    numbered = "\n".join(f"{number}: {question}" for number, question in enumerate(questions, start=1))
    fields = {"text": text, "questions": numbered}
    return _numbered(await _reply(ASKS_FOR_ANSWERS, fields=fields, model=model, max_tokens=max_tokens))


async def _reply(template: str, *, fields: Mapping[str, str], model: QuizModel, max_tokens: int) -> str:
    generator = model.generator
    prompt = fit(model.templates[template], fields=fields, generator=generator, max_tokens=max_tokens).prompt
    return (await generator.complete(Request(prompt=prompt, max_tokens=max_tokens))).text


def _numbered(reply: str) -> dict[int, str]:
    """Answers by number; of a number that stands twice the first, blank ones left out."""
    answers: dict[int, str] = {}
    for number, answer in _NUMBERED.findall(reply):
        if answer.strip():
            answers.setdefault(int(number), answer.strip())
    return answers


def _cannot(answer: str) -> bool:
    return answer.strip(_AROUND) == CANNOT_INFER


def _overlap(words: Sequence[str], gold: Sequence[str]) -> tuple[float, float, float]:
    """Precision, recall and F1 of words, each as often as it stands."""
    same = sum((Counter(words) & Counter(gold)).values())
    if same == 0:
        return 0.0, 0.0, 0.0
    precision, recall = same / len(words), same / len(gold)
    return precision, recall, 2 * precision * recall / (precision + recall)


def _score(overlaps: Sequence[tuple[float, float, float]], *, unread: int, asked: int) -> QuizScore:
    precision, recall, f1 = (_mean(column) for column in zip(*overlaps, strict=True)) if overlaps else (0.0, 0.0, 0.0)
    return QuizScore(
        answered=len(overlaps) / asked, word_precision=precision, word_recall=recall, word_f1=f1, unread=unread
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
