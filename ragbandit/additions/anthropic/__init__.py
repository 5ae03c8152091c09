"""Anthropic's Messages: its door `/v1/messages`, its dialect, and models behind it as a generator.

It reads headers that its dialect alone has, as the version of the interface.
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
