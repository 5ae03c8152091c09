"""A small real MCP server, over HTTP in a thread or as a program on its pipes; its tools answer as told."""

import asyncio
import os
import socket
import sys
import threading
import time

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, TextContent

RICH = {
    "result": {"text": "Bram Stoker", "tries": 2, "usage": {"usd": 0.02, "out": 7}},
    "documents": [{"text": "Dracula is by Bram Stoker.", "url": "https://books.example/1", "score": 2.5}],
}


def make_server(asked: list[str]) -> MCPServer:
    """asked: gets every question, with what else the tool was given."""
    server = MCPServer("library", log_level="ERROR")

    @server.tool()
    async def ask(question: str, shelf: str = "all") -> CallToolResult:
        """Answer; `die` ends the process, `hang` never answers, `fail` is an error."""
        asked.append(f"{question}|{shelf}")
        if question == "die":
            os._exit(3)
        if question == "hang":
            await asyncio.sleep(60)
        if question == "fail":
            return CallToolResult(
                content=[TextContent(type="text", text=f"no {os.environ.get('LIBRARY_KEY')}")], is_error=True
            )
        return CallToolResult(content=[TextContent(type="text", text=f"{question}: Stoker")], structured_content=RICH)

    @server.tool()
    async def compare(left: str, right: str) -> str:
        """Two texts are required."""
        return left + right

    return server


class HttpServer:
    """Streamable HTTP on a port that stays the same when it is started again."""

    def __init__(self, *, stateless: bool = True) -> None:
        self.asked: list[str] = []
        self.keys: list[str] = []
        self._stateless = stateless
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"

    def __enter__(self) -> "HttpServer":
        app = make_server(self.asked).streamable_http_app(stateless_http=self._stateless)

        async def noted(scope, receive, send):
            self.keys += [value.decode() for name, value in scope.get("headers", ()) if name == b"authorization"]
            await app(scope, receive, send)

        config = uvicorn.Config(noted, host="127.0.0.1", port=self.port, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_error) -> None:
        self._server.should_exit = True
        self._thread.join(20)


if __name__ == "__main__":
    make_server([]).run()
    sys.exit(0)
