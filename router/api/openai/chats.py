"""Chats: read the messages and parameters of a chat completion, and convert the items of a response to messages."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator

from ragbandit.router.api.openai.replies import Unsupported
from ragbandit.router.api.openai.tool_loops import results_of
from ragbandit.router.api.schemas.requests import wanted
from ragbandit.router.serving.conversations import without_middle
from ragbandit.router.serving.deciding.steps.needs import CHAT, NEEDS, OPTIONAL, TOKENS
from ragbandit.router.storage.rows.conversion import CHAT_HASH, body_hash
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.message_parts import listed, words_of
from ragbandit.shared.token_usage import TOKEN_LIMITS
from ragbandit.shared.types import MAX_TEXT, Json, Message

#: fields that never pass: the service's own, and the handling of streams
_OWN: Final = frozenset({"model", "stream", "stream_options", "cost_weight", "aim", "failover", "ragbandit"})
#: parameter that lists tools -> parameter that demands or forbids a call of them
_TOOLS: Final = {"tools": "tool_choice", "functions": "function_call"}


def message_schema(*, roles: Sequence[str], texts: Sequence[str], **more: Any) -> dict[str, Any]:
    """JSON Schema of a message. texts: types of the parts that every arm reads. more: schemas of other properties."""
    text = {"type": {"enum": list(texts)}, "text": {"type": "string"}}
    parts = {"type": "array", "items": {"type": "object", "required": list(text), "properties": text}}
    content = {"anyOf": [{"type": "null"}, {"type": "string"}, parts]}
    return {"required": ["role"], "properties": {"role": {"enum": list(roles)}, "content": content, **more}}


#: role in OpenAI's messages -> role in `Chat.turns`; None if only a model reads such messages, so `turns` has none
_ROLES: Final[Mapping[str, Literal["system", "user", "assistant"] | None]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": None,
    "function": None,
}
#: types of text parts; each has its text in the field of the same name
_TEXTS: Final = ("text", "refusal")
#: type of another part -> (text that replaces it in the question, ability that an arm needs to read it)
_OTHERS: Final = {"image_url": ("[image]", "images"), "input_audio": ("[audio]", "audio"), "file": ("[file]", "files")}
MESSAGE: Final = message_schema(roles=list(_ROLES), texts=["text"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    #: the conversation as texts; the last one is the question
    turns: tuple[Message, ...]
    #: messages and parameters as the caller sent them, under their names in chat completions
    sent: Mapping[str, Any]
    #: entries for `Query.request`
    facts: Mapping[str, Json]


def read_chat(sent: Mapping[str, Any], *, at: str = "messages", skip: int = 0, passed: bool) -> Chat:
    """Read the messages and parameters of a chat completion, known or not. Raises InvalidInput with the place.

    at: name of the parameter that has the messages, for errors.
    skip: number of messages that come before those of the parameter.
    passed: whether an arm of this service passes chats on to a model. True: long texts of `turns` are shortened, and a
        chat needs such an arm (CHAT) if only a model can read it, or if it does not end with a question. False: a chat
        that only a model can read is refused.
    """
    if not sent["messages"]:
        raise InvalidInput(f'"{at}" is empty', field=at, remedy="send at least one message of the role user")
    limits = {name: token_limit(sent[name], field=name) for name in TOKEN_LIMITS if name in sent}
    # Servers refuse empty lists of stop strings or tools, and a choice without tools.
    left_out = [name for name in ("stop", *_TOOLS) if sent.get(name) == []]
    if not any(map(sent.get, _TOOLS)):
        choices = (*_TOOLS, *_TOOLS.values(), "parallel_tool_calls")
        left_out += [name for name in choices if sent.get(name) in ("auto", "none", True, False, None)]
    left_out += [name for name, limit in limits.items() if limit is None and sent[name] is not None]
    left_out += _OWN
    whole = {
        _repaired(name): storable(value, field=at if name == "messages" else name)
        for name, value in {**sent, **limits}.items()
        if name not in left_out
    }
    messages, needs = whole["messages"], _needs(whole)
    reader = _Reader(needs=needs)
    turns = [reader.turn(message, at=f"{at}.{index - skip}") for index, message in enumerate(messages)]
    if reader.faults and not passed:
        raise reader.faults[0]
    results = results_of(messages)
    texts = [turn for turn in turns if turn is not None and turn.text.strip()]
    to_question, is_last = _to_question(texts)
    if passed or results:
        texts = to_question
    question = next((turn.text for turn in reversed(texts) if turn.role == "user"), "")
    if passed and (reader.faults or len(question) > MAX_TEXT or not (is_last or results)):
        needs.add(CHAT)
    clipped = sum(len(turn.text) > MAX_TEXT for turn in texts if passed)
    if clipped:
        texts = [replace(turn, text=without_middle(turn.text, most=MAX_TEXT)) for turn in texts]
    offered = any(whole.get(tools) and whole.get(choice) != "none" for tools, choice in _TOOLS.items())
    facts: dict[str, Json] = {NEEDS: list[Json](sorted(needs)), OPTIONAL: [], "clipped": clipped or None}
    if offered and "tools" not in needs:
        facts[OPTIONAL] = ["tools"]
    if passed:
        fields = [value for name, value in whole.items() if name != "messages"]
        facts[TOKENS] = (reader.size + len(json.dumps(fields, ensure_ascii=False))) // 4  # characters per token
    told = {name: value for name, value in whole.items() if value is not None}
    if passed and (len(told) > 1 or needs or results):
        facts[CHAT_HASH] = body_hash(told)  # also differs if only the parameters differ
    return Chat(turns=tuple(texts), sent=whole, facts=facts)


def _to_question(texts: Sequence[Message]) -> tuple[list[Message], bool]:
    """Returns (texts up to the question, whether a user wrote the question and only system messages follow it)."""
    last = max((place for place, turn in enumerate(texts) if turn.role == "user"), default=None)
    if last is None:
        return list(texts[:-1]) + [replace(turn, role="user") for turn in texts[-1:]], False
    following = texts[last + 1 :]
    system = [turn for turn in following if turn.role == "system"]
    return list(texts[: last + 1]) + system, following == system


def whole_number(value: object) -> object:
    """Convert 1.0, which some clients write, to 1. Other values are returned unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Choice = Annotated[str | dict[str, Any] | None, wanted("text, an object or null")]
