"""Searches by a retriever of LangChain, and thus in every vector store that LangChain supports."""

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, Final

from ragbandit.shared.errors import ArmFailed
from ragbandit.shared.texts.text_forms import is_blank
from ragbandit.strategies.base import Hit, Passage, Retriever
from ragbandit.strategies.failures import log_exception

_SEARCHES: Final = 10  #: maximum number of concurrent searches of a retriever


class LangChainRetriever(Retriever):
    """Searches by a retriever of LangChain, for example `store.as_retriever()`. Imports nothing of LangChain.

    A vector store receives `k`; the hits of any retriever are its first k documents with text, each id once. A document
    without an id gets a hash of its text as the id. Title and url are `title` and `url` of its metadata. LangChain's
    retrievers return no scores: a hit scores 1 / its rank.
    name: identifies the corpus in every outcome. id_key: key of the metadata with the passage's id, for stores that
    accept only ids of their own form (Qdrant).
    """

    def __init__(self, retriever: Any, *, name: str, id_key: str | None = None) -> None:
        self.name = name
        self._id_key = id_key
        self._retriever = retriever
        # The retriever has threads of its own: a store that hangs must not block all threads of the event loop.
        self._threads = ThreadPoolExecutor(_SEARCHES, thread_name_prefix="ragbandit-langchain")

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        if k < 1 or not any(character.isalnum() for character in query):
            return ()
        ask = partial(self._retriever.invoke, query, k=k)
        try:
            documents = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
            passages = [
                _passage(document, id_key=self._id_key) for document in documents if not is_blank(document.page_content)
            ]
        except Exception as error:  # a store may raise anything
            log_exception(error, code=f"the retriever {self.name}", action="search_failed", retriever=self.name)
            message = f"the retriever {self.name} failed: {type(error).__name__}: {error}"
            raise ArmFailed(message, remedy="see the traceback in the worker's log") from error
        distinct = dict[str, Passage]()
        for passage in passages:
            distinct.setdefault(passage.id, passage)
        return tuple(Hit(passage=each, score=1.0 / rank) for rank, each in enumerate(islice(distinct.values(), k), 1))

    async def close(self) -> None:
        self._threads.shutdown(wait=False)


def _passage(document: Any, *, id_key: str | None) -> Passage:
    text, metadata = document.page_content, getattr(document, "metadata", None) or {}
    title, url = ("" if metadata.get(name) is None else str(metadata[name]) for name in ("title", "url"))
    number = metadata.get(id_key) if id_key else None
    number = getattr(document, "id", None) if number is None else number
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    return Passage(id=digest if number is None else str(number), title=title, text=text, url=url or None)
