"""An Elasticsearch that cannot be reached any more in mid-run: what becomes of the arm that was using it."""

import asyncio
import os
from urllib.parse import urlsplit

import pytest

from ragbandit.shared.types import Budget, CallFailed, DecisionId, Generated, Query, Retrieved
from ragbandit.strategies.arms.basic import MultiStep
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.runner import run_strategy
from ragbandit.testing.arms import PASSAGES
from tests.support.servers.tcp_proxy import TcpProxy

es = pytest.importorskip("ragbandit.strategies.retrievers.elasticsearch", reason="pip install '.[elasticsearch]'")


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
        retriever = es.ElasticsearchRetriever(url, index=name, timeout_s=2.0).opened()
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
