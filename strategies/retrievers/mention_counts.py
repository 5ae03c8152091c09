"""Counts in how many passages each entity is mentioned, for the policy `popularity`.

`ragbandit index build` writes the counts into the folder of the index as `popularity.json`:

    {"format": 1, "passages": 8119, "words": 5,
     "mentions": {"barack obama": 12, "poachie range": 1, ...},
     "common": ["about", "capital", ...]}

mentions: key -> number of passages that mention the key, above 0. A key has one to `words` words, joined by single
spaces, and does not begin with an article. A word is a run of letters and digits of the NFC form, casefolded, with
apostrophes between letters (U+2019 is written '), and without a possessive 's at its end.
common: sorted words that are not names, although a question may write them with a capital.
passages: number of passages that were read.
You can provide your own table with these fields (page views, for example); its numbers need not be whole.

A passage mentions its title without "(...)" at the end, and every run of words that begins with a capitalised word,
ends with a capitalised word or a number, and has only such words and name particles ("of", "the", "von") in between.
Parts of a run count too. Words that the texts write more often without a capital are common. A common word is no key,
and several common words are a key only if they are a title. In scripts without capitals only titles count.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.files import whole_file
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Passage

FORMAT = 1
FILE = "popularity.json"
WORDS = 5

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_POSSESSIVE = re.compile(r"['\u2019]s$", re.IGNORECASE)
#: marks that end a run: brackets, quotes, punctuation, but no full stop after an initial, or after "Mr" or the like
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
class _Token:
    text: str
    has_capital: bool
    is_number: bool
    may_begin_sentence: bool


def count_mentions(passages: Iterable[Passage]) -> dict[str, Json]:
    """Make the table. Raises InvalidInput if there are no passages, for example in a pipe that was read before."""
    mentions: Counter[str] = Counter()
    capital, plain = Counter[str](), Counter[str]()
    titles, count = set[str](), 0
    for passage in passages:
        count += 1
        title, text = list(_runs(_BRACKETED_END.sub("", passage.title))), list(_runs(passage.text))
        title_keys = _title_key(title)
        titles |= title_keys
        mentions.update({key for run in title + text for key in _names(run)} | title_keys)
        tokens = list(chain.from_iterable(text))
        capital.update(token.text for token in tokens if token.has_capital and not token.may_begin_sentence)
        plain.update(token.text for token in tokens if not (token.has_capital or token.is_number))
    if not count:
        remedy = "give a file, or --no-popularity"
        raise InvalidInput("the passages cannot be read a second time", field="corpus", remedy=remedy)
    common = _FUNCTION_WORDS.union(text for text, times in plain.items() if times > capital[text])
    names = {key for key in mentions.keys() - common if key in titles or not common.issuperset(key.split())}
    counts = {key: mentions[key] for key in sorted(names)}
    return {"format": FORMAT, "passages": count, "words": WORDS, "mentions": counts, "common": sorted(common)}


def write_popularity(passages: Iterable[Passage], folder: Path | str) -> Path:
    """Write the table into the folder of an index, atomically. Returns its path. Raises ConfigError."""
    table = count_mentions(passages)
    path = Path(folder, FILE)
    try:
        with whole_file(path, durable=False) as temporary, temporary.open("w", encoding="utf-8") as file:
            json.dump(table, file, ensure_ascii=False, separators=(",", ":"))
    except OSError as error:
        message = f"{path} cannot be written: {error}"
        raise ConfigError(message, field="retriever.index", remedy="make the folder writable") from error
    return path


def _title_key(runs: Sequence[Sequence[_Token]]) -> set[str]:
    """A set with the key of the title; empty if the title has no words, or more than WORDS."""
    title = [token.text for run in runs for token in run]
    if title and title[0] in _ARTICLES:
        title.pop(0)
    return {" ".join(title)} if 0 < len(title) <= WORDS else set()


def _names(run: Sequence[_Token]) -> Iterator[str]:
    for start, first in enumerate(run):
        # At the beginning of a sentence, function words have a capital too.
        if not first.has_capital or first.text in (_FUNCTION_WORDS if first.may_begin_sentence else _ARTICLES):
            continue
        for end in range(start, min(start + WORDS, len(run))):
            may_end_name = run[end].has_capital or run[end].is_number
            if not may_end_name and run[end].text not in _PARTICLES:
                break
            # A single letter is no name, but an initial or a part of "U.S.".
            if may_end_name and (end > start or len(first.text) > 1):
                yield " ".join(token.text for token in run[start : end + 1])


def _runs(text: str) -> Iterator[list[_Token]]:
    """Words of the text, split at marks that no name contains."""
    begins = True
    for position, piece in enumerate(_BREAK.split(unicodedata.normalize("NFC", text))):
        if position % 2:  # odd pieces are marks: after any mark except a comma, a sentence may begin
            begins = begins or piece != ","
            continue
        run = []
        for raw in _WORD.findall(piece):
            key = _POSSESSIVE.sub("", raw).replace("\u2019", "'").casefold()
            has_capital = any(character.isupper() for character in raw)
            run.append(_Token(text=key, has_capital=has_capital, is_number=raw[0].isdigit(), may_begin_sentence=begins))
            begins = False
        if run:
            yield run
