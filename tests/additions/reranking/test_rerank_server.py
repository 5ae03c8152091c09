"""A server's endpoint /rerank, in the forms of Cohere, Jina, vLLM, Voyage, DashScope and TEI."""

import asyncio
import gzip
import json
import time

import pytest

from ragbandit.additions.reranking import rerank_server
from ragbandit.additions.reranking.rerank_server import RerankServer
from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.strategies.base import book_costs_with
from ragbandit.strategies.retrievers.rerankers.reranked import RerankedRetriever
from ragbandit.strategies.retrievers.without_index import MemoryRetriever
from ragbandit.testing.retrievers import passage_ids, search_all
from tests.support.arms.rerankers import ROWS
from tests.support.servers.scripted_http import Scripted, ScriptedHttp, json_reply

TEXTS = ["river", "river sea", "sea"]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    """Attempts follow each other without a pause."""
    monkeypatch.setattr(rerank_server, "_PAUSE_S", 0.0)


def price(scored):
    """One dollar a search, and a million tokens for a dollar."""
    return scored.searches + scored.tokens / 1e6


def scored(server, texts=TEXTS, *, timeout=5.0, query="river"):
    """(scores or the error, dollars) of a call."""
    dollars = []

    async def ask():
        try:
            async with asyncio.timeout(timeout):
                return await server.scores(query, texts)
        finally:
            await server.close()
            await server.close()

    with book_costs_with(lambda cost, rule, value: dollars.append(cost.dollars)):
        try:
            return asyncio.run(ask()), sum(dollars)
        except (ArmFailed, TimeoutError) as error:
            return error, sum(dollars)


def rows(*scores, name="relevance_score"):
    """Results, the best first."""
    found_rows = [{"index": index, name: score} for index, score in enumerate(scores)]
    return sorted(found_rows, key=lambda row: -row[name])


def lengths(sent):
    """What a server replies that finds long documents relevant."""
    return json_reply({"results": rows(*map(len, sent["documents"]))[: sent["top_n"]]})


def test_the_request_and_its_order():
    """Model, question, documents and their number are sent with the key; the server's scores order the hits."""
    with ScriptedHttp(answer=lengths) as http:
        server = RerankServer(f"{http.url}/v1", model="m", key="k3y")
        hits = search_all(RerankedRetriever(MemoryRetriever(ROWS), rerank=server, depth=4), "river", k=2)[0]
        ((path, headers, body),) = http.seen
    assert (path, headers["Authorization"], headers["Accept-Encoding"]) == ("/v1/rerank", "Bearer k3y", "identity")
    assert body == {"model": "m", "query": "river", "documents": [row.text for row in ROWS[:4]], "top_n": 4}
    assert passage_ids(hits) == ["p0", "p1"]
    assert [hit.score for hit in hits] == [len(row.text) for row in ROWS[:2]]


def test_tei_gets_texts_in_small_parts():
    """With form: tei 32 texts go with a request, all requests at once; the reply is a list."""

    def answer(sent):
        assert sent.keys() == {"query", "texts", "truncate"}
        return json_reply(rows(*(float(text) for text in sent["texts"]), name="score"))

    with ScriptedHttp(answer=answer) as http:
        scores, _ = scored(RerankServer(f"{http.url}/rerank", form="tei"), [str(number) for number in range(70)])
        assert sorted(len(body["texts"]) for _, _, body in http.seen) == [6, 32, 32]
        assert {path for path, _, _ in http.seen} == {"/rerank"}
    assert scores == list(map(float, range(70)))


