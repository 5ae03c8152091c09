"""Histories of any order: each vendor's strict server takes the fitted history, and no field raises an error."""

import json

from hypothesis import given, settings, strategies as st

from ragbandit.shared.model_servers.fitting.chats import fit_chat
from ragbandit.shared.model_servers.fitting.kinds import TABLE, server_features
from ragbandit.testing.strict_servers import refusal
from tests.unit.shared.fitting.requests import TOOL, VENDORS, answer, called, fitted_for, result, system, user

IDS = st.sampled_from(["functions.weather:0", "call_Zb3kQ81xYc0", "abcdefgh1", "toolu_01", "x" * 60, None])
TEXT = st.sampled_from(["Hi", "And now? ", " ", "\n", "Go on."])
PARTS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXT), min_size=1, max_size=2)
CONTENT = TEXT | PARTS
MESSAGES = st.lists(
    st.one_of(
        st.builds(user, CONTENT),
        st.builds(answer, CONTENT),
        st.builds(system, CONTENT, st.sampled_from(["system", "developer"])),
        st.builds(lambda ids, text: called(*ids, text=text), st.lists(IDS, min_size=1, max_size=3), TEXT | st.none()),
        st.builds(result, IDS, CONTENT),
    ),
    min_size=1,
    max_size=8,
)


def unlike(messages):
    """The history without ids that stand twice in one message, which no client sends."""
    return [
        message | {"tool_calls": list({call["id"] or number: call for number, call in enumerate(calls)}.values())}
        if (calls := message.get("tool_calls"))
        else message
        for message in messages
    ]


@given(MESSAGES.map(unlike))
@settings(max_examples=100, deadline=None)
def test_every_vendor_takes_a_history_of_any_order(messages):
    """Roles, calls and results in any order, with blank texts and ids of other vendors, become a regular request."""
    body = {"messages": messages, "tools": [TOOL]}
    for vendor in VENDORS:
        sent, _ = fitted_for(vendor, body)
        assert refusal(vendor, sent) is None, (vendor, sent)


KEYS = ("type", "text", "id", "name", "function", "custom", "arguments", "image_url", "url", "cache_control", "source")
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JUNK = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(KEYS), v, max_size=4), max_leaves=8
)
NAMES = (
    "tools",
    "tool_choice",
    "response_format",
    "output_config",
    "system",
    "temperature",
    "reasoning_effort",
    "seed",
)
ROLES = st.sampled_from(["user", "assistant", "tool", "system", "developer", "function"])
BLOCK = st.builds(
    lambda kind, junk: dict.fromkeys(KEYS, junk) | {"type": kind},
    st.sampled_from(["text", "image", "image_url", "tool_use", "tool_result"]),
    JUNK,
)
MESSAGE = st.fixed_dictionaries(
    {"role": ROLES | JUNK},
    optional={"content": st.lists(BLOCK | JUNK, max_size=3) | JUNK, "tool_calls": JUNK, "tool_call_id": JUNK},
)


@given(st.lists(MESSAGE, min_size=1, max_size=3), st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=4))
@settings(max_examples=100, deadline=None)
def test_fields_of_any_type_are_fitted(messages, more):
    """No field of a request raises an error, whatever its type."""
    body = {"messages": messages, **more}
    for kind in TABLE:
        json.dumps(fit_chat(body, server=server_features(kind, model="o3"))[0])
