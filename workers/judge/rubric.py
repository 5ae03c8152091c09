"""Rubric: how a judge is asked to score one answer, and how its reply is read.

Three criteria, each from 0 to 1 with a reason: `supported` by the passages, `answers` the question, `right` as far as a
reference tells. What there is nothing to judge by is left out, and the score is the weighted mean of the others.

Passages, question and answer are written by others, who may address the judge. So the material stands between lines
with a mark that nobody can foresee and that is taken out of the material itself; every line of it has a bar before it,
so that none can pass for one of ours; and what opens a turn of a chat is taken apart. `addresses_judge` finds the plain
attempts. None of this makes a judge obey nobody: it keeps the prompt's structure whatever the material says.
"""

import hmac
import json
import logging
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from statistics import fmean
from typing import Any, Final

from ragbandit.router.config.settings import JudgeSettings
from ragbandit.shared.errors import ArmFailed, InvalidInput, required_module
from ragbandit.shared.files import each_key_once
from ragbandit.strategies.base import Generator, Passage, Prompt, PromptTooLong, Request
from ragbandit.strategies.prompting.prompts import Template, fit

#: name of the template
RUBRIC: Final = "rubric"
#: criterion -> its description in the prompt
CRITERIA: Final[Mapping[str, str]] = {
    "supported": "what the ANSWER states follows from the PASSAGES. 1: all of it. 0.5: the main point, not all of the "
    "rest. 0: the main point is not in them, or they contradict it.",
    "answers": "the ANSWER gives what the QUESTION asks for. 1: fully and to the point. 0.5: in part. 0: it is about "
    "something else, says nothing, or declines to answer.",
    "right": "the ANSWER agrees with the REFERENCE. 1: it says the same, in whatever words. 0.5: in part. 0: it does "
    "not, or contradicts it.",
}
#: characters of a reply that are read, and of a reason that are kept
_LONGEST_REPLY: Final = 20_000
_LONGEST_REASON: Final = 300
#: characters of a passage's title that are shown
_LONGEST_TITLE: Final = 200
#: texts are cut to so many parts of their length, one after the other, until the prompt fits
_PARTS: Final = (1, 2, 4, 8, 16)

_NONE: Final = "| (none)"
#: what opens or closes a turn in a chat template, and any tag: apart, it is text
_TAG: Final = re.compile(r"<(?=[|/!A-Za-z_<])|\[(?=/?INST\b)")
_THOUGHTS: Final = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_FENCED: Final = re.compile(r"```(?:json)?[ \t]*\n?(.*?)\n?[ \t]*```", re.DOTALL | re.IGNORECASE)
#: characters that nobody sees
_UNSEEN: Final = re.compile("[\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]")

#: letters of other scripts that look like ours, and tags, which nobody sees and a model reads as letters
_LOOK_ALIKE: Final = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u04bb\u0261\u03bf\u03bd\u03b1\u0131"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0406\u0405\u0408",
    "aeopcyxijsdhgovaiABEKMHOPCTXISJ",
) | {0xE0000 + code: code for code in range(0x20, 0x7F)}

#: the best that a judge can give, in words and numbers
_BEST: Final = (
    r"(?:\b1(?:[.,]0+)?\b(?![.,]?\d)|\b10\s?/\s?10\b|\b5\s?/\s?5\b|\b100\s?%"
    r"|\bfull\b|\bperfect\b|\bhighest\b|\bmaximum\b|\btop\b)"
)
_SAY: Final = r"\b(?:output|return|reply|respond|answer|write|set|give|assign|award)\b"
_ADDRESSES: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        (
            r"\b(?:ignore|disregard|forget|override)\b[^.\n]{0,40}"
            r"\b(?:instructions?|rules|prompts?|guidelines|criteria|rubric)\b"
        ),
        (
            r"\b(?:give|assign|award|grant|score|rate|grade|mark)\s+"
            rf"(?:this|it|me|us|(?:the|this|my|our|every|all)\s+\w+)\b[^.\n]{{0,40}}{_BEST}"
        ),
        rf"{_SAY}[^.\n]{{0,60}}\b(?:score|rating|marks)\b[^.\n]{{0,30}}{_BEST}",
        rf"{_SAY}[^.\n]{{0,30}}{_BEST}[^.\n]{{0,20}}\b(?:score|rating|marks)\b",
        (
            r"\b(?:dear|note to|message (?:for|to)|instructions? (?:for|to))\s+(?:the\s+|any\s+|all\s+)?"
            r"(?:ai|llm|language model|judge|grader|evaluator|rater)s?\b"
        ),
        r"\byou are (?:now )?(?:a|an|the)\s+(?:\w+\s+){0,2}(?:judge|grader|evaluator|rater|language model|ai)\b",
        r"\b(?:system|developer)\s+(?:prompt|message|override)\s*:",
        r'"(?:supported|answers|right)"\s*:\s*(?:\{|[01])',
        r"<\s?\|\s?(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id)\s?\|\s?>",
        r"\[\s?/?INST\s?\]|<<\s?/?SYS\s?>>|<\s?(?:start|end)_of_turn\s?>",
    )
)