@pytest.mark.parametrize(
    "reply",
    [
        {"results": rows(3, 1, 2)},
        {"results": rows(3, 1, 2), "usage": None, "meta": "", "id": 7, "model": []},
        {"results": [{**row, "document": None} for row in rows(3, 1, 2)], "usage": {"total_tokens": "many"}},
        {"results": [{**row, "document": {"text": "river"}} for row in rows(3, 1, 2)], "meta": {"billed_units": []}},
        {"results": [{"index": 2, "relevance_score": "2"}, {"index": "0", "score": 3}, {"index": 1.0, "score": 1}]},
        {"results": [{**row, "relevance_score": None, "score": row["relevance_score"]} for row in rows(3, 1, 2)]},
        {"object": "list", "data": rows(3, 1, 2), "results": None},
        {"output": {"results": rows(3, 1, 2)}},
        rows(3, 1, 2, name="score"),
    ],
    ids=["cohere", "null fields", "vllm", "jina", "texts", "score", "voyage", "dashscope", "tei"],
)
def test_replies_of_all_servers_are_read(reply):
    """Scores are found by the index of the document, and other fields may be null, missing or of another type."""
    with ScriptedHttp(json_reply(reply)) as http:
        assert scored(RerankServer(http.url))[0] == [3.0, 1.0, 2.0]


BAD = {
    "not JSON": (b"<html>busy</html>", "gave no JSON: it replied 200: busy"),
    "null": (None, "the reply has no list of results"),
    "a text": ("busy now", "the reply has no list of results: busy now"),
    "null results": ({"results": None}, "the reply has no list of results"),
    "results of another type": ({"results": {"0": 1}}, "the reply has no list of results"),
    "an error with status 200": ({"error": {"message": "no such model"}}, "no list of results: no such model"),
    "too few": ({"results": rows(3, 1)}, "the reply has 2 results for 3 documents"),
    "none": ([], "the reply has 0 results for 3 documents"),
    "twice": ({"results": [*rows(3, 1), {"index": 1, "score": 2}]}, "the index of result 2 is 1"),
    "no index": ({"results": [{"relevance_score": 1}] * 3}, "the index of result 0 is None"),
    "an index that is true": ({"results": [{"index": True, "score": 1}] * 3}, "the index of result 0 is True"),
    "a negative index": ({"results": [{"index": -1, "score": 1}] * 3}, "the index of result 0 is -1"),
    "an index too high": ({"results": [{"index": 3, "score": 1}] * 3}, "the index of result 0 is 3"),
    "no score": ({"results": [{"index": 0}]}, "the score of result 0 is None"),
    "a score that is true": ({"results": [{"index": 0, "score": True}]}, "the score of result 0 is True"),
    "a score in words": ({"results": [{"index": 0, "score": "high"}]}, "the score of result 0 is 'high'"),
    "not a number": (b'[{"index": 0, "score": NaN}]', "the score of result 0 is nan"),
    "infinite": (b'[{"index": 0, "score": 1e999}]', "the score of result 0 is inf"),
    "too large": (b'[{"index": 0, "score": 1' + b"0" * 400 + b"}]", "the score of result 0 is 1000"),
    "rows of another type": ([None, 1, []], "the index of result 0 is None"),
    "deep": (b"[" * 100_000, "gave no JSON"),
    "nested rows": ({"results": [rows(3, 1, 2)]}, "the index of result 0 is None"),
    "a nested index": ({"results": [{"index": [0], "score": 1}] * 3}, "the index of result 0 is [0]"),
    "a nested score": ({"results": [{"index": 0, "score": {"score": 1}}] * 3}, "the score of result 0 is {'score': 1}"),
    "a huge index": (b'[{"index": 1' + b"0" * 400 + b', "score": 1}]', "the index of result 0 is 1000"),
    "half an index": ({"results": [{"index": 0.5, "score": 1}] * 3}, "the index of result 0 is 0.5"),
    "too many": ({"results": [*rows(3, 1, 2), {"index": 0, "score": 9}]}, "the index of result 3 is 0"),
    "many rows": ([{}] * 20_000, "the index of result 0 is None"),
    "nested results": ({"results": {"results": rows(3, 1, 2)}}, "the reply has no list of results"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_reply_that_cannot_be_read_is_a_failure(case):
    """It is named by server and field, is not asked for again, and costs what the server was asked."""
    body, words = BAD[case]
    reply = Scripted(body=body) if isinstance(body, bytes) else json_reply(body)
    with ScriptedHttp(reply) as http:
        error, dollars = scored(RerankServer(http.url, price=price))
        assert len(http.seen) == 1
    assert isinstance(error, ArmFailed)
    assert words in str(error)
    assert dollars == pytest.approx(1, abs=1e-4)


def test_a_failure_is_one_of_the_reranker():
    """The search fails with the names of reranker and server, and the remedy; its hits are not passed on."""
    with ScriptedHttp(json_reply({"message": "invalid k3y"}, status=401)) as http:
        retriever = RerankedRetriever(MemoryRetriever(ROWS), rerank=RerankServer(http.url, model="m", key="k3y"))
        with pytest.raises(ArmFailed, match=r"the reranker m failed: http://127\.0") as caught:
            search_all(retriever, "river", k=1)
    assert "it replied 401: " in str(caught.value)
    assert "k3y" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 307, 308])
