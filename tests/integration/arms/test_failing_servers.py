"""Every arm where a server is down, silent, refusing or gives half an answer."""

import socket
from contextlib import contextmanager

import pytest

from ragbandit.shared.model_servers.openai_options import OpenAiOptions
from ragbandit.shared.types import CallFailed
from ragbandit.strategies.generators.openai_generator import OpenAiGenerator
from tests.support.arms.arm_runs import ARMS_HERE, example, made, outcomes

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
