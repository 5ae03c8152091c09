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