class UnreadableReply(Exception):
    """The judge's reply gives no scores. The message is ours: nothing of the reply is in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedAnswer:
    """What one answer is judged by."""

    question: str
    answer: str
    #: empty: no passage can support it
    passages: tuple[Passage, ...] = ()
    #: gold answers; empty: nobody told
    reference: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RubricPrompt:
    """A prompt, and what it asks for."""

    prompt: Prompt
    criteria: tuple[str, ...]
    #: how many passages are in it
    passages: int
    #: something in it addresses the judge
    suspicious: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One criterion: from 0 to 1, and why."""

    score: float
    reason: str


def mark_of(decision_id: str, *, attempt: int, secret: bytes) -> str:
    """The mark that parts begin with: another one for every decision and attempt. secret: which no caller knows."""
    text = f"ragbandit rubric:{attempt}:{decision_id}".encode("utf-8", "replace")
    return f"#{hmac.new(secret, text, sha256).hexdigest()[:12]}#"


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptMaker:
    """Makes the prompts of a rubric for one model; the settings limit the material."""

    settings: JudgeSettings
    template: Template
    generator: Generator

    def prompt(self, material: JudgedAnswer, *, mark: str, again: bool = False) -> RubricPrompt:
        """The prompt for this material, made to fit: texts are cut before the last passage is left out.

        again: it was asked before. Raises PromptTooLong where not even short texts fit.
        """
        words, chars = self.settings.passage_words, self.settings.text_chars
        for part in _PARTS:
            shorter = {"passage_words": max(10, words // part), "text_chars": max(100, chars // part)}
            try:
                prompt = _fitted(self.showing(**shorter), material, mark=mark, again=again)
            except PromptTooLong:
                if part == _PARTS[-1]:
                    raise
                continue
            if prompt.passages or not material.passages:
                return prompt
        # No room for a passage: the answer is judged without.
        return self.prompt(replace(material, passages=()), mark=mark, again=again)

    def showing(self, *, passage_words: int, text_chars: int) -> "PromptMaker":
        """A copy with other limits for each passage, and for question, answer and reference."""
        update = {"passage_words": passage_words, "text_chars": text_chars}
        return replace(self, settings=self.settings.model_copy(update=update))


def _fitted(maker: PromptMaker, material: JudgedAnswer, *, mark: str, again: bool) -> RubricPrompt:
    applies = {"supported": bool(material.passages), "answers": True, "right": bool(material.reference)}
    criteria = tuple(name for name in CRITERIA if applies[name])
    form = {name: {"score": "a number from 0 to 1", "reason": "..."} for name in criteria}
    texts = {"question": material.question, "answer": material.answer, "reference": "\n".join(material.reference)}
    texts = {name: text[: maker.settings.text_chars] for name, text in texts.items()}
    shown = [
        Passage(
            id=passage.id,
            title=_apart(" ".join(passage.title[:_LONGEST_TITLE].split()), mark=mark),
            text=_quoted(passage.text, mark=mark),
        )
        for passage in material.passages
    ]
    repeated = "A reply before could not be used. Reply with the JSON object alone." if again else ""
    fitted = fit(
        maker.template,
        fields={
            **{name: _quoted(text, mark=mark) for name, text in texts.items()},
            "criteria": "\n".join(f"- {name}: {CRITERIA[name]}" for name in criteria),
            "form": json.dumps(form),
            "fence": mark,
            "again": repeated,
        },
        generator=maker.generator,
        max_tokens=maker.settings.max_tokens,
        passages=shown,
        passage_words=maker.settings.passage_words,
    )
    read = [texts["question"], texts["answer"]]
    read += [f"{each.title}\n{each.text}" for each in material.passages[: len(fitted.passages)]]
    return RubricPrompt(
        prompt=fitted.prompt,
        criteria=criteria,
        passages=len(fitted.passages),
        suspicious=any(mark.strip("#") in text.lower() or addresses_judge(text) for text in read),
    )


def _quoted(text: str, *, mark: str) -> str:
    """The text as material: a bar before every line, without our mark, tags apart."""
    # All that any program may take for the end of a line.
    lines = [line.rstrip() for line in _apart(text, mark=mark).splitlines()]
    return "\n".join(f"| {line}" for line in lines) if any(lines) else _NONE


def _apart(text: str, *, mark: str) -> str:
    return _TAG.sub(
        lambda match: f"{match.group()} ", re.sub(re.escape(mark.strip("#")), "[...]", text, flags=re.IGNORECASE)
    )


def addresses_judge(text: str) -> bool:
    """Whether a text seems to address its grader: an obvious attempt in English, or control words of a chat."""
    apart = unicodedata.normalize("NFKD", text.translate(_LOOK_ALIKE))
    letters = "".join(sign for sign in apart if not unicodedata.combining(sign))
    seen = " ".join(_UNSEEN.sub("", letters).split())
    return any(pattern.search(seen) for pattern in _ADDRESSES)


def parsed_scores(text: str, *, criteria: Sequence[str]) -> Mapping[str, Score]:
    """The scores in a judge's reply, one for each criterion.

    The reply is one JSON object; a code fence around it, and thoughts in <think> before it, are passed over. Raises
    UnreadableReply for anything else: a refusal, a missing criterion, a score that is not a number from 0 to 1.
    """
    if len(text) > _LONGEST_REPLY:
        raise UnreadableReply(f"it has more than {_LONGEST_REPLY} characters")
    body = _THOUGHTS.sub("", text).strip()
    fenced = _FENCED.fullmatch(body)
    try:
        value = json.loads(fenced[1] if fenced else body, object_pairs_hook=each_key_once)
    except (ValueError, RecursionError):
        raise UnreadableReply("it is not one JSON object") from None
    if not isinstance(value, dict):
        raise UnreadableReply("it is not one JSON object")
    return {name: _score(value.get(name), name=name) for name in criteria}


def _score(value: object, *, name: str) -> Score:
    if not isinstance(value, dict) or "score" not in value:
        raise UnreadableReply(f'"{name}" has no "score"')
    score, reason = value["score"], value.get("reason")
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:  # NaN is not
        raise UnreadableReply(f'the "score" of "{name}" is no number from 0 to 1')
    if not isinstance(reason, str) or not reason.strip():
        raise UnreadableReply(f'"{name}" has no "reason"')
    short = " ".join(reason.replace("\x00", " ").encode("utf-8", "replace").decode().split())
    return Score(score=float(score), reason=short[:_LONGEST_REASON])


def weighted_score(scores: Mapping[str, Score], *, weights: Mapping[str, float]) -> float:
    """The mean of the criteria that were judged, weighted; the plain mean where all of their weights are 0."""
    of = {name: weights[name] for name in scores}
    if not any(of.values()):
        of = dict.fromkeys(scores, 1.0)
    total = math.fsum(of.values())
    mean = math.fsum(weight * scores[name].score for name, weight in of.items()) / total
    return min(1.0, max(0.0, round(mean, 6)))


def rubric_hash(template: Template, *, weights: Mapping[str, float]) -> str:
    """12 hexadecimal digits over all that decides what a score means: the prompt, the criteria, their weights."""
    parts = {"template": asdict(template), "criteria": dict(CRITERIA), "weights": dict(weights)}
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


#: reply of the judge, and entry of the references, where a text has no answer
CANNOT_INFER = "无法推断"
#: "3: answer" at the start of a line; the colon may be of either kind, or a full stop or comma of a list
_NUMBERED = re.compile(r"^[ \t]*(\d{1,3})[ \t]*[:\uff1a.、\uff0e][ \t]*(.*)$", re.MULTILINE)
#: questions of a quiz that the judge makes, at most
QUESTIONS = 10
#: tokens of a reply about a quiz, at most
QUIZ_TOKENS = 512
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
    """Questions about one gold text and their reference answers, in the same order. Raises InvalidInput if their
    numbers differ, or if no question has an answer in the gold text.
    """

    questions: tuple[str, ...]
    references: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.questions) != len(self.references):
            message = f"{len(self.questions)} questions and {len(self.references)} references"
            raise InvalidInput(message, field="references", remedy="give one reference per question")
        if not self.asked:
            remedy = "leave the question out"
            raise InvalidInput("no question has an answer in the gold text", field="references", remedy=remedy)

    @property
    def asked(self) -> tuple[tuple[str, str], ...]:
        """(question, reference) of the questions that the gold text answers; the others are not asked."""
        pairs = zip(self.questions, self.references, strict=True)
        return tuple((question, reference) for question, reference in pairs if not _cannot(reference))


#: scores of one text, shares in [0, 1]. answered: of the asked questions those that the judge could answer: Q-R, the
#: paper's "recall". word_precision, word_recall: words of its answers that are in the references, T-P, and the reverse,
#: T-R; means over answered questions. word_f1: mean F1 of the two: T-F1, the paper's "precision"
QUIZ_MEASURES: Final = ("answered", "word_precision", "word_recall", "word_f1")


def chinese_words() -> Cut:
    """Jieba's word cutter. Raises ConfigError where the package is not installed."""
    jieba: Any = required_module("jieba", extra="crud", field="cut")
    jieba.setLogLevel(logging.WARNING)  # it prints the loading of its dictionary to standard error
    cut: Cut = jieba.lcut
    return cut


async def quizzed(text: str, *, quiz: Quiz, model: QuizModel, cut: Cut) -> Mapping[str, float]:
    """The score of a text by QUIZ_MEASURES. `cut` splits an answer into words, as `chinese_words` does, and no more.

    A text of nothing but white space is not shown to the judge and counts 0, and a question counts as unanswered to
    which the judge's reply has no line. Raises ArmFailed if the judge fails.
    """
    questions = [question for question, _ in quiz.asked]
    answers = await _answers(text, questions=questions, model=model) if text.strip() else {}
    read = [(answers[number], pair[1]) for number, pair in enumerate(quiz.asked, start=1) if number in answers]
    overlaps = [_overlap(cut(answer), cut(reference)) for answer, reference in read if not _cannot(answer)]
    means = [fmean(column) for column in zip(*overlaps, strict=True)] if overlaps else [0.0, 0.0, 0.0]
    return dict(zip(QUIZ_MEASURES, [len(overlaps) / len(questions), *means], strict=True))


async def made_quiz(text: str, *, model: QuizModel) -> Quiz:
    """A quiz about a gold text: the judge writes at most QUESTIONS questions, then answers them from the same text.

    Raises ArmFailed if the judge fails, or writes no question that it can answer from the text.
    """
    fields = {"text": text, "limit": str(QUESTIONS)}
    reply = await _reply(ASKS_FOR_QUESTIONS, fields=fields, model=model)
    questions = tuple(dict.fromkeys(_numbered(reply).values()))[:QUESTIONS]
    answers = await _answers(text, questions=questions, model=model) if questions else {}
    references = tuple(answers.get(number, CANNOT_INFER) for number in range(1, len(questions) + 1))
    if all(map(_cannot, references)):
        remedy = "use a stronger judge"
        raise ArmFailed(f"{model.generator.name} made no question that the gold text answers", remedy=remedy)
    return Quiz(questions=questions, references=references)


async def _answers(text: str, *, questions: Sequence[str], model: QuizModel) -> dict[int, str]:
    """The judge's answers from the text, by the questions' numbers from 1."""
    numbered = "\n".join(f"{number}: {question}" for number, question in enumerate(questions, start=1))
    fields = {"text": text, "questions": numbered}
    return _numbered(await _reply(ASKS_FOR_ANSWERS, fields=fields, model=model))


async def _reply(template: str, *, fields: Mapping[str, str], model: QuizModel) -> str:
    generator = model.generator
    prompt = fit(model.templates[template], fields=fields, generator=generator, max_tokens=QUIZ_TOKENS).prompt
    return (await generator.complete(Request(prompt=prompt, max_tokens=QUIZ_TOKENS))).text


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
