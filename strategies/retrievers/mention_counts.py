"""Mention counts: how often the passages mention each entity. The `popularity` policy reads this table.

`ragbandit index build` writes it into the index's folder as `popularity.json`:

    {"format": 1, "passages": 8119, "words": 5,
     "mentions": {"barack obama": 12, "poachie range": 1, ...},
     "common": ["about", "capital", ...]}

mentions: key -> number of passages that mention it, at least 1. A key is one to `words` words joined by single
spaces. A word is a run of letters and digits of the NFC form, with apostrophes between letters (U+2019 is written '),
without a possessive 's at its end, casefolded. No key begins with the, a or an.
common: sorted words that are not names although a question may write them with a capital. passages: their number.
A table of your own (page views, say) needs the same fields; numbers need not be whole.

Mentions are the passage's title, without "(...)" at its end, and in title and text every run of words that begins and
ends with a capitalised word, or ends with a number, with only such words and name particles ("of", "the", "von")
between. Parts of a run count too ("president barack obama" mentions "barack obama" and "obama"). Words that the texts
write more often without a capital are common: they are a key only in a title of several words. In scripts without
capitals only titles count.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.files import whole_file
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Passage

#: version of the table; the policy refuses others
FORMAT = 1
#: the table's name in the folder of an index
FILE = "popularity.json"
#: longest key, in words
WORDS = 5

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_POSSESSIVE = re.compile(r"['\u2019]s$", re.IGNORECASE)
#: Where a run must end: brackets, quotes, marks; a full stop unless it follows an initial ("J. R.", "St. Louis").
_BREAK = re.compile(r"([!?;:,()\[\]{}\"“”«»\n/|\u3001\u3002\uff01\uff1f]|(?<!\b[^\W\d_])(?<!\b[A-Z][a-z])\.(?=\s|$))")
_BRACKETED_END = re.compile(r"\s*\([^()]*\)\s*$")
_ARTICLES = frozenset({"the", "a", "an"})
_PARTICLE_WORDS = "of the de la le du des von van der den di da del al el bin ibn"
_PARTICLES = frozenset(_PARTICLE_WORDS.split())
_PLAIN_WORDS = (
    "a about after all also am an and any are as at be because been before between both but by can could did do does"
    " during each for from give had has have he her his how i i'd i'll i'm i've if in into is it its list me more most"
    " my name no not of on or our she should since so some tell than that the their them then there these they this"
    " those through to under until was we were what when where which while who whom whose why will with would you"
    " your"
)
_FUNCTION_WORDS = frozenset(_PLAIN_WORDS.split())


@dataclass(frozen=True, kw_only=True, slots=True)
class _PassageWord:
    """A word in a passage."""

    word: str
    #: has a capital letter
    capital: bool
    number: bool
    #: may begin a sentence
    first: bool


def count_mentions(passages: Iterable[Passage]) -> dict[str, Json]:
    """Count the mentions for the table. Raises InvalidInput without passages, for example from a pipe read before."""
    mentions: Counter[str] = Counter()
    capital, plain = Counter[str](), Counter[str]()
    titles, count = set[str](), 0
    for passage in passages:
        count += 1
        title, text = list(_stretches(_BRACKETED_END.sub("", passage.title))), list(_stretches(passage.text))
        title_keys = _title_key(title)
        titles |= title_keys
        mentions.update({key for words in (*title, *text) for key in _names(words)} | title_keys)
        capital.update(word.word for words in text for word in words if word.capital and not word.first)
        plain.update(word.word for words in text for word in words if not (word.capital or word.number))
    if not count:
        remedy = "give a file, or --no-popularity"
        raise InvalidInput("the passages cannot be read a second time", field="corpus", remedy=remedy)
    common = _FUNCTION_WORDS.union(word for word, times in plain.items() if times > capital[word])
    names = {key for key in mentions.keys() - common if key in titles or not common.issuperset(key.split())}
    counts = {key: mentions[key] for key in sorted(names)}
    return {"format": FORMAT, "passages": count, "words": WORDS, "mentions": counts, "common": sorted(common)}


def write_popularity(passages: Iterable[Passage], folder: Path | str) -> Path:
    """Count mentions, and write `popularity.json` into an index's folder atomically. Returns the path.

    Raises ConfigError.
    """
    table = count_mentions(passages)
    path = Path(folder, FILE)
    try:
        with whole_file(path, durable=False) as temporary, temporary.open("w", encoding="utf-8") as file:
            json.dump(table, file, ensure_ascii=False, separators=(",", ":"))
    except OSError as error:
        message = f"{path} cannot be written: {error}"
        raise ConfigError(message, field="retriever.index", remedy="make the folder writable") from error
    return path


def _title_key(stretches: Sequence[Sequence[_PassageWord]]) -> set[str]:
    words = [token.word for stretch in stretches for token in stretch]
    words = words[1:] if words and words[0] in _ARTICLES else words
    return {" ".join(words)} if 0 < len(words) <= WORDS else set()


def _names(words: Sequence[_PassageWord]) -> Iterator[str]:
    """The keys in a stretch of words."""
    for start, token in enumerate(words):
        # At the beginning of a sentence a function word has a capital, too.
        if not token.capital or token.word in (_FUNCTION_WORDS if token.first else _ARTICLES):
            continue
        for end in range(start, min(start + WORDS, len(words))):
            named = words[end].capital or words[end].number
            if not named and words[end].word not in _PARTICLES:
                break
            # A single letter is a part of "U.S." or an initial.
            if named and (end > start or len(token.word) > 1):
                yield " ".join(part.word for part in words[start : end + 1])


def _stretches(text: str) -> Iterator[list[_PassageWord]]:
    """Words of the text, split at marks that no name contains."""
    first = True
    for place, piece in enumerate(_BREAK.split(unicodedata.normalize("NFC", text))):
        if place % 2:  # a mark: any but a comma may begin a sentence
            first = first or piece != ","
            continue
        stretch = []
        for raw in _WORD.findall(piece):
            word = _POSSESSIVE.sub("", raw).replace("\u2019", "'").casefold()
            capital = any(character.isupper() for character in raw)
            stretch.append(_PassageWord(word=word, capital=capital, number=raw[0].isdigit(), first=first))
            first = False
        if stretch:
            yield stretch
