"""What Codex and OpenAI's own types have: tools in items, tools that the client runs, messages of agents, summaries.

No item and no tool is lost in silence: a model gets it, the request is refused by its name, or `ignored` names it.
"""

import collections.abc
import json
import types
import typing

import pytest
from openai.types.responses import CustomToolParam, FunctionToolParam, Response, ResponseStreamEvent
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.tool_param import ToolParam
from pydantic import TypeAdapter
from typing_extensions import is_typeddict

from ragbandit.additions.responses.items import add_items
from ragbandit.additions.responses.tools import call_facts, client_name_of, tools_of
from ragbandit.testing.openai_server import Reply, ScriptedServer
from tests.support.cases import every_case

EVENT = TypeAdapter(ResponseStreamEvent)
LOOKUP = {"type": "function", "name": "lookup", "strict": False, "parameters": {"type": "object", "properties": {}}}
EXEC = {"type": "custom", "name": "exec", "description": "Run JavaScript"}
SEARCH = {"type": "tool_search", "execution": "client", "parameters": {"type": "object", "properties": {}}}


def model(sent):
    """What the model replies: the call that the last text names as "call NAME ARGUMENTS", else a text."""
    texts = [text for message in sent["messages"] for text in texts_of(message.get("content"))]
    asked = [text.removeprefix("call ") for text in texts if text.startswith("call ")]
    if not asked:
        return Reply(text="It is a heron.")
    name, _, arguments = asked[-1].partition(" ")
    function = {"name": name, "arguments": arguments}
    return Reply(message={"tool_calls": [{"id": "c1", "type": "function", "function": function}]}, finish="tool_calls")


def texts_of(content):
    return [content] if isinstance(content, str) else [part.get("text", "") for part in content or []]


@pytest.fixture(scope="module")
def codex(serve_module):
    """A function that sends a request for a response. Returns (reply, body that the model's server got or None)."""
    with ScriptedServer(model) as server:
        generator = {
            "name": "openai",
            "model": "m",
            "openai": {"base_url": server.url},
            "supports": ["tools", "images"],
        }
        service = serve_module(inline=True, generator=generator, arms={"m": {"class": "model"}})

        def ask(items, *, path="/v1/responses", headers=None, **more):
            before = len(server.requests)
            reply = service.http.post(path, json={"model": "arm/m", "input": items, **more}, headers=headers)
            return reply, server.requests[-1].body if len(server.requests) > before else None

        ask.http, ask.service = service.http, service
        yield ask
        service.close()


def said(text, role="user"):
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def names_of(sent):
    return [(tool.get("function") or tool.get("custom"))["name"] for tool in sent.get("tools") or []]


def calls_of(reply):
    """The calls in a response, without their ids."""
    output = reply.json()["output"]
    Response.model_validate(reply.json())
    return [{name: each[name] for name in each if name != "id"} for each in output if each["type"].endswith("_call")]


def test_tools_in_an_item(codex):
    """Tools of an item reach the model wherever the item stands, each name once, and the item is no message."""
    item = {"type": "additional_tools", "role": "developer", "tools": [EXEC, LOOKUP]}
    newer = {"type": "additional_tools", "role": "developer", "tools": [LOOKUP | {"description": "New"}]}
    for items in ([item, said("Hi")], [said("Hi"), item], [item, said("Hi"), item]):
        _, sent = codex(items, tools=[LOOKUP])
        assert (sorted(names_of(sent)), len(sent["messages"])) == (["exec", "lookup"], 1)
    _, sent = codex([item, said("Hi"), newer])
    assert [tool["function"].get("description") for tool in sent["tools"] if tool["function"]["name"] == "lookup"] == [
        "New"
    ]
    refused, _ = codex([{"type": "additional_tools", "tools": "x"}, said("Hi")])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[0].tools")