def test_redirects_are_not_followed(status):
    """Neither the documents nor the key go to another address, which the failure names."""
    with ScriptedHttp(Scripted(status=status, headers={"location": "/elsewhere?key=k3y"})) as http:
        error, dollars = scored(RerankServer(http.url, key="k3y", price=price))
        assert len(http.seen) == 1
    assert "/elsewhere; redirects are not followed" in str(error)
    assert "k3y" not in str(error)
    assert dollars == 0


@pytest.mark.parametrize(("status", "attempts"), [(429, 3), (503, 3), (400, 1), (404, 1), (422, 1)])
def test_attempts(status, attempts):
    """A failure that may pass is followed by `retries` attempts, and refused requests cost nothing."""
    with ScriptedHttp(json_reply({"detail": "no"}, status=status)) as http:
        error, dollars = scored(RerankServer(http.url, price=price))
        assert len(http.seen) == attempts
    assert f"it replied {status}" in str(error)
    assert dollars == 0


def test_what_was_asked_is_booked_again():
    """An attempt that broke off costs its estimate, and the next attempt what the server reports."""
    replies = Scripted(hang_up=True), json_reply({"results": rows(3, 1, 2), "usage": {"total_tokens": 70}})
    with ScriptedHttp(*replies) as http:
        scores, dollars = scored(RerankServer(http.url, price=price))
    assert scores == [3.0, 1.0, 2.0]
    # The question has 2 tokens at 4 bytes each, once for each text, and the texts have 2, 3 and 1.
    assert dollars == pytest.approx(1 + 12e-6 + 1 + 70e-6)


@pytest.mark.parametrize("limit", ["the run's", "its own"])
def test_a_late_reply_is_booked(limit):
    """A request that the deadline cancels, or that times out, costs what it is estimated at."""
    with ScriptedHttp(Scripted(delay_s=30)) as http:
        own = {"timeout_s": 1.5, "retries": 0} if limit == "its own" else {}
        error, dollars = scored(RerankServer(http.url, price=price, **own), timeout=20.0 if own else 1.5)
    assert isinstance(error, ArmFailed if own else TimeoutError)
    assert not own or "it took longer than 1.5 s (raise retriever.rerank.timeout_s)" in str(error)
    assert dollars == pytest.approx(1 + 12e-6)


def test_an_unreachable_server_costs_nothing():
    """No connection is a failure with a remedy, and no dollars."""
    error, dollars = scored(RerankServer("http://127.0.0.1:9", price=price, retries=0))
    assert "cannot be reached" in str(error)
    assert dollars == 0


def test_a_large_reply_is_not_read_to_its_end():
    """The cap grows with the documents, which servers may repeat, and a reply beyond it is a failure."""
    with ScriptedHttp(Scripted(body=b'{"results": [' + b" " * 1_100_000)) as http:
        error, _ = scored(RerankServer(http.url, price=price))
    assert f"replied more than {1_000_000 + 6 * sum(map(len, TEXTS))} bytes" in str(error)


def test_a_reply_without_end_is_given_up():
    """100 MB, plain or packed into 100 kB, are read up to the cap, and a reply that drips up to the timeout."""
    large = b'{"results": [' + b" " * 100_000_000
    packed = Scripted(body=gzip.compress(large), headers={"content-encoding": "gzip"})
    for reply, words in (
        (Scripted(body=large), "bytes"),
        (packed, "bytes"),
        (Scripted(body=large, drip_s=0.05), "1.5 s"),
    ):
        began = time.monotonic()
        with ScriptedHttp(reply) as http:
            error, _ = scored(RerankServer(http.url, timeout_s=1.5 if reply.drip_s else 30.0, retries=0), timeout=60.0)
        assert isinstance(error, ArmFailed)
        assert words in str(error)
        assert time.monotonic() - began < 30.0


