"""`ragbandit mcp`: an agent starts it, speaks to it on its pipes, and has the tools of a running service."""

import asyncio
import sys
from pathlib import Path

from mcp import Client, MCPError, StdioServerParameters

from tests.support.servers.http_service import QUESTION

ROOT = Path(__file__).parents[3]


def test_an_agent_has_the_tools_of_the_service(serve):
    """Tools, results, progress and refusals are those of /mcp; the service may end and start while the agent lives."""
    service = serve()
    environ = {"PYTHONPATH": str(ROOT), "RAGBANDIT_URL": service.url}
    started = StdioServerParameters(command=sys.executable, args=["-m", "ragbandit", "mcp"], env=environ)
    news = []

    async def progress(*step):
        news.append(step)

    async def work():
        async with Client(started) as client:
            assert (client.server_info.name, "feedback" in client.instructions) == ("ragbandit", True)
            tools = (await client.list_tools()).tools
            routed = await client.call_tool("route", {"question": QUESTION})
            refused = await client.call_tool("route", {"question": ""})
            asked = {"question": QUESTION, "wait_s": 0}
            pending = await client.call_tool("answer", asked, progress_callback=progress)
            kept = service.router.decision(routed.structured_content["decision_id"])
            service.close()
            away = await client.call_tool("route", {"question": QUESTION})
            try:
                await client.list_tools(cache_mode="bypass")
            except MCPError as error:
                return tools, kept, refused, pending, away, error
            raise AssertionError("tools of a service that has ended")

    tools, kept, refused, pending, away, error = asyncio.run(work())
    assert len(tools) == 5
    assert kept.decision.query.sent.surface == "mcp"
    assert (refused.is_error, refused.structured_content["error"]["field"]) == (True, "question")
    assert pending.structured_content["status"] == "pending"
    assert news == [(1.0, None, f"the arm {pending.structured_content['arm']} was chosen")]
    assert away.is_error
    for text in (away.content[0].text, str(error)):
        assert text.startswith(f"no service answered at {service.url}/mcp: ")
