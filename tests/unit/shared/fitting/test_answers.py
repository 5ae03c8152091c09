"""What was changed in a request is changed back in its answer."""

import json

from ragbandit.shared.dialects.chat.message_parts import MessageParts
from tests.unit.shared.fitting.requests import called, chat, fitted_for, result, user

LONG = "mcp__plugin_chrome-tools-of-a-marketplace_chrome-tools__list_console_messages"
PATCH = {"type": "custom", "custom": {"name": "apply.patch", "description": "Edit", "format": {"type": "text"}}}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/"}}


def test_names_and_ids_come_back():
    """A call of a shortened name, and an id of the history, have the client's words again."""
    function = {"type": "function", "function": {"name": LONG, "parameters": {"type": "object", "properties": {}}}}
    body = chat(user(), called("x:1", name=LONG), result("x:1"), tools=[function])
    for vendor in ("openai", "mistral"):
        sent, fitted = fitted_for(vendor, body)
        (call,) = sent["messages"][1]["tool_calls"]
        assert call["function"]["name"] == sent["tools"][0]["function"]["name"] != LONG
        whole = fitted.message({"tool_calls": [call], "refusal": None})
        assert whole["tool_calls"] == body["messages"][1]["tool_calls"]
        begin = fitted.delta({"tool_calls": [{"index": 0, **call}]})
        assert begin["tool_calls"][0]["function"]["name"] == LONG
        piece = {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}
        assert fitted.delta(piece) == piece
        older = fitted.message({"function_call": {"name": call["function"]["name"], "arguments": "{}"}})
        assert older["function_call"]["name"] == LONG


def test_a_tool_of_free_text_is_a_function_and_back():
    """A model of functions gets one with a text; its call is a call of free text, which a stream has at its end."""
    body = chat(user(), tools=[PATCH], tool_choice={"type": "custom", "custom": {"name": "apply.patch"}})
    sent, fitted = fitted_for("openai", body)
    (tool,) = sent["tools"]
    name = tool["function"]["name"]
    assert (list(tool["function"]["parameters"]["properties"]), sent["tool_choice"]["function"]["name"]) == (
        ["input"],
        name,
    )
    pieces = ['{"input": "*** Be', 'gin"}']
    stream, shown = MessageParts(), MessageParts()
    for number, text in enumerate(pieces):
        head = {"id": "c1", "type": "function"} if number == 0 else {}
        fields = {"arguments": text} | ({"name": name} if number == 0 else {})
        delta = {"tool_calls": [{"index": 0, **head, "function": fields}]}
        stream.add(delta)
        shown.add(fitted.delta(delta))
    whole = fitted.message(stream.whole)
    call = {"id": "c1", "type": "custom", "custom": {"name": "apply.patch", "input": "*** Begin"}}
    assert (whole["tool_calls"], shown.rest(whole)) == ([call], {"tool_calls": [{"index": 0, **call}]})
    for arguments, text in (('{"patch": "x"}', "x"), ('"x"', "x"), ("*** Begin", "*** Begin"), ("[1]", "[1]")):
        function = {"name": name, "arguments": arguments}
        assert fitted.message({"tool_calls": [{"id": "c1", "function": function}]})["tool_calls"][0]["custom"] == {
            "name": "apply.patch",
            "input": text,
        }


def test_calls_of_free_text_in_the_history():
    """Earlier calls of free text become calls of the function, except for models with tools of free text."""
    tool = {"type": "custom", "custom": {"name": "p", "format": GRAMMAR}}
    asked = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "custom", "custom": {}}]}
    asked["tool_calls"][0]["custom"] = {"name": "p", "input": "*** Begin"}
    body = chat(user(), asked, result("c1", "done"), tools=[tool])
    sent, _ = fitted_for("openai", body)
    function = sent["messages"][1]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("p", {"input": "*** Begin"})
    assert "start: /.+/" in sent["tools"][0]["function"]["description"]
    native, fitted = fitted_for("openai", body, model="gpt-5.2")
    assert (native["messages"], native["tools"], fitted.changed) == (body["messages"], [tool], set())


def test_parameters_of_models_that_think():
    """Models of OpenAI that think get no temperature and the newer name of the limit; others keep both."""
    body = chat(user(), temperature=0.2, max_tokens=9)
    sent, fitted = fitted_for("openai", body, model="o3-mini")
    assert (sent.get("temperature"), sent["max_completion_tokens"], fitted.changed) == (None, 9, {"temperature"})
    assert fitted_for("openai", body, model="gpt-5.1")[0]["temperature"] == 0.2
    assert "temperature" not in fitted_for("openai", body | {"reasoning_effort": "low"}, model="gpt-5.1")[0]
    assert fitted_for("openai", body, model="gpt-5-chat-latest")[0]["max_tokens"] == 9


def test_older_functions_are_fitted():
    """Names and schemas of `functions` are fitted as those of tools."""
    call = {"role": "assistant", "content": None, "function_call": {"name": LONG, "arguments": "{}"}}
    body = {
        "messages": [user(), call, {"role": "function", "name": LONG, "content": "cold"}],
        "functions": [{"name": LONG, "parameters": {"type": "object"}}],
        "function_call": {"name": LONG},
    }
    sent, fitted = fitted_for("openai", body)
    (name,) = fitted.names
    assert sent["functions"] == [{"name": name, "parameters": {"type": "object", "properties": {}}}]
    assert (sent["function_call"]["name"], sent["messages"][1]["function_call"]["name"]) == (name, name)
    assert sent["messages"][2]["name"] == name
    assert sent["messages"][1]["content"] is None
