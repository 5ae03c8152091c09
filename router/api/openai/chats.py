"""Chats: what a chat completion says and asks for, and the items of a response as its messages."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from ragbandit.router.api.openai.replies import Unsupported
from ragbandit.router.api.openai.tool_loops import results_of
from ragbandit.router.serving.conversations import without_middle
from ragbandit.router.serving.deciding.needs import CHAT, NEEDS, OPTIONAL, TOKENS
from ragbandit.router.storage.rows.conversion import CHAT_HASH, body_hash
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.openai_client import PASSED_PARAMETERS
from ragbandit.shared.types import MAX_TEXT, Json, Message

#: parameter with tools -> parameter with the choice among them
_TOOLS: Final = {"tools": "tool_choice", "functions": "function_call"}
#: characters of a usual text per token
_CHARS_PER_TOKEN: Final = 4


def message_schema(*, roles: Sequence[str], texts: Sequence[str], **more: Any) -> dict[str, Any]:
    """A message as OpenAI's clients send it, as JSON Schema. texts: types of the parts that every arm reads."""
    text = {"type": {"enum": list(texts)}, "text": {"type": "string"}}
    parts = {"type": "array", "items": {"type": "object", "required": list(text), "properties": text}}
    content = {"anyOf": [{"type": "null"}, {"type": "string"}, parts]}
    return {"required": ["role"], "properties": {"role": {"enum": list(roles)}, "content": content, **more}}


