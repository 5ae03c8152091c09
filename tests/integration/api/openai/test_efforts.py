"""Reasoning effort over HTTP: a grid of efforts is several arms, and a request bounds them."""

import httpx
import pytest

from tests.support.additions import needs

MODEL = {"name": "openai", "model": "m", "context_tokens": 4000, "openai": {"base_url": "http://127.0.0.1:9/v1"}}


@pytest.fixture
def ask(serve, answering):
    """A function: the stored decision of a request, or the reply that refuses it."""
    service = serve(
        arms={"gpt": {"class": "model", "facts": {"model": "m"}, "grid": {"effort": ["low", "medium", "high"]}}},
        generator=MODEL,
        conversation={"rewrite": {"by": "off"}},
    )
    answering(service, answer="At noon.")

    def post(path, **body):
        reply = httpx.post(f"{service.url}/v1/{path}", json=body, timeout=60)
        if reply.status_code != 200:
            return reply
        key = reply.json().get("decision_id") or reply.json()["id"]
        return service.router.decision(key.removeprefix("chatcmpl-")).decision

    return post


@needs("responses")
def test_a_request_bounds_the_efforts(ask):
    """Bounds and the effort of a chat or response choose the arms, and a request that no arm meets is refused."""
    chat = {"model": "auto", "messages": [{"role": "user", "content": "When is high tide?"}]}
    assert set(ask("chat/completions", **chat).arms) == {"gpt", "gpt.effort-medium", "gpt.effort-high"}
    bounded = ask("chat/completions", **chat, effort_min="medium", effort_max=None)
    assert set(bounded.arms) == {"gpt.effort-medium", "gpt.effort-high"}
    assert bounded.query.sent.effort_min == "medium"
    low = ask("chat/completions", **chat, reasoning_effort="low")
    assert (low.arms, low.arm_by, bounded.arm_by) == (("gpt",), "caller", None)  # an effort is a choice of an arm
    assert ask("responses", model="auto", input="Why?", reasoning={"effort": "high"}).arms == ("gpt.effort-high",)
    assert ask("answer", question="Why?", effort_max="low").arms == ("gpt",)
    refused = ask("chat/completions", **chat, effort_max="none")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "effort_max")
    refused = ask("chat/completions", **chat, effort_max="hi")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "effort_max")
