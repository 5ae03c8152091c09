"""Keys of MCP's callers: a tool does what the key's own HTTP call does, and no more."""

import asyncio

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.servers.http_service import QUESTION


def results(world, key, *calls):
    """The result of each (tool, arguments), called in turn with this key."""

    async def run():
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {key}"}) as http:
            transport = streamable_http_client(f"{world.service.url}/mcp", http_client=http)
            async with Client(transport, mode="2026-07-28") as client:
                await client.list_tools()
                return [await client.call_tool(tool, arguments) for tool, arguments in calls]

    return asyncio.run(run())


def errors(found):
    return [each.structured_content["error"]["code"] if each.is_error else None for each in found]


ROUTE = ("route", {"question": QUESTION})


@pytest.mark.parametrize("header", [None, "Bearer rb_0000000000_" + "x" * 43], ids=["none", "wrong"])
def test_without_a_key_nothing_is_told(keyed, header):
    """Neither the tools nor a call: 401, with the header that clients look for, and our words as JSON-RPC's error."""
    world = keyed()
    sent = {"accept": "application/json, text/event-stream"} | ({"authorization": header} if header else {})
    reply = world.service.http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=sent)
    assert (reply.status_code, reply.headers["www-authenticate"]) == (401, 'Bearer realm="ragbandit"')
    assert reply.json()["error"]["data"]["code"] == "UNAUTHORIZED"
    if header:
        with pytest.raises(ExceptionGroup, match="unhandled") as caught:
            results(world, header.removeprefix("Bearer "), ROUTE)
        assert "not valid" in repr(caught.value.exceptions)


def test_a_role_has_the_tools_of_its_endpoints(keyed):
    """Every role sees the tools; what its HTTP calls may not do, its tools may not."""
    world = keyed()
    (routed,) = results(world, world.key("app").text, ROUTE)
    key = {"decision_id": routed.structured_content["decision_id"]}
    calls = [ROUTE, ("answer", ROUTE[1]), ("report_outcome", key | {"steps": 1})]
    calls += [("feedback", key | {"rating": True}), ("explain", key)]
    no = "FORBIDDEN"
    may = {
        "app": [None, None, None, None, None],
        "rater": [no, no, no, None, None],
        "worker": [no, no, None, no, None],
        "reader": [no, no, no, no, None],
        "operator": [no, no, no, no, None],
    }
    calls[1] = ("answer", ROUTE[1] | {"wait_s": 0})
    calls[2] = ("report_outcome", key | {"steps": 1, "answer": "x"})
    calls[3] = ("feedback", key | {"rating": True, "feedback_id": "f1"})
    for role, expected in may.items():
        assert errors(results(world, world.key(role).text, *calls)) == expected, role


def test_results_have_limits_and_errors_their_code(keyed):
    """A result of a tool has the limits of its session, and a refusal has them too, with their code."""
    world = keyed(conversation={"session_limit": {"turns": 1}})
    call = ("route", {"question": QUESTION, "session_id": "s"})
    found = results(world, world.key("app").text, call, call)
    assert errors(found) == [None, "LIMIT_REACHED"]
    left = {"of": "session", "unit": "turns", "limit": 1.0, "remaining": 1.0}
    assert [one.structured_content["limits"] for one in found] == [[left], [left | {"remaining": 0.0}]]
