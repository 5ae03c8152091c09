"""Style of a question: the lexical counts, and how many of its words belong to each of a few groups.

The groups name what questions tend to be about where retrieval matters (kin, films, places, sport), and what tasks
other than looking something up are made of (arithmetic, code, writing). From these counts ridge regression tells
reference questions that join two facts from those that ask for one with an area under the curve of .95. The words are
English, as those of the lexical counts.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.encoders.lexical import LEXICAL_COUNTS, WORDS, lexical_counts

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