@pytest.mark.parametrize("place", ["tools", "item"])
def test_calls_come_back_under_the_name_of_the_inner_tool(codex, place):
    """The namespace `functions` has no prefix and comes back without a namespace, each other one comes back as sent."""
    spaces = {"functions": [EXEC, LOOKUP], "mcp": [LOOKUP], "mcp__birds": [LOOKUP | {"name": "list"}]}
    tools = [
        {"type": "namespace", "name": name, "description": "Of a server", "tools": members}
        for name, members in spaces.items()
    ]
    tools.append(LOOKUP | {"name": "mcp__plain"})
    item = {"type": "additional_tools", "role": "developer", "tools": tools}
    sent_as = {"tools": tools} if place == "tools" else {}
    wanted = {
        'exec {"input": "ls()"}': {"type": "custom_tool_call", "name": "exec", "input": "ls()"},
        "lookup {}": {"type": "function_call", "name": "lookup", "arguments": "{}"},
        "mcp__lookup {}": {"type": "function_call", "name": "lookup", "namespace": "mcp", "arguments": "{}"},
        "mcp__birds__list {}": {"type": "function_call", "name": "list", "namespace": "mcp__birds", "arguments": "{}"},
        "mcp__plain {}": {"type": "function_call", "name": "mcp__plain", "arguments": "{}"},
    }
    with every_case() as cases:
        for call, fields in wanted.items():
            with cases(call):
                items = [said(f"call {call}")] if place == "tools" else [item, said(f"call {call}")]
                reply, _ = codex(items, **sent_as)
                assert calls_of(reply) == [fields | {"call_id": "c1", "status": "completed"}]


