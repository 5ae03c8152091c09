"""Words of a text, for the names of entities in passages and questions, with a capital or without.

A key is one to `LONGEST` words joined by single spaces. Counts of passages and the policy `popularity` use the same
keys.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

#: number of words of the longest key
LONGEST: Final = 5

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_POSSESSIVE = re.compile(r"['\u2019]s$", re.IGNORECASE)
#: marks that no name contains: brackets, quotes, punctuation; except a full stop after an initial or after "Mr" etc.
_BREAK = re.compile(r"([!?;:,()\[\]{}\"“”«»\n/|\u3001\u3002\uff01\uff1f]|(?<!\b[^\W\d_])(?<!\b[A-Z][a-z])\.(?=\s|$))")
_PLAIN = (
    "a about after all also am an and any are as at be because been before between both but by can could did do does"
    " during each for from give had has have he her his how i i'd i'll i'm i've if in into is it its list me more most"
    " my name no not of on or our she should since so some tell than that the their them then there these they this"
    " those through to under until was we were what when where which while who whom whose why will with would you your"
)
#: English words that never name an entity, although a sentence may begin with them
FUNCTION_WORDS: Final = frozenset(_PLAIN.split())


@dataclass(frozen=True, kw_only=True, slots=True)
class EntityWord:
    """One word, as `runs_of` reads it."""

    #: the word in the NFC form, casefolded, without a possessive 's
    key: str
    has_capital: bool
    is_number: bool
    may_begin_sentence: bool


def runs_of(text: str) -> Iterator[list[EntityWord]]:
    """Yield a list of words for each part of a text; marks of `_BREAK` end a part."""
    begins = True
    for position, piece in enumerate(_BREAK.split(unicodedata.normalize("NFC", text))):
        if position % 2:  # odd pieces are marks: a sentence may begin after any mark except a comma
            begins = begins or piece != ","
            continue
        run = []
        for raw in _WORD.findall(piece):
            key = _POSSESSIVE.sub("", raw).replace("\u2019", "'").casefold()
            has_capital = any(character.isupper() for character in raw)
            run.append(
                EntityWord(key=key, has_capital=has_capital, is_number=raw[0].isdigit(), may_begin_sentence=begins)
            )
            begins = False
        if run:
            yield run
