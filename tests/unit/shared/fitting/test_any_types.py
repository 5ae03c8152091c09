"""Chats with fields of wrong types are fitted for every kind of server: the server refuses them, not a TypeError."""

import json
from itertools import cycle

from tests.unit.shared.fitting.requests import TOOL, VENDORS, answer, called, chat, fitted_for, result, system, user

VALUES = (True, 1.5, "x", {}, [], None, [5], [None], {"x": 5})
SCHEMA = {"type": "object", "properties": {"a": {"items": {}}}, "required": ["a"], "anyOf": [{"required": ["a"]}]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,AAAA"}}
CUSTOM = {"type": "custom", "custom": {"name": "p", "format": {"type": "grammar", "grammar": {"definition": "s"}}}}
CHAT = chat(
    system([{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]),
    user([{"type": "text", "text": "a"}, IMAGE]),
    {**called("c 1", text="o"), "reasoning_content": "r", "thinking_blocks": [{"type": "thinking", "signature": "s"}]},
    called("c2", text="p"),
    result("c 1", [{"type": "text", "text": "r"}, IMAGE]),
    result("c2"),
    system("later"),
    user([{"type": "text", "text": "b"}]),
    user(),
    {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": "{}"}},
    {"role": "function", "name": "weather", "content": "x"},
    answer("end "),
    tools=[{"type": "function", "function": {**TOOL["function"], "strict": True, "parameters": SCHEMA}}, CUSTOM],
    functions=[{"name": "weather", "parameters": SCHEMA}],
    tool_choice={"type": "custom", "custom": {"name": "p"}, "function": {"name": "weather"}},
    response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    reasoning_effort="low",
    reasoning={"effort": "high"},
    output_config={"effort": "max"},
    thinking={"type": "enabled", "budget_tokens": 2000},
    stop=["a"],
    max_tokens=5,
    temperature=0.5,
)


def places(value, path=()):
    """The paths of all values in a chat, except of its messages, which the interface checks."""
    if path not in ((), ("messages",)) and not (path[0] == "messages" and len(path) == 2):
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def having(value, path, new):
    """The value with another value at this path."""
    if not path:
        return new
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[path[0]] = having(value[path[0]], path[1:], new)
    return changed


def test_a_field_of_any_type_is_fitted():
    """A request with a number at any place is fitted for every kind of server, and with other values for one kind."""
    vendors = cycle(VENDORS)
    for path in places(CHAT):
        for vendor in VENDORS:
            json.dumps(fitted_for(vendor, having(CHAT, path, 5))[0])
        for value in VALUES:
            json.dumps(fitted_for(next(vendors), having(CHAT, path, value))[0])
