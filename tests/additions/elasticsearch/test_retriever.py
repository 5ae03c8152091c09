"""The Elasticsearch retriever against a real server: ELASTICSEARCH_URL, or the local one."""

import itertools
import json
import os
import tempfile
from pathlib import Path

import pytest

from ragbandit.shared.errors import ArmFailed, ConfigError, InvalidInput
from ragbandit.strategies.base import Passage
from ragbandit.testing.retrievers import PASSAGES, RETRIEVER_CHECKS, search_all
from tests.support import command
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply
from tests.support.tiny_models import tiny_encoder

pytest.importorskip("elasticsearch", reason="pip install '.[elasticsearch]'")

from ragbandit.additions.elasticsearch import retriever as es
from ragbandit.additions.hybrid.retriever import HybridRetriever
from ragbandit.strategies.retrievers.bm25 import Bm25Retriever, build_index as build_bm25
from ragbandit.strategies.retrievers.corpus import read_corpus
from ragbandit.strategies.retrievers.sentences import SentenceEncoder

BESIDE = Path(__file__).parents[4] / "shared"
CORPUS = BESIDE / "data" / "qa" / "corpus.jsonl"
NAMES = (f"ragbandit-test-{os.getpid()}-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def client(elasticsearch_url):
    with es.Elasticsearch(elasticsearch_url) as made:
        yield made


@pytest.fixture(scope="module")
def at(elasticsearch_url):
    """A function that makes retrievers of this server, not opened."""
    return lambda index, **given: es.ElasticsearchRetriever(elasticsearch_url, index=index, **given)


@pytest.fixture
def name(client):
    made = next(NAMES)
    yield made
    remove(client, made)


def remove(client, name):
    for one in (f"{name}-a", f"{name}-b", name):
        if client.indices.exists(index=one) and not client.indices.exists_alias(name=one):
            client.indices.delete(index=one)


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder(tiny_encoder(), name="tiny")


@pytest.fixture(scope="module")
def indexed(client, at, encoder):
    """The name of an index of these passages, which is built once."""
    names = {}

    def index(passages, *, vectors):
        key = (tuple(passages), vectors)
        if key not in names:
            names[key] = next(NAMES)
            at(names[key]).build(passages, encoder=encoder if vectors else None)
        return names[key]

    yield index
    for name in names.values():
        remove(client, name)


@pytest.fixture(params=["words", "meaning", "both"])
def make(request, indexed, at, encoder):
    """A maker of retrievers, one index for each corpus."""

    def retriever(passages):
        name = indexed(passages, vectors=request.param != "words")
        kinds = ("words", "meaning") if request.param == "both" else (request.param,)
        parts = [at(name, search=kind).opened(encoder if kind == "meaning" else None) for kind in kinds]
        return HybridRetriever(parts[0], second=parts[1]) if len(parts) == 2 else parts[0]

    return retriever


@pytest.mark.parametrize("check", RETRIEVER_CHECKS, ids=lambda check: check.__name__)
def test_contract(check, make):
    """Searching by words, by meaning and by both keeps the contract of retrievers."""
    check(make)


def test_scores_of_title_and_text_add_and_ties_keep_the_order(at, name):
    """A word in both fields scores the sum of both; equal passages come in the order indexed."""
    rows = [
        Passage(id="z", title="", text="river bank"),
        Passage(id="a", title="", text="river bank"),
        Passage(id="title", title="bank", text="money"),
        Passage(id="both", title="bank", text="river bank"),
    ]
    at(name).build(rows)
    hits = {hit.passage.id: hit.score for hit in search_all(at(name).opened(), "banks", k=9)[0]}
    assert hits["both"] == pytest.approx(hits["title"] + hits["z"], rel=1e-5)
    assert [key for key in hits if key in "za"] == ["z", "a"]


def test_a_build_replaces_what_it_made_when_it_is_whole(at, name, monkeypatch):
    """An interrupted build changes nothing, and the next build starts again; half surrogate pairs become "?"."""
    monkeypatch.setattr(es, "BATCH", 2)

    def broken():
        yield from PASSAGES[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at(name).build(broken())
    with pytest.raises(ConfigError, match="does not exist"):
        at(name).opened()
    meta = at(name).build(PASSAGES)
    assert at(name).facts() == meta
    assert meta["passages"] == 4
    assert meta["sha256"] == build_bm25(PASSAGES, tempfile.mkdtemp())["sha256"]
    with pytest.raises(KeyboardInterrupt):
        at(name).build(broken())
    assert at(name).facts() == meta
    linked = Passage(id="u\ud800", title="t", text="river \ud800", url="https://example.com")
    assert at(name).build([linked])["passages"] == 1
    stored = Passage(id="u?", title="t", text="river ?", url="https://example.com")
    assert [hit.passage for hit in search_all(at(name).opened(), "river")[0]] == [stored]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "there is no passage"),
        ([PASSAGES[0], PASSAGES[0]], "passage 2: 'vistula' was used before"),
        ([Passage(id="x" * 513, title="", text="t")], "above 512 bytes"),
    ],
)
def test_what_cannot_be_indexed_is_refused(at, name, rows, message):
    """No passage, an id twice and an id beyond the server's limit are errors of the input."""
    with pytest.raises(InvalidInput, match=message):
        at(name).build(rows)


