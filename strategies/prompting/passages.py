"""Functions on texts, without a model: clean queries, collect passages, split sentences, find the answer.

The rules follow IRCoT (Trivedi et al. 2023) as run by Adaptive-RAG (Jeong et al. 2024).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from ragbandit.shared.errors import required_module
from ragbandit.strategies.base import Hit, Passage

_QUESTION_WORDS = frozenset({"who", "what", "when", "where", "why", "which", "how", "does", "is"})

# A model that repeats itself may write a digit, a dot or "Mr. " 100,000 times. So every pattern must take linear time.
_NUMBER = r"\d[\d,]*+(?<!,)(?:\.\d++)?"
_REASONING_START = re.compile(r"\s*(?:thus|so|that is|therefore|hence)\b", re.IGNORECASE)
_ARITHMETIC = re.compile(rf"\d\s*+[+\-\u2212]\s*+{_NUMBER}\s*+=\s*+\d")

_MARKER = re.compile(r"\banswer\s+is\b(?:\s*:)?", re.IGNORECASE)
_LABEL = re.compile(r"\s*answer\s*:", re.IGNORECASE)
_WRAPPERS = (('"', '"'), ("'", "'"), ("“", "”"), ("\u2018", "\u2019"), ("«", "»"), ("`", "`"), ("**", "**"))
#: abbreviations that keep their full stop at the end of an answer
_DOTTED_END = re.compile(r"(?:\b(?:[A-Za-z]\.){2,}|\b(?:Jr|Sr|Inc|Ltd|Co|Corp|Bros|etc|St|Mt)\.)$")

#: marks that may end a sentence: Western marks before white space or the end, East Asian marks, a line break
_SENTENCE_MARK = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”\u2019»)\]*]*+(?=\s|$)|[\u3002\uff01\uff1f]+[”\u2019\u300d\u300f\uff09]*|\n"
)
#: abbreviations that never end a sentence, because a name or a number follows
_TITLE_BEFORE = re.compile(
    r"(?:^|[\s(\"'“\u2018])(?:Mr|Mrs|Ms|Messrs|Dr|Prof|St|Mt|Ft|Gen|Col|Maj|Capt|Cmdr|Lt|Sgt|Rev|Hon|Sen|Rep|Gov|Pres"
    r"|Fr|vs|v|cf|ca|e\.g|i\.e|viz|approx|Fig|Figs|Vol|pp|Nos)\.$"
)
#: initials, acronyms, forms of companies and months, which end a sentence only if the next word is in _STARTERS
_MAYBE_BEFORE = re.compile(
    r"(?:^|[\s(\"'“\u2018.\-])(?:[A-Z]|(?:[A-Za-z]\.)+[A-Za-z]|Jr|Sr|Inc|Ltd|Co|Corp|Bros|etc|al|No|Op|Dept|Univ|Ave|Blvd|Rd"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec|Ph\.D|am|pm)\.$"
)
_STARTER_WORDS = (
    "the a an it its he his she her they their we our i this that these those there here in on at by for from after "
    "before when while as with since so thus therefore hence however but and or if both each one what who which "
    "where why how is was are were"
)
_STARTERS = frozenset(_STARTER_WORDS.split())
_LIST_NUMBER = re.compile(r"\(?\d{1,3}[.)]+$")
_NEXT_WORD = re.compile(r"\s++[\"'“\u2018(]*+(\w[\w']{0,15})")
_TAIL = 16  #: number of characters before a full stop in which an abbreviation is searched
_RUN = 20  #: characters that count as one word in a run without white space, for example in Chinese text
_WORD = re.compile(rf"\S{{1,{_RUN}}}")


def clean_query(text: str) -> str:
    """The text without question words, for a keyword search (IRCoT, `remove_wh_words`).

    Punctuation is part of a token: "who" and "Who" are dropped, but "who's", "Who?" and "is," stay. The result may be
    empty. The paper's code differs: it splits only at single spaces, and keeps runs of spaces.
    """
    return " ".join(token for token in text.split() if token.lower() not in _QUESTION_WORDS)


def cut_words(text: str, *, words: int) -> tuple[str, int]:
    """Returns (first `words` words joined by single spaces, number of words). A shorter text is returned unchanged.

    In a run without white space, every 20 characters count as a word, because a passage in Chinese has no spaces.
    """
    count = _count_words(text)
    if count <= words:  # the common case is fast, because it makes no match object for every word
        return text, count
    last = next(islice(_WORD.finditer(text), words - 1, None))
    return " ".join(text[: last.end()].split()), count


def _count_words(text: str) -> int:
    """Number of matches of _WORD in the text, without the slow regular expression."""
    runs = text.split()
    return len(runs) + sum([(len(run) - 1) // _RUN for run in runs if len(run) > _RUN])


def last_query(question: str, *, sentences: Sequence[str]) -> str:
    """The next search query: the last sentence that is not reasoning; the question if all are reasoning (IRCoT).

    A sentence is reasoning if it starts with thus, so, that is, therefore or hence, or contains arithmetic such as
    "1990 - 1950 = 40".
    """
    for sentence in reversed(sentences):
        if sentence.strip() and not (_REASONING_START.match(sentence) or _ARITHMETIC.search(sentence)):
            return sentence
    return question


def first_sentence(text: str) -> str:
    """The first sentence of a text, without leading white space; "" for an empty text.

    A line break always ends a sentence. A full stop does not end it after a title ("Mr.") or a list number ("1. The
    film"), or in a number ("3.5"). After initials, acronyms ("U.S. Army") and forms like "Inc." a full stop ends the
    sentence only before a word like "The". "!" and "?" do not end a sentence before a lower-case word ("Yahoo! was").
    """
    text = text.lstrip()
    for mark in _SENTENCE_MARK.finditer(text):
        if mark.group() == "\n":
            return text[: mark.start()].rstrip()
        if _ends_sentence(text, end=mark.end(), mark=mark.group()):
            return text[: mark.end()]
    return text.rstrip()


def _ends_sentence(text: str, *, end: int, mark: str) -> bool:
    following = _NEXT_WORD.match(text, end)
    if following is None:
        return True
    next_word = following.group(1)
    if mark[0] in "!?…" or mark.startswith(".."):
        return not next_word[0].islower()
    if mark[0] != ".":
        return True
    before = text[max(0, end - _TAIL) : end]
    if _TITLE_BEFORE.search(before) or _LIST_NUMBER.fullmatch(text, 0, end):
        return False
    if _MAYBE_BEFORE.search(before):
        return next_word[0].isupper() and next_word.lower() in _STARTERS
    return True


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """(begin, end) of every sentence of a text, in order, without the white space between them."""
    spans: list[tuple[int, int]] = []
    offset = 0
    sentence = first_sentence(text)
    while sentence:
        begin = text.index(sentence, offset)
        offset = begin + len(sentence)
        spans.append((begin, offset))
        sentence = first_sentence(text[offset:])
    return spans


def has_answer(sentence: str) -> bool:
    return _MARKER.search(sentence) is not None


def extract_answer(text: str) -> str:
    """The answer in a model's text: the text after the last marker "answer is", or the whole text without a marker.

    Removes the label "Answer:" at the beginning, white space, quotes around the answer and one full stop at the end.
    The rule is the papers' regex ("(.* answer is:? )(.*)", greedy, one line), with these differences:

    * the marker may begin the text, and may be on any line;
    * if nothing follows on the marker's line, the next line with text is the answer;
    * a marker without text after it is ignored; if no marker has text after it, the answer is "";
    * an answer after a marker ends with its sentence;
    * the full stop of an abbreviation stays ("Washington, D.C.", "John Smith Jr.").
    """
    markers = list(_MARKER.finditer(text))
    for marker in reversed(markers):
        answer = text[marker.end() :].strip()
        if answer.strip(".:"):
            return _tidy(first_sentence(answer))
        text = text[: marker.start()]
    if markers:
        return ""
    label = _LABEL.match(text)
    return _tidy(text[label.end() :] if label else text)


def _tidy(text: str) -> str:
    text = text.strip()
    dotted = False
    while text:
        before = text
        abbreviated = _DOTTED_END.search(text, max(0, len(text) - _TAIL)) is not None
        if text.endswith(".") and not dotted and not text.endswith("..") and not abbreviated:
            text, dotted = text[:-1].rstrip(), True
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : -len(closing)]
            wrapped = text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing)
            if wrapped and opening not in inner and closing not in inner:
                text = inner.strip()
        if text == before:
            break
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class Sifted:
    added: tuple[str, ...]  #: ids of the added passages, in order
    skipped: tuple[tuple[str, str], ...]  #: (id, reason) of the skipped passages, in order


_MOST_WORDS = 600  #: maximum number of words of a passage (from IRCoT)
_ALIKE = 90.0  #: similarity, 0 to 100, from which two passages are duplicates (from IRCoT)


class PassagePool:
    """The first `cap` distinct passages that an arm has found for a question, in the order in which they were found.

    A hit is skipped if its id is in the pool, if its text or title has more than 600 words (see `cut_words`), if title
    and text resemble those of a passage in the pool (rapidfuzz ratio of at least 90), or if the pool is full.
    """

    def __init__(self, *, cap: int) -> None:
        self.cap = cap
        self._ratio = required_module("rapidfuzz.fuzz", extra="service").ratio
        self._passages: list[Passage] = []

    @property
    def passages(self) -> tuple[Passage, ...]:
        return tuple(self._passages)

    def add(self, hits: Iterable[Hit]) -> Sifted:
        added: list[str] = []
        skipped: list[tuple[str, str]] = []
        for passage in (hit.passage for hit in hits):
            reason = self._refusal(passage)
            if reason is None:
                self._passages.append(passage)
                added.append(passage.id)
            else:
                skipped.append((passage.id, reason))
        return Sifted(added=tuple(added), skipped=tuple(skipped))

    def _refusal(self, passage: Passage) -> str | None:
        if any(in_pool.id == passage.id for in_pool in self._passages):
            return "held already"
        long = [part for part in (passage.title, passage.text) if len(part) >= 2 * _MOST_WORDS]  # others are too short
        count = max(map(_count_words, long), default=0)
        if count > _MOST_WORDS:
            return f"{count} words, more than {_MOST_WORDS}"
        for in_pool in self._passages:
            # Titles are compared first: they are short, and most pairs differ in them.
            if self._is_alike(in_pool.title, passage.title) and self._is_alike(in_pool.text, passage.text):
                return f"near duplicate of {in_pool.id}"
        return f"pool full at {self.cap}" if len(self._passages) >= self.cap else None

    def _is_alike(self, first: str, second: str) -> bool:
        return bool(self._ratio(first, second, score_cutoff=_ALIKE) >= _ALIKE)
