"""Rerankers that show what they were asked."""

from ragbandit.strategies.base import Hit, Passage


class Shortest:
    """Short texts first; counts what it is asked."""

    name = "shortest"

    def __init__(self):
        self.asked = []
        self.closed = 0

    async def __call__(self, query, hits):
        self.asked.append((query, len(hits)))
        return best_first(Hit(passage=hit.passage, score=-len(hit.passage.text)) for hit in hits)

    async def close(self):
        self.closed += 1


def best_first(hits):
    return tuple(sorted(hits, key=lambda hit: -hit.score))


def ids(hits):
    return [hit.passage.id for hit in hits]


#: found in this order, shorter and shorter
ROWS = [Passage(id=f"p{n}", title="", text="river " + "sea " * (9 - n)) for n in range(9)]
