"""Rubric: the prompt by which a judge scores one answer, and the parser of its reply.

Passages, question and answer may contain instructions to the judge. In the prompt they stand between lines with an
unpredictable mark, each of their lines begins with a bar, and control words of chat formats are split. This protects
the structure of the prompt, but cannot make a judge ignore instructions. `addresses_judge` finds some obvious attempts.
"""

import json
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import pairwise
from secrets import token_hex
from statistics import fmean
from typing import Any, Final

from ragbandit.router.config.settings import JudgeSettings
from ragbandit.shared.json_lines import each_key_once
from ragbandit.strategies.base import Generator, Passage, Prompt
from ragbandit.strategies.failures import PromptTooLong
from ragbandit.strategies.prompting.prompts import Template, fit_template, load_templates
from ragbandit.workers.judge.drafts import Drafts, after_thoughts, has_other_scale, is_taken_back

CRITERIA: Final[Mapping[str, str]] = {
    "supported": "what the ANSWER states follows from the PASSAGES. 1: all of it. 0.5: the main point, not all of the "
    "rest. 0: the main point is not in them, or they contradict it.",
    "answers": "the ANSWER gives what the QUESTION asks for. 1: fully and to the point. 0.5: in part. 0: it is about "
    "something else, says nothing, or declines to answer.",
}
#: maximum number of characters of a reply
_LONGEST_REPLY: Final = 20_000
#: the limits of text lengths are divided by these numbers, in this order, until the prompt fits
_DIVISORS: Final = (1, 2, 4, 8, 16)

#: start of a tag, or of a control word of a chat format; a space after this start makes both plain text
_TAG: Final = re.compile(r"<(?=[|/!A-Za-z_<])|\[(?=/?INST\b)")
#: the beginning of an object: a name and a colon. Other braces are words or code
_BEGINNING: Final = re.compile(
    r"""\{\s*+(?:"[^"{}]{1,60}"|'[^'{}]{1,60}'|\u201c[^\u201d{}]{1,60}\u201d|[^\s{}\[\],:"'][^\s{}\[\],:"]{0,60})\s*+:"""
)
#: the next token of an object. A single quote ends a text only before a sign, so the quote in "it's" does not. No
#: possessive group may fail within a repetition: Python before 3.11.5 matches too much then
_TOKEN: Final = re.compile(
    r"""\s*+(?:"(?:[^"\\]|\\.)*+"|'(?P<single>[^'\\]*+(?:(?:\\.|'(?!\s*+[,:}\]]))[^'\\]*+)*)'|\u201c(?P<curly>[^\u201c\u201d]*+)\u201d"""
    r"""|(?P<sign>[{}\[\],:])|(?P<word>[^\s{}\[\],:"'\u201c\u201d][^\s{}\[\],:"\u201c\u201d]*+))""",
    re.DOTALL,
)
_VALUE: Final = re.compile(r'\s*+"')
#: the end of a value that has double quotes in it, as code does: the next name follows, or the object's end
_END_OF_VALUE: Final = re.compile(r"""(?<!\\)"(?=\s*+(?:\}|,\s*+["']?[\w ]{1,60}["']?\s*+:))""")
_DEPTHS: Final[Mapping[str | None, int]] = {"{": 1, "[": 1, "}": -1, "]": -1}
_UNENDED: Final = re.compile(r"\s*+[\"'\u201c]")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
#: a score as a text. "4/5" and "80 %" are no scores, since they have another scale: the highest score is 1
_TEXT_SCORE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+|0,[0-9]+)(?:\s*/\s*1(?:\.0)?)?\s*")
_NO_LETTERS: Final = re.compile(r"[\W_]+")
#: characters in which a quotation may differ from the quoted text
_SPACES_AND_QUOTES: Final = re.compile(r"[\s|\\`\"'\u201c\u201d]+")
_INVISIBLE: Final = re.compile("[\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]")

