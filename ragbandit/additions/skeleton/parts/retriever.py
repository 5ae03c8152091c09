"""A retriever: finds the passages that have most words of the query."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from ragbandit.hooks import RetrieverKind, Settings
from ragbandit.shared.texts.text_forms import words
from ragbandit.strategies.base import Hit, Passage, Retriever
from ragbandit.workers.setup.retrievers import CountDone, Facts, Rows, index_folder


class OwnRetriever(Retriever):
    def __init__(self, passages: Sequence[Passage]) -> None:
        self.name = f"own:{len(passages)}"
        self._rows = [(passage, {*words(f"{passage.title} {passage.text}")}) for passage in passages]

    async def search(self, query: str, *, k: int) -> tuple[Hit, ...]:
        wanted = {*words(query)}
        hits = [Hit(passage=passage, score=float(len(wanted & terms))) for passage, terms in self._rows]
        return tuple(sorted((hit for hit in hits if hit.score), key=lambda hit: -hit.score)[: max(0, k)])


def own_kind(settings: Settings) -> RetrieverKind:
    file = index_folder(settings).with_suffix(".jsonl")

    def opened() -> OwnRetriever:
        return OwnRetriever([Passage(**json.loads(line)) for line in file.read_text("utf-8").splitlines()])

    def build(rows: Rows, progress: CountDone) -> Facts:
        lines = [json.dumps(asdict(passage)) for passage in rows()]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines), "utf-8")
        progress(len(lines))
        return {"passages": len(lines)}

    return RetrieverKind(open=opened, build=build, read=lambda: {"name": opened().name}, location={"file": str(file)})
