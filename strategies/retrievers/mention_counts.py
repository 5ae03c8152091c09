"""Mention counts: how often the passages mention each entity; the table of the `popularity` policy.

`ragbandit index build` writes it beside the index as `popularity.json`. The file is the contract between the two;
neither imports the other:

    {"format": 1, "passages": 8119, "words": 5,
     "mentions": {"barack obama": 12, "poachie range": 1, ...},
     "common": ["about", "capital", ...]}

mentions: key -> number of passages that mention it, at least 1. A key is one to `words` words joined by single
spaces. A word is a run of letters and digits of the NFC form, with apostrophes between letters (U+2019 is written '),
without a possessive 's at its end, casefolded. No key begins with the, a or an.
common: sorted words that are no name although a question may write them with a capital.
passages: how many there are. A table of your own (page views, say) needs the same fields; numbers need not be whole.

What counts as a mention: the passage's title, without "(...)" at its end, and in title and text every stretch of
words that begins with a capitalised word, ends with one or with a number, holds only capitalised words, numbers and
name particles ("of", "the", "von") between, and not common words alone; or any stretch that begins with a capital and
reads like some passage's title. Parts of a
stretch count for themselves ("president barack obama" mentions "barack obama" and "obama"). Capitals at the
beginning of a sentence say little, so a word counts as a name only if the texts write it with a capital at least as
often as without, away from the beginnings of sentences. Scripts without capitals have their titles counted alone.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.files import whole_file
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Passage

#: of the table; another one is refused by the policy
FORMAT = 1
#: the table's name in the folder of an index
FILE = "popularity.json"
#: longest key, in words
WORDS = 5

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_POSSESSIVE = re.compile(r"['\u2019]s$", re.IGNORECASE)
#: Where a stretch must end: brackets, quotes, marks; a full stop unless it follows an initial ("J. R.", "St. Louis").
_BREAK = re.compile(r"[!?;:,()\[\]{}\"“”«»\n/|\u3001\u3002\uff01\uff1f]|(?<!\b[^\W\d_])(?<!\b[A-Z][a-z])\.(?=\s|$)")
_BRACKETED_END = re.compile(r"\s*\([^()]*\)\s*$")
_ARTICLES = frozenset({"the", "a", "an"})
_PARTICLE_WORDS = "of the de la le du des von van der den di da del al el bin ibn"
_PARTICLES = frozenset(_PARTICLE_WORDS.split())
#: at most so many particles in a row: "of the"
_PARTICLES_IN_A_ROW = 2
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
    """A word of a passage."""

    word: str
    #: it has a capital letter
    capital: bool
    number: bool
    #: it begins a sentence, or what may be one
    first: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _WordUsage:
    """Word statistics of a first reading of all passages."""

    titles: frozenset[str]
    #: words that are no name: function words, and those mostly written without a capital
    common: frozenset[str]


def count_mentions(read: Callable[[], Iterable[Passage]]) -> dict[str, Json]:
    """The table as the file holds it, made in two readings: `read` is called twice and gives the same passages.

    Raises InvalidInput if the second reading gives none, as a pipe does.
    """
    usage = _usage(read())
    mentions: Counter[str] = Counter()
    passages = 0
    for passage in read():
        passages += 1
        mentions.update(_mentioned(passage, usage=usage))
    if not passages:
        raise InvalidInput(
            "the passages cannot be read a second time", field="corpus", remedy="give a file, or --no-popularity"
        )
    return {
        "format": FORMAT,
        "passages": passages,
        "words": WORDS,
        "mentions": dict(sorted(mentions.items())),
        "common": sorted(usage.common),
    }


def write_popularity(read: Callable[[], Iterable[Passage]], folder: Path | str) -> Path:
    """Count and write `popularity.json` into an index's folder, whole or not at all; the file's path.

    Raises ConfigError if the folder cannot be written, and what `read` raises.
    """
    table = count_mentions(read)
    path = Path(folder, FILE)
    try:
        with whole_file(path, durable=False) as beside, beside.open("w", encoding="utf-8") as file:
            json.dump(table, file, ensure_ascii=False, separators=(",", ":"))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error}", field="retriever.index", remedy="make the folder writable"
        ) from error
    return path


def _usage(passages: Iterable[Passage]) -> _WordUsage:
    capital: Counter[str] = Counter()
    plain: Counter[str] = Counter()
    titles = set()
    for passage in passages:
        title = _title_key(passage.title)
        if title:
            titles.add(title)
        for stretch in _stretches(passage.text):
            capital.update(token.word for token in stretch if token.capital and not token.first)
            plain.update(token.word for token in stretch if not (token.capital or token.number))
    common = {word for word, count in plain.items() if count > capital[word]}
    return _WordUsage(titles=frozenset(titles), common=frozenset(common | _FUNCTION_WORDS))


def _title_key(title: str) -> str:
    words = [token.word for stretch in _stretches(_BRACKETED_END.sub("", title)) for token in stretch]
    if words and words[0] in _ARTICLES:
        words = words[1:]
    return " ".join(words) if len(words) <= WORDS else ""


def _mentioned(passage: Passage, *, usage: _WordUsage) -> set[str]:
    """The keys that one passage counts for."""
    title = _title_key(passage.title)
    keys = {title} if title and title not in usage.common else set()
    for text in (passage.title, passage.text):
        for stretch in _stretches(text):
            keys.update(_keys(stretch, usage=usage))
    return keys


def _keys(stretch: Sequence[_PassageWord], *, usage: _WordUsage) -> Iterator[str]:
    for start, token in enumerate(stretch):
        if not token.capital or token.word in _ARTICLES:
            continue
        # A letter alone is a piece of "U.S." or an initial.
        if token.word not in usage.common and len(token.word) > 1:
            yield token.word
        named, telling, particles = not (token.first and token.word in usage.common), False, 0
        for end in range(start + 1, min(start + WORDS, len(stretch))):
            last = stretch[end]
            closes = last.capital or last.number
            particles = 0 if closes else particles + 1
            named = named and (closes or (last.word in _PARTICLES and particles <= _PARTICLES_IN_A_ROW))
            # "Where Did" in a headline is no name: one word of it must be none of the common ones.
            telling = telling or not {token.word, last.word} <= usage.common
            key = " ".join(one.word for one in stretch[start : end + 1])
            if (named and telling and closes) or key in usage.titles:
                yield key


def _stretches(text: str) -> Iterator[list[_PassageWord]]:
    """The text cut where no name goes on, as words."""
    text, first = unicodedata.normalize("NFC", text), True
    for piece, mark in _pieces(text):
        stretch = []
        for match in _WORD.finditer(piece):
            raw = match.group()
            word = _POSSESSIVE.sub("", raw).replace("\u2019", "'").casefold()
            capital = any(character.isupper() for character in raw)
            stretch.append(_PassageWord(word=word, capital=capital, number=raw[0].isdigit(), first=first))
            first = False
        if stretch:
            yield stretch
        # After a comma the sentence goes on; after any other mark another one may begin.
        first = first or mark != ","


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    start = 0
    for match in _BREAK.finditer(text):
        yield text[start : match.start()], match.group()
        start = match.end()
    yield text[start:], ""