#: letters that look like Latin letters, and invisible tag characters, which a model reads as letters -> Latin letters
_LOOK_ALIKE: Final = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0458\u0455\u0501\u04bb\u0261\u03bf\u03bd\u03b1\u0131"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0406\u0405\u0408",
    "aeopcyxijsdhgovaiABEKMHOPCTXISJ",
) | {0xE0000 + code: code for code in range(0x20, 0x7F)}

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
        # Claims about the score instead of instructions.
        rf"\b(?:correct|right|proper|appropriate|deserved|fair)\s+(?:rating|score|grade|mark|marks)\b[^.\n]{{0,30}}{_BEST}",
        rf"\b(?:grader|rater|judge|evaluator|reviewer)s?\s+(?:\w+\s+)?(?:agree|confirm|approve|award)\w*\b[^.\n]{{0,40}}{_BEST}",
        r"\b(?:checked|verified|reviewed|approved|graded)\s+by\b[^.\n]{0,60}\b(?:criteria|rubric|rating|full marks)\b",
        # German, French, Spanish and Italian, without accents
        (
            r"\b(?:ignorier\w*|missacht\w*|vergiss|ignore[rz]?|oublie[rz]?|ignor[ae]n?|olvid[ae]n?|dimentica)\b[^.\n]{0,40}"
            r"\b(?:anweisung\w*|regeln|vorgaben|consignes?|instructions?|regles|instrucciones|reglas|istruzioni|regole)\b"
        ),
        (
            r"\b(?:gib|geben|gebt|bewerte\w*|vergib|donne[rz]?|attribue[rz]?|note[rz]?|da|dale|otorg\w+|calific\w+|assegn\w+|dai)\b"
            rf"[^.\n]{{0,30}}\b(?:antwort|reponse|respuesta|risposta)\b[^.\n]{{0,40}}(?:{_BEST}|\b(?:voll|hochst|maxim|massim|best)\w*)"
        ),
        (
            r"[\"']\s?(?:supported|answers|right)\s?[\"']\s?:\s?(?:\{|[01]|[\"'](?:[01](?:[.,]\d+)?|[.]\d+)[\"'])"
            r"|\b(?:supported|answers|right)\s?:\s?\{\s?[\"']?\s?score\b"
        ),
        r"<\s?\|\s?(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id)\s?\|\s?>",
        r"\[\s?/?INST\s?\]|<<\s?/?SYS\s?>>|<\s?(?:start|end)_of_turn\s?>",
    )
)


class UnreadableScores(Exception):
    """Raised if the judge's reply has no scores. The message does not quote the reply."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedAnswer:
    question: str
    answer: str
    #: passages for the criterion `supported`; empty if this criterion should not be judged
    passages: tuple[Passage, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RubricPrompt:
    prompt: Prompt
    criteria: tuple[str, ...]
    passages: int
    suspicious: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CriterionScore:
    score: float
    reason: str


def rubric_template(overrides: Mapping[str, str]) -> Template:
    """The rubric's prompt. overrides: `judge.templates`."""
    names, field = ["rubric"], "judge.templates"
    return load_templates(names, overrides=overrides, field=field, package="ragbandit.workers.judge")["rubric"]


