"""Requests for Messages again, in the form that a refusal names."""

import pytest

from ragbandit.additions.anthropic.repairs import thinking_by_effort
from tests.support.servers.scripted_http import ScriptedHttp, json_reply

REFUSAL = (
    '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and "output_config.effort" '
    "to control thinking behavior."
)
EXTRA = "Extra inputs are not permitted"


@pytest.mark.parametrize(
    ("budget", "config", "effort"),
    [(8000, {}, "high"), (2048, {}, "medium"), (1024, {"format": {}}, "low"), (8000, {"effort": "max"}, "max")],
)
def test_a_budget_becomes_an_effort(budget, config, effort):
    """Thinking becomes adaptive; the effort stands for the budget, unless the client has sent one."""
    body = {"thinking": {"type": "enabled", "budget_tokens": budget, "display": "omitted"}, "output_config": config}
    changed = thinking_by_effort(body, REFUSAL).body
    assert changed == {
        "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {**config, "effort": effort},
    }


@pytest.mark.parametrize("thinking", [None, {"type": "adaptive"}, {"type": "disabled"}, "enabled"])
def test_other_thinking_is_not_changed(thinking):
    """A request without a budget has nothing to change, and other refusals are not about it."""
    assert thinking_by_effort({"thinking": thinking}, REFUSAL) is None
    assert thinking_by_effort({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "max_tokens: too large") is None


def faults_of(body, headers):
    """What a cloud refuses, one fault after the other."""
    betas = (headers.get("anthropic-beta") or "").split(",")
    if "new-1" in betas or "new-2" in betas:
        yield "Unexpected value(s) `new-1`, `new-2` for the `anthropic-beta` header."
    for tool in body.get("tools", []):
        for name in sorted(tool.keys() - {"name", "description", "input_schema"}):
            yield f"tools.0.custom.{name}: {EXTRA}"
    if "context_management" in body:
        yield f"context_management: {EXTRA}"
    if body.get("thinking", {}).get("type") == "enabled":
        yield REFUSAL


def test_a_cloud_is_asked_until_it_has_nothing_left_to_refuse(serve):
    """Headers, nested fields, parameters and the form of thinking are repaired, one after the other."""

    def cloud(body):
        headers = {name.lower(): value for name, value in messages.seen[-1][1].items()}
        fault = next(faults_of(body, headers), None)
        if fault is not None:
            error = {"type": "invalid_request_error", "message": fault}
            return json_reply({"type": "error", "error": error}, status=400)
        answer = {"type": "message", "id": "msg_1", "role": "assistant", "model": "c", "stop_reason": "end_turn"}
        return json_reply({**answer, "content": [{"type": "text", "text": "Yes."}], "usage": {}})

    tool = {"name": "w", "input_schema": {"type": "object"}, "eager_input_streaming": True, "strict": True, "extra": 1}
    sent = {
        "model": "arm/claude",
        "max_tokens": 9000,
        "messages": [{"role": "user", "content": "Is it so?"}],
        "tools": [tool],
        "context_management": {"edits": []},
        "thinking": {"type": "enabled", "budget_tokens": 5000},
    }
    with ScriptedHttp(answer=cloud) as messages:
        generator = {"name": "anthropic", "model": "c", "anthropic": {"base_url": messages.url, "retries": 0}}
        arms = {"claude": {"class": "model"}, "other": {"run_by": "caller"}}
        service = serve(inline=True, generator=generator, arms=arms)
        betas = {"anthropic-beta": "known-1,new-1,new-2", "anthropic-version": "2023-06-01"}
        reply = service.http.post("/v1/messages", json=sent, headers=betas)
        service.close()
        _, headers, body = messages.seen[-1]
    assert reply.status_code == 200, reply.text
    assert {name.lower(): value for name, value in headers.items()}["anthropic-beta"] == "known-1"
    assert [*map(sorted, body["tools"])] == [["input_schema", "name"]]
    assert body["thinking"] == {"type": "adaptive"}
    assert body["output_config"] == {"effort": "high"}
