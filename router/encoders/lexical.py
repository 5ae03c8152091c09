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

__all__ = ["CUES", "LEXICAL_COUNTS", "lexical_counts"]

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

_CUES: Final = tuple(re.compile(rf"\b{re.escape(cue)}\b") for cue in CUES)


def lexical_counts(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """The counts of n questions, shape (n, len(LEXICAL_COUNTS)); finite for any text, the empty one too."""
    return np.array([_counted(text) for text in texts], dtype=np.float64).reshape(len(texts), len(LEXICAL_COUNTS))


def _counted(text: str) -> list[float]:
    words = text.split()
    capitalised = sum(word[0].isupper() for word in words[1:])  # the first word has a capital for another reason
    lower = text.lower()
    return [
        float(np.log1p(len(words))),
        float(np.log1p(len(text))),
        float(np.log1p(capitalised)),
        capitalised / max(1, len(words)),
        float(any(letter.isdigit() for letter in text)),
        float(text.rstrip().endswith("?")),
        float(text[:1].isupper()),
        float(np.log1p(text.count(","))),
        float(np.log1p(text.count("'") + text.count("\u2019"))),
        float(np.log1p(sum(text.count(mark) for mark in '"\u201c\u201d'))),
        sum(map(len, words)) / max(1, len(words)),
        *(float(cue.search(lower) is not None) for cue in _CUES),
    ]
