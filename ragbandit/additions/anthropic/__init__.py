"""Anthropic's Messages: its door `/v1/messages`, its dialect, and models behind it as a generator."""

from ragbandit.shared.additions import Addition

ADDITION = Addition(
    doors={"anthropic": "endpoints:DOOR"},
    dialects={"messages": "dialect:DIALECT"},
    generators={"anthropic": "generator:AnthropicKind"},
    sections={"generator": "settings:AnthropicSection"},
)
