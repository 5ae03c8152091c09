"""Items of responses as messages, and their parameters as those of a chat completion."""

import json

import pytest

from ragbandit.additions.responses.items import add_item, add_items, chat_of_items, format_of, tools_of
from ragbandit.additions.responses.responses import ResponseBody
from ragbandit.additions.responses.stored_responses import MOST_SAID, SAID, own_turn_facts
from ragbandit.router.api.openai.chats import read_chat
from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.shared.errors import InvalidInput
from tests.support.cases import every_case

HI = {"role": "user", "content": "Hi"}
YES = {"role": "assistant", "content": "Yes?"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "f"}}]}
DONE = {"role": "tool", "tool_call_id": "c1", "content": "4"}


def read(*messages, passed=True, **more):
    return read_chat({"messages": list(messages), **more}, passed=passed)


def responded(**body):
    """The chat completion that a request for a response becomes."""
    sent, _ = chat_of_items(ResponseBody.model_validate({"model": "auto", "input": "Why?", **body}).sent_fields)
    return read_chat(sent, passed=True).fields


def user(*parts):
    return {"role": "user", "content": list(parts)}


def test_what_is_kept_of_a_chat():
    """One short text needs nothing more; all else is kept as it came, up to a size, which then stands alone."""
    image = user({"type": "image_url", "image_url": {"url": "data:,A"}})
    assert own_turn_facts([HI]) == {}
    for messages in ([HI, YES, HI], [{"role": "developer", "content": "x"}, HI], [user("x" * 100_001)], []):
        assert own_turn_facts(messages) == {SAID: messages}
    assert own_turn_facts([image, YES]) == {SAID: [image, YES]}
    assert own_turn_facts([HI, CALLS, DONE])[SAID][1] == CALLS
    large = user({"type": "image_url", "image_url": {"url": "A" * MOST_SAID}})
    assert own_turn_facts([large])[SAID] > MOST_SAID


ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "List it"}, {"type": "input_video", "video": "v"}]},
    {"type": "reasoning", "id": "rs_1", "encrypted_content": "x"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I "}, {"type": "refusal", "refusal": "no"}],
    },
    {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "action": {"command": ["ls"]}, "status": "completed"},
    {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin"},
    {"type": "function_call", "call_id": "c3", "name": "find", "namespace": "crm", "arguments": {"a": 1}},
    {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
    {
        "type": "computer_call_output",
        "call_id": "c3",
        "output": {"type": "computer_screenshot", "image_url": "data:,A"},
    },
    {"type": "shell_call_output", "call_id": "c4", "output": [{"stdout": "x"}]},
    {"type": "web_search_call", "id": "ws_1", "action": {"query": "x"}},
]


def test_items_of_an_agent():
    """Calls and outputs of tools are those of functions, or of free text; what no chat has is left out, and named."""
    messages = []
    left_out = [add_item(messages, item, at="input.0") for item in ITEMS]
    assert [kind for kind in left_out if kind] == ["web_search_call"]
    asked, called, *outputs = messages
    assert asked["content"] == [{"type": "text", "text": "List it"}, {"type": "input_video", "video": "v"}]
    shell, patch, find = called["tool_calls"]
    assert patch == {"id": "c2", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin"}}
    calls = [
        (each["id"], each["function"]["name"], json.loads(each["function"]["arguments"])) for each in (shell, find)
    ]
    assert calls == [("c1", "local_shell", {"action": {"command": ["ls"]}}), ("c3", "crm__find", {"a": 1})]
    assert [each["content"] for each in outputs] == [
        "a.txt",
        [{"type": "text", "text": "done"}],
        [{"type": "image_url", "image_url": {"url": "data:,A"}}],
        '[{"stdout": "x"}]',
    ]
    with pytest.raises(InvalidInput, match="send its URL"):
        add_item([], {"role": "user", "content": [{"type": "input_image", "file_id": "f1"}]}, at="input.0")


def test_items_between_a_call_and_its_result():
    """Text after a call joins the call's message, a call may have its id in `id`, and no result is an empty text."""
    items = [
        {"type": "local_shell_call", "id": "c1", "action": {}},
        {"role": "assistant", "content": "Wait."},
        {"type": "local_shell_call_output", "id": "c1", "output": []},
        {"role": "user", "content": [{"type": "input_image", "image_url": {"url": "data:,A", "detail": "low"}}]},
    ]
    messages = []
    assert [add_item(messages, item, at="input.0") for item in items] == [None] * 4
    called, result, image = messages
    assert (called["content"], [call["id"] for call in called["tool_calls"]]) == ("Wait.", ["c1"])
    assert result == {"role": "tool", "tool_call_id": "c1", "content": ""}
    assert image["content"] == [{"type": "image_url", "image_url": {"url": "data:,A", "detail": "low"}}]


def thought(text=None, **more):
    return {"type": "reasoning", "summary": [], "content": text and [{"type": "reasoning_text", "text": text}], **more}


def called(number, **more):
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}", **more}


RESULT = {"type": "function_call_output", "call_id": "c1", "output": "4"}
SUMMED = thought(summary=[{"type": "summary_text", "text": "A"}, {"type": "summary_text", "text": "B"}])
SIGNED = {"extra_content": {"google": {"thought_signature": "s"}}}
DETAILS = {"reasoning_details": [{"type": "reasoning.text", "signature": "s"}]}
#: (items, reasoning of each message of an assistant)
REASONED = [
    ([thought("Hm"), called(1), RESULT], [{"reasoning_content": "Hm"}]),
    ([called(1), thought("Hm"), RESULT], [{"reasoning_content": "Hm"}]),
    ([thought("Hm"), {"role": "assistant", "content": "Yes."}, called(1)], [{"reasoning_content": "Hm"}]),
    ([{"role": "assistant", "content": "Yes."}, thought("Hm"), called(1)], [{"reasoning_content": "Hm"}]),
    ([thought("A"), called(1), thought("B"), called(2)], [{"reasoning_content": "A\n\nB"}]),
    ([thought("A"), called(1), RESULT, thought("B"), YES], [{"reasoning_content": "A"}, {"reasoning_content": "B"}]),
    ([thought("A"), YES, thought("B"), YES], [{"reasoning_content": "A"}, {"reasoning_content": "B"}]),
    ([SUMMED, YES], [{"reasoning_content": "A\n\nB"}]),
    ([thought("A", encrypted_content="gAAAA=="), YES], [{"reasoning_content": "A"}]),
    ([thought(encrypted_content=json.dumps(DETAILS)), YES], [DETAILS]),
    ([thought("A", **DETAILS), thought("A"), YES], [{"reasoning_content": "A"} | DETAILS]),
    ([{"type": "reasoning", "summary": None, "content": None, "encrypted_content": None}, YES], [{}]),
    ([YES, thought("Hm"), HI], [{"reasoning_content": "Hm"}]),
    ([HI, thought("Hm"), HI], []),
    ([thought("Hm")], []),
    ([thought("A"), {"type": "web_search_call", "id": "w"}, YES], [{"reasoning_content": "A"}]),
]  # fmt: skip


def test_reasoning_that_comes_back():
    """Reasoning items join the answer or call that they led to, whatever their form, and are dropped without one."""
    with every_case() as cases:
        for items, wanted in REASONED:
            with cases(str(items)):
                messages = []
                assert set(add_items(messages, items)) <= {"input.web_search_call"}
                replies = [message for message in messages if message["role"] == "assistant"]
                names = ("role", "content", "tool_calls")
                assert [{key: one[key] for key in one if key not in names} for one in replies] == wanted
    messages = []
    add_items(messages, [called(1, **SIGNED)])
    (call,) = messages[0]["tool_calls"]
    assert call["extra_content"] == SIGNED["extra_content"]


def test_a_format_in_the_form_of_chats():
    """A schema that is nested as in chat completions is not nested twice."""
    schema = {"name": "a", "schema": {"type": "object"}}
    for form in ({"type": "json_schema", **schema}, {"type": "json_schema", "json_schema": schema}):
        assert format_of(form) == {"type": "json_schema", "json_schema": schema}


def function(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


NAMED = {"type": "function", "name": "weather"}
SPACE = {
    "type": "namespace",
    "name": "crm",
    "tools": [{"type": "function", "name": "find"}, {"type": "custom", "name": "p"}],
}
PATCH = {"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/"}}
CUSTOM = {"type": "custom", "custom": {"name": "p", "format": GRAMMAR}}


@pytest.mark.parametrize(
    ("tools", "choice", "sent", "left_out"),
    [
        ([NAMED, {"type": "web_search"}], "auto", ([function("weather")], "auto"), ["tools.web_search"]),
        ([function("chat_style")], None, ([function("chat_style")], None), []),
        ([{"name": "bare"}], "required", ([function("bare")], "required"), []),
        ([SPACE], None, ([function("crm__find"), {"type": "custom", "custom": {"name": "crm__p"}}], None), []),
        ([PATCH], {"type": "custom", "name": "p"}, ([CUSTOM], {"type": "custom", "custom": {"name": "p"}}), []),
        (
            [{"type": "mcp"}, {"type": "image_generation"}],
            "auto",
            (None, "auto"),
            ["tools.mcp", "tools.image_generation"],
        ),
        (
            [NAMED, {"type": "function", "name": "b"}],
            {"type": "allowed_tools", "mode": "required", "tools": [NAMED]},
            ([function("weather")], "required"),
            [],
        ),
        ([NAMED], {"type": "function", "name": "weather"}, ([function("weather")], function("weather")), []),
        ([], "none", (None, "none"), []),
    ],
)
def test_tools_of_responses(tools, choice, sent, left_out):
    """Functions and tools of free text get the form of chats; tools run elsewhere are left out by their types."""
    params, ignored = tools_of(tools, choice=choice)
    assert ((params["tools"], params["tool_choice"]), ignored) == (sent, left_out)


@pytest.mark.parametrize("choice", ["required", {"type": "web_search"}, {"type": "mcp", "name": "p"}])
def test_a_tool_that_nobody_runs_cannot_be_demanded(choice):
    """A choice that only a tool of OpenAI's could meet is refused."""
    with pytest.raises(Unsupported) as refused:
        tools_of([{"type": "web_search"}, {"type": "mcp", "name": "p"}], choice=choice)
    assert refused.value.field == "tool_choice"


def test_parameters_of_responses():
    """The verbosity is passed on; a limit of -1 is none, and another one below 1 is refused by its own name."""
    sent = responded(text={"verbosity": "low"}, max_output_tokens=-1)
    assert (sent["verbosity"], sent.keys() & {"max_output_tokens", "max_completion_tokens"}) == ("low", set())
    with pytest.raises(InvalidInput, match='"max_output_tokens" is 0'):
        responded(max_output_tokens=0)


EXTRAS = {
    "guided_json": {"type": "object", "properties": {"a": {"enum": [1, None, "x"]}}},
    "enable_thinking": False,
    "provider": {"order": ["x"]},
    "stop_token_ids": [151645],
    "service_tier": "flex",
    "user": "u-1",
    "metadata": {"trace": {"tags": ["a"]}, "page": "faq"},
    "modalities": ["text"],
    "seed": None,
    "max_thinking_tokens": 0,
    "x y": "\ud83d",
}


@pytest.mark.parametrize("ask", [lambda **more: read(HI, **more).fields, responded])
def test_every_field_goes_on(ask):
    """Fields pass under their names, also unknown, null, empty and nested ones; the service's own fields do not."""
    sent = ask(**EXTRAS, stream=True, stream_options={}, cost_weight=1.0, failover=False, aim=None, model="auto")
    assert {name: value for name, value in sent.items() if name != "messages"} == EXTRAS | {"x y": "\ufffd"}


def test_fields_that_only_responses_have():
    """They have their counterpart in chat completions, or are left out and named; a server's `reasoning` goes on."""
    only_here = {"truncation": "auto", "include": ["x"], "store": False, "client_metadata": {"a": "b"}}
    form = {"type": "json_schema", "name": "f", "schema": {}}
    body = {"reasoning": {"effort": "low", "summary": "auto"}, "text": {"format": form}, **only_here}
    sent = responded(**body, max_output_tokens=9)
    assert {name: value for name, value in sent.items() if name != "messages"} == {
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": {}}},
        "max_output_tokens": 9,
    }
    assert responded(reasoning={"max_tokens": 5, "exclude": True})["reasoning"] == {"max_tokens": 5, "exclude": True}
    _, ignored = chat_of_items(ResponseBody.model_validate({"model": "auto", "input": "Why?", **body}).sent_fields)
    assert sorted(ignored) == ["client_metadata", "truncation"]
