"""Lexical features: what can be counted in a question without a model.

Length, capitals, question words and cues of comparison. A language model's layers hold most of this too, but a learner
with few rows finds it sooner when it stands apart.
The cue words are English; a question in another language has its lengths and signs, and zeros for the words.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

#: one feature each: whether it stands in the question as a whole word, whatever the case
CUES: Final = (
    *("who", "what", "when", "where", "which", "how", "why", "whose", "is", "are", "did", "does", "was"),
    *("first", "both", "same", "or", "older", "earlier", "more", "born", "director", "film", "of the", "that"),
)
#: names of the features, in order
LEXICAL_COUNTS: Final = (
    *("log words", "log characters", "capitalised words", "share capitalised", "digits", "question mark"),
    *("capital first", "commas", "apostrophes", "quotes", "letters per word"),
    *(f"says {cue}" for cue in CUES),
)

#: cue of one word -> its column among the cues; a cue of several words -> how it is found
_PLACES: Final = {cue: place for place, cue in enumerate(CUES) if " " not in cue}
_PHRASES: Final = tuple(
    (place, cue, re.compile(rf"\b{re.escape(cue)}\b")) for place, cue in enumerate(CUES) if " " in cue
)
#: a maximal run of word characters: a cue of one word stands between two word boundaries exactly if it is one of these
WORDS: Final = re.compile(r"\w+")
_DIGIT: Final = re.compile(r"[0-9]")
#: columns that are log(1 + count)
_LOGARITHMIC: Final = [0, 1, 2, 7, 8, 9]
_OTHERS: Final = 11


def lexical_counts(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """The counts of n questions, shape (n, len(LEXICAL_COUNTS)); finite for any text, the empty one too."""
    features = np.zeros((len(texts), len(LEXICAL_COUNTS)))
    if not texts:
        return features
    counts = np.array([_counted(text) for text in texts], dtype=np.float64)  # (n, 11)
    words = np.maximum(1.0, counts[:, 0])
    counts[:, 3] /= words
    counts[:, 10] /= words
    counts[:, _LOGARITHMIC] = np.log1p(counts[:, _LOGARITHMIC])
    features[:, :_OTHERS] = counts
    ones = [(row, _OTHERS + place) for row, text in enumerate(texts) for place in _said(text.lower())]
    if ones:
        rows, places = zip(*ones, strict=True)
        features[list(rows), list(places)] = 1.0
    return features


def _counted(text: str) -> tuple[int, ...]:
    """The features before the cues, of which shares are still sums and logarithms still counts."""
    words = text.split()
    capitalised = sum([word[0].isupper() for word in words[1:]])  # the first word has a capital for another reason
    return (
        len(words),
        len(text),
        capitalised,
        capitalised,
        _has_digit(text),
        text.rstrip().endswith("?"),
        text[:1].isupper(),
        text.count(","),
        text.count("'") + text.count("\u2019"),
        text.count('"') + text.count("\u201c") + text.count("\u201d"),
        sum(map(len, words)),
    )


def _has_digit(text: str) -> bool:
    if _DIGIT.search(text) is not None:
        return True
    return not text.isascii() and any(letter.isdigit() for letter in text)


def _said(lower: str) -> list[int]:
    """Columns of the cues that stand in a question in small letters."""
    columns = [_PLACES[word] for word in _PLACES.keys() & WORDS.findall(lower)]
    for column, phrase, whole in _PHRASES:
        if phrase in lower and whole.search(lower) is not None:
            columns.append(column)
    return columns


#: group -> its words, in small letters
WORD_GROUPS: Final = {
    "kin": (
        "father mother son daughter brother sister wife husband spouse grandfather grandmother uncle aunt child "
        "children parent parents married"
    ),
    "films": (
        "film films movie movies director directed actor actress starring starred series show episode cast played plays"
    ),
    "music": "song songs album band singer sang composer music performer performed",
    "books": "book books novel author wrote written writer poem poet magazine published",
    "places": "country city state town village capital river county located border population island nationality",
    "people": (
        "president king queen player politician minister leader founder founded company university school team club"
    ),
    "sport": "game season league cup won win winner championship played teams football",
    "time": (
        "year years date day month century age old long january february march april may june july august september "
        "october november december"
    ),
    "arithmetic": (
        "total sum times twice half double percent average altogether left cost costs price number ratio dollars "
        "minutes hours"
    ),
    "code": ("function python code list string array return returns program class integer element elements variable"),
    "writing": (
        "write explain describe summarize summarise translate list give create generate compare tell find compute "
        "calculate choose"
    ),
    "choice": "answer option options choice choices true false following statement correct",
    "science": "energy cell cells water temperature process species gas blood force chemical body",
}
#: names of the counts, in order: the lexical counts come first
STYLE_COUNTS: Final = (*LEXICAL_COUNTS, *(f"log words of {group}" for group in WORD_GROUPS))

#: word -> the columns of its groups, among the groups
_COLUMNS: Final[dict[str, list[int]]] = {}
for _column, _words in enumerate(WORD_GROUPS.values()):
    for _word in _words.split():
        _COLUMNS.setdefault(_word, []).append(_column)


def style_counts(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """The counts of n questions, shape (n, len(STYLE_COUNTS)); finite for any text, the empty one too."""
    groups = np.zeros((len(texts), len(WORD_GROUPS)))
    for row, text in zip(groups, texts, strict=True):
        for word in WORDS.findall(text.lower()):
            for column in _COLUMNS.get(word, ()):
                row[column] += 1.0
    return np.concatenate([lexical_counts(texts), np.log1p(groups)], axis=1)
