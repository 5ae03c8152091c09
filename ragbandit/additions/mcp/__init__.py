"""MCP: the endpoints of the service as tools for agents, at /mcp and by `ragbandit mcp` on pipes."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(doors={"mcp": "endpoints:DOOR"}, verbs={"Run: mcp": "verb:mcp"}, pages=("mcp.md",))