@pytest.mark.parametrize(
    ("reply", "dollars"),
    [
        ({}, 1 + 12e-6),
        ({"usage": {"total_tokens": 70}}, 1 + 70e-6),
        ({"usage": {"prompt_tokens": 60, "total_tokens": 70}}, 1 + 70e-6),
        ({"usage": {"prompt_tokens": 60, "total_tokens": None}}, 1 + 60e-6),
        ({"usage": {"total_tokens": 0}}, 1 + 12e-6),
        ({"usage": {"total_tokens": -5}}, 1 + 12e-6),
        ({"meta": {"billed_units": {"search_units": 2}}}, 2 + 12e-6),
        ({"meta": {"billed_units": {"search_units": 2.0}, "tokens": {"input_tokens": 50}}}, 2 + 50e-6),
        ({"meta": {"billed_units": {"search_units": 1e9}}}, 1 + 12e-6),
        ({"meta": {"billed_units": {"search_units": "x"}, "tokens": None}}, 1 + 12e-6),
        ({"usage": {"cost": 0.25, "search_units": 1, "total_tokens": 70}}, 0.25),
        ({"usage": {"cost": 0}}, 1 + 12e-6),
        ({"usage": {"cost": -1}}, 1 + 12e-6),
        ({"usage": {"cost": 101}}, 1 + 12e-6),
        ({"headers": {"x_litellm_response_cost": "0.125"}}, 0.125),
        ({"headers": {"x_litellm_response_cost": "0.125"}, "usage": {"cost": 0.25}}, 0.25),
    ],
)
def test_the_servers_own_counts_and_prices_count(reply, dollars):
    """Tokens and searches are those that the server reports, else the estimate; and so is the price, if it may be."""
    headers = reply.get("headers", {})
    with ScriptedHttp(json_reply({"results": rows(3, 1, 2), **reply}, **headers)) as http:
        assert scored(RerankServer(http.url, price=price))[1] == pytest.approx(dollars)


def test_a_price_that_a_server_tells_needs_no_list():
    """Without prices in the settings the server's own price is booked."""
    with ScriptedHttp(json_reply({"results": rows(3, 1, 2), "usage": {"cost": 0.25}})) as http:
        assert scored(RerankServer(http.url))[1] == 0.25


def test_odd_texts_are_sent():
    """Halves of surrogate pairs are replaced, and long texts cut, since no server reads them."""
    with ScriptedHttp(json_reply({"results": rows(1, 2)})) as http:
        assert scored(RerankServer(http.url), ["\ud800 river", "sea " * 100_000], query="\udfff?")[0] == [1.0, 2.0]
        sent = json.loads(http.bodies[0])
    assert (sent["query"], sent["documents"][0], len(sent["documents"][1])) == ("??", "? river", 100_000)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("", "/rerank"),
        ("/", "/rerank"),
        ("/v1/", "/v1/rerank"),
        ("/v2/rerank", "/v2/rerank"),
        ("/api/reranks?api-version=3", "/api/reranks?api-version=3"),
        ("/v1?api-version=3", "/v1/rerank?api-version=3"),
    ],
)
def test_the_endpoint(url, path):
    """`/rerank` is appended to an address that does not end with it, before a query."""
    with ScriptedHttp(json_reply({"results": rows(3, 1, 2)})) as http:
        assert scored(RerankServer(http.url + url))[0] == [3.0, 1.0, 2.0]
        assert http.seen[0][0] == path


@pytest.mark.parametrize(
    ("url", "key", "field"),
    [("localhost:80", None, "url"), ("http://h:99999", None, "url"), ("http://h", "k3y\n", "api_key_env")],
)
def test_wrong_settings_are_refused(url, key, field):
    """Invalid addresses, and keys that no header can carry, are refused at the start without showing the key."""
    with pytest.raises(ConfigError) as caught:
        RerankServer(url, key=key)
    assert caught.value.field == f"retriever.rerank.{field}"
    assert "k3y" not in str(caught.value)
