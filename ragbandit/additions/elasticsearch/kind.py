"""The retriever "elasticsearch" before it is opened."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ragbandit.additions.elasticsearch.settings import ElasticsearchSection
from ragbandit.additions.hybrid.retriever import HybridRetriever
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import required_module
from ragbandit.shared.model_servers.outbound import shown_address
from ragbandit.workers.setup.retrievers import RetrieverKind, sentence_encoder

if TYPE_CHECKING:
    from ragbandit.additions.elasticsearch.retriever import ElasticsearchRetriever
    from ragbandit.strategies.retrievers.sentences import SentenceEncoder


def elasticsearch_kind(settings: Settings) -> RetrieverKind:
    """An index in a server, searched by words, by meaning, or by both."""
    chosen = settings.retriever.of(ElasticsearchSection)
    if chosen.search != "both":
        return _searching(settings, chosen.search)
    by_words, by_meaning = _searching(settings, "words"), _searching(settings, "meaning")
    return replace(by_meaning, open=lambda: HybridRetriever(by_words.open(), second=by_meaning.open()))


def _searching(settings: Settings, search: Literal["words", "meaning"]) -> RetrieverKind:
    server, index = settings.retriever.of(ElasticsearchSection), settings.retriever.index

    def make() -> "ElasticsearchRetriever":
        required_module("elasticsearch", extra="elasticsearch", field="retriever.name")
        from ragbandit.additions.elasticsearch.retriever import ElasticsearchRetriever  # it loads the client

        api_key = os.environ.get(server.api_key_env) or None
        return ElasticsearchRetriever(
            server.url, index=index, search=search, api_key=api_key, timeout_s=server.timeout_s
        )

    def encoder() -> "SentenceEncoder | None":
        return sentence_encoder(settings.retriever.model) if search == "meaning" else None

    return RetrieverKind(
        open=lambda: make().opened(encoder()),
        build=lambda rows, progress: make().build(rows(), encoder=encoder(), progress=progress),
        read=lambda: make().facts(),
        location={"url": shown_address(server.url), "index": index},
        only_waits=search == "words",
    )
