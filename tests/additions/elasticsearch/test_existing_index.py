"""An index that exists with its own mapping, in a real server: it is searched as it is, and nothing in it changes."""

import json
import os

import pytest

from ragbandit.shared.errors import ConfigError
from ragbandit.testing.retrievers import search_all
from tests.support import command
from tests.support.servers.scripted_http import ScriptedHttp, json_reply
from tests.support.tiny_models import tiny_encoder

pytest.importorskip("elasticsearch", reason="pip install '.[elasticsearch]'")

from ragbandit.additions.elasticsearch import retriever as es
from ragbandit.additions.elasticsearch.existing_index import ExistingIndex
from ragbandit.additions.elasticsearch.settings import IndexFields
from ragbandit.strategies.retrievers.sentences import SentenceEncoder

NAME = f"ragbandit-test-own-{os.getpid()}"
ARTICLES = [
    {
        "headline": "Dracula",
        "doc": {"body": "A novel by Bram Stoker."},
        "link": "https://example.com/1",
        "slug": "dracula",
    },
    {"headline": "Emma", "doc": {"body": ["A novel", "by Jane Austen."]}, "slug": "emma"},
    {"doc": {"body": "The Danube flows into the Black Sea."}},
]
FIELDS = {"text": "doc.body", "title": "headline", "url": "link"}


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder(tiny_encoder(), name="tiny")


@pytest.fixture(scope="module")
def client(elasticsearch_url):
    with es.Elasticsearch(elasticsearch_url) as made:
        yield made


@pytest.fixture(scope="module")
def own_index(client, encoder):
    """An index of others, with sub-fields, an object and vectors, closed for writing."""
    body = {"type": "text", "fields": {"stemmed": {"type": "text", "analyzer": "english"}, "raw": {"type": "keyword"}}}
    properties = {
        "headline": {"type": "text"},
        "doc": {"properties": {"body": body}},
        "link": {"type": "keyword"},
        "slug": {"type": "keyword"},
        "embedding": {"type": "dense_vector", "dims": encoder.width},
        "count": {"type": "long"},
    }
    client.indices.create(index=NAME, mappings={"properties": properties})
    for number, article in enumerate(ARTICLES):
        vector = encoder.encode([str(article["doc"]["body"])])[0].tolist()
        client.index(index=NAME, id=f"a{number}", document={**article, "embedding": vector}, refresh=True)
    client.indices.put_settings(index=NAME, settings={"index.blocks.write": True})
    yield NAME
    client.indices.delete(index=NAME)


@pytest.fixture
def at(elasticsearch_url, own_index):
    """A function that makes retrievers of the index, not opened."""

    def make(search="words", **fields):
        return ExistingIndex(
            elasticsearch_url, fields=IndexFields(**{**FIELDS, **fields}), index=own_index, search=search
        )

    return make


def state(client):
    """All indexes and aliases of the server, and the mapping, the settings, the size and the writes of the index."""
    total = client.indices.stats(index=NAME)["_all"]["total"]
    return (
        sorted(client.indices.get(index="*")),
        client.indices.get_mapping(index=NAME).body,
        client.indices.get_settings(index=NAME).body,
        total["docs"],
        total["indexing"]["index_total"],
    )


def test_an_index_of_others_is_searched_by_words(at):
    """Words are found in text and title; a passage has the named fields, and the document's _id without one for ids."""
    [hits] = search_all(at().opened(), "Who wrote Dracula?")
    first = hits[0].passage
    assert (first.id, first.title, first.text) == ("a0", "Dracula", "A novel by Bram Stoker.")
    assert first.url == "https://example.com/1"
    [[hit]] = search_all(at(id="slug").opened(), "Austen")
    assert (hit.passage.id, hit.passage.text, hit.passage.url) == ("emma", "A novel\nby Jane Austen.", None)
    [[hit]] = search_all(at(id="slug").opened(), "Danube")
    assert (hit.passage.id, hit.passage.title) == ("a2", "")


def test_a_sub_field_may_be_searched(at):
    """A sub-field is searched with its own analyzer, and the text is that of its field."""
    assert search_all(at().opened(), "flow") == [()]
    [[hit]] = search_all(at(text="doc.body.stemmed").opened(), "flow")
    assert hit.passage.text == "The Danube flows into the Black Sea."


