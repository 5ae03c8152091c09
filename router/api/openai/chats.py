"""Chats: what a chat completion says and asks for, and the items of a response as its messages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ragbandit.router.api.openai.replies import Unsupported
from ragbandit.router.api.openai.tool_loops import results_of
from ragbandit.router.api.schemas.requests import STORABLE
from ragbandit.router.serving.deciding.needs import NEEDS, OPTIONAL, TOKENS
from ragbandit.router.storage.rows.conversion import CHAT_HASH, body_hash
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.openai_client import PASSED_PARAMETERS
from ragbandit.shared.types import MAX_TEXT, Json, Message

#: parameters with tools -> those that choose among them
_TOOLS: Final = {"tools": "tool_choice", "functions": "function_call"}
#: characters of a usual text per token
_CHARS_PER_TOKEN: Final = 4


def message_schema(
    *, roles: Sequence[str], texts: Mapping[str, str], others: Mapping[str, dict[str, Any]], **more: Any
) -> dict[str, Any]:
    """A message as OpenAI's clients send it, as JSON Schema.

    texts: types of parts with text -> the property that has it. others: types of other parts -> their properties, which
    they must have. more: other properties of the message.
    """
    known = {name: {key: {"type": "string", **STORABLE}} for name, key in texts.items()} | dict(others)
    parts = [
        {"type": "object", "required": ["type", *own], "properties": {"type": {"const": name}, **own}}
        for name, own in known.items()
    ]
    text = {"type": "string", "maxLength": MAX_TEXT, **STORABLE}
    content = {"anyOf": [{"type": "null"}, text, {"type": "array", "items": {"anyOf": parts}}]}
    return {"required": ["role"], "properties": {"role": {"enum": list(roles)}, "content": content, **more}}


#: roles of OpenAI's messages -> ours; None: of calls of tools, which a model alone reads
_ROLES: Final[Mapping[str, Literal["system", "user", "assistant"] | None]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": None,
    "function": None,
}
#: types of parts with text -> where the text is
_TEXTS: Final = {"text": "text", "refusal": "refusal"}
#: types of other parts -> what stands for them in the question, and what an arm must take for them
_OTHERS: Final = {"image_url": ("[image]", "images"), "input_audio": ("[audio]", "audio"), "file": ("[file]", "files")}
_URL: Final = {"type": "object", "required": ["url"], "properties": {"url": {"type": "string"}}}
_OBJECTS: Final = {name: {name: _URL if name == "image_url" else {"type": "object"}} for name in _OTHERS}
MESSAGE: Final = message_schema(roles=tuple(_ROLES), texts=_TEXTS, others=_OBJECTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    """What a request says and asks for."""

    #: the conversation as texts, the last of it the question
    turns: tuple[Message, ...]
    #: messages and parameters as they came, by the names of chat completions
    sent: Mapping[str, Any] = field(default_factory=dict)
    #: what an arm must be able to do for it, and what it should where one can, sorted
    needs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    #: ids of the calls of tools whose results end it
    results: tuple[str, ...] = ()

    def facts(self, *, passed: bool) -> dict[str, Json]:
        """What is kept of it with the decision. passed: whether an arm may pass it on.

        The hash tells two requests apart that ask the same question with other parameters.
        """
        facts: dict[str, Json] = {NEEDS: list(self.needs), OPTIONAL: list(self.optional)}
        if passed:
            messages: Any = self.sent["messages"]
            texts = {**self.sent, "messages": [_without_data(each) for each in messages]}
            facts[TOKENS] = len(json.dumps(texts, ensure_ascii=False)) // _CHARS_PER_TOKEN
        if passed and (len(self.sent) > 1 or self.needs or self.results):
            facts[CHAT_HASH] = body_hash(self.sent)
        return facts


def read_chat(sent: Mapping[str, Any], *, at: str = "messages") -> Chat:
    """What a chat completion with these messages and parameters says and asks for.

    at: the parameter that has the messages, for errors. Raises InvalidInput, Unsupported naming the message.
    """
    messages = sent["messages"]
    if not messages:
        raise InvalidInput(f'"{at}" is empty', field=at, remedy="send at least one message of the role user")
    turns, needs = list[Message | None](), set[str]()
    for index, message in enumerate(messages):
        turns.append(_turn(message, at=f"{at}.{index}", needs=needs))
    results = tuple(results_of(messages))
    if results:  # what follows the question is between the model and its tools
        last = max((place for place, turn in enumerate(turns) if turn is not None and turn.role == "user"), default=0)
        turns = turns[: last + 1]
    texts = tuple(turn for turn in turns if turn is not None and turn.text.strip())
    passed = {name: sent[name] for name in PASSED_PARAMETERS & sent.keys() if sent[name] is not None}
    _check_storable({"messages": messages, **passed}, at=at)
    needs |= _needs(passed)
    offered = any(passed.get(tools) and passed.get(choice) != "none" for tools, choice in _TOOLS.items())
    return Chat(
        turns=texts,
        sent={"messages": messages, **passed},
        needs=tuple(sorted(needs)),
        optional=("tools",) if offered and "tools" not in needs else (),
        results=results,
    )


#: the key of a query's `request` with the messages of a conversation with tools, which a later response goes on from
SAID: Final = "said"
#: characters of them that are kept; a response to a longer conversation must bring it whole
_MOST_SAID: Final = 65_536


def said_of(chat: Chat) -> dict[str, Json]:
    """The messages of a chat in which tools were called, without the words of the system, for what goes on from it."""
    messages: Any = chat.sent.get("messages", ())
    said = [_without_data(each) for each in messages if each.get("role") not in ("system", "developer")]
    if not any(each.get("role") == "tool" for each in messages) or len(json.dumps(said)) > _MOST_SAID:
        return {}
    return {SAID: said}


def _needs(passed: Mapping[str, Any]) -> set[str]:
    """What the parameters of a request need. Tools that may be called are no need: a model, too, may pass them over."""
    form = passed.get("response_format")
    wanted = {
        "tools": any(passed.get(choice) not in (None, "none", "auto") for choice in _TOOLS.values()),
        "json": isinstance(form, Mapping) and form.get("type") != "text",
        "logprobs": passed.get("logprobs") or passed.get("top_logprobs"),
    }
    return {name for name, needed in wanted.items() if needed}


#: what cannot be written as JSON -> what is wrong with it, and what to send
_UNSTORABLE: Final = {
    UnicodeEncodeError: ("has half of a surrogate pair", "send whole characters"),
    ValueError: ("has a number that is not finite", "send finite numbers"),
    RecursionError: ("is nested too deep", "send less of it"),
}


def _check_storable(sent: Mapping[str, Any], *, at: str) -> None:
    """Raises InvalidInput for what no database and no model's server takes: a request is kept until it is answered."""
    for name, value in sent.items():
        field = at if name == "messages" else name
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            fault, remedy = next(words for kind, words in _UNSTORABLE.items() if isinstance(error, kind))
            raise InvalidInput(f'"{field}" {fault}', field=field, remedy=remedy) from None


