"""Passages to rerank, and a reranker that shows what it was asked."""

from ragbandit.strategies.base import Passage

#: found in this order for "river", shorter and shorter
ROWS = [Passage(id=f"p{n}", title="", text="river" + " sea" * (9 - n)) for n in range(9)]


class Shortest:
    """Short texts first."""

    name = "shortest"

    def __init__(self):
        self.asked = []
        self.closed = 0

    async def scores(self, query, texts):
        self.asked.append((query, len(texts)))
        return [-len(text) for text in texts]

    async def close(self):
        self.closed += 1