def test_a_sub_field_of_a_field_with_several_values_has_their_text():
    """Documents contain only the values of the field, which are the lines of the passage."""
    headers = {"X_Elastic_Product": "Elasticsearch", "content_type": "application/json"}
    body = {"type": "text", "fields": {"stemmed": {"type": "text", "analyzer": "english"}}}
    mapping = {"own": {"mappings": {"properties": {"body": body}}}}
    hits = {"hits": {"hits": [{"_id": "7", "_score": 3.5, "_source": {"body": ["A novel", "by Jane Austen."]}}]}}
    replies = [json_reply(each, **headers) for each in (mapping, {"count": 1}, hits)]
    with ScriptedHttp(*replies) as server:
        index = ExistingIndex(server.url, fields=IndexFields(text="body.stemmed"), index="own")
        [[hit]] = search_all(index.opened(), "novels")
    assert hit.passage.text == "A novel\nby Jane Austen."


def test_an_index_of_others_is_searched_by_its_vectors(at, encoder):
    """With a field of vectors, the nearest to the question's vector are found."""
    retriever = at("meaning", vector="embedding").opened(lambda: encoder)
    [hits] = search_all(retriever, str(ARTICLES[2]["doc"]["body"]))
    assert (hits[0].passage.id, len(hits)) == ("a2", 3)


def test_nothing_is_created_written_or_deleted(at, client, elasticsearch_url, tmp_path, monkeypatch):
    """Searches, facts and the commands leave the index and the server as they were, and a build is refused."""
    before = state(client)
    search_all(at().opened(), "novel")
    assert at().facts()["passages"] == 3
    monkeypatch.chdir(tmp_path)
    section = {"name": "elasticsearch", "url": elasticsearch_url, "index": NAME, "fields": FIELDS}
    (tmp_path / "config.yaml").write_text(json.dumps({"retriever": section}))
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "x", "text": "y"}))
    found = command.run("index", "search", "Danube", "--json", code=0).stdout
    assert [hit["id"] for hit in json.loads(found)] == ["a2"]
    refused = command.run("index", "build", "--corpus", "corpus.jsonl")
    assert refused.exit_code == 2
    assert "is read only" in refused.output
    assert state(client) == before


@pytest.mark.parametrize(
    ("search", "fields", "field", "reason"),
    [
        ("words", {"text": "body"}, "retriever.fields.text", "has no field 'body'; it has count, doc, doc.body"),
        ("words", {"title": "name"}, "retriever.fields.title", "has no field 'name'"),
        ("words", {"text": "slug"}, "retriever.fields.text", "is keyword, which cannot be searched by words"),
        ("meaning", {}, "retriever.fields.vector", "is text, which cannot be searched by meaning"),
        ("meaning", {"vector": "count"}, "retriever.fields.vector", "is long"),
    ],
)
def test_a_field_that_cannot_be_searched_is_refused(at, search, fields, field, reason):
    """A missing field, or one of another type, is refused by its setting when the retriever is opened."""
    with pytest.raises(ConfigError, match=reason) as caught:
        at(search, **fields).opened()
    assert (caught.value.field, bool(caught.value.remedy)) == (field, True)


def test_an_index_that_is_missing_is_refused(elasticsearch_url):
    """A wrong name gets no advice to build the index, since it belongs to others."""
    with pytest.raises(ConfigError, match="does not exist") as caught:
        ExistingIndex(elasticsearch_url, fields=IndexFields(text="x"), index="ragbandit-none").opened()
    assert "build" not in caught.value.remedy


@pytest.mark.parametrize("body", ["It flows.", {"text": "It flows.", "inference": {"chunks": []}}])
@pytest.mark.parametrize("search", ["words", "meaning"])
def test_the_server_finds_the_meaning_of_semantic_text(search, body):
    """A field of semantic_text is asked by the query of the server, without a model here; its text has two forms."""
    headers = {"X_Elastic_Product": "Elasticsearch", "content_type": "application/json"}
    mapping = {"own": {"mappings": {"properties": {"body": {"type": "semantic_text", "inference_id": "elser"}}}}}
    hits = {"hits": {"hits": [{"_id": "7", "_score": 3.5, "_source": {"body": body}}]}}
    replies = [json_reply(each, **headers) for each in (mapping, {"count": 1}, hits)]
    with ScriptedHttp(*replies) as server:
        index = ExistingIndex(server.url, fields=IndexFields(text="body"), index="own", search=search)
        [[hit]] = search_all(index.opened(), "What does the river do?")
        asked = server.seen[-1][2]
    assert (hit.passage.id, hit.passage.text, hit.score) == ("7", "It flows.", 3.5)
    assert asked["query"] == {"semantic": {"field": "body", "query": "What does the river do?"}}
