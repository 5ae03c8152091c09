"""The verb `ragbandit mcp`."""

import asyncio

from ragbandit.router.cli.options import ConfigOption, KeyOption, UrlOption
from ragbandit.router.verbs.calls import client_of
from ragbandit.shared.errors import required_module


def mcp(url: UrlOption = None, key_env: KeyOption = None, config: ConfigOption = None) -> None:
    """Serve the tools of a running service to the agent that starts this command, by MCP on stdin and stdout."""
    required_module("mcp", extra="mcp")
    from ragbandit.additions.mcp.tools import serve_pipes  # this import needs the package

    with client_of(url, config=config, key_env=key_env) as client:
        asyncio.run(serve_pipes(client.connection))