def new_mark() -> str:
    """The mark between the parts of a prompt. Each prompt has its own, which no text can predict."""
    return f"#{token_hex(6)}#"


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptMaker:
    settings: JudgeSettings
    template: Template
    generator: Generator

    def prompt(self, judged: JudgedAnswer, *, mark: str, is_retry: bool = False) -> RubricPrompt:
        """A prompt that fits the context. Raises PromptTooLong. is_retry: whether its last reply was unusable."""
        words, chars = self.settings.passage_words, self.settings.text_chars
        for divisor in _DIVISORS:
            shorter = {"passage_words": max(10, words // divisor), "text_chars": max(100, chars // divisor)}
            try:
                prompt = _make_prompt(self.with_limits(**shorter), judged, mark=mark, is_retry=is_retry)
            except PromptTooLong:
                if divisor == _DIVISORS[-1]:
                    raise
                continue
            if prompt.passages or not judged.passages:
                return prompt
        # Not even one short passage fits: the answer is judged without passages.
        return self.prompt(replace(judged, passages=()), mark=mark, is_retry=is_retry)

    def with_limits(self, *, passage_words: int, text_chars: int) -> "PromptMaker":
        """A copy with other limits. text_chars: most characters of the question and of the answer."""
        update = {"passage_words": passage_words, "text_chars": text_chars}
        return replace(self, settings=self.settings.model_copy(update=update))


def _make_prompt(maker: PromptMaker, judged: JudgedAnswer, *, mark: str, is_retry: bool) -> RubricPrompt:
    criteria = tuple(name for name in CRITERIA if name != "supported" or judged.passages)
    form = {name: {"score": "a number from 0 to 1", "reason": "..."} for name in criteria}
    texts = {"question": judged.question, "answer": judged.answer}
    texts = {name: text[: maker.settings.text_chars] for name, text in texts.items()}
    shown = [
        Passage(
            id=passage.id,
            title=_defuse(" ".join(passage.title[:200].split()), mark=mark),
            text=_quote(passage.text, mark=mark),
        )
        for passage in judged.passages
    ]
    repeated = "A reply before could not be used. Reply with the JSON object alone." if is_retry else ""
    fitted = fit_template(
        maker.template,
        fields={
            **{name: _quote(text, mark=mark) for name, text in texts.items()},
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
    shown_texts = [*texts.values()]
    shown_texts += [f"{passage.title}\n{passage.text}" for passage in judged.passages[: len(fitted.passages)]]
    return RubricPrompt(
        prompt=fitted.prompt,
        criteria=criteria,
        passages=len(fitted.passages),
        suspicious=any(mark.strip("#") in text.lower() or addresses_judge(text) for text in shown_texts),
    )


def _quote(text: str, *, mark: str) -> str:
    """The text as changed by `_defuse`, with a bar before every line. Every line break of Unicode ends a line."""
    lines = [line.rstrip() for line in _defuse(text, mark=mark).splitlines()]
    return "\n".join(f"| {line}" for line in lines) if any(lines) else "| (none)"


def _defuse(text: str, *, mark: str) -> str:
    """The text without the mark. A space after the first character of each tag makes the tag plain text."""
    without_mark = re.sub(re.escape(mark.strip("#")), "[...]", text, flags=re.IGNORECASE)
    return _TAG.sub(lambda match: f"{match.group()} ", without_mark)


def addresses_judge(text: str) -> bool:
    """Whether a text seems to address its grader: an obvious attempt, or control words of a chat."""
    decomposed = unicodedata.normalize("NFKD", text.translate(_LOOK_ALIKE))
    letters = "".join(sign for sign in decomposed if not unicodedata.combining(sign))
    visible = " ".join(_INVISIBLE.sub("", letters).split())
    return any(pattern.search(visible) for pattern in _ADDRESSES)


def parse_scores(text: str, *, criteria: Sequence[str], prompt: str = "") -> Mapping[str, CriterionScore]:
    """The scores in a reply: one object in JSON or like it, perhaps with words around it and after <think>...</think>.

    Raises UnreadableScores if a criterion has no score or different ones, if an object with a score is broken, if the
    reply is too long, or if its words take the scores back or speak of another scale. prompt: the judge's prompt, whose
    objects, for example the form, are no scores when the reply repeats them
    """
    if len(text) > _LONGEST_REPLY:
        raise UnreadableScores(f"the reply has more than {_LONGEST_REPLY} characters")
    text = after_thoughts(text)
    scores = dict[str, CriterionScore]()
    words = ""  #: the text after the last object with a score
    for part in _parts(text, prompt=_squeeze(prompt), criteria=criteria):
        if isinstance(part, str):
            words += part
            continue
        for name, entry in _entries(part, criteria=criteria).items():
            score, words = _score(entry, name=name), ""
            if scores.setdefault(name, score).score != score.score:
                raise UnreadableScores(f'"{name}" has more than one score')
    missing = next((name for name in criteria if name not in scores), None)
    if missing is not None:
        raise UnreadableScores(f'"{missing}" has no "score"')
    values = frozenset(score.score for score in scores.values())
    if is_taken_back(words, scores=values):
        raise UnreadableScores("the words after the scores take them back")
    if 1.0 in values and has_other_scale(text):
        raise UnreadableScores("a score is 1, and the reply speaks of a scale whose best score is not 1")
    return {name: scores[name] for name in criteria}


def _parts(text: str, *, prompt: str, criteria: Sequence[str]) -> Iterator[str | Mapping[str, Any]]:
    """The outermost objects of a text that name a score, and the words around them, in linear time.

    Single quotes, names without quotes, commas at the end and values with quotes in them are read. A broken object with
    a score and a criterion or a reason raises UnreadableScores, since the next object could belong to another
    criterion. Objects that are quoted, drafts or code are left out. Other braces are words.
    """
    drafts, end = Drafts(text), 0
    ends = [each.start() for each in _END_OF_VALUE.finditer(text)]
    for match in _BEGINNING.finditer(text):
        at = match.start()
        if at < end:  # this brace is within the last object
            continue
        yield text[end:at]
        tokens, end = _tokens(text, at)
        value = _value(tokens)
        if value is None:
            lenient, lenient_end = _tokens(text, at, ends=ends)
            value = _value(lenient)
            tokens, end = (lenient, lenient_end) if value is not None else (tokens, end)
        names = {_plain_name(name) for name, sign in pairwise(tokens) if sign == ":"}
        if "score" not in names or drafts.has(at) or _squeeze(text[at:end]) in prompt:
            continue
        if value is not None:
            yield value
        elif not names.isdisjoint({"reason", *criteria}):
            raise UnreadableScores("an object with a score cannot be read")
    yield text[end:]


def _tokens(text: str, start: int, *, ends: Sequence[int] | None = None) -> tuple[list[str], int]:
    """Returns (tokens of JSON from a brace to its closing brace, or until no token fits; index after them).

    ends: indexes at which values in double quotes end, if they may contain double quotes; None if they contain none.
    """
    tokens, depth = list[str](), 0
    while match := _TOKEN.match(text, start):
        opening = _VALUE.match(text, start) if ends and tokens[-1:] == [":"] else None
        if ends and opening and ends[-1] >= opening.end():
            start = ends[bisect_left(ends, opening.end())] + 1
            tokens.append(json.dumps(text[opening.end() : start - 1].replace('\\"', '"')))
            continue
        single, curly, sign, word = match.group("single", "curly", "sign", "word")
        start, depth = match.end(), depth + _DEPTHS.get(sign, 0)
        if sign in ("}", "]") and tokens[-1:] == [","]:
            tokens.pop()
        if word is not None and not _NUMBER.fullmatch(word):
            tokens.append(json.dumps(word))
        elif single is not None or curly is not None:
            tokens.append(json.dumps((single or curly or "").replace("\\'", "'")))
        else:
            tokens.append(match.group().strip())
        if depth == 0:
            return tokens, start
    if ends is not None and _UNENDED.match(text, start):  # the object may have a score
        raise UnreadableScores("the reply has a text in quotes without an end")
    return tokens, start


def _value(tokens: Sequence[str]) -> Mapping[str, Any] | None:
    try:
        value = _DECODER.decode(" ".join(tokens))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _plain_name(name: str) -> str:
    """A name without capitals, spaces and punctuation."""
    return _NO_LETTERS.sub("", name).casefold() or name


def _with_plain_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return each_key_once([(_plain_name(name), value) for name, value in pairs])


def _squeeze(text: str) -> str:
    """A text without spaces and quotes, and without the bars that a prompt has before each line."""
    return _SPACES_AND_QUOTES.sub("", text).casefold()


def _entries(value: Mapping[str, Any], *, criteria: Sequence[str]) -> Mapping[str, Any]:
    """Criterion -> its entry in an object. If one criterion was asked for, the object may be its entry."""
    for one in (value, *(value.values() if len(value) == 1 else ())):  # {"name": {...}} is read, too
        if isinstance(one, dict) and (entries := {name: one[name] for name in criteria if name in one}):
            return entries
    return {criteria[0]: value} if len(criteria) == 1 and {"score", "reason"} <= value.keys() else {}


def _score(value: object, *, name: str) -> CriterionScore:
    if not isinstance(value, dict) or "score" not in value:
        raise UnreadableScores(f'"{name}" has no "score"')
    score, reason = value["score"], value.get("reason")
    if isinstance(score, str) and (number := _TEXT_SCORE.fullmatch(score)):
        score = float(number[1].replace(",", "."))
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:  # NaN is not in the range
        raise UnreadableScores(f'the "score" of "{name}" is no number from 0 to 1')
    if not isinstance(reason, str) or not reason.strip():
        raise UnreadableScores(f'"{name}" has no "reason"')
    short = " ".join(reason.replace("\x00", " ").encode("utf-8", "replace").decode().split())
    return CriterionScore(score=float(score), reason=short[:300])


#: texts may have line breaks
_DECODER: Final = json.JSONDecoder(strict=False, object_pairs_hook=_with_plain_names)


def mean_score(scores: Mapping[str, CriterionScore]) -> float:
    """The mean over the judged criteria."""
    return round(fmean(score.score for score in scores.values()), 6)


def rubric_hash(template: Template) -> str:
    """A hash, 12 hexadecimal digits, of all that defines the meaning of a score: prompt and criteria."""
    parts = {"template": asdict(template), "criteria": dict(CRITERIA)}
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
