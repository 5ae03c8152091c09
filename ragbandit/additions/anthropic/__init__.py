"""Anthropic's Messages: its door `/v1/messages`, its dialect, and models behind it as a generator.

The door also reads headers that only Anthropic's clients send, for example the version of the interface.
"""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    doors={"anthropic": "endpoints:DOOR"},
    surfaces={"anthropic": "/v1/messages"},
    dialects={"messages": "dialect:DIALECT"},
    generators={"anthropic": "generator:AnthropicKind"},
    sections={"generator": "settings:AnthropicSection"},
    pages=("anthropic.md",),
)