def _turn(message: Mapping[str, Any], *, at: str, needs: set[str]) -> Message | None:
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        remedy = f"use {', '.join(_ROLES)}"
        raise InvalidInput(f"{role!r:.80} is no role of a message", field=f"{at}.role", remedy=remedy)
    text = _text(message.get("content"), at=f"{at}.content", needs=needs)
    return None if (known := _ROLES[role]) is None else Message(role=known, text=text)


def _text(content: object, *, at: str, needs: set[str]) -> str:
    if content is None:
        return ""  # an assistant that called a tool
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidInput(f'"{at}" must be text or a list of parts', field=at, remedy="send a string")
    return "\n".join(_part(part, at=f"{at}.{index}", needs=needs) for index, part in enumerate(content))


def _part(part: object, *, at: str, needs: set[str]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        remedy = 'send {"type": "text", "text": "..."}'
        raise InvalidInput(f'"{at}" is no part of a message', field=at, remedy=remedy)
    if kind in _OTHERS:
        own = part.get(kind)
        if not isinstance(own, dict) or (kind == "image_url" and not isinstance(own.get("url"), str)):
            wanted = "an object with a url" if kind == "image_url" else "an object"
            raise InvalidInput(f'"{at}.{kind}" must be {wanted}', field=f"{at}.{kind}", remedy="send one")
        shown, need = _OTHERS[kind]
        needs.add(need)
        return shown
    if kind not in _TEXTS:
        message = f"parts of messages are {', '.join((*_TEXTS, *_OTHERS))}, not {kind:.40}"
        raise Unsupported(message, field=f"{at}.type", remedy="send the text of it, as a part of the type text")
    if not isinstance(text := part.get(key := _TEXTS[kind]), str):
        raise InvalidInput(f'"{at}.{key}" must be text', field=f"{at}.{key}", remedy="send a string")
    return text


def _without_data(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with an empty object for every image, audio and file."""
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    parts = [{**part, part["type"]: {}} if part.get("type") in _OTHERS else part for part in content]
    return {**message, "content": parts}


_RESPONSE_ITEMS_ROLES: Final = ("user", "assistant", "system", "developer")
#: types of parts of messages -> those of chat completions
_PARTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "input_image": "image_url",
    "input_file": "file",
}
#: items of a conversation with tools
CALL, _RESULT, _REASONING = "function_call", "function_call_output", "reasoning"
_STRING: Final[dict[str, Any]] = {"type": "string"}
_RESPONSE_ITEMS_TEXTS: Final = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
_FILES: Final[dict[str, dict[str, Any]]] = {"input_image": {"image_url": _STRING}, "input_file": {}}
ITEM: Final[dict[str, Any]] = {
    "anyOf": [
        message_schema(
            roles=_RESPONSE_ITEMS_ROLES, texts=_RESPONSE_ITEMS_TEXTS, others=_FILES, type={"const": "message"}
        ),
        {
            "required": ["type", "call_id", "name", "arguments"],
            "properties": {"type": {"const": CALL}, "call_id": _STRING, "name": _STRING, "arguments": _STRING},
        },
        {
            "required": ["type", "call_id", "output"],
            "properties": {"type": {"const": _RESULT}, "call_id": _STRING, "output": _STRING},
        },
        {"required": ["type"], "properties": {"type": {"const": _REASONING}}},
    ]
}


def add_item(messages: list[dict[str, Any]], item: Mapping[str, Any], *, at: str) -> None:
    """Add an item of a conversation to the messages of a chat."""
    kind, role = item.get("type") or "message", item.get("role")
    if kind == _REASONING:
        return
    if kind == CALL:
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
        return
    if kind == _RESULT:
        output = item.get("output")
        text = output if isinstance(output, str) else _content(output, at=f"{at}.output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
        return
    if kind != "message":
        message = f"items are messages and calls of functions, not {kind!s:.40}"
        raise Unsupported(message, field=f"{at}.type", remedy="send items of the type message")
    if role not in _RESPONSE_ITEMS_ROLES:
        remedy = f"use {', '.join(_RESPONSE_ITEMS_ROLES)}"
        raise InvalidInput(f"{role!r:.80} is no role of a message", field=f"{at}.role", remedy=remedy)
    messages.append({"role": role, "content": _content(item.get("content"), at=f"{at}.content")})


def _content(content: object, *, at: str) -> object:
    """The content of a message, its parts as those of a chat completion."""
    if not isinstance(content, list):
        return content
    return [_item_part(part, at=f"{at}.{index}") for index, part in enumerate(content)]


def _item_part(part: object, *, at: str) -> object:
    if not isinstance(part, Mapping) or part.get("type") not in _PARTS:
        kind = part.get("type") if isinstance(part, Mapping) else part
        message = f"parts of messages are {', '.join(_PARTS)}, not {kind!s:.40}"
        raise Unsupported(message, field=f"{at}.type", remedy="send the text of it, as a part of the type input_text")
    kind, rest = _PARTS[part["type"]], {name: value for name, value in part.items() if name != "type"}
    if kind == "image_url":
        image = {"url": part.get("image_url"), **({"detail": part["detail"]} if part.get("detail") else {})}
        return {"type": kind, kind: image}
    if kind == "file":
        return {"type": kind, kind: rest}
    return {"type": kind, kind: part.get("text", part.get("refusal"))}


def tool_of(tool: Mapping[str, Any], *, at: str) -> dict[str, Any]:
    """A function as chat completions have it. Raises Unsupported for a tool that OpenAI runs itself."""
    if tool.get("type") != "function":
        message = f"tools are functions of the caller, not {tool.get('type')!s:.40}"
        raise Unsupported(message, field=f"{at}.type", remedy="send tools of the type function")
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}


def choice_of_tool(choice: str | Mapping[str, Any] | None) -> Any:
    """The choice of a tool as chat completions have it."""
    if isinstance(choice, Mapping) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def format_of(form: object) -> dict[str, Any] | None:
    """The form of the answer as chat completions have it; None: text."""
    if not isinstance(form, Mapping) or form.get("type", "text") == "text":
        return None
    schema = {name: value for name, value in form.items() if name != "type" and value is not None}
    return {"type": form["type"], **({"json_schema": schema} if form.get("type") == "json_schema" else {})}