WholeNumber = Annotated[int | None, BeforeValidator(whole_number)]


def token_limit(value: object, *, field: str) -> int | None:
    """The limit of an answer's tokens. None for -1, by which some clients mean "no limit". Raises InvalidInput."""
    if value in (None, -1):
        return None
    whole = whole_number(value)
    if isinstance(whole, bool) or not isinstance(whole, int) or not 0 < whole < 2**53:
        remedy = "send a whole number of at least 1; leave it out, or send -1, for no limit"
        raise InvalidInput(f'"{field}" is {value!r:.40}, not a number of tokens', field=field, remedy=remedy)
    return whole


#: key of a query's `request`: messages of a response's own turn, unless the question says all. Above MOST_SAID only
#: their size
SAID: Final = "said"
#: largest size of messages that are stored under SAID, characters of JSON
MOST_SAID: Final = 262_144


def said_of(messages: Sequence[Mapping[str, Any]]) -> dict[str, Json]:
    """Returns {SAID: ...} for the query's `request`; {} if the query's text is the only message."""
    match messages:
        case [{"role": "user", "content": str(text), **more}] if not more and text.strip() and len(text) <= MAX_TEXT:
            return {}
    size = len(json.dumps(messages, ensure_ascii=False))
    return {SAID: [dict(message) for message in messages] if size <= MOST_SAID else size}


def _is_text(content: object) -> bool:
    if not isinstance(content, list):
        return isinstance(content, str)
    return all(isinstance(part, dict) and part.get("type") == "text" for part in content)