#: roles of OpenAI's messages -> ours; None: only a model reads it
_ROLES: Final[Mapping[str, Literal["system", "user", "assistant"] | None]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": None,
    "function": None,
}
#: types of parts with text, which have it under the same name
_TEXTS: Final = ("text", "refusal")
#: types of other parts -> text of the question in their place, and what an arm must take for them
_OTHERS: Final = {"image_url": ("[image]", "images"), "input_audio": ("[audio]", "audio"), "file": ("[file]", "files")}
MESSAGE: Final = message_schema(roles=list(_ROLES), texts=["text"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    """What a request says and asks for."""

    #: the conversation as texts, the last of it the question
    turns: tuple[Message, ...]
    #: messages and parameters as they came, by the names of chat completions
    sent: Mapping[str, Any]
    #: entries of the query's `request`
    facts: Mapping[str, Json]
    #: tools and items that were left out, by their types
    ignored: tuple[str, ...] = ()


def read_chat(
    sent: Mapping[str, Any], *, at: str = "messages", skip: int = 0, passed: bool, ignored: Sequence[str] = ()
) -> Chat:
    """What a chat completion with these messages and parameters says and asks for.

    at: the parameter that has the messages, for errors. skip: messages before those of this parameter. passed: an arm
    passes chats on. Then what only a model can read, and a chat that does not end with a question, is a need (CHAT),
    and long texts of `turns` are shortened. Raises InvalidInput, Unsupported naming the message.
    """
    if not sent["messages"]:
        raise InvalidInput(f'"{at}" is empty', field=at, remedy="send at least one message of the role user")
    names = [name for name in PASSED_PARAMETERS & sent.keys() if sent[name] not in (None, [])]
    values = {name: (_limit if name in _LIMITS else storable)(sent[name], field=name) for name in names}
    params = {name: value for name, value in values.items() if value is not None}
    messages = storable(sent["messages"], field=at)
    needs, faults = _needs(params), list[InvalidInput]()
    reader = _Reader(needs=needs, faults=faults)
    turns = [reader.turn(message, at=f"{at}.{index - skip}") for index, message in enumerate(messages)]
    if faults and not passed:
        raise faults[0]
    results = results_of(messages)
    texts = [turn for turn in turns if turn is not None and turn.text.strip()]
    cut, asks = _to_question(texts)
    texts = cut if passed or results else texts  # a chat that ends with no question is refused
    question = next((turn.text for turn in reversed(texts) if turn.role == "user"), "")
    if passed and (faults or len(question) > MAX_TEXT or not (asks or results)):
        needs.add(CHAT)
    clipped = sum(len(turn.text) > MAX_TEXT for turn in texts if passed)
    if clipped:
        texts = [replace(turn, text=without_middle(turn.text, most=MAX_TEXT)) for turn in texts]
    offered = any(params.get(tools) and params.get(choice) != "none" for tools, choice in _TOOLS.items())
    optional: list[Json] = ["tools"] if offered and "tools" not in needs else []
    facts: dict[str, Json] = {NEEDS: [*sorted(needs)], OPTIONAL: optional, "clipped": clipped or None}
    whole = {"messages": messages, **params}
    if passed:
        shown = {**whole, "messages": [_without_data(each) for each in messages]}
        facts[TOKENS] = len(json.dumps(shown, ensure_ascii=False)) // _CHARS_PER_TOKEN
    if passed and (params or needs or results):
        facts[CHAT_HASH] = body_hash(whole)  # the same question with other parameters is another request
    return Chat(turns=tuple(texts), sent=whole, facts=facts, ignored=tuple(ignored))


def _to_question(texts: Sequence[Message]) -> tuple[list[Message], bool]:
    """The texts up to the question, a user's last or else the last of all; whether only the system spoke after it."""
    last = max((place for place, turn in enumerate(texts) if turn.role == "user"), default=None)
    if last is None:
        return [*texts[:-1], *(replace(turn, role="user") for turn in texts[-1:])], False
    after = texts[last + 1 :]
    system = [turn for turn in after if turn.role == "system"]
    return [*texts[: last + 1], *system], after == system


#: parameters that limit the tokens of an answer
_LIMITS: Final = frozenset({"max_tokens", "max_completion_tokens"})


def _limit(value: object, *, field: str) -> int | None:
    """The limit of an answer's tokens; None for -1, by which clients mean no limit. Raises InvalidInput."""
    if value == -1 and not isinstance(value, bool):
        return None
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(whole, bool) or not isinstance(whole, int) or not 0 < whole < 2**53:
        remedy = "send a whole number from 1 on; leave it out, or send -1, for no limit"
        raise InvalidInput(f'"{field}" is {value!r:.40}', field=field, remedy=remedy)
    return whole


#: the key of a query's `request` with the messages of a chat that is more than texts, or their size if too large
SAID: Final = "said"
#: characters of them that are kept
MOST_SAID: Final = 262_144


def said_of(messages: Sequence[Mapping[str, Any]]) -> dict[str, Json]:
    """The messages as they came if tools, images or other parts are in them."""
    plain = {"role", "content"}
    if all(each.keys() <= plain and _ROLES.get(each["role"]) and _is_text(each["content"]) for each in messages):
        return {}
    said = [dict(each) for each in messages]
    return {SAID: said if (size := len(json.dumps(said, ensure_ascii=False))) <= MOST_SAID else size}


def _is_text(content: object) -> bool:
    if not isinstance(content, list):
        return isinstance(content, str)
    return all(isinstance(part, dict) and part.get("type") == "text" for part in content)


def _needs(passed: Mapping[str, Any]) -> set[str]:
    """What the parameters of a request need. Tools that may be called are no need: a model, too, may pass them over."""
    form = passed.get("response_format")
    wanted = {
        "tools": any(passed.get(choice) not in (None, "none", "auto") for choice in _TOOLS.values()),
        "json": isinstance(form, Mapping) and form.get("type") != "text",
        "logprobs": passed.get("logprobs") or passed.get("top_logprobs"),
    }
    return {name for name, needed in wanted.items() if needed}


#: halves of surrogate pairs and NUL, which no database takes
_BROKEN: Final = re.compile("[\x00\ud800-\udfff]")


def storable(value: Any, *, field: str) -> Any:
    """The value with U+FFFD for characters that no store takes. Raises InvalidInput for other values than JSON's."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return _whole(value) if "\\u0000" in text or _BROKEN.search(text) else value
    except RecursionError:
        raise InvalidInput(f'"{field}" is nested too deep', field=field, remedy="send less of it") from None
    except ValueError:
        message = f'"{field}" has a number that is not finite'
        raise InvalidInput(message, field=field, remedy="send finite numbers") from None


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return _BROKEN.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return {_whole(name): _whole(each) for name, each in value.items()} if isinstance(value, dict) else value


class _Reader:
    """Reads messages as texts; collects in `needs` and `faults` what an arm must do and what only a model can read."""

    def __init__(self, *, needs: set[str], faults: list[InvalidInput]) -> None:
        self._needs, self._faults = needs, faults

    def turn(self, message: Mapping[str, Any], *, at: str) -> Message | None:
        """The message as text; None if only a model reads its role."""
        role, content, text = message.get("role"), message.get("content"), ""
        if not isinstance(role, str) or role not in _ROLES:
            fault, remedy = f"{role!r:.80} is no role of a message", f"use {', '.join(_ROLES)}"
            self._faults.append(InvalidInput(fault, field=f"{at}.role", remedy=remedy))
            return None
        known = _ROLES[role]
        if isinstance(content, str):
            text = content
        elif isinstance(content, list):
            parts = enumerate(content)
            text = "\n".join(self._part(part, at=f"{at}.content.{n}", asks=known == "user") for n, part in parts)
        elif content is not None:  # null: an assistant that called a tool
            fault = f'"{at}.content" must be text or a list of parts'
            self._faults.append(InvalidInput(fault, field=f"{at}.content", remedy="send a string"))
        return None if known is None else Message(role=known, text=text)

    def _part(self, part: object, *, at: str, asks: bool) -> str:
        """The part as text. asks: it is a user's; of others, as a model's thoughts, only texts are read."""
        if not isinstance(part, dict):
            part = {"type": "text", "text": part}
        kind = part.get("type") or next((name for name in _OTHERS if name in part), "text")
        kind = _PARTS.get(kind, kind) if isinstance(kind, str) else repr(kind)
        if kind in _OTHERS:
            shown, need = _OTHERS[kind]
            self._needs.add(need)
            return shown
        key = kind if kind in _TEXTS else "text"
        if isinstance(text := part.get(key), str):
            return text
        if not asks:
            return ""
        error = InvalidInput(f'"{at}.{key}" must be text', field=f"{at}.{key}", remedy="send a string")
        if kind not in _TEXTS:
            message = f"parts of messages are {', '.join((*_TEXTS, *_OTHERS))}, not {kind:.40}"
            remedy = "send the text of it, as a part of the type text"
            error = Unsupported(message, field=f"{at}.type", remedy=remedy)
        self._faults.append(error)
        return f"[{kind:.40}]"


def _without_data(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message without parts that have no text: their sizes tell nothing about tokens."""
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    texts = ("text", "refusal", "thinking")
    dicts = [part for part in content if isinstance(part, dict)]
    return {**message, "content": [part for part in dicts if any(isinstance(part.get(key), str) for key in texts)]}


_RESPONSE_ITEMS_ROLES: Final = ("user", "assistant", "system", "developer")
#: types of parts of responses -> those of chat completions
_PARTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "input_image": "image_url",
    "input_file": "file",
}
#: items of a conversation with tools
CALL, _REASONING = "function_call", "reasoning"
_PART_TEXTS: Final = ("input_text", "output_text")
ITEM: Final[dict[str, Any]] = {
    "anyOf": [
        message_schema(roles=_RESPONSE_ITEMS_ROLES, texts=_PART_TEXTS, type={"const": "message"}),
        {"required": ["type"], "properties": {"type": {"enum": [CALL, f"{CALL}_output", _REASONING]}}},
    ]
}
#: fields of an item that belong neither to the arguments of a call nor to its result
_HEAD: Final = frozenset({"type", "id", "call_id", "status", "name", "namespace", "arguments"})


def is_reference(item: Mapping[str, Any]) -> bool:
    """Whether the item stands for one of an earlier response."""
    return item.get("type") == "item_reference" or ("id" in item and not item.keys() & {"type", "role"})


def add_item(messages: list[dict[str, Any]], item: Mapping[str, Any], *, at: str) -> str | None:
    """Add an item of a conversation to the messages of a chat, in which calls of every tool are calls of functions.

    Returns the type of an item that no chat model can read, which is left out.
    """
    kind, role = str(item.get("type") or "message"), item.get("role")
    call_id = item.get("call_id") or (item.get("id") if kind == CALL or kind.endswith("_output") else None)
    if kind == "message":
        if role not in _RESPONSE_ITEMS_ROLES:
            remedy = f"use {', '.join(_RESPONSE_ITEMS_ROLES)}"
            raise InvalidInput(f"{role!r:.80} is no role of a message", field=f"{at}.role", remedy=remedy)
        content = item.get("content")
        if isinstance(content, list):
            content = [_item_part(part, at=f"{at}.content.{place}") for place, part in enumerate(content)]
            if role == "assistant" and _is_text(content):  # few servers take parts of an assistant
                content = "".join(str(part["text"]) for part in content)
        messages.append({"role": role, "content": content})
    elif kind.endswith("_call") and call_id:
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        call = {"id": call_id, "type": "function", "function": _function_called(item, kind=kind)}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind.endswith("_output") and call_id:
        output = item.get("output", {name: value for name, value in item.items() if name not in _HEAD})
        messages.append({"role": "tool", "tool_call_id": call_id, "content": _result(output, at=f"{at}.output")})
    else:
        return None if kind == _REASONING else kind
    return None


def _function_called(item: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    name = str(item.get("name") or kind.removesuffix("_call"))
    arguments = item.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {name: value for name, value in item.items() if name not in _HEAD})
    return {"name": in_namespace(name, item.get("namespace")), "arguments": arguments}


def _result(output: object, *, at: str) -> object:
    """The output of a tool as the content of a message: text, or parts if it has any that a chat has too."""
    if isinstance(output, str) or output is None:
        return output or ""
    parts = [output] if isinstance(output, Mapping) else output
    known = [_item_part(part, at=at) for part in parts] if isinstance(parts, list) else [parts]
    kinds = [str(part.get("type")) for part in known if isinstance(part, Mapping)]
    return known if len(kinds) == len(known) and {*kinds} <= {*_TEXTS, *_OTHERS} else json.dumps(output)


def _item_part(part: object, *, at: str) -> object:
    """A part of an item as that of a chat completion; one of another type as it came."""
    if not isinstance(part, Mapping):
        return part
    kind, url, text = str(part.get("type")), part.get("image_url"), part.get("text", part.get("refusal"))
    if kind == "input_file":
        return {"type": "file", "file": {name: value for name, value in part.items() if name != "type"}}
    if kind == "input_image" and url is None:
        raise InvalidInput("files of images are not kept here", field=f"{at}.image_url", remedy="send the image's URL")
    if isinstance(url, str):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": url, **detail}}
    if kind in _PARTS and text is not None:
        return {"type": _PARTS[kind], _PARTS[kind]: text}
    return part


def in_namespace(name: str, space: object) -> str:
    """The name that chat completions have for a function of a namespace."""
    return f"{space}__{name}" if space else name


def tools_of(tools: Sequence[Mapping[str, Any]], *, choice: Any) -> tuple[dict[str, Any], list[str]]:
    """The parameters of chat completions for the tools and the choice among them, and the types of ignored tools.

    Ignored are tools that OpenAI runs itself, and others than functions. Raises Unsupported if one must be called.
    """
    functions, ignored = list[dict[str, Any]](), list[str]()
    for tool in tools:
        inner = tool.get("tools") if tool.get("type") == "namespace" else None
        for each in inner if isinstance(inner, list) else [tool]:
            if isinstance(each, Mapping) and (each.get("type") or "function") == "function":
                functions.append(_function(each, space=None if each is tool else tool.get("name")))
            else:
                ignored.append(f"tools.{each.get('type') if isinstance(each, Mapping) else each}")
    name, wanted = None, choice
    if isinstance(choice, Mapping):
        name, wanted = _called_name(choice), choice.get("type")
        if wanted == "allowed_tools":
            allowed = choice.get("tools")
            known = allowed if isinstance(allowed, list) else []
            names = [_called_name(each) for each in known if isinstance(each, Mapping)]
            functions = [each for each in functions if each["function"].get("name") in names]
            name, wanted = None, choice.get("mode") or "auto"
    runs_itself = wanted not in ("none", "auto", "required", "function", None)
    if runs_itself or (wanted in ("required", "function") and ignored and not functions):
        message = f"tool_choice demands a call of a tool that is not run here ({', '.join(ignored) or wanted!s:.80})"
        raise Unsupported(message, field="tool_choice", remedy="send functions of your own, or tool_choice: auto")
    if name is not None:
        wanted = {"type": "function", "function": {"name": name}}
    if not functions and wanted in (None, "auto", "none"):  # servers refuse a choice without tools
        return dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls")), ignored
    return {"tools": functions or None, "tool_choice": wanted}, ignored


def _called_name(tool: Mapping[str, Any]) -> str | None:
    inner = tool.get("function")
    name = inner.get("name") if isinstance(inner, Mapping) else tool.get("name")
    return None if name is None else in_namespace(str(name), tool.get("namespace"))


def _function(tool: Mapping[str, Any], *, space: object) -> dict[str, Any]:
    """A function as chat completions have it; a client may send it so."""
    if isinstance(tool.get("function"), Mapping):
        return dict(tool)
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function | {"name": in_namespace(tool.get("name", ""), space)}}


def format_of(form: object) -> dict[str, Any] | None:
    """The form of the answer as chat completions have it; None: text."""
    if not isinstance(form, Mapping) or form.get("type", "text") == "text":
        return None
    schema = {name: value for name, value in form.items() if name != "type" and value is not None}
    return {"type": form["type"], **({"json_schema": schema} if form.get("type") == "json_schema" else {})}
