"""Responses: OpenAI's newer interface, `/v1/responses`, also as bodies at the door of chat completions.

The door also reads the headers with which a client requests a WebSocket.
"""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    doors={"responses": "endpoints:DOOR"}, surfaces={"responses": "/v1/responses"}, pages=("responses.md",)
)