#: tool that the client runs -> (the model's arguments, fields of the item of the call)
RUN_BY_CLIENT = {
    "tool_search": [({"query": "birds"}, {"execution": "client", "arguments": {"query": "birds"}})],
    "shell": [
        (
            {"action": {"commands": ["ls"]}},
            {"action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}},
        ),
        ({"commands": "ls"}, {"action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}}),
    ],
    "local_shell": [
        (
            {"action": {"command": ["ls"], "env": {"A": "b"}}},
            {"action": {"type": "exec", "command": ["ls"], "env": {"A": "b"}}},
        ),
        ({"command": ["ls"]}, {"action": {"type": "exec", "command": ["ls"], "env": {}}}),
    ],
    "apply_patch": [
        (
            {"operation": {"type": "delete_file", "path": "a.py"}},
            {"operation": {"type": "delete_file", "path": "a.py"}},
        )
    ],
}


@pytest.mark.parametrize("name", RUN_BY_CLIENT)
@pytest.mark.parametrize("streamed", [False, True])
def test_tools_that_the_client_runs(codex, name, streamed):
    """A tool of a type of its own is a function for the model; its call and its result have the type's own items."""
    tools = [SEARCH if name == "tool_search" else {"type": name}]
    for arguments, fields in RUN_BY_CLIENT[name]:
        asked = said(f"call {name} {json.dumps(arguments)}")
        reply, sent = codex([asked], tools=tools, stream=streamed)
        assert names_of(sent) == [name]
        if streamed:
            events = events_of(reply)
            calls = [event["item"] for event in events if event["type"] == "response.output_item.done"]
            assert [event["item"]["type"] for event in events if event["type"] == "response.output_item.added"] == [
                f"{name}_call"
            ]
            calls = [{key: call[key] for key in call if key != "id"} for call in calls]
        else:
            calls = calls_of(reply)
        assert calls == [{"type": f"{name}_call", "call_id": "c1", "status": "completed", **fields}]
    output = {"tools": []} if name == "tool_search" else {"output": "done", "status": "failed"}
    result = {
        "type": f"{name}_call_output" if name != "tool_search" else "tool_search_output",
        "call_id": "c1",
        **output,
    }
    _, sent = codex([said("Hi"), calls[0], result], tools=tools)
    called, answered = sent["messages"][1:]
    (call,) = called["tool_calls"]
    assert (call["function"]["name"], answered["tool_call_id"]) == (name, "c1")
    if name != "tool_search":
        assert json.loads(call["function"]["arguments"]) == {key: fields[key] for key in fields}
    assert "failed" in answered["content"] or name != "apply_patch"


def events_of(reply):
    assert reply.status_code == 200, reply.text
    events = [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: {")]
    for event in events:
        EVENT.validate_python(event)
    return events


def test_a_call_that_the_client_cannot_run_is_not_lost(codex):
    """Arguments without a command come back as the call of a function, so that the client can say what is wrong."""
    for arguments in ("{}", "ls", '{"action": 5}', "[]"):
        for streamed in (False, True):
            reply, _ = codex([said(f"call shell {arguments}")], tools=[{"type": "shell"}], stream=streamed)
            output = events_of(reply)[-1]["response"]["output"] if streamed else reply.json()["output"]
            assert [(each["type"], each["name"], each["arguments"]) for each in output] == [
                ("function_call", "shell", arguments)
            ]


def test_a_tool_of_the_client_can_be_demanded():
    """A choice of such a tool is that of its function; one that is not offered, or runs elsewhere, is refused."""
    params, ignored = tools_of([{"type": "shell"}, {"type": "apply_patch"}], choice={"type": "apply_patch"})
    assert (params["tool_choice"], ignored) == ({"type": "function", "function": {"name": "apply_patch"}}, [])
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "shell"}]}
    params, _ = tools_of([{"type": "shell"}, {"type": "apply_patch"}], choice=allowed)
    assert [tool["function"]["name"] for tool in params["tools"]] == ["shell"]
    elsewhere = [{"type": "shell", "environment": {"type": "container_auto"}}, {"type": "tool_search"}]
    assert tools_of(elsewhere, choice="auto")[1] == ["tools.shell", "tools.tool_search"]


def test_tools_that_a_search_found(codex):
    """Tools in the output of a search are offered from then on, without words of responses, and are called as sent."""
    hit = LOOKUP | {"name": "list", "defer_loading": True, "allowed_callers": ["direct"]}
    found = [{"type": "namespace", "name": "mcp__birds", "description": "Birds", "tools": [hit]}]
    call = {"type": "tool_search_call", "call_id": "s1", "execution": "client", "arguments": {"query": "birds"}}
    output = {"type": "tool_search_output", "call_id": "s1", "execution": "client", "tools": found}
    reply, sent = codex([said("call mcp__birds__list {}"), call, output], tools=[SEARCH])
    assert names_of(sent) == ["tool_search", "mcp__birds__list"]
    assert not sent["tools"][1]["function"].keys() & {"defer_loading", "allowed_callers"}
    assert sent["messages"][-1]["content"] == "Tools that can be called now: mcp__birds__list"
    (back,) = calls_of(reply)
    assert (back["name"], back["namespace"]) == ("list", "mcp__birds")
    server_run = [call | {"call_id": None}, output | {"call_id": None, "execution": "server"}]
    reply, sent = codex([said("Hi"), *server_run])
    assert (names_of(sent), [message["role"] for message in sent["messages"]]) == (["mcp__birds__list"], ["user"])


def agents_text(*parts, **more):
    return {"type": "agent_message", "author": "/root", "recipient": "/root/scout", "content": list(parts), **more}


def test_messages_of_agents(codex):
    """A task of a sub-agent, or its answer, is a user's message with its texts in order; ciphertext is left out."""
    task, text = (
        {"type": "input_text", "text": "NEW_TASK"},
        {"type": "encrypted_content", "encrypted_content": "Count."},
    )
    cipher = {"type": "encrypted_content", "encrypted_content": "gAAAAABx"}
    _, sent = codex([said("You are a sub-agent.", role="developer"), agents_text(task, text)])
    assert [texts_of(message["content"]) for message in sent["messages"][1:]] == [["NEW_TASK", "Count."]]
    reply, sent = codex([agents_text(task, cipher)])
    assert [texts_of(message["content"]) for message in sent["messages"]] == [["NEW_TASK"]]
    assert ignored_of(codex, reply) == ["input.agent_message.encrypted_content"]
    refused, _ = codex([agents_text(cipher)])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


def test_a_result_follows_its_call():
    """A message of an agent between a call and its result comes behind the result, because servers want it so."""
    call = {"type": "function_call", "call_id": "c1", "name": "wait", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "4"}
    text = agents_text({"type": "input_text", "text": "Done."})
    messages = []
    assert add_items(messages, [said("Hi"), call, text, output]) == []
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]


def ignored_of(codex, reply):
    """Names of what a response's request had and the model did not get."""
    assert reply.status_code == 200, reply.text
    return list(codex.service.router.decision(reply.json()["id"]).decision.query.sent.ignored)


def test_the_effort_beside_other_words_of_openai(codex):
    """The effort goes out as in chats, also with other words of OpenAI; words without an effect are named."""
    reply, sent = codex("Hi", reasoning={"effort": "high", "summary": "auto", "context": "all_turns", "mode": "pro"})
    assert {name: sent[name] for name in sent if "reason" in name} == {"reasoning_effort": "high"}
    assert ignored_of(codex, reply) == ["reasoning.context", "reasoning.mode"]


def sample(kind, *, of=""):
    """A value of a type of OpenAI's package: only what is required, and ids of calls."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Required, typing.NotRequired, typing.Annotated):
        return sample(inner[0], of=of)
    if origin in (typing.Union, types.UnionType):
        return sample(inner[0], of=of)
    if origin is typing.Literal:
        return inner[0]
    if origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        return [sample(inner[0], of=of)]
    if is_typeddict(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        needed = [name for name in hints if typing.get_origin(hints[name]) is typing.Required or name == "call_id"]
        return {name: sample(hints[name], of=name) for name in needed}
    return {str: f"a {of}", int: 1, bool: True, float: 1.0}.get(kind, {})


def samples(union):
    """Type -> one value of it, of all members of a union, and an invented one."""
    values = [sample(member) for member in typing.get_args(union)]
    return {value.get("type", "item_reference"): value for value in values} | {
        "telepathy": {"type": "telepathy", "id": "t"}
    }


#: items that a client needs to go on: a model must get them, or the request is refused
NEEDED_ITEMS = {
    "message",
    "agent_message",
    "additional_tools",
    "reasoning",
    "compaction",
    "item_reference",
    *(f"{kind}_call{end}" for kind in ("function", "local_shell", "shell", "apply_patch") for end in ("", "_output")),
    *("custom_tool_call", "custom_tool_call_output", "computer_call", "computer_call_output"),
    *("tool_search_call", "tool_search_output"),
}
NEEDED_TOOLS = {"function", "custom", "namespace", "local_shell", "shell", "apply_patch"}


def fate_of(codex, items, *, name, tools=()):
    """What becomes of something that a request has: `passed`, `refused` or `named`."""
    plain, others = [said("Hi"), said("Yes?", role="assistant")], {"tools": list(tools)} if tools else {}
    _, before = codex(plain)
    reply, sent = codex([plain[0], *items, plain[1]], **others)
    if reply.status_code == 400:
        assert reply.json()["error"]["param"].startswith(name.partition(".")[0])
        return "refused"
    fields = ("messages", "tools")
    if [before.get(field) for field in fields] != [sent.get(field) for field in fields]:
        return "passed"
    return "named" if name in ignored_of(codex, reply) else "lost"


def test_no_item_is_lost_in_silence(codex):
    """Each type of item in OpenAI's package, and an invented one, is passed on, refused or named in `ignored`."""
    with every_case() as cases:
        for kind, item in {**samples(ResponseInputItemParam), "agent_message": agents_text(said("x"))}.items():
            with cases(kind):
                fate = fate_of(codex, [item], name=f"input.{kind}")
                assert fate in (("passed", "refused") if kind in NEEDED_ITEMS else ("passed", "named"))


@pytest.mark.parametrize("place", ["tools", "additional_tools", "tool_search_output"])
def test_no_tool_is_lost_in_silence(codex, place):
    """Each type of tool in OpenAI's package, and an invented one, is offered to the model or named in `ignored`."""
    with every_case() as cases:
        for kind, tool in samples(ToolParam).items():
            with cases(kind):
                items = [] if place == "tools" else [{"type": place, "tools": [tool]}]
                fate = fate_of(codex, items, name=f"tools.{kind}", tools=[tool] if place == "tools" else ())
                assert fate == ("passed" if kind in NEEDED_TOOLS else "named")


@pytest.mark.parametrize("tool", [FunctionToolParam, CustomToolParam])
def test_no_field_of_a_tool_is_lost_in_silence(tool):
    """Each field of a function and of a tool of free text in OpenAI's package is passed on, heeded, or named."""
    kind = "function" if tool is FunctionToolParam else "custom"
    for name in sorted(tool.__annotations__.keys() - {"type", "name", "defer_loading"}):
        params, ignored = tools_of([{"name": "f", "type": kind, name: ["x"]}], choice=None)
        assert (name in params["tools"][0][kind]) != (f"tools.{kind}.{name}" in ignored), name
    params, ignored = tools_of(
        [{"name": "f", "type": kind, "allowed_callers": ["direct"], "async": False}], choice=None
    )
    assert ignored == []


def test_names_of_tools_that_are_not_texts():
    """Types and names of other forms than texts are no failure."""
    strange = [{"type": ["x"]}, {"type": "function", "name": 5}, {"type": "namespace", "name": {}, "tools": 3}]
    params, ignored = tools_of(strange, choice=None)
    assert (len(params["tools"]), ignored) == (1, ["tools.['x']"])
    assert client_name_of(call_facts(strange), "5") == (None, {"name": "5"})


def test_a_websocket_is_refused_by_426(codex):
    """Codex asks for a WebSocket first, and uses HTTP at once after a 426; a plain GET is a 405 as before."""
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "eA==",
    }
    reply = codex.http.get("/v1/responses", headers=upgrade)
    assert (reply.status_code, reply.json()["error"]["code"]) == (426, "websocket_unsupported")
    reply = codex.http.get("/v1/responses")
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert codex.http.get("/v1/decisions/x", headers=upgrade).status_code == 404


