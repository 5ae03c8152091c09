"""Ratings as people write them: words of many languages, thumbs, check marks, stars, levels of agreement, 4/5."""

import re
from typing import Any, Final

from ragbandit.router.offline.logs.cells import written_number
from ragbandit.router.offline.traffic.forms import FORMS

#: word for a rating, in lower case without spaces and dashes -> whether the answer is good
_WORDS: Final = {word: kind == "good" for kind in ("good", "bad") for word in FORMS["ratings"][kind].split()}
#: word for a level of agreement or content, in the same form -> quality in [0, 1]
_LEVELS: Final = {word: float(quality) for quality, words in FORMS["levels"].items() for word in words.split()}


def level_of(text: str) -> float | None:
    """The quality in [0, 1] of a level of agreement or satisfaction; None for other texts."""
    return _LEVELS.get(_plain_word(text))


def _plain_text(value: str) -> str:
    """Lower case, without white space at the ends and without the variants of emoji."""
    return re.sub("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]", "", value.strip().lower())


def _plain_word(value: str) -> str:
    return re.sub("[\\s:_.!'\u2019-]", "", _plain_text(value))


def amount_of(value: object, *, otherwise: object = None) -> Any:
    """Convert a rating to a number or bool; it may be words, thumbs or stars. Returns `otherwise` for other values."""
    if not isinstance(value, str):
        return value if isinstance(value, int | float) and value == value else otherwise
    text, word = _plain_text(value), _plain_word(value)
    if word in _WORDS:
        return _WORDS[word]
    if text and set(text) <= {*"\u2605\u2606\u2b50"}:
        return len(text) - text.count("\u2606")
    try:
        return otherwise if "%" in value else written_number(value)
    except ValueError:
        return otherwise