def _needs(passed: Mapping[str, Any]) -> set[str]:
    """Abilities that an arm needs for these parameters. Optional tools need no ability: a model may ignore them."""
    form = passed.get("response_format")
    needs = {
        "tools": any(passed.get(choice) not in (None, "none", "auto") for choice in _TOOLS.values()),
        "json": isinstance(form, Mapping) and form.get("type") != "text",
        "logprobs": passed.get("logprobs") or passed.get("top_logprobs"),
        CHAT: passed.get("audio") or passed.get("modalities") not in (None, [], ["text"]),
    }
    return {name for name, needed in needs.items() if needed}


#: NUL and halves of surrogate pairs, which databases refuse
_BROKEN: Final = re.compile("[\x00\ud800-\udfff]")
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def storable(value: Any, *, field: str) -> Any:
    """Replace characters that databases refuse by U+FFFD. Raises InvalidInput for a value that JSON cannot express."""
    try:
        text = _ENCODER.encode(value)
        return _repaired(value) if "\\u0000" in text or _BROKEN.search(text) else value
    except RecursionError:
        raise InvalidInput(f'"{field}" is nested too deep', field=field, remedy="nest it less deeply") from None
    except ValueError:
        message = f'"{field}" has a number that is not finite'
        raise InvalidInput(message, field=field, remedy="send finite numbers") from None


def _repaired(value: Any) -> Any:
    if isinstance(value, str):
        return _BROKEN.sub("\ufffd", value)
    if isinstance(value, list):
        return [_repaired(item) for item in value]
    if isinstance(value, dict):
        return {_repaired(name): _repaired(item) for name, item in value.items()}
    return value


class _Reader:
    """Reads messages as texts. Adds abilities that an arm needs to `needs`, and errors in messages to `faults`.

    size: characters of texts and calls, without images, audio and files, whose size does not predict their tokens.
    """

    def __init__(self, *, needs: set[str]) -> None:
        self._needs = needs
        self.faults: list[InvalidInput] = []
        self.size = 0

    def turn(self, message: Mapping[str, Any], *, at: str) -> Message | None:
        """The message as text; None if only a model reads messages of its role."""
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or role not in _ROLES:
            fault, remedy = f"{role!r:.80} is no role of a message", f"use {', '.join(_ROLES)}"
            self.faults.append(InvalidInput(fault, field=f"{at}.role", remedy=remedy))
            return None
        our_role, text = _ROLES[role], ""
        if isinstance(content, str):
            text = content
        elif isinstance(content, list):
            parts = enumerate(content)
            text = "\n".join(self._part(part, at=f"{at}.content.{n}", asks=our_role == "user") for n, part in parts)
        elif content is not None:  # an assistant that called a tool sends null
            fault = f'"{at}.content" must be text or a list of parts'
            self.faults.append(InvalidInput(fault, field=f"{at}.content", remedy="send a string"))
        self.size += len(text) + (len(json.dumps(message["tool_calls"])) if message.get("tool_calls") else 0)
        return None if our_role is None else Message(role=our_role, text=text)

    def _part(self, part: object, *, at: str, asks: bool) -> str:
        """The part as text. asks: True in a user's message; in others a part without text is "", not a fault."""
        if not isinstance(part, dict):
            part = {"type": "text", "text": part}
        kind = part.get("type") or next((name for name in _OTHERS if name in part), "text")
        kind = _PARTS.get(kind, kind) if isinstance(kind, str) else repr(kind)
        if kind in _OTHERS:
            placeholder, need = _OTHERS[kind]
            self._needs.add(need)
            return placeholder
        key = kind if kind in _TEXTS else "text"
        text = part.get(key)
        if isinstance(text, str):
            return text
        if not asks:
            return ""
        error = InvalidInput(f'"{at}.{key}" must be text', field=f"{at}.{key}", remedy="send a string")
        if kind not in _TEXTS:
            message = f"parts of messages are {', '.join([*_TEXTS, *_OTHERS])}, not {kind:.40}"
            remedy = "send its text as a part of the type text"
            error = Unsupported(message, field=f"{at}.type", remedy=remedy)
        self.faults.append(error)
        return f"[{kind:.40}]"