def test_a_summary_in_place_of_turns(codex):
    """An input that ends with a trigger is answered by one item `compaction`, which brings the summary to a model."""
    turns = [said("My bird is a heron."), said("Noted.", role="assistant"), {"type": "compaction_trigger"}]
    for streamed in (False, True):
        more = {"tools": [LOOKUP], "tool_choice": "required", "text": {"format": {"type": "json_object"}}}
        reply, sent = codex(turns, stream=streamed, **more)
        assert (sent["tool_choice"], "response_format" in sent, len(sent["messages"])) == ("none", False, 3)
        if streamed:
            events = events_of(reply)
            kinds = [event["type"].removeprefix("response.") for event in events]
            assert kinds == ["created", "in_progress", "output_item.added", "output_item.done", "completed"]
            output = events[-1]["response"]["output"]
        else:
            output = reply.json()["output"]
            Response.model_validate(reply.json())
        ((item),) = output
        assert item["type"] == "compaction"
        for kind in (item["type"], "compaction_summary", "context_compaction"):
            _, sent = codex([item | {"type": kind}, said("Which bird?")])
            assert [message["role"] for message in sent["messages"]] == ["user", "user"]
            assert "It is a heron." in sent["messages"][0]["content"]
    _, sent = codex([{"type": "item_reference", "id": output[0]["id"]}, said("Which bird?")])
    assert "It is a heron." in sent["messages"][0]["content"]
    later, _ = codex([*turns, said("Hi")])
    assert ignored_of(codex, later) == ["input.compaction_trigger"]
    refused, _ = codex(turns, path="/v1/chat/completions")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


