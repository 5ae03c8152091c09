"""MCP: the endpoints of the service as tools for agents, at /mcp and by `ragbandit mcp` on pipes.

The door copies the headers of an agent's request to the requests of its tools, so that the edge reads them there.
"""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    doors={"mcp": "endpoints:DOOR"}, surfaces={"mcp": ""}, verbs={"Run: mcp": "verb:mcp"}, pages=("mcp.md",)
)
