"""Counts in how many passages each entity is mentioned, for the policy `popularity`.

    {"format": 1, "passages": 8119, "mentions": {"barack obama": 12, "paris": 31, ...}}

mentions: key (ragbandit.additions.popularity.entity_words) -> number of passages, at least 2. Rarer names count as not
mentioned. You may write such a file yourself, with page views for example; its numbers need not be whole.

A passage mentions its title without "(...)" at the end and without a leading article, and every run of up to LONGEST
words that begins with a capitalised word, ends with a capitalised word or a number, and has only such words and
particles ("of", "von") in between. Parts of a run count too. A single word is not a name if the passages write it more
often without a capital than with a capital within a sentence. In scripts without capitals only titles count.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, TypedDict

from ragbandit.additions.popularity.entity_words import FUNCTION_WORDS, LONGEST, EntityWord, runs_of
from ragbandit.shared.errors import ConfigError, InvalidInput
from ragbandit.shared.files import atomic_file
from ragbandit.strategies.base import Passage

FORMAT: Final = 1
LEAST: Final = 2

_ARTICLES = frozenset({"the", "a", "an"})
_PARTICLE_WORDS = "of de the la le du des von van der den di da del al el bin ibn"
_PARTICLES = frozenset(_PARTICLE_WORDS.split())


class MentionCounts(TypedDict):
    format: int
    passages: int
    mentions: dict[str, int]


def count_mentions(passages: Iterable[Passage]) -> MentionCounts:
    """Count the passages that mention each name. Raises InvalidInput if there are no passages."""
    mentions, with_capital, without = Counter[str](), Counter[str](), Counter[str]()
    count = 0
    for passage in passages:
        count += 1
        runs = list(runs_of(passage.text))
        mentions.update(_title_keys(passage.title).union(*map(_names_in_run, runs)))
        words = list(chain.from_iterable(runs))
        with_capital.update(word.key for word in words if word.has_capital and not word.may_begin_sentence)
        without.update(word.key for word in words if not (word.has_capital or word.is_number))
    if not count:
        raise InvalidInput("has no passages", field="corpus", remedy="give a corpus with passages")
    common = FUNCTION_WORDS.union(key for key, times in without.items() if times > with_capital[key])
    kept = sorted(key for key, passages_of in mentions.items() if passages_of >= LEAST and key not in common)
    return {"format": FORMAT, "passages": count, "mentions": {key: mentions[key] for key in kept}}


def write_counts(counts: MentionCounts, path: Path) -> None:
    """Write the file, atomically. Raises ConfigError."""
    try:
        with atomic_file(path, durable=False) as temporary, temporary.open("w", encoding="utf-8") as file:
            json.dump(counts, file, ensure_ascii=False, separators=(",", ":"))
    except OSError as error:
        remedy = "give a file in a folder that can be written"
        raise ConfigError(f"{path} cannot be written: {error}", field="out", remedy=remedy) from error


def _title_keys(title: str) -> set[str]:
    """The key of a title, as a set; an empty set for titles without words, or with more than LONGEST."""
    title = title.strip()
    if title.endswith(")"):  # as in "Warsaw (film)"
        title = title.rpartition("(")[0] or title
    words = [word.key for word in chain.from_iterable(runs_of(title))]
    if words and words[0] in _ARTICLES:
        words.pop(0)
    return {" ".join(words)} if 0 < len(words) <= LONGEST else set()


def _names_in_run(run: Sequence[EntityWord]) -> Iterator[str]:
    for start, first in enumerate(run):
        # At the beginning of a sentence, function words have a capital too.
        if not first.has_capital or first.key in (FUNCTION_WORDS if first.may_begin_sentence else _ARTICLES):
            continue
        for end in range(start, min(start + LONGEST, len(run))):
            may_end_name = run[end].has_capital or run[end].is_number
            if not may_end_name and run[end].key not in _PARTICLES:
                break
            # A single letter is not a name: it is an initial, or a part of "U.S.".
            if may_end_name and (end > start or len(first.key) > 1):
                yield " ".join(word.key for word in run[start : end + 1])
