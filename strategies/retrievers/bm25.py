"""BM25 over title and text, in a folder on disk: what the embedded system searches with.

The folder holds one bm25s index for titles and one for texts, the passages themselves, and `index.json`, which says
what it is. Arrays and passages are memory-mapped, so opening is quick and several workers share the pages.
The scores of the two fields are added, as the Elasticsearch query of IRCoT and Adaptive-RAG adds its two matches;
terms are made like those of Elasticsearch's english analyzer: possessive "'s" off, lower case, the 33 English stop
words of Lucene, stemmed. Chinese and Japanese characters are single terms, as in Lucene's standard tokenizer.
"""

import asyncio
import hashlib
import json
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import numpy.typing as npt
import Stemmer
from bm25s.stopwords import STOPWORDS_EN

from ragbandit.router.errors import ArmFailed, ConfigError, InvalidInput
from ragbandit.router.storage.files.atomic import replace_folder
from ragbandit.router.types import Json
from ragbandit.strategies.base import Hit, Passage, Retriever
from ragbandit.strategies.retrievers.corpus import (
    META,
    OFFSETS,
    PASSAGES,
    PassageFile,
    build_command,
    check_target,
    passage_line,
    read_corpus,
    read_json,
)

__all__ = ["FORMAT", "Bm25Retriever", "build_index", "read_corpus", "read_meta"]

#: version of the folder's layout and of how terms are made; another one cannot be read
FORMAT = 1

_FIELDS = ("title", "text")
_SETTINGS = {"k1": 1.2, "b": 0.75, "method": "lucene"}
_ANALYZER = {"stemmer": "english", "stop_words": "lucene-english"}

_STOP_WORDS = frozenset(STOPWORDS_EN)
_POSSESSIVE = re.compile("['\u2019]s\\b")
_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")

# bm25s sets its logger to DEBUG on import, which would flood every handler of the root logger.
logging.getLogger("bm25s").setLevel(logging.WARNING)


class _Analyzer(threading.local):
    """Text to terms. A Stemmer must not be used by two threads at once, so every thread has its own."""

    def __init__(self) -> None:
        self._stemmer = Stemmer.Stemmer(_ANALYZER["stemmer"])

    def terms(self, text: str) -> list[str]:
        words = _WORD.findall(_POSSESSIVE.sub("", text.lower()))
        stems: list[str] = self._stemmer.stemWords([word for word in words if word not in _STOP_WORDS])
        return stems


_analyzer = _Analyzer()


