"""The retriever "elasticsearch" before it is opened."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ragbandit.additions.elasticsearch.settings import ElasticsearchSection, IndexFields
from ragbandit.additions.hybrid.retriever import HybridRetriever
from ragbandit.router.config.settings import Settings
from ragbandit.shared.errors import required_module
from ragbandit.shared.model_servers.outbound import shown_address
from ragbandit.workers.setup.retrievers import RetrieverKind, sentence_encoder

if TYPE_CHECKING:
    from ragbandit.additions.elasticsearch.existing_index import ExistingIndex
    from ragbandit.additions.elasticsearch.retriever import ElasticsearchRetriever
    from ragbandit.strategies.retrievers.sentences import SentenceEncoder


def elasticsearch_kind(settings: Settings) -> RetrieverKind:
    """An index in a server, searched by words, by meaning, or by both."""
    chosen = settings.retriever.of(ElasticsearchSection)
    if chosen.search != "both":
        return _kind_of_search(settings, chosen.search)
    by_words, by_meaning = _kind_of_search(settings, "words"), _kind_of_search(settings, "meaning")
    return replace(by_meaning, open=lambda: HybridRetriever(by_words.open(), second=by_meaning.open()))


def _kind_of_search(settings: Settings, search: Literal["words", "meaning"]) -> RetrieverKind:
    server, index = settings.retriever.of(ElasticsearchSection), settings.retriever.index

    given: dict[str, Any] = {"index": index, "search": search, "timeout_s": server.timeout_s}

    def make() -> "ElasticsearchRetriever":
        required_module("elasticsearch", extra="elasticsearch", field="retriever.name")
        from ragbandit.additions.elasticsearch.retriever import ElasticsearchRetriever  # this import loads the client

        return ElasticsearchRetriever(server.url, api_key=os.environ.get(server.api_key_env) or None, **given)

    def existing(fields: IndexFields) -> "ExistingIndex":
        required_module("elasticsearch", extra="elasticsearch", field="retriever.name")
        from ragbandit.additions.elasticsearch.existing_index import ExistingIndex

        key = os.environ.get(server.api_key_env) or None
        return ExistingIndex(server.url, fields=fields, api_key=key, **given)

    def encoder() -> "SentenceEncoder | None":
        return sentence_encoder(settings.retriever.model) if search == "meaning" else None

    common: dict[str, Any] = {
        "location": {"url": shown_address(server.url), "index": index},
        "only_waits": search == "words",
    }
    if (fields := server.fields) is not None:
        return RetrieverKind(
            open=lambda: existing(fields).opened(encoder),
            build=lambda rows, _progress: existing(fields).build(rows()),
            read=lambda: existing(fields).facts(),
            **common,
        )
    return RetrieverKind(
        open=lambda: make().opened(encoder()),
        build=lambda rows, progress: make().build(rows(), encoder=encoder(), progress=progress),
        read=lambda: make().facts(),
        **common,
    )
