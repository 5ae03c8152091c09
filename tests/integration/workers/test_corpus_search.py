"""The service's own search, over a real index."""

import asyncio

import pytest

from ragbandit.shared.errors import ConfigError
from ragbandit.strategies.base import Passage
from ragbandit.workers.wiring.retrievers import kind_of, with_retriever
from ragbandit.workers.wiring.search import CorpusSearch


def test_the_configured_index_is_opened_by_the_first_search(settings):
    """Without an index each search says so; once it is built its passages come, cut as outcomes have them."""
    made = settings(log={"source_chars": 6}, retrievers={"wiki": {"index": "wiki"}})
    search = CorpusSearch(made)
    with pytest.raises(ConfigError, match="ragbandit index build"):
        asyncio.run(search("Stoker", 3, "wiki"))
    rows = [Passage(id=str(number), title="Dracula", text=f"Stoker {number}") for number in range(3)]
    kind_of(with_retriever(made, "wiki")).built(lambda: iter(rows), lambda done: None)
    found = asyncio.run(search("Stoker", 2, "wiki"))
    assert [(each.title, each.text, each.score is None) for each in found] == [("Dracula", "Stoker", False)] * 2
