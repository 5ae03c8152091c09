"""Ratings as people write them: words of many languages, thumbs, check marks, stars, levels of agreement, 4/5."""

import re
import unicodedata
from typing import Any, Final

from ragbandit.additions.other_tools.forms import FORMS
from ragbandit.router.offline.logs.cells import written_number


def _plain_text(value: str) -> str:
    """Lower case, without white space at the ends and without the variants of emoji; with one i for Turkish."""
    value = unicodedata.normalize("NFKC", value.strip().lower()).replace("i\u0307", "i").replace("\u0131", "i")
    return re.sub("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]", "", value)


def _plain_word(value: str) -> str:
    return re.sub("[\\s:_.!'\u2019-]", "", _plain_text(value))


#: word for a rating, as `_plain_word` makes it -> whether the answer is good
_WORDS: Final = {
    _plain_word(word): kind == "good" for kind in ("good", "bad") for word in FORMS["ratings"][kind].split()
}
#: word for a level of agreement or satisfaction, as `_plain_word` makes it -> quality in [0, 1]
_LEVELS: Final = {
    _plain_word(word): float(quality) for quality, words in FORMS["levels"].items() for word in words.split()
}
_UNITS: Final = "|".join(map(_plain_word, FORMS["ratings"]["units"].split()))
#: "4 stars", "4/5", "4 of 5": the number, and the best number
_PARTS: Final = re.compile(
    rf"(\d{{1,9}}(?:[.,]\d{{1,9}})?) ?(?:{_UNITS})?(?: ?(?:/|out of|of) ?(\d{{1,9}}) ?(?:{_UNITS})?)?"
)


def level_of(text: str) -> float | None:
    """The quality in [0, 1] of a level of agreement or satisfaction; None for other texts."""
    return _LEVELS.get(_plain_word(text))


def best_in_rating(value: object) -> float | None:
    """The best possible rating that a rating such as 4/5 names; None for other values."""
    parts = _PARTS.fullmatch(_plain_text(value)) if isinstance(value, str) else None
    return float(parts[2]) if parts and parts[2] else None


def amount_of(value: object, *, otherwise: object = None) -> Any:
    """Convert a rating to a number or bool; it may be words, thumbs or stars. Returns `otherwise` for other values."""
    if not isinstance(value, str):
        return value if isinstance(value, int | float) and value == value else otherwise
    text, word = _plain_text(value), _plain_word(value)
    if word in _WORDS:
        return _WORDS[word]
    if text and set(text) <= {*"\u2605\u2606\u2b50"}:
        return len(text) - text.count("\u2606")
    parts = _PARTS.fullmatch(text)
    try:
        return otherwise if "%" in value else written_number(parts[1] if parts else value)
    except ValueError:
        return otherwise
