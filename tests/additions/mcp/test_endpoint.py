"""POST /mcp by the SDK's own client: tools of a real service, in every protocol version that the SDK speaks."""

import asyncio
import json

import httpx2
import pytest
from jsonschema import Draft202012Validator
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from ragbandit.additions.mcp.endpoints import DOOR
from ragbandit.testing.doors import check_door
from tests.support.cases import every_case
from tests.support.servers.http_service import QUESTION, worker_answers

#: a handshake with the service, and none
MODES = ["legacy", "auto"]
TOOLS = ["answer", "route", "report_outcome", "feedback", "explain"]
HEADERS = {"accept": "application/json, text/event-stream"}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


def with_client(service, work, *, mode="auto"):
    """What `work`, a coroutine function of a client, returns."""

    async def run():
        async with Client(f"{service.url}/mcp", mode=mode) as client:
            return await work(client)

    return asyncio.run(run())


def test_every_tool_is_described(service):
    """Each has schemas that any model's interface reads, and says whether it changes anything."""
    tools = with_client(service, lambda client: client.list_tools()).tools
    assert [tool.name for tool in tools] == TOOLS
    for tool in tools:
        Draft202012Validator.check_schema(tool.input_schema)
        Draft202012Validator.check_schema(tool.output_schema)
        assert set(tool.input_schema) == {"type", "properties", "required", "additionalProperties"}
        assert "$ref" not in json.dumps([tool.input_schema, tool.output_schema])
        assert all(field["description"] for field in tool.input_schema["properties"].values()), tool.name
        assert len(tool.description) > 80
        assert tool.annotations.read_only_hint == (tool.name == "explain")
    assert set(service.router.service.arms) == set(
        tools[0].input_schema["properties"]["arms"]["anyOf"][0]["items"]["enum"]
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_question_from_its_arm_to_its_explanation(service, mode):
    """An agent routes, reports, judges and asks why: one decision, as over HTTP, which says by which door it came."""

    async def work(client):
        decision = (await client.call_tool("route", {"question": QUESTION})).structured_content
        key = {"decision_id": decision["decision_id"]}
        outcome = await client.call_tool("report_outcome", key | {"answer": "Bram Stoker", "steps": 2})
        receipt = await client.call_tool("feedback", key | {"label": ["Bram Stoker"], "source": "code"})
        again = await client.call_tool("report_outcome", key | {"answer": "Bram Stoker", "steps": 2})
        assert outcome.structured_content == key | {"duplicate": False}
        assert again.structured_content == key | {"duplicate": True}
        assert receipt.structured_content["waiting_for"] is None
        explained = await client.call_tool("explain", key)
        assert json.loads(explained.content[0].text) == explained.structured_content
        return decision, explained.structured_content

    decision, explained = with_client(service, work, mode=mode)
    stored = service.http.get(f"/v1/decisions/{decision['decision_id']}").json()
    assert stored["request"]["surface"] == "mcp"
    assert (stored["arm"], stored["pmf"], stored["outcome"]["answer"]) == (
        decision["arm"],
        decision["pmf"],
        "Bram Stoker",
    )
    assert explained["decision_id"] == decision["decision_id"]
    assert service.router.status().counters.decided == 1


def test_an_answer_with_news_of_its_arm(service):
    """A client that asks for progress gets the arm first; the answer equals that of /v1/answer, pending included."""
    news, asked = [], {"question": QUESTION, "decision_id": "mcp-17"}

    async def progress(number, total, text):
        news.append((number, total, text))
        worker_answers(service, asked["decision_id"], "Bram Stoker")

    async def work(client):
        pending = await client.call_tool("answer", {"question": QUESTION, "wait_s": 0})
        answered = await client.call_tool("answer", asked | {"wait_s": 20}, progress_callback=progress)
        return pending.structured_content, answered.structured_content

    pending, answered = with_client(service, work)
    assert (pending["status"], pending["answer"]) == ("pending", None)
    assert (answered["status"], answered["answer"]) == ("answered", "Bram Stoker")
    assert news == [(1.0, None, f"the arm {answered['arm']} was chosen")]


def test_a_preview_fits_the_tools_schema(service):
    """The SDK's client, which checks results against the schemas of the tools, accepts the preview of a question."""

    async def run():
        async with (
            httpx2.AsyncClient(headers={"x-ragbandit-preview": "true"}) as http,
            Client(streamable_http_client(f"{service.url}/mcp", http_client=http)) as client,
        ):
            await client.list_tools()
            return [await client.call_tool(tool, {"question": QUESTION}) for tool in ("route", "answer")]

    for result in asyncio.run(run()):
        assert {entry["arm"] for entry in result.structured_content["arms"]} == set(service.router.service.arms)
    assert service.router.status().counters.decided == 0


def test_a_refusal_is_a_result_that_an_agent_reads(service):
    """What an endpoint refuses is the tool's result, with code, field and remedy; only an unknown tool is none."""
    bad = [
        ("route", {}, "INVALID_INPUT", "question"),
        ("answer", {"question": " "}, "INVALID_INPUT", "question"),
        ("answer", {"question": QUESTION, "wait_s": 601}, "INVALID_INPUT", "wait_s"),
        ("answer", {"question": QUESTION, "stream": True}, "INVALID_INPUT", "stream"),
        ("feedback", {"decision_id": "nobody", "rating": True}, "NOT_FOUND", "decision_id"),
        ("report_outcome", {"decision_id": "nobody", "stepz": 1}, "INVALID_INPUT", "stepz"),
        ("explain", {"decision_id": "../status"}, "NOT_FOUND", None),
        ("explain", {}, "INVALID_INPUT", "decision_id"),
    ]

    async def work(client):
        for tool, arguments, code, field in bad:
            with cases(tool, arguments):
                result = await client.call_tool(tool, arguments)
                error = result.structured_content["error"]
                assert (result.is_error, error["code"], error["field"]) == (True, code, field), error
                assert error["message"] in result.content[0].text
                assert error["remedy"] in result.content[0].text
        with pytest.raises(MCPError, match="did you mean answer"):
            await client.call_tool("anser", {})

    with every_case() as cases:
        with_client(service, work)
    assert service.router.status().counters.decided == 0


def test_what_is_no_message_is_refused_as_json_rpc(serve):
    """Another method, a body that is too large, a page of another site and a foreign name have an error of JSON-RPC."""
    service = serve(server={"max_body_bytes": 2048})
    post = service.http.post
    evil = {"origin": "https://evil.example"}
    replies = {
        405: service.http.get("/mcp", headers=HEADERS),
        413: post("/mcp", content=iter([b"{" * 3000]), headers=HEADERS | {"content-type": "application/json"}),
        403: post("/mcp", json=LIST, headers=HEADERS | evil),
    }
    for status, reply in replies.items():
        assert reply.status_code == status, reply.text
        body = reply.json()
        assert (body["jsonrpc"], body["id"]) == ("2.0", None)
        assert body["error"]["data"]["remedy"] in body["error"]["message"]
    assert post("/mcp", json=LIST, headers=HEADERS | {"host": "evil.example"}).status_code == 403
    assert post("/mcp", json=LIST, headers=HEADERS).status_code == 200


def test_the_door_follows_the_contract():
    """Damaged messages, wrong keys and bodies that are not declared as JSON are refused as JSON-RPC."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    check_door(DOOR, bodies={"POST /mcp": call | {"params": {"name": "route", "arguments": {"question": QUESTION}}}})
