"""MCP: the endpoints of the service as tools for agents, by the official SDK."""