_ITEM_ROLES: Final = ("user", "assistant", "system", "developer")
#: type of a part in responses -> its type in chat completions
_PARTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "input_image": "image_url",
    "input_file": "file",
}
CALL, _REASONING = "function_call", "reasoning"
ITEM: Final[dict[str, Any]] = {
    "anyOf": [
        message_schema(roles=_ITEM_ROLES, texts=("input_text", "output_text"), type={"const": "message"}),
        {"required": ["type"], "properties": {"type": {"enum": [CALL, f"{CALL}_output", _REASONING]}}},
    ]
}
#: fields of an item that belong neither to the arguments of a call nor to its result
_HEAD: Final = frozenset({"type", "id", "call_id", "status", "name", "namespace", "arguments"})


def is_reference(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "item_reference" or ("id" in item and not item.keys() & {"type", "role"})


def add_item(messages: list[dict[str, Any]], item: Mapping[str, Any], *, at: str) -> str | None:
    """Append an item of a response to the messages of a chat. Calls of any tool become calls of functions. Returns
    None, or the type of the item if it was left out because no chat model can read it.
    """
    kind, role = str(item.get("type") or "message"), item.get("role")
    call_id = item.get("call_id") or (item.get("id") if kind.endswith((CALL, "shell_call", "_output")) else None)
    if kind == "message":
        if role not in _ITEM_ROLES:
            remedy = f"use {', '.join(_ITEM_ROLES)}"
            raise InvalidInput(f"{role!r:.80} is no role of a message", field=f"{at}.role", remedy=remedy)
        content = item.get("content")
        if isinstance(content, list):
            content = [_item_part(part, at=f"{at}.content.{place}") for place, part in enumerate(content)]
            if role == "assistant" and _is_text(content):  # many model servers accept only text
                content = "".join(str(part["text"]) for part in content)
        if role == "assistant" and messages and messages[-1].get("tool_calls") and messages[-1]["content"] is None:
            messages[-1]["content"] = content  # a tool's results must follow the message with its call
        else:
            messages.append({"role": role, "content": content, **reasoning_in(item)})
    elif kind.endswith("_call") and call_id:
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        call = {"id": call_id, "type": "function", "function": _function_called(item, kind=kind), **reasoning_in(item)}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind.endswith("_output") and call_id:
        output = item.get("output", {name: value for name, value in item.items() if name not in _HEAD})
        messages.append({"role": "tool", "tool_call_id": call_id, "content": _result(output, at=f"{at}.output")})
    else:
        return None if kind == _REASONING else kind
    return None


def add_items(messages: list[dict[str, Any]], items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Append the items of an input to the messages of a chat. Reasoning joins the answer or call that follows it, else
    the one before it. Returns the types of the items that were left out.
    """
    ignored, waiting = list[str](), list[dict[str, Any]]()
    for index, item in enumerate(items):
        if item.get("type") == _REASONING:
            waiting.append(_reasoning_fields(item))
            continue
        before = messages[-1:]
        kind = add_item(messages, item, at=f"input.{index}")
        if kind is not None:
            ignored.append(f"input.{kind}")
            continue
        replies = [message for message in (messages[-1], *before) if message["role"] == "assistant"]
        for fields in waiting if replies else ():
            texts = [part["reasoning_content"] for part in (replies[0], fields) if part.get("reasoning_content")]
            replies[0].update(fields)
            if texts:
                replies[0]["reasoning_content"] = "\n\n".join(dict.fromkeys(texts))
        waiting = []
    return ignored


def reasoning_in(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message, call or item in which servers send reasoning and its signatures, and want them back."""
    names = ("reasoning", "thinking", "extra_content")
    return {name: value for name, value in fields.items() if value and name.startswith(names)}


def _reasoning_fields(item: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a chat message for a reasoning item. The `encrypted_content` of our own items is JSON."""
    fields = reasoning_in(item)
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        fields |= reasoning_in(json.loads(item["encrypted_content"]))
    for parts in (item.get("content"), item.get("summary")):
        with suppress(RecursionError):
            text = "\n\n".join(filter(None, map(words_of, parts if isinstance(parts, list) else [parts])))
            if text:
                return {"reasoning_content": text, **fields}
    return fields


def _function_called(item: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    name = str(item.get("name") or kind.removesuffix("_call"))
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {name: value for name, value in item.items() if name not in _HEAD})
    return {"name": in_namespace(name, item.get("namespace")), "arguments": arguments}


def _result(output: object, *, at: str) -> object:
    """The output of a tool as the content of a message: parts if a chat can have parts of these types, else text."""
    if isinstance(output, str) or output in (None, []):
        return output or ""
    outputs = output if isinstance(output, list) else [output]
    parts = [_item_part(part, at=at) for part in outputs]
    is_readable = all(isinstance(part, Mapping) and str(part.get("type")) in (*_TEXTS, *_OTHERS) for part in parts)
    return parts if is_readable else json.dumps(output)


def _item_part(part: object, *, at: str) -> object:
    """Convert a part of an item to a part of a chat completion; parts of unknown types are returned unchanged."""
    if not isinstance(part, Mapping):
        return part
    kind, url, text = str(part.get("type")), part.get("image_url"), part.get("text", part.get("refusal"))
    if kind == "input_file":
        return {"type": "file", "file": {name: value for name, value in part.items() if name != "type"}}
    if kind == "input_image" and url is None:
        raise InvalidInput("the image has no URL", field=f"{at}.image_url", remedy="send its URL: no files are stored")
    if isinstance(url, str | Mapping):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {**({"url": url} if isinstance(url, str) else url), **detail}}
    if kind in _PARTS and text is not None:
        return {"type": _PARTS[kind], _PARTS[kind]: text}
    return part


def in_namespace(name: str, space: object) -> str:
    """The name of a function with its namespace as a prefix, because chat completions have no namespaces."""
    return f"{space}__{name}" if space else name


def tools_of(tools: Sequence[Mapping[str, Any]], *, choice: Any) -> tuple[dict[str, Any], list[str]]:
    """Convert the tools of a response to functions. Returns (parameters of chat completions, types of ignored tools).
    Tools that are not functions, or that OpenAI runs itself, are ignored, or raise Unsupported if `choice` demands one.
    """
    functions: list[dict[str, Any]] = []
    ignored: list[str] = []
    for tool in tools:
        space = tool.get("name") if tool.get("type") == "namespace" else None
        for member in listed(tool.get("tools")) if space else (tool,):
            if (member.get("type") or "function") == "function":
                functions.append(_function(member, space=space))
            else:
                ignored.append(f"tools.{member.get('type')}")
    name, mode = None, choice
    if isinstance(choice, Mapping):
        name, mode = _called_name(choice), choice.get("type")
        if mode == "allowed_tools":
            names = [_called_name(tool) for tool in listed(choice.get("tools"))]
            functions = [tool for tool in functions if tool["function"].get("name") in names]
            name, mode = None, choice.get("mode") or "auto"
    is_foreign = mode not in ("none", "auto", "required", "function", None)
    if is_foreign or (mode in ("required", "function") and ignored and not functions):
        message = f"tool_choice demands a call of a tool that is not run here ({', '.join(ignored) or mode!s:.80})"
        raise Unsupported(message, field="tool_choice", remedy="send functions of your own, or tool_choice: auto")
    if name is not None:
        mode = {"type": "function", "function": {"name": name}}
    return {"tools": functions or None, "tool_choice": mode}, ignored


def _called_name(tool: Mapping[str, Any]) -> str | None:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else tool.get("name")
    return None if name is None else in_namespace(str(name), tool.get("namespace"))


def _function(tool: Mapping[str, Any], *, space: object) -> dict[str, Any]:
    if isinstance(tool.get("function"), Mapping):  # `tool` has the form of chat completions already
        return dict(tool)
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function | {"name": in_namespace(tool.get("name", ""), space)}}


def format_of(form: object) -> dict[str, Any] | None:
    """The `response_format` of a chat completion for this `text.format` of a response; None for plain text."""
    if not isinstance(form, Mapping) or form.get("type", "text") == "text":
        return None
    schema = {name: value for name, value in form.items() if name != "type" and value is not None}
    more = {"json_schema": schema.get("json_schema", schema)} if form.get("type") == "json_schema" else {}
    return {"type": form["type"], **more}
