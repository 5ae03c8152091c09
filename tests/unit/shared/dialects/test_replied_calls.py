"""Calls of tools in the replies of model servers, in every form that servers number, name and cut them."""

import json

import pytest

from ragbandit.shared.dialects.chat.replies import ModelReply
from tests.unit.shared.dialects.replies import calls_of, chunk, piece, read, whole

NAMED = {"name": "f", "id": "a"}
FIRST = {"index": 0, **NAMED}


def halves(**more):
    """The arguments of a call in three pieces."""
    return [piece(half, **more) for half in ("{", '"a": ', "1}")]


BEGINNINGS = {
    "as openai": [piece("", **FIRST), *halves(index=0)],
    "no index": [piece("", **NAMED), *halves()],
    "index from one": [piece("", index=1, **NAMED), *halves(index=1)],
    "empty names later": [piece("", **FIRST), *halves(name="", index=0, id="")],
    "id and name again": halves(**FIRST),
    "a new id each time": [piece("", **FIRST), *(piece(half, index=0, id=f"b{half}") for half in ("{", '"a": ', "1}"))],
    "an index later": [piece("", **NAMED), *halves(index=0)],
    "another index later": [piece("", index=1, **NAMED), *halves(index=0)],
    "repeated at the end": [piece("", **FIRST), *halves(index=0), piece('{"a": 1}', **FIRST)],
    "repeated without a name": [piece('{"a": 1}', **FIRST), piece('{"a": 1}', index=0)],
    "nothing, then an object": [piece({}, **FIRST), piece('{"a": 1}', index=0)],
    "braces first": [piece("{}", **FIRST), piece('{"a": 1}', index=0), piece("{}", index=0)],
    "null first": [piece("null", **FIRST), piece(" ", index=0), piece('{"a": 1}', index=0)],
    "parameters": [chunk({"tool_calls": [{"id": "a", "function": {"name": "f", "parameters": {"a": 1}}}]})],
    "input": [chunk({"tool_calls": [{"id": "a", "name": "f", "input": {"a": 1}}]})],
    "an object": [piece({"a": 1}, index=None, **NAMED)],
    "not in function": [chunk({"tool_calls": {"id": "a", "name": "f", "arguments": {"a": 1}}})],
    "null entries": [chunk({"tool_calls": [None, {}, 3]}), piece('{"a": 1}', index="0", **NAMED)],
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_call_in_pieces_is_one_call(name):
    """However a server numbers and names the pieces of a call, they are one call at the place 0, followed by others."""
    reply = read(*BEGINNINGS[name], chunk(finish="stop"))
    (call,) = calls_of(reply)
    assert call[:3] == ("a", "function", "f")
    assert json.loads(call[3]) == {"a": 1}
    assert reply.finish == "tool_calls"


def both(entry):
    """Two calls in one message: what `entry` gives for each id."""
    return {"tool_calls": [entry(each) for each in "ab"]}


SECOND = {"name": "f", "id": "b"}
PAIRS = {
    "index": [piece("{}", **FIRST), piece("{}", index=1, **SECOND)],
    "no index": [piece("{}", **NAMED), piece("{}", **SECOND)],
    "one index": [piece("{", **FIRST), piece("}", index=0), piece("{}", index=0, **SECOND)],
    "one index, no arguments": [piece(None, **FIRST), piece(None, index=0, **SECOND)],
    "mixed": [piece("{", index=3, **NAMED), piece("{", index=1, **SECOND), piece("}", index=3), piece("}", index=1)],
    "whole": [whole(both(lambda each: {"id": each, "index": 0, "function": {"name": "f", "arguments": "{}"}}))],
    "an index later": [
        chunk(both(lambda each: {"id": each, "function": {"name": "f"}})),
        *(piece("{}", index=index) for index in (0, 1)),
    ],
    "null": [piece("null", **FIRST), piece(" ", index=1, **SECOND)],
    "no index in one chunk": [
        chunk(both(lambda each: {"id": each, "function": {"name": "f", "arguments": "{"}})),
        chunk(both(lambda _: {"function": {"arguments": "}"}})),
    ],
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_calls_are_two(name):
    """Another id is another call, whatever the index says; pieces may come in turn."""
    reply = read(*PAIRS[name], chunk(finish="tool_calls"))
    assert calls_of(reply) == [("a", "function", "f", "{}"), ("b", "function", "f", "{}")]


@pytest.mark.parametrize("more", [{"index": 0}, {"index": 0, "id": ""}, {}])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_calls_of_one_tool_without_ids_are_apart(more, size):
    """A name after complete arguments begins another call, in the same chunk and in a later one."""
    entries = [{"function": {"name": "f", "arguments": f'{{"a": {each}}}'}, **more} for each in range(4)]
    reply = read(*(chunk({"tool_calls": entries[at : at + size]}) for at in range(0, 4, size)))
    assert [call[3] for call in calls_of(reply)] == [f'{{"a": {each}}}' for each in range(4)]


def test_arguments_with_an_unknown_index_change_no_complete_call():
    """Arguments without a name, an id and a known index are not added to a call that is complete."""
    reply = read(piece('{"a": 1}', name="f", index=0, id="a"), piece('{"b": 2}', index=1))
    assert [call[3] for call in calls_of(reply)] == ['{"a": 1}', '{"b": 2}']


@pytest.mark.parametrize("ids", [(None, None), ("", ""), ("c", "c"), ({}, [])])
@pytest.mark.parametrize("is_whole", [True, False])
def test_every_call_has_an_id_of_its_own(ids, is_whole):
    """Ids that are missing, empty, repeated or of another type are replaced by ids that no other call has."""
    sent = [{"id": each, "function": {"name": "f", "arguments": '{"b": "\\ud800"}'}} for each in ids]
    values = [whole({"tool_calls": sent})] if is_whole else [chunk({"tool_calls": [each]}) for each in sent]
    if not is_whole and ids == ("c", "c"):
        values = [chunk({"tool_calls": [{"index": at, **each}]}) for at, each in enumerate(sent)]
    first, second = calls_of(read(*values))
    assert first[0] != second[0]
    assert all(isinstance(call[0], str) and call[0] and json.loads(call[3]) for call in (first, second))
    assert read(whole({"tool_calls": [{"id": 7, "function": {"name": "f"}}]})).message.whole["tool_calls"][0] == {
        "id": "7",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    }


def test_calls_of_functions_are_read_by_what_the_caller_sent():
    """A call of the form before tools is a call of a tool, unless the caller uses that form."""
    parts = [chunk({"function_call": {"name": "f", "arguments": "{"}}), chunk({"function_call": {"arguments": "}"}})]
    reply = read(*parts, chunk(finish="function_call"))
    assert [call[1:] for call in calls_of(reply)] == [("function", "f", "{}")]
    assert reply.finish == "tool_calls"
    reply = read(*parts, chunk(finish="function_call"), uses_functions=True)
    assert (reply.message.whole, reply.finish) == ({"function_call": {"name": "f", "arguments": "{}"}}, "function_call")


def test_further_fields_of_a_call_and_calls_of_another_kind_are_kept():
    """A signature that the server wants back, and a call whose input is plain text, go through."""
    call = {"id": "a", "type": "custom", "custom": {"name": "run", "input": "ls"}, "extra": {"sig": "x"}}
    assert read(chunk({"tool_calls": [call]})).message.whole["tool_calls"] == [call]


@pytest.mark.parametrize("rest", [["ther"], ["weather"], ["weat", "weather"]])
@pytest.mark.parametrize("arguments", ["{}", ""])
def test_the_name_of_a_call_in_pieces(rest, arguments):
    """Pieces before the arguments are one name, which clients get whole, also if a server repeats its beginning."""
    reply, deltas = ModelReply(), []
    pieces = [piece("", name=name, index=0) for name in ["wea", *rest]]
    for value in [piece("", name="wea", index=0, id="c1"), *pieces[1:], piece(arguments, index=0), chunk({}, "stop")]:
        reply.take(value)
        deltas += reply.delta.get("tool_calls", [])
    reply.end()
    assert calls_of(reply) == [("c1", "function", "weather", "{}")]
    assert [delta["function"].get("name") for delta in deltas] == ["weather"]
