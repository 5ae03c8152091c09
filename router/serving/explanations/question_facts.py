"""Facts about questions that a reader can check by looking at them: the material for kinds of questions."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from ragbandit.router.config.context_schema import ContextSchema, is_number
from ragbandit.router.serving.explanations.question_words import (
    AMOUNTS,
    BEGINNINGS,
    FUNCTION_WORDS,
    HOW_MANY,
    LANGUAGES_WITH,
    PREPOSITIONS,
)
from ragbandit.router.storage.sql.json_columns import object_at, object_or_empty
from ragbandit.shared.types.request_facts import sent_of

#: name of the fact -> a value out of a few, whether it holds, or a number
Facts = Mapping[str, str | float | bool]

#: names of facts: how the question begins, its language, and its length
BEGINS, LANGUAGE, WORDS, SIGNS = "begins", "language", "words", "characters"
#: what a request needs of an arm, such as tools or images: the name of the fact begins so
NEEDS: Final = "needs "
#: name and values of the fact of the place in a session
SESSION, FIRST, LATER = "session", "first question", "later question"
#: value of BEGINS: no word of the tables
NO_QUESTION_WORD: Final = "no question word"
#: most characters of a text that are searched, and most of its words that are compared with those of languages
_LONGEST, _WORDS_OF_A_LANGUAGE = 1_000, 40
#: a word is a fact only if this many questions have it, because a rare word may be a person's secret
FEWEST_WITH_A_WORD: Final = 20
#: largest number of words that are tried
_MOST_WORDS: Final = 300
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_CHINESE: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_WORD: Final = re.compile(r"[^\W\d_][\w'\u2019-]*")
_SCRIPTS: Final = {
    "Japanese": re.compile(r"[\u3040-\u30ff]"),
    "Chinese": re.compile(r"[\u3400-\u9fff]"),
    "Korean": re.compile(r"[\uac00-\ud7af]"),
    "Cyrillic letters": re.compile(r"[\u0400-\u04ff]"),
    "Greek": re.compile(r"[\u0370-\u03ff]"),
    "Arabic letters": re.compile(r"[\u0600-\u06ff]"),
    "Hebrew letters": re.compile(r"[\u0590-\u05ff]"),
    "Indic letters": re.compile(r"[\u0900-\u0dff]"),
    "Thai": re.compile(r"[\u0e00-\u0e7f]"),
}
#: a capital within a sentence
_NAME: Final = re.compile(r"[^.?!:\s]\s+[\"'(]?(?!I\b)[A-ZÀ-Þ]")
_MONTHS: Final = (
    "january february april june july august september october november december "
    "januar februar märz juni juli oktober dezember"
)
#: whether a text has it: the name of the fact -> its pattern. "May" or "March" alone may be a verb
_PATTERNS: Final = {
    "a number": re.compile(r"\d"),
    "a date": re.compile(
        r"\b(?:1[5-9]\d\d|20\d\d)\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b|\d年|\b(?:" + _MONTHS.replace(" ", "|") + r")\b",
        re.IGNORECASE,
    ),
    "code": re.compile(
        r"```|`[^`]+`|\w\(\)|[{};]\s*$|==|=>|::|</\w+>|\b(?:def|class|import|SELECT|function)\s\w+", re.MULTILINE
    ),
    "a comparison": re.compile(
        r"\b(?:compare\w*|comparison|differ\w*|versus|vs|better|worse|rather|vergleich\w*|unterschied\w*|besser|"
        r"schlechter)\b|比较|区别|相比|不同",
        re.IGNORECASE,
    ),
    "several questions": re.compile(r"[?\uff1f].*[?\uff1f]", re.DOTALL),
}  # fmt: skip


def question_facts(row: Mapping[str, Any], *, schema: ContextSchema) -> Facts:
    """Facts about a question, from its columns. Facts about words need a text."""
    facts: dict[str, str | float | bool] = {"tenant": row["tenant"], "price": row["price"] or "none"}
    if row["cost_weight"] is not None:
        facts["weight of cost"] = float(row["cost_weight"])
    if (text := kept_text(row["text"])).strip():
        facts |= _text_facts(text)
    sent = sent_of(object_at(object_or_empty(row.get("request")), "edge"))
    facts |= {f"{NEEDS}{need}": True for need in (*sent.needs, *sent.optional_needs)}
    if (place := row.get("session_place")) is not None:
        facts[SESSION] = place
    context = json.loads(row["context"])
    for key, declared in schema.items():
        value = context.get(key)
        if declared.type == "number" and is_number(value):
            facts[key] = float(value)
        elif declared.type == "words" and isinstance(value, list):
            facts |= {f"{key} {word}": True for word in value if isinstance(word, str)}
        elif declared.type in ("category", "boolean") and isinstance(value, str | bool):
            facts[key] = json.dumps(value) if isinstance(value, bool) else value
    return facts


def kept_text(text: str) -> str:
    """The text; "" for a digest, which `log.text: hash` keeps instead."""
    return "" if _DIGEST.fullmatch(text) else text


def _text_facts(text: str) -> Facts:
    words, text_begin = text.split(), text[:_LONGEST]
    facts: dict[str, str | float | bool] = {}
    if language := language_of(text_begin):
        facts[LANGUAGE] = language
    signs = 0 if text_begin.isascii() else len(_CHINESE.findall(text))
    facts[SIGNS if 2 * signs > len(words) else WORDS] = float(signs if 2 * signs > len(words) else len(words))
    if language not in _SCRIPTS:
        facts[BEGINS] = beginning(words, language=language)
    if language == "English":  # German nouns have capitals too
        facts["a name"] = bool(_NAME.search(text_begin))
    return facts | {fact: bool(pattern.search(text_begin)) for fact, pattern in _PATTERNS.items()}


def language_of(text: str) -> str:
    """The language by its script or by frequent words; "" if neither tells."""
    for language, script in () if text.isascii() else _SCRIPTS.items():
        if script.search(text):
            return language
    words = (match.group().casefold() for match in islice(_WORD.finditer(text), _WORDS_OF_A_LANGUAGE))
    counts = Counter(language for word in words for language in LANGUAGES_WITH.get(word, ()))
    best = max(FUNCTION_WORDS, key=lambda language: counts[language])
    return best if counts[best] else ""


def beginning(words: Sequence[str], *, language: str) -> str:
    """How a question begins (who, how many, yes or no, ...), leaving out a preposition."""
    first, *rest = [*(word.strip("\"'(¿¡,?").casefold() for word in words[:3]), ""]
    known = BEGINNINGS.get(language, BEGINNINGS["English"])
    if first in PREPOSITIONS and first not in known:
        first, *rest = rest
    return HOW_MANY if first in ("how", "wie") and rest and rest[0] in AMOUNTS else known.get(first, NO_QUESTION_WORD)


def frequent_words(texts: Sequence[str]) -> dict[str, list[int]]:
    """Words and pairs of neighbours that many questions have -> the places of these questions, the most frequent first.

    In Chinese and Japanese, pairs of characters count as words.
    """
    found: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        for word in set(_topic_words(text[:_LONGEST])):
            found.setdefault(word, []).append(place)
    most = len(texts) - FEWEST_WITH_A_WORD // 2
    kept = [word for word, places in found.items() if FEWEST_WITH_A_WORD <= len(places) <= most]
    kept.sort(key=lambda word: (-len(found[word]), len(word), word))
    return {word: found[word] for word in kept[:_MOST_WORDS]}


def _topic_words(text: str) -> Iterator[str]:
    before = ""
    for word in map(str.casefold, _WORD.findall(text)):
        if _CHINESE.search(word):
            yield from (word[at : at + 2] for at in range(len(word) - 1))
            before = ""
        elif len(word) < 2 or word in LANGUAGES_WITH:
            before = ""
        else:
            yield word
            if before:
                yield f"{before} {word}"
            before = word
