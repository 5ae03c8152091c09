"""BM25 over title and text, in a folder on disk: the default retriever.

The scores of title and text are added, as in the Elasticsearch query of IRCoT and Adaptive-RAG. Terms are those of
Elasticsearch's english analyzer: stemmed words without "'s" and without Lucene's 33 English stop words. A compound with
hyphens is also a term without them, since texts may divide a word at a line end. Korean and scripts without spaces have
pairs of characters, as in Lucene's CJK analyzer; Arabic and Hebrew have no vowel signs, as in its Arabic analyzer.
"""

import logging
import re
import threading
import unicodedata
from collections.abc import Callable, Iterable
from itertools import chain, pairwise
from pathlib import Path

import bm25s
import numpy as np
import numpy.typing as npt
import Stemmer
from bm25s.stopwords import STOPWORDS_EN

from ragbandit.shared.texts.text_forms import SPACELESS, canonical_text, words
from ragbandit.shared.types import Json
from ragbandit.strategies.base import Passage
from ragbandit.strategies.retrievers.corpus import PassageReader
from ragbandit.strategies.retrievers.folders import FolderRetriever, new_index, store_passages, write_meta

FORMAT = "bm25-1"

_FIELDS = ("title", "text")
_BATCH = 1000  #: number of passages between two reports of progress
_SETTINGS = {"k1": 1.2, "b": 0.75, "method": "lucene"}
_ANALYZER = {"stemmer": "english", "stop_words": "lucene-english"}

_STOP_WORDS = frozenset(STOPWORDS_EN)
_POSSESSIVE = re.compile("['\u2019]s\\b")
_COMPOUND = re.compile(r"(?<![^\W_])[^\W\d_]++(?:-(?:[ \t]*\n[ \t]*)?[^\W\d_]++)+")
#: a run of letters in which a word may begin and end anywhere: the script has no spaces, or words have Korean particles
_RUN = re.compile(rf"[{SPACELESS}](?:\n?[{SPACELESS}]+)*|[\uac00-\ud7a3]+")
_ARABIC = "[\u0620-\u06d3\u06ee-\u06ff\u0750-\u077f\u08a0-\u08c9]"
#: a word with endings after zero-width non-joiners
_PERSIAN_PARTS = re.compile(rf"(?<!{_ARABIC}){_ARABIC}++(?:\u200c{_ARABIC}++)+")
#: "the", also after "and", "by", "like", "so" and "for", which Arabic writes onto the next word
_ARTICLE = re.compile(rf"(?<![^\W_])(?:[\u0648\u0628\u0643\u0641]?\u0627\u0644|\u0644\u0644)(?={_ARABIC}{{2}})")
#: Hebrew points, Arabic vowel signs, and the hamza and madda above or below a letter
_SIGNS = re.compile("[\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u08d3-\u08ff]")
#: forms of Arabic, Persian and Urdu letters, as in Lucene
_LETTERS = str.maketrans("\u0671\u0649\u06cc\u06d2\u0629\u06c1\u06a9", "\u0627\u064a\u064a\u064a\u0647\u0647\u0643")

# On import bm25s sets its own logger to DEBUG, which would flood every handler of the root logger.
logging.getLogger("bm25s").setLevel(logging.WARNING)


class _Analyzer(threading.local):
    """Turns text into terms. Every thread has its own Stemmer, because a Stemmer is not thread-safe."""

    def __init__(self) -> None:
        self._stemmer = Stemmer.Stemmer(_ANALYZER["stemmer"])

    def terms(self, text: str, *, is_query: bool = False) -> list[str]:
        """The terms of a text in an index, or of a query."""
        all_words = _words(_POSSESSIVE.sub("", text.lower()), is_query=is_query)
        stems: list[str] = self._stemmer.stemWords([term for term in all_words if term not in _STOP_WORDS])
        return stems


def _words(text: str, *, is_query: bool) -> list[str]:
    form = _COMPOUND.sub(_apart_and_joined, canonical_text(_PERSIAN_PARTS.sub(_apart_and_joined, text)))
    if form.isascii():
        return words(form)
    bare = _SIGNS.sub("", unicodedata.normalize("NFD", form)).translate(_LETTERS)
    form = _ARTICLE.sub("", unicodedata.normalize("NFC", bare))
    found = words(_RUN.sub(" ", form))
    for run in _RUN.findall(form):
        characters = words(" ".join(run) if "\uac00" <= run[0] <= "\ud7a3" else run)
        pairs = list(map("".join, pairwise(characters)))
        found += pairs if is_query and pairs else characters + pairs  # queries of one character need single ones
    return found


def _apart_and_joined(match: re.Match[str]) -> str:
    parts = re.split("-\\s*|\u200c", match[0])
    return f"{' '.join(parts)} {''.join(parts)}"


_analyzer = _Analyzer()


def build_index(
    rows: Iterable[Passage], folder: Path | str, *, progress: Callable[[int], None] = lambda _: None
) -> dict[str, Json]:
    """Build an index, which replaces the folder when the index is complete. Returns its metadata.

    progress: called with the number of passages read, every 1,000 and at the end. Raises InvalidInput if there are no
    passages or two with the same id, ConfigError if the folder has other files than an index.
    """
    terms: dict[str, list[list[int]]] = {field: [] for field in _FIELDS}
    vocabularies: dict[str, dict[str, int]] = {field: {} for field in _FIELDS}
    reader = PassageReader(rows, progress=progress)
    with new_index(Path(folder)) as building:
        for passage in chain.from_iterable(store_passages(reader, building, size=_BATCH)):
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

    def __init__(self, folder: Path | str) -> None:
        super().__init__(folder)
        with self._report_damage():
            folders = [self._folder / field for field in _FIELDS]
            indexed = [folder for folder in folders if folder.is_dir()]
            self._indices = [bm25s.BM25.load(folder, mmap=True, show_progress=False) for folder in indexed]
            self._check_build(all(index.scores["num_docs"] == len(self) for index in self._indices))

    def _scores(self, query: str) -> npt.NDArray[np.float32]:
        terms = _analyzer.terms(query, is_query=True)
        scores = np.zeros(len(self), dtype=np.float32)  # (passages,)
        for index in self._indices:
            ids = index.get_tokens_ids(terms)
            if ids:
                scores += index.get_scores_from_ids(ids)
        scores[scores <= 0] = -np.inf
        return scores
