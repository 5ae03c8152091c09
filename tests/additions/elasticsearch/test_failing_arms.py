"""Every arm that searches where Elasticsearch is down, silent, refusing or gives half an answer."""

import json

import pytest

from ragbandit.shared.types import Budget, CallFailed
from tests.support.arms.arm_runs import outcomes
from tests.support.servers.scripted_http import Scripted, ScriptedHttp

elasticsearch = pytest.importorskip(
    "ragbandit.additions.elasticsearch.retriever", reason="pip install '.[elasticsearch]'"
)

pytestmark = pytest.mark.timeout(60)


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
    with fake_elasticsearch(30.0) as server:
        retriever = elasticsearch.ElasticsearchRetriever(server.url, index="any").opened()
        found = outcomes(searching(), retriever=retriever, budget=Budget(seconds=1.5))
    for name, outcome in found.items():
        assert (outcome.status, outcome.stop_reason) == ("exhausted", "budget_seconds"), name
        assert outcome.cost.retriever_calls == 1, name
        assert outcome.cost.seconds_total < 15.0, name
