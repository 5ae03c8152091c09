"""Requests for Anthropic's Messages: what its server refuses is made right, the rest stays, and answers fit back."""

import base64
import copy
import json
import time

import pytest
from hypothesis import given, settings, strategies as st

from ragbandit.additions.anthropic.fitting.messages import fit_before_messages, fit_messages
from ragbandit.additions.anthropic.messages.requests import chat_of, messages_of
from ragbandit.additions.anthropic.strict_server import messages_refusal
from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.shared.model_servers.fitting.kinds import server_features
from ragbandit.testing.strict_servers import refusal
from tests.unit.shared.fitting.requests import TOOL, VENDORS, answer, called, chat, fitted_for, result, system, user
from tests.unit.shared.fitting.test_answers import GRAMMAR
from tests.unit.shared.fitting.test_any_types import CHAT, VALUES, having, places
from tests.unit.shared.fitting.test_histories import JUNK, MESSAGE, MESSAGES, NAMES, PARTS, TEXT, unlike
from tests.unit.shared.fitting.test_rules import KIMI, SILENT, SITUATIONS, TEXTS
from tests.unit.shared.fitting.test_worst_shapes import LIMIT_S, SHAPES

JPEG = base64.b64encode(b"\xff\xd8\xff\xe0 an image").decode()
#: situations that Anthropic's server refuses as they are
REFUSED = (
    "only system messages",
    "beginning with the assistant",
    "ids of Kimi",
    "ids used again",
    "results in two turns",
    "a user between call and result",
    "a call without a result",
    "a result without a call",
    "a name with dots",
    "required is null",
    "a choice at the top",
    "limits in a schema",
    "a blank text",
    "a blank part",
    "a blank system",
    "a blank question",
    "a beginning with a blank",
    "image/jpg",
    "a wrong type of an image",
    "a name twice",
)


def fitted(body, *, model="claude", changes=None):
    """A request for Messages as it is sent to Anthropic's server."""
    changes = RequestChanges() if changes is None else changes
    return fit_messages(body, model=model, server=server_features("anthropic", model=model), changes=changes)


def fitted_chat(body, *, model="claude-sonnet"):
    """Returns (the request for Messages that Anthropic's server gets for a chat, what was changed)."""
    before = copy.deepcopy(body)
    whole, changes = fit_before_messages(body, server=server_features("anthropic", model=model))
    sent = fitted(messages_of(whole, max_tokens=9), model=model, changes=changes)
    assert body == before, "the given body was changed"
    return sent, changes


@pytest.mark.parametrize("name", SITUATIONS)
def test_anthropic_takes_it(name):
    """What Anthropic's strict server refuses is made right for it, and it refuses no other request either."""
    body, _ = SITUATIONS[name]
    if name in REFUSED:
        assert messages_refusal(messages_of(body, max_tokens=9)) is not None, "it takes it as it is"
    sent, changes = fitted_chat(body)
    json.dumps(sent)
    assert messages_refusal(sent) is None
    assert changes.changed or name not in REFUSED or name in SILENT


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_is_lost(name):
    """Texts and limits that move are still in the request."""
    assert TEXTS[name] in json.dumps(fitted_chat(SITUATIONS[name][0])[0])


def test_a_regular_request_stays_as_it_is():
    """No rule changes a regular request."""
    body = chat(system(), user(), called("abcdefgh1"), result("abcdefgh1"), answer("Cold."), user(), temperature=0.5)
    _, changes = fitted_chat(body)
    assert (changes.changed, changes.names, changes.ids) == (set(), {}, {})


def test_ids_are_stable_and_kept_apart():
    """An id is mapped to the same one in each turn; results stay with their calls; the map leads back."""
    first = chat(user(), called(KIMI, "x:y"), result(KIMI), result("x:y"))
    more = chat(*first["messages"], answer(), user(), called(KIMI), result(KIMI, "warm"))
    ids = [list(fitted_chat(body)[1].ids) for body in (first, more)]
    assert ids[1][:2] == ids[0]
    assert len(set(ids[0])) == 2
    assert set(fitted_chat(more)[1].ids.values()) == {KIMI, "x:y"}


def test_calls_of_free_text_in_the_history():
    """Earlier calls of free text become calls of a function with a text."""
    tool = {"type": "custom", "custom": {"name": "p", "format": GRAMMAR}}
    asked = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "custom", "custom": {}}]}
    asked["tool_calls"][0]["custom"] = {"name": "p", "input": "*** Begin"}
    blocks = fitted_chat(chat(user(), asked, result("c1", "done"), tools=[tool]))[0]["messages"][1]["content"]
    assert blocks == [{"type": "tool_use", "id": "c1", "name": "p", "input": {"input": "*** Begin"}}]


