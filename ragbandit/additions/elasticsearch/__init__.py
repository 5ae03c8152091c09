"""The retriever "elasticsearch": searches by words, by meaning or by both in an Elasticsearch server."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    retrievers={"elasticsearch": "kind:elasticsearch_kind"},
    sections={"retriever": "settings:ElasticsearchSection"},
    needs=frozenset({"hybrid"}),
)
