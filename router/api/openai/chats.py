"""Reads the messages and parameters of a chat completion, and finds the question in them."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator

from ragbandit.router.api.openai.errors import Unsupported
from ragbandit.router.api.openai.tool_loops import results_of
from ragbandit.router.api.schemas.requests import accepts
from ragbandit.router.serving.abilities import BOUNDS, CHAT
from ragbandit.router.serving.conversations import without_middle
from ragbandit.router.storage.rows.conversion import body_hash
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.model_servers.token_usage import TOKEN_LIMITS
from ragbandit.shared.texts.plain_values import whole_number
from ragbandit.shared.texts.token_estimates import estimated_tokens
from ragbandit.shared.types import MAX_TEXT, Message, Sent
from ragbandit.shared.types.encodings import DigestCache, Encoding

#: fields that are never passed on to a model: our own fields, and the options of streams
OWN: Final = frozenset({"model", "stream", "stream_options", "cost_weight", "aim", "failover", "ragbandit", *BOUNDS})
#: parameter that lists tools -> parameter that demands or forbids a call of them
_TOOLS: Final = {"tools": "tool_choice", "functions": "function_call"}
#: parameters that may not be empty lists, and parameters that have no meaning without tools
_LISTS: Final = ("stop", *_TOOLS)
_CHOICES: Final = (*_TOOLS, *_TOOLS.values(), "parallel_tool_calls")


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
TEXT_PARTS: Final = ("text", "refusal")
#: type of another part -> (text that replaces it in the question, ability that an arm needs to read it)
OTHER_PARTS: Final = {
    "image_url": ("[image]", "images"),
    "input_audio": ("[audio]", "audio"),
    "file": ("[file]", "files"),
}
#: type of a part in responses -> its type in chat completions
CHAT_PARTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "input_image": "image_url",
    "input_file": "file",
}
MESSAGE: Final = message_schema(roles=list(_ROLES), texts=["text"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    #: the conversation as texts; the last one that is not a system message is the question
    turns: tuple[Message, ...]
    #: messages and parameters as the caller sent them, under their names in chat completions
    fields: Mapping[str, Any]
    #: facts about the chat: needed abilities, tokens, number of shortened messages
    sent: Sent
    #: hash of the whole chat and its parameters; None for a plain question, or if no arm passes chats on
    hash: str | None
    #: the JSON of `fields`
    encoding: Encoding


def read_chat(
    sent: Mapping[str, Any],
    *,
    path: str = "messages",
    skip: int = 0,
    passed: bool,
    others: Mapping[str, Any] | None = None,
    encoding: Encoding | None = None,
) -> Chat:
    """Read the messages and parameters of a chat completion, known or not. Raises InvalidInput with the place.

    path: name of the parameter that has the messages, for errors.
    skip: number of messages that come before the parameter's messages.
    passed: whether an arm of this service passes chats on to a model. If so, long texts of `turns` are shortened, and a
    chat needs such an arm (CHAT) if only a model can read it, or if it does not end with a question. Otherwise a chat
    that only a model can read is refused.
    others: the parameters as the client sent them, for the hash, if those of `sent` were converted.
    encoding: JSON of the body from which `sent` was converted; None unless its characters were checked.
    """
    if not sent["messages"]:
        raise InvalidInput(f'"{path}" is empty', field=path, remedy="send at least one message of the role user")
    whole, encoding = _stored_fields(sent, path=path, encoding=encoding)
    messages, needs = whole["messages"], _needed_abilities(whole)
    reader = _Reader(needs=needs, encoding=encoding)
    turns = [reader.turn(message, path=f"{path}.{index - skip}") for index, message in enumerate(messages)]
    if reader.faults and not passed:
        raise reader.faults[0]
    results = results_of(messages)
    texts = [turn for turn in turns if turn is not None and turn.text.strip()]
    to_question, is_last = _texts_to_question(texts)
    if passed or results:
        texts = to_question
    asked = [turn for turn in texts if turn.role == "user"]
    question = asked[-1].text if asked else ""
    if passed and (reader.faults or len(question) > MAX_TEXT or not (is_last or results)):
        needs.add(CHAT)
    clipped = sum([len(turn.text) > MAX_TEXT for turn in texts]) if passed else 0
    if clipped:
        texts = [replace(turn, text=without_middle(turn.text, most=MAX_TEXT)) for turn in texts]
    offered = [tools for tools, choice in _TOOLS.items() if whole.get(tools) and whole.get(choice) != "none"]
    optional = ("tools",) if offered and "tools" not in needs else ()
    tokens, chat_hash = None, None
    if passed:
        tokens = reader.tokens + _parameter_tokens(whole, encoding=encoding)
        given = {name: value for name, value in whole.items() if value is not None}
        if others is not None:
            chat_hash = body_hash([messages, others])
        elif len(given) > 1 or needs or results:
            chat_hash = body_hash(given)  # requests with other parameters have another hash
    read = Sent(needs=tuple(sorted(needs)), optional_needs=optional, tokens=tokens, clipped=clipped or None)
    return Chat(turns=tuple(texts), fields=whole, sent=read, hash=chat_hash, encoding=encoding)


def _stored_fields(sent: Mapping[str, Any], *, path: str, encoding: Encoding | None) -> tuple[dict[str, Any], Encoding]:
    """Returns (fields for the model, their JSON) without empty lists and choices without tools: servers refuse them."""
    has_tools, whole, encodings = any(map(sent.get, _TOOLS)), dict[str, Any](), list[Encoding]()
    for name, value in sent.items():
        is_meaningless = name in _CHOICES and not has_tools and value in ("auto", "none", True, False, None)
        if name in OWN or is_meaningless or (name in _LISTS and value == []):
            continue
        if name not in TOKEN_LIMITS:
            field = path if name == "messages" else name
            whole[_replace_broken(name)], one = (value, encoding) if encoding else storable_field(value, field=field)
            encodings.append(one)
        elif (limit := token_limit(value, field=name)) is not None or value is None:
            whole[name] = limit
    return whole, encoding or Encoding.joined(encodings)


def _parameter_tokens(fields: Mapping[str, Any], *, encoding: Encoding) -> int:
    """Estimated tokens of the fields besides the messages."""
    values = [value for name, value in fields.items() if name != "messages"]
    digest = encoding.digest_of(values)
    tokens = _KNOWN_TOKENS.get(digest)
    if tokens is None:
        tokens = estimated_tokens(json.dumps(values, ensure_ascii=False))
        _KNOWN_TOKENS.put(digest, tokens)
    return tokens


def _texts_to_question(texts: Sequence[Message]) -> tuple[list[Message], bool]:
    """Returns (texts up to the question, whether a user wrote the question and only system messages follow it)."""
    last = max([place for place, turn in enumerate(texts) if turn.role == "user"], default=None)
    if last is None:
        return list(texts[:-1]) + [replace(turn, role="user") for turn in texts[-1:]], False
    following = texts[last + 1 :]
    system = [turn for turn in following if turn.role == "system"]
    return list(texts[: last + 1]) + system, following == system


Choice = Annotated[str | dict[str, Any] | None, accepts("text, an object or null")]
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


def _needed_abilities(passed: Mapping[str, Any]) -> set[str]:
    """Abilities that an arm needs for these fields. Optional tools need no ability: a model may ignore them."""
    form = passed.get("response_format")
    needs = {
        "tools": any(passed[choice] not in (None, "none", "auto") for choice in passed.keys() & _TOOLS.values()),
        "json": isinstance(form, dict) and form.get("type") != "text",
        "logprobs": passed.get("logprobs") or passed.get("top_logprobs"),
        CHAT: passed.get("audio") or passed.get("modalities") not in (None, [], ["text"]),
    }
    return {name for name, needed in needs.items() if needed}


#: characters that databases refuse: NUL and halves of surrogate pairs; and NUL as JSON writes it
_BROKEN: Final = re.compile("[\x00\ud800-\udfff]")
_NUL: Final = b"\\u0000"
#: digest of a message, or of the other fields of a chat -> its estimated tokens
_KNOWN_TOKENS: Final = DigestCache[int](most=20_000)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def storable_field(value: Any, *, field: str) -> tuple[Any, Encoding]:
    """Returns (the value with U+FFFD for characters that databases refuse, its JSON). Raises InvalidInput for a value
    that JSON cannot express.
    """
    try:
        with suppress(UnicodeEncodeError):  # half a surrogate pair
            encoding = Encoding.of(value)
            if not encoding.has_bytes(_NUL):
                return value, encoding
        mended = _replace_broken(value)
        return mended, Encoding.of(mended)
    except RecursionError:
        raise InvalidInput(f'"{field}" is nested too deep', field=field, remedy="nest it less deeply") from None
    except ValueError:
        message = f'"{field}" has a number that is not finite'
        raise InvalidInput(message, field=field, remedy="send finite numbers") from None


def _replace_broken(value: Any) -> Any:
    if isinstance(value, str):
        return _BROKEN.sub("\ufffd", value)
    if isinstance(value, list):
        return [_replace_broken(item) for item in value]
    if isinstance(value, dict):
        return {_replace_broken(name): _replace_broken(item) for name, item in value.items()}
    return value


class _Reader:
    """Reads messages as texts. Adds abilities that an arm needs to `needs`, and errors in messages to `faults`.

    tokens: estimate for texts and calls, without images, audio and files, whose size does not predict their tokens.
    """

    def __init__(self, *, needs: set[str], encoding: Encoding) -> None:
        self._needs, self._encoding = needs, encoding
        self.faults: list[InvalidInput] = []
        self.tokens = 0

    def turn(self, message: Mapping[str, Any], *, path: str) -> Message | None:
        """The message as text; None if only a model reads messages of its role."""
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or role not in _ROLES:
            fault, remedy = f"{role!r:.80} is not a role of a message", f"use {', '.join(_ROLES)}"
            self.faults.append(InvalidInput(fault, field=f"{path}.role", remedy=remedy))
            return None
        our_role, text = _ROLES[role], ""
        if isinstance(content, str):
            text = content
        elif isinstance(content, list):
            parts = enumerate(content)
            text = "\n".join(self._part(part, path=f"{path}.content.{n}", asks=our_role == "user") for n, part in parts)
        elif content is not None:  # an assistant that called a tool sends null
            fault = f'"{path}.content" must be text or a list of parts'
            self.faults.append(InvalidInput(fault, field=f"{path}.content", remedy="send a string"))
        self.tokens += self._tokens(message, text=text)
        return None if our_role is None else Message(role=our_role, text=text)

    def _tokens(self, message: Mapping[str, Any], *, text: str) -> int:
        digest, calls = self._encoding.digest(message), message.get("tool_calls")
        tokens = None if digest is None else _KNOWN_TOKENS.get(digest)
        if tokens is None:
            tokens = estimated_tokens(text + (_ENCODER.encode(calls) if calls else ""))
            if digest is not None:
                _KNOWN_TOKENS.put(digest, tokens)
        return tokens

    def _part(self, part: object, *, path: str, asks: bool) -> str:
        """The part as text. asks: whether a user wrote the message; if not, a part without text is "", not a fault."""
        if not isinstance(part, dict):
            part = {"type": "text", "text": part}
        kind = part.get("type") or next((name for name in OTHER_PARTS if name in part), "text")
        kind = CHAT_PARTS.get(kind, kind) if isinstance(kind, str) else repr(kind)
        if kind in OTHER_PARTS:
            placeholder, need = OTHER_PARTS[kind]
            self._needs.add(need)
            return placeholder
        key = kind if kind in TEXT_PARTS else "text"
        text = part.get(key)
        if isinstance(text, str):
            return text
        if not asks:
            return ""
        error = InvalidInput(f'"{path}.{key}" must be text', field=f"{path}.{key}", remedy="send a string")
        if kind not in TEXT_PARTS:
            message = f"parts of messages are {', '.join([*TEXT_PARTS, *OTHER_PARTS])}, not {kind:.40}"
            remedy = "send its text as a part of the type text"
            error = Unsupported(message, field=f"{path}.type", remedy=remedy)
        self.faults.append(error)
        return f"[{kind:.40}]"
