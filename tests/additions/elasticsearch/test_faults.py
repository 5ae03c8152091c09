"""An Elasticsearch that goes away in mid-run, or that refuses: what becomes of the arm, and of the server's reason."""

import asyncio
import os
from urllib.parse import urlsplit

import pytest

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.types import Budget, CallFailed, DecisionId, Generated, Query, Retrieved
from ragbandit.strategies.arms.basic import MultiStep
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.outcome import run_strategy
from ragbandit.testing.arms import PASSAGES
from tests.support.servers.scripted_http import ScriptedHttp as Server, json_reply
from tests.support.servers.tcp_proxy import TcpProxy

es = pytest.importorskip("ragbandit.additions.elasticsearch.retriever", reason="pip install '.[elasticsearch]'")


@pytest.fixture
def proxy(elasticsearch_url):
    """What stands between the arm and the server, and is gone when it is closed."""
    address = urlsplit(elasticsearch_url)
    running = TcpProxy((address.hostname, address.port))
    yield running
    running.close()


def test_a_server_that_goes_away_fails_the_arm_with_its_cost(proxy, elasticsearch_url):
    """The arm that has searched once fails at its second search; what it had found, written and spent is kept."""
    url, name = f"http://127.0.0.1:{proxy.port}", f"ragbandit-test-stopped-{os.getpid()}"
    es.ElasticsearchRetriever(elasticsearch_url, index=name).build(PASSAGES)

    def think(_prompt):
        proxy.close()
        return "Jaws was made by Steven Spielberg."

    async def answered():
        retriever = es.ElasticsearchRetriever(url, index=name, timeout_s=20.0).opened()
        try:
            return await run_strategy(
                MultiStep(),
                query=Query(id=DecisionId("d1"), text="Where was the director of Jaws born?"),
                budget=Budget(seconds=100),
                retriever=retriever,
                generator=ScriptedGenerator(think),
            )
        finally:
            await retriever.close()

    outcome = asyncio.run(answered())
    assert (outcome.status, outcome.stop_reason, outcome.answer) == ("failed", "error", None)
    assert "Elasticsearch does not answer" in outcome.error
    assert (outcome.steps, outcome.cost.retriever_calls, outcome.cost.llm_calls) == (2, 2, 1)
    assert outcome.cost.completion_tokens == 6
    kinds = [type(event) for event in outcome.trace if isinstance(event, Retrieved | Generated | CallFailed)]
    assert kinds == [Retrieved, Generated, CallFailed]


FLOOD = "index [x] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has read-only]"
READ_ONLY = "blocked by: [FORBIDDEN/5/index read-only]"
UNREAD = [{"type": "mapper_parsing_exception", "reason": "no text"}]


def fault(kind, reason, **more):
    return {"error": {"type": kind, "reason": reason, "root_cause": [], **more}}


@pytest.mark.parametrize(
    ("status", "body", "reason", "remedy"),
    [
        (429, fault("cluster_block_exception", FLOOD), "flood-stage", "make room on the server's disk"),
        (403, fault("cluster_block_exception", READ_ONLY), "FORBIDDEN/5", "read_only"),
        (403, fault("cluster_block_exception", "blocked by: [FORBIDDEN/8/index write]"), "index write", "the block"),
        (503, fault("cluster_block_exception", "blocked by: [no master]"), "no master", "has a master"),
        (403, fault("security_exception", "unauthorized for [u]"), "unauthorized for", "put a key"),
        (403, "<html>no</html>", "403, <html>no", "put a key"),
        (401, None, "401", "put a key"),
        (413, None, "413", "http.max_content_length"),
        (429, fault("es_rejected_execution_exception", "queue is full"), "queue is full", "overloaded"),
        (400, fault("x", "outer", root_cause=UNREAD), "no text", "build"),
        (502, {"error": None}, "502", "not ready"),
    ],
)
def test_the_reason_of_a_refusal_reaches_the_reader(status, body, reason, remedy):
    """A refused search names the server's own reason and what to do about it."""
    headers = {"X_Elastic_Product": "Elasticsearch", "content_type": "application/json"}
    meta = {"x-a": {"mappings": {"_meta": {"ragbandit": {"format": es.FORMAT, "complete": True, "sha256": "0"}}}}}
    with Server(json_reply(meta, **headers), json_reply(body, status=status, **headers)) as server:
        retriever = es.ElasticsearchRetriever(server.url, index="x").opened()
        with pytest.raises(ArmFailed) as caught:
            asyncio.run(retriever.search("river", k=1))
    assert reason in caught.value.message
    assert remedy in caught.value.remedy


def test_the_reason_of_a_refused_passage_reaches_the_reader():
    """A passage that a bulk request could not store is named with the reason, without its text."""
    error = {"type": "cluster_block_exception", "reason": FLOOD}
    item = {"_id": "7", "status": 403, "error": error, "data": {"text": "z"}}
    error = es.BulkIndexError("1 document(s) failed", [{"index": item}])
    translated = es.ElasticsearchRetriever("http://127.0.0.1:9", index="x")._translate(error, kind=ArmFailed)
    assert "'7': 403, cluster_block_exception: index [x] blocked" in translated.message
    assert "make room" in translated.remedy


def test_a_key_that_no_header_can_contain_is_refused():
    """A line break within the key is an error of the setting, without the key."""
    with pytest.raises(ConfigError, match="line break") as caught:
        es.ElasticsearchRetriever("http://127.0.0.1:9", index="x", api_key="hunter2\nrest")
    assert (caught.value.field, "hunter2" in str(caught.value)) == ("retriever.api_key_env", False)