def test_a_summary_that_is_cut_off_is_none(codex):
    """Without a whole text there is no item `compaction`, so that a client does not go on with half a conversation."""
    reply, _ = codex([said("call lookup {}"), {"type": "compaction_trigger"}], tools=[LOOKUP])
    assert [item["type"] for item in reply.json()["output"]] == ["function_call"]


def test_the_models_for_codex(codex):
    """The query `client_version` asks for the list in Codex's form; without it, the list has OpenAI's."""
    listed = codex.http.get("/v1/models?client_version=0.153.0").json()
    plain = codex.http.get("/v1/models").json()
    assert [model["slug"] for model in listed["models"]] == [model["id"] for model in plain["data"]]
    assert all(model["base_instructions"] and model["visibility"] == "list" for model in listed["models"])
    assert codex.http.get("/v1/models/auto?client_version=0.153.0").json()["id"] == "auto"


def test_tools_of_items_stay_in_a_chain(codex):
    """Tools of items hold for all later responses of a chain, and those of `tools` for one response."""
    space = {"type": "namespace", "name": "mcp__birds", "description": "Birds", "tools": [LOOKUP]}
    first, _ = codex([{"type": "additional_tools", "tools": [space]}, said("Hi")], tools=[EXEC])
    second, sent = codex("And?", previous_response_id=first.json()["id"])
    assert names_of(sent) == ["mcp__birds__lookup"]
    third, sent = codex([said("call mcp__birds__lookup {}")], previous_response_id=second.json()["id"], tools=[SEARCH])
    assert names_of(sent) == ["mcp__birds__lookup", "tool_search"]
    (call,) = calls_of(third)
    assert (call["name"], call["namespace"]) == ("lookup", "mcp__birds")
    large = [{"type": "additional_tools", "tools": [LOOKUP | {"description": "x" * 300_000}]}, said("Hi")]
    first, _ = codex(large)
    refused, _ = codex("And?", previous_response_id=first.json()["id"])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
