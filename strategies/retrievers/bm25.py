"""BM25 over title and text, in a folder on disk: the default retriever.

The scores of title and text are added, as in the Elasticsearch query of IRCoT and Adaptive-RAG. Terms are those of
Elasticsearch's english analyzer: stemmed words without "'s" and without Lucene's 33 English stop words.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import bm25s
import numpy as np
import Stemmer
from bm25s.stopwords import STOPWORDS_EN

from ragbandit.shared.text_forms import words
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.corpus import PassageReader, read_corpus
from ragbandit.strategies.retrievers.folders import FolderRetriever, best_positions, new_index, stored, write_meta

__all__ = ["FORMAT", "Bm25Retriever", "build_index", "read_corpus"]

FORMAT = 2

_FIELDS = ("title", "text")
_BATCH = 1000  #: number of passages between two reports of progress
_SETTINGS = {"k1": 1.2, "b": 0.75, "method": "lucene"}
_ANALYZER = {"stemmer": "english", "stop_words": "lucene-english"}

_STOP_WORDS = frozenset(STOPWORDS_EN)
_POSSESSIVE = re.compile("['\u2019]s\\b")
_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_EARLIER_WORD = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+")  #: a word in an index of format 1

# On import bm25s sets its own logger to DEBUG, which would flood every handler of the root logger.
logging.getLogger("bm25s").setLevel(logging.WARNING)


class _Analyzer(threading.local):
    """Turns text into terms. Every thread has its own Stemmer, because a Stemmer is not thread-safe."""

    def __init__(self) -> None:
        self._stemmer = Stemmer.Stemmer(_ANALYZER["stemmer"])

    def terms(self, text: str, *, version: Json = FORMAT) -> list[str]:
        text = _POSSESSIVE.sub("", text.lower())
        all_words = words(text) if version == FORMAT else _EARLIER_WORD.findall(text)
        stems: list[str] = self._stemmer.stemWords([term for term in all_words if term not in _STOP_WORDS])
        return stems


_analyzer = _Analyzer()


def build_index(
    rows: Iterable[Passage], folder: Path | str, *, progress: Callable[[int], None] = lambda _: None
) -> dict[str, Json]:
    """Build an index, which replaces the folder when the index is complete. Returns its metadata.

    progress: called with the number of passages read, every 1,000 and at the end. Raises InvalidInput if there are no
    passages or two with the same id, ConfigError if the folder exists and is not an index.
    """
    terms: dict[str, list[list[int]]] = {field: [] for field in _FIELDS}
    vocabularies: dict[str, dict[str, int]] = {field: {} for field in _FIELDS}
    reader = PassageReader(rows, progress=progress)
    with new_index(Path(folder)) as building:
        for passage in chain.from_iterable(stored(reader, building, size=_BATCH)):
            for field, text in (("title", passage.title), ("text", passage.text)):
                numbers = vocabularies[field]
                terms[field].append([numbers.setdefault(term, len(numbers)) for term in _analyzer.terms(text)])
        for field in _FIELDS:
            if vocabularies[field]:  # bm25s cannot make an index of a field without words
                index = bm25s.BM25(**_SETTINGS, backend="numpy")
                index.index((terms[field], vocabularies[field]), create_empty_token=False, show_progress=False)
                index.save(building / field, show_progress=False)
        return write_meta(building, {"format": FORMAT, **reader.facts(), "settings": {**_SETTINGS, **_ANALYZER}})


class Bm25Retriever(FolderRetriever):
    """Searches the index in a folder for passages that share a term with the query; see FolderRetriever."""

    kind = "bm25"
    format = FORMAT
    earlier_formats = frozenset({1})

    def __init__(self, folder: Path | str) -> None:
        super().__init__(folder)
        with self._whole():
            folders = [self._folder / field for field in _FIELDS]
            indexed = [folder for folder in folders if folder.is_dir()]
            self._indices = [bm25s.BM25.load(folder, mmap=True, show_progress=False) for folder in indexed]
            if any(index.scores["num_docs"] != len(self) for index in self._indices):
                raise ValueError("the files of the index come from different builds")

    def _best(self, query: str, *, k: int) -> Iterable[tuple[int, float]]:
        terms = _analyzer.terms(query, version=self.meta["format"])
        if not terms:
            return ()
        scores = np.zeros(len(self), dtype=np.float32)  # (passages,)
        for index in self._indices:
            ids = index.get_tokens_ids(terms)
            if ids:
                scores += index.get_scores_from_ids(ids)
        positions = np.flatnonzero(scores > 0)
        best = (int(positions[position]) for position in best_positions(scores[positions], k=k))
        return [(position, float(scores[position])) for position in best]
