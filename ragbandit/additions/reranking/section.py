"""The key `rerank` of the section `retriever`, and the reranker that it puts around any retriever."""

from typing import TYPE_CHECKING

from ragbandit.additions.reranking.settings import RerankSettings
from ragbandit.router.config.section import Section

if TYPE_CHECKING:
    from ragbandit.workers.setup.retrievers import RetrieverKind


class RerankSection(Section):
    """Settings that rerankers add to the section `retriever`."""

    #: reranker of the hits, as {model: BAAI/bge-reranker-base, depth: 50} or {url: "http://10.0.0.9:8000/v1/rerank"}.
    #: None for no reranking
    rerank: RerankSettings | None = None

    def around(self, retriever: "RetrieverKind") -> "RetrieverKind":
        if self.rerank is None:
            return retriever
        from ragbandit.additions.reranking.rerankers import wrap_with_reranker  # this import loads retrievers

        return wrap_with_reranker(retriever, chosen=self.rerank)