def build_index(
    rows: Iterable[Passage], folder: Path | str, *, progress: Callable[[int], None] | None = None
) -> dict[str, Json]:
    """Index passages into a folder, replacing the index that is there; returns what `index.json` says.

    Built beside the folder and renamed into place when complete: a crash leaves the old index or none, never half
    of one. `progress` is called with the number of passages read so far, every 1,000 and at the end.
    Raises InvalidInput for an id seen twice or no passage at all, ConfigError if the folder holds something else.
    """
    target = Path(folder)
    check_target(target, family=int)
    building = target.with_name(f".{target.name}.building-{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        meta = _write_index(rows, folder=building, progress=progress or (lambda _: None))
        replace_folder(target, by=building)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return meta


def _write_index(rows: Iterable[Passage], *, folder: Path, progress: Callable[[int], None]) -> dict[str, Json]:
    terms: dict[str, list[list[int]]] = {field: [] for field in _FIELDS}
    vocabularies: dict[str, dict[str, int]] = {field: {} for field in _FIELDS}
    offsets, digest, seen = [0], hashlib.sha256(), set[str]()
    with (folder / PASSAGES).open("wb") as file:
        for number, passage in enumerate(rows, start=1):
            if passage.id in seen:
                raise InvalidInput(
                    f"passage {number}: {passage.id!r} was used before", field="id", remedy="give every passage its own"
                )
            seen.add(passage.id)
            for field, text in (("title", passage.title), ("text", passage.text)):
                known = vocabularies[field]
                terms[field].append([known.setdefault(term, len(known)) for term in _analyzer.terms(text)])
            line = passage_line(passage)
            file.write(line)
            digest.update(line)
            offsets.append(offsets[-1] + len(line))
            if number % 1000 == 0:
                progress(number)
    if not seen:
        raise InvalidInput("there is no passage", field="corpus", remedy="give at least one")
    np.save(folder / OFFSETS, np.array(offsets, dtype=np.int64))
    for field in _FIELDS:
        _write_field(terms[field], vocabulary=vocabularies[field], folder=folder / field)
    progress(len(seen))
    return _write_meta(folder, passages=len(seen), sha256=digest.hexdigest())


def _write_field(terms: list[list[int]], *, vocabulary: dict[str, int], folder: Path) -> None:
    if not vocabulary:
        return  # No passage has a word in this field; bm25s cannot index that, and there is nothing to find.
    index = bm25s.BM25(**_SETTINGS, backend="numpy")
    index.index((terms, vocabulary), create_empty_token=False, show_progress=False)
    index.save(folder, show_progress=False)


def _write_meta(folder: Path, *, passages: int, sha256: str) -> dict[str, Json]:
    meta: dict[str, Json] = {
        "format": FORMAT,
        "passages": passages,
        "sha256": sha256,
        "created_at": time.time(),
        "settings": {**_SETTINGS, **_ANALYZER},
    }
    # Last: a folder with an index.json is complete.
    (folder / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    return meta


class Bm25Retriever(Retriever):
    """Searches the index in a folder.

    `meta` is what its `index.json` says: format, number of passages, sha256 of the passages as stored, created_at
    (seconds since the epoch) and settings. `name` is "bm25:" and the first 12 digits of that sha256, so that an
    outcome tells which corpus it was made from.
    Raises ConfigError, with the command that builds the index, if there is none, if it is of another format, or if
    it is damaged.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self.meta = read_meta(self._folder)
        try:
            self.name = f"bm25:{str(self.meta['sha256'])[:12]}"
            self._indices = [_load_field(self._folder / field) for field in _FIELDS if (self._folder / field).is_dir()]
            self._passages = PassageFile(self._folder)
            self._check_sizes()
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise _unusable(self._folder, fault=f"is damaged: {error}") from error

    def __len__(self) -> int:
        return len(self._passages)

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        """The at most k passages that share a term with the query, best first; equal scores in the order indexed.

        Runs in a thread. Raises ArmFailed if the files cannot be read any more.
        """
        return await asyncio.to_thread(self._search, query, k=k)

    async def passages(self, ids: Sequence[str]) -> tuple[Passage, ...]:
        """Those of these passages that are there, in the order asked for, each once. Runs in a thread.

        Raises ArmFailed if the files cannot be read any more.
        """
        return await asyncio.to_thread(self._find, ids)

    async def close(self) -> None:
        """Nothing to give back: the mapped files go with the object."""

    def _find(self, ids: Sequence[str]) -> tuple[Passage, ...]:
        try:
            return self._passages.find(ids)
        except (OSError, ValueError, LookupError) as error:
            raise ArmFailed(
                f"the index in {self._folder} cannot be read: {error}", remedy=_rebuild(self._folder)
            ) from error

    def _search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        terms = _analyzer.terms(query)
        if k < 1 or not terms:
            return ()
        try:
            scores = self._score(terms)
            return tuple(Hit(passage=self._passages[place], score=float(scores[place])) for place in _best(scores, k=k))
        except (OSError, ValueError, LookupError) as error:
            raise ArmFailed(
                f"the index in {self._folder} cannot be read: {error}", remedy=_rebuild(self._folder)
            ) from error

    def _score(self, terms: Sequence[str]) -> npt.NDArray[np.float32]:
        scores = np.zeros(len(self), dtype=np.float32)  # (passages,)
        for index in self._indices:
            known = index.get_tokens_ids(terms)
            if known:
                scores += index.get_scores_from_ids(known)
        return scores

    def _check_sizes(self) -> None:
        if len(self) != self.meta["passages"]:
            raise ValueError("its files do not belong together")
        if any(index.scores["num_docs"] != len(self) for index in self._indices):
            raise ValueError("its files do not belong together")


def _best(scores: npt.NDArray[np.float32], *, k: int) -> list[int]:
    """Positions of the k highest positive scores, ties in order of position.

    bm25s picks with argpartition, which cuts through ties arbitrarily.
    """
    positions = np.flatnonzero(scores > 0)
    if len(positions) > k:
        least = np.partition(scores[positions], len(positions) - k)[len(positions) - k]
        positions = positions[scores[positions] >= least]
    order = np.argsort(-scores[positions], kind="stable")[:k]
    return [int(place) for place in positions[order]]


def _load_field(folder: Path) -> Any:
    return bm25s.BM25.load(folder, mmap=True, show_progress=False)


def read_meta(folder: Path) -> dict[str, Json]:
    """The facts in `index.json`. Raises ConfigError, with the command that builds it, if it is no index of ours."""
    return read_json(folder, reads=FORMAT, remedy=_rebuild(folder))


def _unusable(folder: Path, *, fault: str) -> ConfigError:
    return ConfigError(f"{folder} {fault}", field="retriever.index", remedy=_rebuild(folder))


def _rebuild(folder: Path) -> str:
    return build_command("bm25", index=folder)
