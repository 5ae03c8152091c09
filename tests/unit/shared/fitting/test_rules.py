"""Each rule of the table at every kind of server: what a vendor refuses is made right, and the rest stays."""

import base64
import json

import pytest

from ragbandit.shared.model_servers.fitting.fitted import RequestChanges
from ragbandit.testing.strict_servers import refusal
from tests.unit.shared.fitting.requests import (
    TOOL,
    VENDORS,
    answer,
    called,
    chat,
    fitted_for,
    result,
    system,
    user,
)

KIMI = "functions.weather:0"
LONG = "mcp__plugin_chrome-tools-of-a-marketplace_chrome-tools__list_console_messages"
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0 an image").decode()


def function(name="weather", **parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def image(media):
    return {"type": "image_url", "image_url": {"url": f"data:{media};base64,{JPEG}"}}


def formatted(schema):
    return {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}


LIMITS = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}, "required": ["n"]}
#: situation -> (request, vendors that refuse it as it is)
SITUATIONS = {
    "role developer": (chat(system(role="developer"), user()), "mistral deepseek gemini bedrock qwen gemma"),
    "system in the middle": (chat(system(), user(), system("Skills.")), "qwen gemma"),
    "two system messages": (chat(system(), system("Be kind."), user()), "qwen gemma"),
    "developer in the middle": (
        chat(system(), user(), answer(), system("Go on.", role="developer"), user()),
        "mistral qwen gemma deepseek",
    ),
    "a reminder behind results": (chat(user(), called("call_1"), result("call_1"), system("Tasks.")), "mistral qwen"),
    "a reminder at the end": (chat(user(), answer(), system("Go on.")), "mistral qwen"),
    "only system messages": (chat(system(), system("A title?")), "mistral gemini bedrock qwen gemma"),
    "beginning with the assistant": (chat(system(), answer("Hello!"), user()), "mistral gemini bedrock"),
    "a user behind results": (chat(user(), called("abcdefgh1"), result("abcdefgh1"), user("Stop.")), "mistral"),
    "users in a row": (chat(user(), user("There?"), answer(), answer("Yes.")), "gemma"),
    "ids of Kimi": (chat(user(), called(KIMI), result(KIMI), user()), "mistral bedrock"),
    "ids of OpenAI": (chat(user(), called("call_Zb3kQ81xYc0"), result("call_Zb3kQ81xYc0")), "mistral"),
    "long ids": (chat(user(), called("c" * 60), result("c" * 60)), "openai mistral"),
    "ids used again": (
        chat(user(), called("call_0"), result("call_0"), user(), called("call_0"), result("call_0", "warm")),
        "",
    ),
    "calls without ids": (chat(user(), called(None, None), result(None), result(None, "warm")), "openai mistral"),
    "calls in two turns": (
        chat(user(), called("call_1"), called("call_2"), result("call_1"), result("call_2")),
        "openai mistral deepseek gemini bedrock qwen",
    ),
    "results in two turns": (
        chat(user(), called("call_1", "call_2"), result("call_1"), user("Well?"), result("call_2")),
        "openai mistral deepseek gemini bedrock qwen",
    ),
    "a user between call and result": (
        chat(user(), called("call_1"), user("Well?"), result("call_1")),
        "openai mistral deepseek gemini bedrock qwen",
    ),
    "a call without a result": (chat(user(), called("call_1"), user("Stop.")), "openai mistral"),
    "a call at the end": (chat(user(), called("call_1")), "openai mistral deepseek"),
    "a result without a call": (chat(user(), result("call_1"), user()), "openai mistral"),
    "a result twice": (chat(user(), called("call_1"), result("call_1"), result("call_1", "warm")), "openai deepseek"),
    "a long name": (chat(user(), tools=[function(LONG)]), "openai mistral deepseek gemini bedrock"),
    "a name with dots": (chat(user(), tools=[function("crm.find")]), "openai mistral"),
    "a long name in the history": (
        chat(user(), called("call_1", name=LONG), result("call_1"), tools=[function(LONG)]),
        "openai mistral deepseek",
    ),
    "a long name that is demanded": (
        chat(user(), tools=[function(LONG)], tool_choice={"type": "function", "function": {"name": LONG}}),
        "openai mistral deepseek",
    ),
    "no properties": (chat(user(), tools=[function(type="object")]), "openai gemini bedrock"),
    "an empty schema": (chat(user(), tools=[function()]), "openai gemini bedrock"),
    "required is null": (
        chat(user(), tools=[function(type="object", properties={}, required=None)]),
        "openai gemini bedrock",
    ),
    "objects and lists within": (
        chat(user(), tools=[function(type="object", properties={"a": {"type": "array"}, "b": {"type": "object"}})]),
        "openai bedrock",
    ),
    "a choice at the top": (
        chat(user(), tools=[function(anyOf=[{"type": "object", "properties": {"a": {"type": "string"}}}])]),
        "openai",
    ),
    "limits in a schema": (chat(user(), response_format=formatted(LIMITS)), "deepseek"),
    "a blank text": (chat(user(), answer(" "), user("And?")), "gemini bedrock"),
    "a blank part": (
        chat({"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "\n"}]}),
        "gemini bedrock",
    ),
    "a blank system": (
        chat({"role": "system", "content": [{"type": "text", "text": " "}]}, user()),
        "gemini bedrock",
    ),
    "a blank question": (chat(user(" ")), "gemini bedrock"),
    "a blank result": (
        chat(user(), called("call_1"), result("call_1", [{"type": "text", "text": ""}])),
        "gemini bedrock",
    ),
    "a beginning of the answer": (chat(user(), answer("It is")), "mistral"),
    "a beginning with a blank": (chat(user(), answer("It is ")), "mistral"),
    "image/jpg": (chat({"role": "user", "content": [image("image/jpg")]}), "gemini bedrock"),
    "a wrong type of an image": (chat({"role": "user", "content": [image("image/tiff")]}), "gemini bedrock"),
    "an image in a result": (chat(user(), called("call_1"), result("call_1", [image("image/jpeg")])), "openai"),
    "empty arguments": (chat(user(), called("call_1", arguments=""), result("call_1")), "mistral gemini qwen"),
    "a mark of a cache": (
        chat({"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}),
        "openai",
    ),
    "a mark of a tool": (chat(user(), tools=[TOOL | {"cache_control": {"type": "ephemeral"}}]), "openai"),
    "fields of an answer of OpenAI": (chat(user(), answer() | {"refusal": None, "annotations": []}, user()), "mistral"),
    "parameters of OpenAI": (
        chat(user(), prompt_cache_key="k", store=False, safety_identifier="u", verbosity="low", seed=1),
        "mistral gemini bedrock",
    ),
    "parameters of vLLM": (chat(user(), top_k=3, min_p=0.1), "openai"),
    "many stop strings": (chat(user(), stop=list("abcdefg")), "openai"),
    "an answer without content": (chat(user(), {"role": "assistant", "content": None}, user()), "openai"),
    "an empty list of parts": (chat(user(), {**called("call_1"), "content": []}, result("call_1", [])), "openai"),
    "a name twice": (chat(user(), tools=[TOOL, TOOL]), ""),
    "a tool of free text": (
        chat(user(), tools=[{"type": "custom", "custom": {"name": "apply_patch"}}]),
        "openai mistral deepseek gemini bedrock",
    ),
    "calls without tools": ({"messages": [user(), called("call_1"), result("call_1")]}, "bedrock"),
}


#: a mark that is added and fields without a value are not called changes
SILENT = (
    "an answer without content",
    "an empty list of parts",
    "a beginning of the answer",
    "a beginning with a blank",
    "fields of an answer of OpenAI",
)


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_server_takes_it(name):
    """What a vendor's strict server refuses is made right for it, and no other vendor refuses the request either."""
    body, refusers = SITUATIONS[name]
    for vendor in refusers.split():
        assert refusal(vendor, body) is not None, f"{vendor} takes it as it is"
    for vendor in VENDORS:
        sent, fitted = fitted_for(vendor, body)
        json.dumps(sent)
        assert refusal(vendor, sent) is None, vendor
        assert fitted.changed or vendor not in refusers.split() or name in SILENT, vendor


TEXTS = {
    "system in the middle": "Skills.",
    "a reminder behind results": "Tasks.",
    "only system messages": "A title?",
    "results in two turns": "cold",
    "a result without a call": "cold",
    "limits in a schema": "minimum",
}


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_is_lost(name):
    """Texts and limits that move are still in the request, for every vendor."""
    for vendor in VENDORS:
        sent, _ = fitted_for(vendor, SITUATIONS[name][0])
        assert TEXTS[name] in json.dumps(sent), vendor


def test_a_request_that_every_server_takes_stays_as_it_is():
    """No rule changes a regular request, and its messages are the same objects."""
    body = chat(system(), user(), called("abcdefgh1"), result("abcdefgh1"), answer("Cold."), user(), temperature=0.5)
    for vendor in VENDORS.keys() - {"gemma"}:
        sent, fitted = fitted_for(vendor, body)
        assert (fitted.changed, fitted.names, fitted.ids) == (set(), {}, {}), vendor
        assert {name: value for name, value in sent.items() if name != "model"} == body
        assert all(after is before for after, before in zip(sent["messages"], body["messages"], strict=True))


@pytest.mark.parametrize("vendor", sorted(VENDORS))
def test_what_nobody_has_to_change_goes_out_unchanged(vendor):
    """Each rule leaves the fields that it does not need unchanged."""
    plain = {
        "temperature": 0.3,
        "some_field": {"a": [1, None]},
        "some_null": None,
        "stop": ["END"],
        "max_tokens": 9,
        "parallel_tool_calls": False,
        "stream_options": {"include_usage": True},
    }
    for name, (body, _) in SITUATIONS.items():
        sent, _ = fitted_for(vendor, {**plain, **body})
        kept = {key: value for key, value in plain.items() if key not in body}
        assert {key: sent[key] for key in kept} == kept, name


def test_ids_are_stable_and_kept_apart():
    """An id is mapped to the same one in each turn; results stay with their calls; the map leads back."""
    first = chat(user(), called(KIMI, "x:y"), result(KIMI), result("x:y"))
    more = chat(*first["messages"], answer(), user(), called(KIMI), result(KIMI, "warm"))
    for vendor in ("mistral", "bedrock"):
        ids = [list(fitted_for(vendor, body)[1].ids) for body in (first, more)]
        assert ids[1][:2] == ids[0], vendor
        assert len(set(ids[0])) == 2
        assert set(fitted_for(vendor, more)[1].ids.values()) == {KIMI, "x:y"}


@pytest.mark.parametrize("odd", [None, 5, [1], {"a": 1}, True])
def test_an_answer_of_any_type_is_changed_back(odd):
    """Names, ids and indexes of calls in an answer may be of any type; nothing is raised."""
    fitted = RequestChanges(names={"short": "long"}, ids={"call1": "functions.weather:0"}, free_text={"exec"})
    call = {"id": odd, "index": odd, "function": {"name": odd, "arguments": odd}}
    assert fitted.delta({"tool_calls": [call]})["tool_calls"][0]["function"]["name"] == odd
    assert fitted.message({"tool_calls": [call], "function_call": {"name": odd}})["function_call"]["name"] == odd
    held = {"index": [1], "function": {"name": "exec", "arguments": "{}"}}
    assert fitted.delta({"tool_calls": [held]}) == {}
