"""Clients of MCP as they come from the index: the official SDK's, in both of its ways to connect, and fastmcp's."""

import asyncio
import importlib.util
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KINDS = ["fastmcp"] if importlib.util.find_spec("fastmcp") is not None else ["auto", "legacy"]
QUESTION = {"question": "What is the capital of France?"}


async def connected(stack, service, kind):
    if kind == "fastmcp":
        import fastmcp

        return await stack.enter_async_context(fastmcp.Client(f"{service.url}/mcp", auth=service.key))
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"authorization": f"Bearer {service.key}"}
    http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
    transport = streamable_http_client(f"{service.url}/mcp", http_client=http)
    return await stack.enter_async_context(Client(transport, mode=kind))


def with_client(service, kind, work):
    async def run():
        async with AsyncExitStack() as stack:
            return await work(await connected(stack, service, kind))

    return asyncio.run(run())


def structured(result):
    return result.structured_content


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_asks_judges_and_is_told_why(service, kind):
    """Tools are listed; an answer has its sources, progress while it is made, feedback and an explanation."""
    news = []

    async def progress(number, _total, text):
        news.append((number, text))

    async def work(client):
        listed = await client.list_tools()
        names = [tool.name for tool in getattr(listed, "tools", listed)]
        options = {"progress_handler" if kind == "fastmcp" else "progress_callback": progress}
        answered = structured(await client.call_tool("answer", QUESTION | {"wait_s": 30}, **options))
        key = {"decision_id": answered["decision_id"]}
        receipt = structured(await client.call_tool("feedback", key | {"label": [service.answer], "source": "code"}))
        explained = structured(await client.call_tool("explain", key))
        return names, answered, receipt, explained

    names, answered, receipt, explained = with_client(service, kind, work)
    assert names == ["answer", "route", "report_outcome", "feedback", "explain"]
    assert (answered["status"], answered["answer"]) == ("answered", service.answer)
    assert news[0] == (1.0, f"the arm {answered['arm']} was chosen")
    assert (receipt["duplicate"], explained["decision_id"]) == (False, answered["decision_id"])
    assert service.decision(answered["decision_id"])["request"]["surface"] == "mcp"


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_runs_the_arm_itself(service, kind):
    """Route and report_outcome; what is refused is a result, or the client's own error, in our words."""

    async def work(client):
        routed = structured(await client.call_tool("route", QUESTION | {"arms": ["fast", "deep"]}))
        report = {"decision_id": routed["decision_id"], "answer": "Paris", "steps": 1, "cost": {"seconds_total": 0.1}}
        stored = structured(await client.call_tool("report_outcome", report))
        more = {"raise_on_error": False} if kind == "fastmcp" else {}
        return routed, stored, await client.call_tool("route", {"question": ""}, **more)

    routed, stored, refused = with_client(service, kind, work)
    assert routed["arm"] in ("fast", "deep")
    assert stored["duplicate"] is False
    assert refused.is_error
    assert '"question" is empty' in refused.content[0].text


@pytest.mark.skipif(KINDS == ["fastmcp"], reason="the page shows the SDK")
def test_the_page(capsys, service):
    """The Python of docs/mcp.md prints the answer."""
    page = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    exec(compile(code, "docs/mcp.md", "exec"), {})
    assert capsys.readouterr().out.strip() == service.answer
