"""Loops of tools in responses, which are continued by an id or by items."""

from ragbandit.additions.responses.stored_responses import conversation_of
from tests.integration.api.openai.test_tool_loops import CALLS, IDS, question, turn


def test_sessions_and_responses(loops):
    """Alike conversations differ by the session of a header; a response is continued by its id, or by items."""
    own = loops()
    firsts = {name: own.post("/v1/responses", json=body(), headers=session(name)).json()["id"] for name in "ab"}
    outputs = [{"type": "function_call_output", "call_id": one, "output": "noon"} for one in IDS]
    calls = [{"type": "function_call", "call_id": one, "name": "tide", "arguments": "{}"} for one in IDS]
    for name, first in firsts.items():
        key = own.post("/v1/responses", json=body(*calls, *outputs), headers=session(name)).json()["id"]
        assert turn(loops.router, key) == (first, 2)
        more = {"previous_response_id": key, "input": outputs, "instructions": "Be brief."}
        third = own.post("/v1/responses", json={**body(), **more}).json()["id"]
        assert turn(loops.router, third) == (first, 3)
    alike = [own.post("/v1/responses", json=body()).json()["id"] for _ in range(2)]
    assert turn(loops.router, own.post("/v1/responses", json=body(*calls, *outputs)).json()["id"]) is None
    for first in alike:
        more = {"previous_response_id": first, "input": outputs[::-1]}
        key = own.post("/v1/responses", json={**body(), **more}).json()["id"]
        assert turn(loops.router, key) == (first, 2)
        assert own.post("/v1/responses", json={**body(), **more}).json()["id"] == key
        said = conversation_of(loops.router.store, loops.router.decision(key).decision)
        assert [message["role"] for message in said] == ["user", "assistant", "tool", "tool", "assistant"]
        assert said[1] == {"role": "assistant", "content": "I look.", "tool_calls": CALLS}


def test_reminders_continue_the_arm_of_a_response(loops):
    """System messages behind results are no reason for another draw."""
    own = loops()
    calls = [{"type": "function_call", "call_id": one, "name": "tide", "arguments": "{}"} for one in IDS]
    outputs = [{"type": "function_call_output", "call_id": one, "output": "noon"} for one in IDS]
    first = own.post("/v1/responses", json=body()).json()["id"]
    pairs = [item for pair in zip(calls, outputs, strict=True) for item in pair]
    reminder = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Go on."}]}
    key = own.post("/v1/responses", json=body(*pairs, reminder)).json()["id"]
    assert turn(loops.router, key) == (first, 2)


def session(name):
    return {"x-ragbandit-session-id": name}


def body(*items):
    tools = [{"type": "function", "name": "tide", "parameters": {"type": "object", "properties": {}}}]
    return {"model": "auto", "tools": tools, "input": [*question(), *items]}