def test_other_indexes_are_left_alone(client, at, name):
    """An index that is not ours is neither read nor written."""
    client.indices.create(index=name)
    with pytest.raises(ConfigError, match="is not made by ragbandit"):
        at(name).build(PASSAGES)
    with pytest.raises(ConfigError, match="has format None"):
        at(name).opened()


def test_an_index_that_goes_away_fails_the_search(client, at, name):
    """A deleted index is ArmFailed with the command that builds it."""
    at(name).build(PASSAGES)
    retriever = at(name).opened()
    remove(client, name)
    with pytest.raises(ArmFailed, match=r"does not exist.*ragbandit index build --retriever elasticsearch"):
        search_all(retriever, "river")


def test_meaning_needs_the_encoder_of_the_index(at, name, encoder):
    """Over an index without vectors searching by meaning is refused at the start."""
    at(name).build(PASSAGES)
    with pytest.raises(ConfigError, match="vectors of None"):
        at(name, search="meaning").opened(encoder)


def test_a_server_that_is_down_is_said(caplog):
    """A server that does not answer is a ConfigError at the start, with the setting and without a logged traceback."""
    with pytest.raises(ConfigError, match=r"retriever\.url: Elasticsearch does not answer"):
        es.ElasticsearchRetriever("http://127.0.0.1:9", index="any").opened()
    assert not caplog.records


def test_index_search_says_that_the_server_is_down(tmp_path, monkeypatch):
    """`ragbandit index search` ends with exit code 2 and the setting."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(json.dumps({"retriever": {"url": "http://127.0.0.1:9"}}))
    done = command.run("index", "search", "--retriever", "elasticsearch", code=2)
    assert "retriever.url: Elasticsearch does not answer" in done.stderr


@pytest.mark.parametrize("wrong", ["nonsense", "http://me:word@host:99999"])
def test_a_url_that_is_none_is_refused_before_anybody_is_asked(wrong):
    """A url without scheme, host or possible port is a ConfigError that names the setting and shows no password."""
    with pytest.raises(ConfigError, match=r"is no(t a)? url") as caught:
        es.ElasticsearchRetriever(wrong, index="any")
    assert caught.value.field == "retriever.url"
    assert "http://host:9200" in caught.value.remedy
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    ("replies", "asked", "message"),
    [([503, 429, 200], 3, None), ([503, 503, 503, 500], 3, "refuses the request"), ([401, 401], 1, "api_key_env")],
)
def test_a_busy_server_is_asked_again_with_the_key(replies, asked, message):
    """503 and 429 are tried three times, with the API key; other refusals fail at once."""
    body = {"hits": {"hits": []}, "error": {"type": "busy"}}
    elastic = {"x_elastic_product": "Elasticsearch"}
    with ScriptedHttp(*(json_reply(body, status=status, **elastic) for status in replies)) as server:
        retriever = es.ElasticsearchRetriever(server.url, index="any", api_key="secret")
        if message is None:
            assert search_all(retriever, "river", k=1) == [()]
        else:
            with pytest.raises(ArmFailed, match=message):
                search_all(retriever, "river", k=1)
    assert [headers["authorization"] for _, headers, _ in server.seen] == ["ApiKey secret"] * asked


def test_a_serverless_project_makes_the_index_without_a_number_of_shards():
    """Elastic's serverless projects refuse number_of_shards, so the index is made by a second request without it."""
    reason = "Settings [index.number_of_shards] are not available when running in serverless mode"
    refusal = {"error": {"type": "illegal_argument_exception", "reason": reason}, "status": 400}
    done = {"acknowledged": True, "errors": False, "items": [{"index": {"_id": "p1", "status": 201}}]}
    elastic = {"x_elastic_product": "Elasticsearch"}
    missing = Scripted(status=404, body=b"", headers={"x-elastic-product": "Elasticsearch"})
    replies = json_reply(refusal, status=400, **elastic), json_reply(done, **elastic)
    with ScriptedHttp(missing, missing, missing, *replies) as server:
        es.ElasticsearchRetriever(server.url, index="any").build(PASSAGES[:1])
    made = [body["settings"] for path, _, body in server.seen if path == "/any-a" and body]
    assert made == [{"number_of_shards": 1, "refresh_interval": "-1"}, {"refresh_interval": "-1"}]


def test_bm25_on_disk_finds_what_elasticsearch_finds(at, name, tmp_path):
    """The ten best of both overlap by at least nine tenths over the questions at hand."""
    if not CORPUS.exists():
        pytest.skip(f"no corpus at {CORPUS}")
    passages = list(read_corpus(CORPUS))
    lines = (CORPUS.parent / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["question"] for line in lines]
    at(name).build(passages)
    build_bm25(passages, tmp_path / "index")
    theirs = search_all(at(name).opened(), *questions, k=10)
    ours = search_all(Bm25Retriever(tmp_path / "index"), *questions, k=10)
    shared = [
        len({h.passage.id for h in one} & {h.passage.id for h in two}) / max(1, len(two))
        for one, two in zip(ours, theirs, strict=True)
    ]
    assert sum(shared) / len(shared) >= 0.9
