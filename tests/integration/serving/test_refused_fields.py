"""Fields that a server has refused are left out of later requests of the same key, and of nobody else's."""

import pytest

from tests.support.servers.http_service import Keyed
from tests.support.servers.scripted_http import ScriptedHttp, json_reply

ANSWER = {"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}], "usage": {}}
#: fields that the server takes, and those inside them; None for any
TAKEN = dict.fromkeys(("model", "stream", "messages", "stream_options", "tools", "max_tokens")) | {
    "reasoning": ("effort", "summary")
}


def fault(body):
    """What the server refuses of a request, in OpenAI's words; None if nothing."""
    for name, value in body.items():
        if name not in TAKEN:
            return f"Unknown parameter: '{name}'."
        for inner in value if TAKEN[name] else ():
            if inner not in TAKEN[name]:
                return f"Unknown parameter: '{name}.{inner}'."
    for place, tool in enumerate(body.get("tools", ())):
        if "defer" in tool["function"]:
            return f"tools.{place}.function.defer: Extra inputs are not permitted"
    return None


def reply(body):
    message = fault(body)
    if message is None:
        return json_reply(ANSWER)
    return json_reply({"error": {"message": message, "type": "invalid_request_error"}}, status=400)


@pytest.fixture
def asked(serve):
    """A function: sends a chat with further fields by the key of this name; returns (reply, the server's bodies)."""
    with ScriptedHttp(answer=reply) as server:
        generator = {"name": "openai", "model": "m", "openai": {"base_url": f"{server.url}/v1", "retries": 0}}
        arms = {"one": {"class": "model"}}
        keyed, clients = Keyed(serve(inline=True, generator=generator, arms=arms, policy={"name": "uniform"})), {}

        def ask(name, **more):
            before = len(server.seen)
            client = clients.setdefault(name, None) or keyed.client()
            clients[name] = client
            body = {"model": "auto", "messages": [{"role": "user", "content": f"{name} {before}"}], **more}
            got = client.post("/v1/chat/completions", json=body)
            return got, [sent for _, _, sent in server.seen[before:]]

        yield ask
        keyed.service.close()


def tool(**more):
    function = {"name": "tide", "parameters": {"type": "object", "properties": {}}, **more}
    return {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("given", "ignored"), [({"seed": 7}, "seed"), ({"tools": [tool(), tool(defer=True)]}, "tools.function.defer")]
)
def test_each_key_pays_one_refused_request(asked, given, ignored):
    """A key's second request lacks the refused field from the start, and each reply names it; another key's first
    request still has it.
    """
    sent = []
    for name in ("a", "a", "b", "b", "a"):
        got, bodies = asked(name, **given)
        assert got.json()["ragbandit"]["ignored"] == [ignored]
        sent.append(len(bodies))
    assert sent == [2, 1, 2, 1, 1]


@pytest.mark.parametrize(
    "odd",
    [
        {"reasoning": {"effort": "high", "a.b": 1}},
        {"reasoning": {"effort": "high", "summary.x": 1}},
        {"reasoning": {"effort": "high", " x": 1}},
        {"reasoning": {"effort": "high", "x/y": 1}},
        {"reasoning": {"effort": "high"}, "reasoning.effort": 1},
        {"reasoning": {"effort": "high"}, "reasoning.x": 1},
    ],
    ids=str,
)
def test_a_key_that_looks_like_a_path_takes_nothing_from_later_requests(asked, odd):
    """Whatever becomes of a request with such a key, the parameter of its first part reaches the server afterwards."""
    for name in ("a", "a", "b"):
        asked(name, **odd)
    for name in ("a", "b", "c"):
        got, bodies = asked(name, reasoning={"effort": "high"})
        assert [body["reasoning"] for body in bodies] == [{"effort": "high"}]
        assert got.status_code == 200


def test_what_a_failed_request_left_out_is_not_remembered(asked):
    """A field counts as refused only if the server answers the request without it."""
    got, bodies = asked("a", seed=7, stop=["x"])
    assert (got.status_code, len(bodies)) == (400, 2)
    _, bodies = asked("a", seed=7)
    assert ["seed" in body for body in bodies] == [True, False]
