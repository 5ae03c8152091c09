"""Responses: OpenAI's newer interface, `/v1/responses`, also as bodies at the door of chat completions."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(doors={"responses": "endpoints:DOOR"}, surfaces={"responses": "/v1/responses"})