def test_a_request_of_messages_is_made_right_too():
    """A request in the form of Messages goes to Anthropic with other ids, order, blank texts and types of images."""
    use = {"type": "tool_use", "id": KIMI, "name": "weather", "input": {}}
    reply = {"type": "tool_result", "tool_use_id": KIMI, "content": [{"type": "text", "text": " "}]}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/jpg", "data": JPEG}}
    other = {"type": "tool_use", "id": "b.1", "name": "weather", "input": {}}
    body = {
        "system": [{"type": "text", "text": "\n"}],
        "max_tokens": 9,
        "tools": [{"name": "weather", "input_schema": {"type": "object", "required": None}}],
        "messages": [
            {"role": "user", "content": [picture, {"type": "text", "text": " "}]},
            {"role": "assistant", "content": [{"type": "text", "text": "\n"}, use]},
            {"role": "assistant", "content": [other]},
            {"role": "user", "content": [{"type": "text", "text": "Well?"}, reply]},
            {"role": "system", "content": "Go on."},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b.1", "content": "warm"}]},
            {"role": "assistant", "content": "It is "},
        ],
    }
    assert messages_refusal(body)
    changes = RequestChanges()
    sent = fitted(body, changes=changes)
    assert messages_refusal(sent) is None
    assert {"tool_calls.id", "messages.order", "messages.content", "system", "tools.input_schema"} <= changes.changed
    assert [message["role"] for message in sent["messages"]][-2:] == ["system", "assistant"]


def test_parameters_of_anthropic():
    """Thinking has no temperature, and new models get only one of two parameters of sampling."""
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [user()], "temperature": 0.2, "top_p": 0.9}
    for more, model, left in (
        ({}, "claude-sonnet-4-5", {"temperature"}),
        ({}, "claude-3-5-haiku-latest", {"temperature", "top_p"}),
        ({"thinking": {"type": "adaptive"}, "top_k": 3}, "claude-sonnet-4-5", {"top_p"}),
    ):
        sent = fitted(body | more, model=model)
        assert sent.keys() & {"temperature", "top_p", "top_k"} == left
        assert messages_refusal(sent | {"model": model}) is None


def test_marks_of_caches_reach_anthropic():
    """Marks of tools and of whole messages, in OpenAI's form, stand at the blocks of Messages."""
    mark = {"type": "ephemeral"}
    tool = chat()["tools"][0]
    body = chat(
        {"role": "system", "content": "Be brief.", "cache_control": mark},
        user(),
        called("c1"),
        result("c1") | {"cache_control": mark},
        tools=[tool | {"cache_control": mark}],
    )
    sent, _ = fitted_chat(body)
    assert (sent["tools"][0]["cache_control"], sent["system"][0]["cache_control"]) == (mark, mark)
    assert sent["messages"][-1]["content"][0]["cache_control"] == mark


@given(MESSAGES.map(unlike))
@settings(max_examples=100, deadline=None)
def test_a_chat_of_any_order_is_taken(messages):
    """Roles, calls and results in any order, with blank texts and ids of other vendors, become a regular request."""
    sent, _ = fitted_chat({"messages": messages, "tools": [TOOL]})
    assert messages_refusal(sent) is None, sent


KEYS_OF_CALLS = st.sampled_from(["functions.weather:0", "toolu_01", "abcdefgh1", "x" * 60])
BLOCKS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXT),
    st.builds(lambda key: {"type": "tool_result", "tool_use_id": key, "content": "cold"}, KEYS_OF_CALLS),
    st.builds(lambda key, text: {"type": "tool_result", "tool_use_id": key, "content": text}, KEYS_OF_CALLS, PARTS),
)
ANSWERS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXT),
    st.builds(lambda key: {"type": "tool_use", "id": key, "name": "weather", "input": {}}, KEYS_OF_CALLS),
)
TURNS = st.lists(
    st.one_of(
        st.builds(user, TEXT | st.lists(BLOCKS, min_size=1, max_size=4)),
        st.builds(answer, TEXT | st.lists(ANSWERS, min_size=1, max_size=3)),
        st.builds(system, TEXT),
    ),
    min_size=1,
    max_size=7,
)


def single(messages):
    """The history without a block that stands twice in one message."""

    def kept(content):
        if not isinstance(content, list):
            return content
        keys = [block.get("id") or block.get("tool_use_id") or number for number, block in enumerate(content)]
        return list(dict(zip(keys, content, strict=True)).values())

    return [message | {"content": kept(message["content"])} for message in messages]


@given(TURNS.map(single))
@settings(max_examples=100, deadline=None)
def test_every_vendor_takes_messages_of_any_order(messages):
    """A history in the form of Messages, in any order, becomes a regular request, also as a chat for other vendors."""
    tool = {"name": "weather", "input_schema": {"type": "object"}}
    body = {"max_tokens": 9, "messages": messages, "tools": [tool]}
    sent = fitted(body)
    assert messages_refusal(sent) is None, sent
    for vendor in VENDORS:
        sent, _ = fitted_for(vendor, chat_of(body)[0])
        assert refusal(vendor, sent) is None, (vendor, sent)


@given(st.lists(MESSAGE, min_size=1, max_size=3), st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=4))
@settings(max_examples=100, deadline=None)
def test_fields_of_any_type_are_fitted(messages, more):
    """No field of a request in either form raises an error, whatever its type."""
    body = {"messages": messages, **more}
    json.dumps(fitted(body))
    json.dumps(fitted_chat(body)[0])


def test_a_field_of_any_type_is_fitted():
    """A chat with a number at any place is fitted, and with values of other types."""
    for number, path in enumerate(places(CHAT)):
        for value in (5, VALUES[number % len(VALUES)]):
            json.dumps(fitted_chat(having(CHAT, path, value))[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_worst_shape_takes_linear_time(shape):
    """No shape of the largest body makes the rules quadratic."""
    sent = SHAPES[shape]
    messages, tools = sent if isinstance(sent, tuple) else (sent, [])
    began = time.process_time()
    fitted({"messages": messages, "tools": tools})
    assert time.process_time() - began < LIMIT_S
