"""Every arm where a server is down, silent, refusing or gives half an answer."""

import json
import socket
from contextlib import contextmanager

import pytest

from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.types import Budget, CallFailed
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from tests.support.arms.arm_runs import ARMS_HERE, example, made, outcomes
from tests.support.servers.scripted_http import Scripted, ScriptedHttp

pytestmark = pytest.mark.timeout(60)

#: those that an OpenAI-compatible server can serve
BY_HTTP = [name for name in ARMS_HERE if made(name, **example(name)).needs <= {"completion", "stop", "logprobs"}]


def by_http(url, *, budget=None, **options):
    """The outcome by name of all arms that a server at the URL can serve."""
    asked = OpenAiGenerator("gpt", options=OpenAiOptions(base_url=url, logprobs=True, retries=0, **options))
    return outcomes(BY_HTTP, budget=budget, generator=asked)


@contextmanager
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


def test_a_model_that_is_down_fails_every_arm():
    """Where nobody listens every arm fails at its first call, which counts, with its seconds and without tokens."""
    with closed_port() as url:
        found = by_http(f"{url}/v1")
    for name, outcome in found.items():
        assert (outcome.status, outcome.stop_reason, outcome.answer) == ("failed", "error", None), name
        assert "cannot be reached" in outcome.error, name
        assert_one_broken_call(name, outcome)


def assert_one_broken_call(name, outcome, *, written=False, read=False):
    broken = outcome.trace[-1]
    assert isinstance(broken, CallFailed), name
    assert outcome.cost.llm_calls == 1, name
    assert (outcome.cost.prompt_tokens > 0, outcome.cost.completion_tokens > 0) == (read, written), name
    assert broken.seconds == outcome.cost.seconds_generate <= outcome.cost.seconds_total, name


def fake_elasticsearch(reply):
    """A server that says what a start needs to hear, then replies to searches as told: (status, body), or silence."""
    meta = {"format": "elasticsearch-1", "complete": True, "passages": 4, "sha256": "0" * 64}
    headers = {"X-Elastic-Product": "Elasticsearch", "connection": "close"}
    start = Scripted(body=json.dumps({"any": {"mappings": {"_meta": {"ragbandit": meta}}}}).encode(), headers=headers)
    if isinstance(reply, float):
        return ScriptedHttp(start, Scripted(delay_s=reply))
    status, body = reply or (200, b"{}")
    length = {"content-length": str(len(body) + 100)} if body.endswith(b"...") else {}
    return ScriptedHttp(start, Scripted(status=status, body=body, headers=headers | length))


def searching():
    """The arms that search for the question of the contract."""
    return [name for name, outcome in outcomes().items() if outcome.cost.retriever_calls]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((503, b"{}"), "refuses the request"),
        ((401, b'{"error": {"type": "security_exception"}}'), "refuses the key"),
        ((404, b'{"error": {"type": "index_not_found_exception"}}'), "does not exist"),
        ((200, b'{"hits": {"hits": [{"_id"'), "does not answer"),
        ((200, b'{"hits": {"hits": [...'), "does not answer"),
        ((200, b"{}"), "sent an unexpected reply"),
        (None, "does not answer"),
    ],
    ids=["busy", "refused", "gone", "half_json", "cut", "other_json", "down"],
)
def test_an_elasticsearch_that_fails_fails_every_arm_that_searches(reply, said, caplog):
    """Down, busy, refusing, or half an answer: the arm fails with the reason, the search counts, no client logs."""
    elasticsearch = pytest.importorskip("ragbandit.strategies.retrievers.elasticsearch")
    with fake_elasticsearch(reply) as server:
        retriever = elasticsearch.ElasticsearchRetriever(server.url, index="any").opened()
        if reply is None:
            server.__exit__()
        names = searching()
        found = outcomes(names, retriever=retriever)
    assert {"single_step", "multi_step"} <= set(names)
    assert not [each for each in caplog.records if each.name.startswith("elastic_transport")]
    for name, outcome in found.items():
        assert (outcome.status, outcome.stop_reason, outcome.cost.retriever_calls) == ("failed", "error", 1), name
        assert said in outcome.error, name
        assert isinstance(outcome.trace[-1], CallFailed), name
        assert outcome.trace[-1].seconds == outcome.cost.seconds_retrieve, name


def test_an_elasticsearch_that_hangs_ends_every_arm_in_time():
    """A silent Elasticsearch ends every arm that searches at its seconds."""
    elasticsearch = pytest.importorskip("ragbandit.strategies.retrievers.elasticsearch")
    with fake_elasticsearch(20.0) as server:
        retriever = elasticsearch.ElasticsearchRetriever(server.url, index="any").opened()
        found = outcomes(searching(), retriever=retriever, budget=Budget(seconds=0.5))
    for name, outcome in found.items():
        assert (outcome.status, outcome.stop_reason) == ("exhausted", "budget_seconds"), name
        assert outcome.cost.retriever_calls == 1, name
        assert outcome.cost.seconds_total < 2.0, name
