"""An Elasticsearch of our own that is stopped in mid-run: what becomes of the arm that was using it."""

import asyncio
import subprocess
import tempfile
from pathlib import Path

import pytest

from ragbandit.router.types import Budget, CallFailed, DecisionId, Generated, Query, Retrieved
from ragbandit.strategies.arms.multi_step import MultiStep
from ragbandit.strategies.generators.scripted import ScriptedGenerator
from ragbandit.strategies.runner import run_strategy
from ragbandit.strategies.testing.arm_checks import PASSAGES

es = pytest.importorskip(
    "ragbandit.strategies.retrievers.elasticsearch", reason="pip install 'ragbandit[elasticsearch]'"
)

PROGRAM = Path(__file__).parents[4] / "shared" / "elasticsearch" / "start"


@pytest.fixture
def server():
    """(its URL, a function that stops it)."""
    if not PROGRAM.exists():
        pytest.skip("no Elasticsearch that may be stopped: the one of ELASTICSEARCH_URL is somebody's")
    with tempfile.TemporaryDirectory(prefix="ragbandit-es-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        done = subprocess.run([PROGRAM, folder], capture_output=True, text=True, timeout=110, check=False)
        if done.returncode != 0:
            pytest.skip(f"Elasticsearch did not start: {done.stderr.strip()[-300:]}")

        def stop():
            subprocess.run([PROGRAM.with_name("stop"), folder], capture_output=True, timeout=60, check=False)

        try:
            yield done.stdout.strip(), stop
        finally:
            stop()


def test_a_server_that_goes_away_fails_the_arm_with_its_cost(server):
    """The arm that has searched once fails at its second search; what it had found, written and spent is kept."""
    url, stop = server
    with es.connect(url) as client:
        es.build_index(PASSAGES, client=client, index="ragbandit-test-stopped")

    def think(_prompt):
        stop()
        return "Jaws was made by Steven Spielberg."

    async def answered():
        retriever = es.ElasticsearchRetriever(url, index="ragbandit-test-stopped", timeout_s=2.0)
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
