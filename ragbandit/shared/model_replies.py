"""One reader for the replies of OpenAI-compatible servers, whole and in chunks.

A field may be null, missing, renamed or of another type; a `ModelReply` always follows OpenAI's schema. Values come
from JSON, so objects are dicts: a test for Mapping takes ten times as long, and there are many for each chunk.
"""

import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ragbandit.shared.event_reader import DONE, BrokenReply
from ragbandit.shared.failures import server_message
from ragbandit.shared.message_parts import CALL_TEXTS, LOGPROBS, MessageParts
from ragbandit.shared.token_usage import add_usage, count_of
from ragbandit.shared.types import MAX_TEXT

#: characters of a whole message: text, reasoning, calls, ids and unknown fields. A longer one fails
MAX_MESSAGE: Final = 4 * MAX_TEXT
#: calls of tools in one message
MAX_CALLS: Final = 128
#: nesting of an unknown field; a deeper value is null
_MAX_DEPTH: Final = 50

#: a reply that ended in a failure of the server
ERROR: Final = "error"
#: servers' reasons for the end, in lower case -> OpenAI's; any other is "stop"
_FINISH: Final = {
    word: ours
    for ours, words in {
        "length": "length max_tokens max_output_tokens model_length model_context_window_exceeded",
        "content_filter": "content_filter content_filtered safety recitation blocklist prohibited_content sensitive",
        "tool_calls": "tool_calls tool_call tool_use",
        "function_call": "function_call",
        ERROR: "error failed failure network_error abort aborted cancelled canceled insufficient_system_resource"
        " malformed_function_call unexpected_tool_call internal_error timeout",
    }.items()
    for word in words.split()
}
_NO_FINISH: Final = ("", "null", "none")
#: fields of a message that are text, and types of parts of a content -> the field that their text belongs to
_TEXTS: Final = ("refusal", "reasoning_content", "reasoning")
_PARTS: Final = {"thinking": "reasoning_content", "reasoning": "reasoning_content", "refusal": "refusal"}
_OWN: Final = ("role", "content", "tool_calls", "function_call")


def whole_characters(text: str) -> str:
    """The text with pairs of surrogates as one character, and U+FFFD for a surrogate without the other half."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def words_of(value: Any) -> str:
    """The text in a field that should be text: an object's text, the texts of a list together, a number as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        texts = (words_of(value.get(name)) for name in ("text", "content", "value", "summary"))
        return next(filter(None, texts), "")
    if isinstance(value, list):
        return "".join(map(words_of, value))
    return "" if value is None or isinstance(value, bool) else json.dumps(value)


def _listed(value: Any) -> list[Mapping[str, Any]]:
    """The objects in a list, or the one object that stands in its place."""
    if isinstance(value, dict):
        return [value]
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _token_of(entry: Any) -> dict[str, Any] | None:
    """The log-probability of a token, as OpenAI has it; None if it cannot be used."""
    entry = entry if isinstance(entry, dict) else {}
    token, logprob, codes = entry.get("token"), entry.get("logprob"), entry.get("bytes")
    is_number = isinstance(logprob, int | float) and not isinstance(logprob, bool)
    if not isinstance(token, str) or not is_number or not math.isfinite(logprob):
        return None
    if not isinstance(codes, list) or not all(isinstance(code, int) for code in codes):
        codes = None
    return {"token": whole_characters(token), "logprob": logprob, "bytes": codes}


@dataclass(kw_only=True, slots=True)
class _Call:
    """A call of a tool: its place in the message, its id for clients and the server's own, and its names."""

    place: int
    id: str
    server_id: str
    kind: str
    name: str


class ModelReply:
    """A reply as far as it was read. uses_functions: the caller sent `functions`, the form that tools replaced."""

    def __init__(self, *, uses_functions: bool = False) -> None:
        self.text = ""
        #: OpenAI's reason for the end, or ERROR; None before the end
        self.finish: str | None = None
        #: fields of the last chunk besides its text, by OpenAI's schema; and those of all chunks
        self.delta: dict[str, Any] = {}
        self.message = MessageParts()
        #: (text, log-probability) of each token; and whether some could not be read
        self.tokens: list[tuple[str, float]] = []
        self.has_broken_logprobs = False
        #: counts so far, see token_usage; and the model, by the server's name
        self.usage: dict[str, int] = {}
        self.model: str | None = None
        #: the server sent DONE
        self.is_done = False
        self._uses_functions = uses_functions
        self._has_choice, self._choice, self._note = False, None, ""
        #: characters so far: text, reasoning, calls, further fields
        self.size, self._logprob_size = 0, 0
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        #: field, or place of a call -> first half of a character that the next piece completes
        self._halves: dict[str | int, str] = {}

    def take(self, value: Any) -> None:
        """Read the next value of the body. Raises BrokenReply."""
        self.delta = {}
        self.is_done = self.is_done or value == DONE
        for part in _listed(value)[:1]:
            add_usage(self.usage, part)
            self._raise_failure(part)
            name = part.get("model")
            self.model = name if name and isinstance(name, str) else self.model
            choices = _listed(part.get("choices"))
            if not choices:
                self._note = self._note or server_message(part)
            for choice in choices:
                # Another index is another answer to the same question.
                if not self._has_choice or choice.get("index") in (self._choice, None):
                    self._has_choice, self._choice = True, choice.get("index")
                    self._take(choice)
                    break

    def end(self) -> None:
        """Complete the message after the last value. Raises BrokenReply if no answer came."""
        if self.finish == ERROR:
            raise BrokenReply(self._note or "the server ended its reply with an error, and did not say which")
        if not self._has_choice:
            raise BrokenReply(self._note or "the reply has no choices: no answer is in it")
        if self.finish is None and not (self.is_done and self.size):
            raise BrokenReply("the reply broke off before its end" if self.size else "the reply ended without content")
        self.finish = self.finish or "stop"
        if self._calls and self.finish in ("stop", "function_call"):
            self.finish = "tool_calls"
        for field in self._halves:
            if field == "content":
                self.text += "\ufffd"
            elif isinstance(field, int):
                self.message.add({"tool_calls": [_piece(self._calls[field], text="\ufffd")]})
            else:
                self.message.add({field: "\ufffd"})
        self.message.end()

    def _raise_failure(self, part: Mapping[str, Any]) -> None:
        """Raises BrokenReply for an error in a reply, a chunk or a choice, unless the answer has come."""
        error = part.get("error")
        if part.get("object") == ERROR or (part.get("type") == ERROR and not error):
            error = part
        is_error = any(error.values()) if isinstance(error, dict) else bool(error)
        if not is_error or self.finish not in (None, ERROR):
            return
        code = count_of(next((each.get("code") or each.get("status") for each in _listed(error)), None))
        message = server_message(error) or json.dumps(error, ensure_ascii=False)
        raise BrokenReply(message, status_code=code if code in range(400, 600) else None)

    def _take(self, choice: Mapping[str, Any]) -> None:
        add_usage(self.usage, choice)
        self._raise_failure(choice)
        bodies: list[Mapping[str, Any]] = [*_listed(choice.get("delta")), *_listed(choice.get("message"))]
        is_whole = not isinstance(choice.get("delta"), dict)
        part = bodies[0] if bodies else {"content": choice.get("text")}
        self._raise_failure(part)
        fields = {name: value for name, value in part.items() if name not in _OWN and value not in (None, "", [], {})}
        self.text += self._grown("content", self._content(part.get("content"), fields=fields))
        kept = {whole_characters(name): self._kept(name, value) for name, value in fields.items()}
        self.delta = {name: value for name, value in kept.items() if value}
        self._take_calls(part, is_whole=is_whole)
        if logprobs := self._logprobs(choice.get(LOGPROBS)):
            self.delta[LOGPROBS] = {"content": logprobs}
        if self.size > MAX_MESSAGE or len(self.text) > MAX_TEXT:
            raise BrokenReply(f"the reply has more than {MAX_TEXT} characters of text, or {MAX_MESSAGE} in all")
        if self.delta:
            self.message.add(self.delta)
        reason = choice.get("finish_reason")
        word = reason.strip().lower() if isinstance(reason, str) else str(reason or "none")
        if word not in _NO_FINISH:
            self.finish = _FINISH.get(word, "stop")

    def _content(self, content: Any, *, fields: dict[str, Any]) -> str:
        """The text of a content; its thoughts and refusals are added to the fields."""
        if isinstance(content, str):
            return content
        text = ""
        for part in content if isinstance(content, list) else [content]:
            kind = str(part.get("type")) if isinstance(part, dict) else ""
            words = words_of(part.get(kind) if kind in _PARTS and part.get(kind) else part)
            if kind in _PARTS:
                fields[_PARTS[kind]] = words_of(fields.get(_PARTS[kind])) + words
            else:
                text += words
        if isinstance(content, dict) and content and not text and not fields:
            raise BrokenReply(f"the text is {content!r}")
        return text

    def _grown(self, field: str | int, text: str) -> str:
        """The next characters of a field that comes in pieces."""
        self.size += len(text)
        if field in self._halves:
            text = self._halves.pop(field) + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._halves[field], text = text[-1], text[:-1]
        return whole_characters(text)

    def _kept(self, name: str, value: Any) -> Any:
        """The value of a further field, as far as OpenAI's schema allows it."""
        if name in _TEXTS:
            value = words_of(value)
        if isinstance(value, str):
            return self._grown(name, value)
        if name == "annotations":
            value = _listed(value)
        return self._clean(value) if name != "audio" or isinstance(value, dict) else None

    def _clean(self, value: Any, *, depth: int = 0) -> Any:
        """A value of unknown kind that every JSON parser and database takes; its size is counted."""
        self.size += len(value) if isinstance(value, str) else 1
        if isinstance(value, str):
            return whole_characters(value)
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if depth == _MAX_DEPTH and isinstance(value, dict | list):
            return None
        if isinstance(value, list):
            return [self._clean(each, depth=depth + 1) for each in value]
        if isinstance(value, dict):
            return {self._clean(name): self._clean(each, depth=depth + 1) for name, each in value.items()}
        return value

    def _logprobs(self, logprobs: Any) -> list[dict[str, Any]]:
        """The log-probabilities of this chunk that can be used. Too many for the cap of a message are left out."""
        content = logprobs.get("content") if isinstance(logprobs, dict) else None
        if content is None:
            return []
        kept = []
        for entry in content if isinstance(content, list) else [content]:
            token = _token_of(entry)
            if token is None:
                self.has_broken_logprobs = True
                continue
            others = map(_token_of, _listed(entry.get("top_logprobs"))[:20])
            kept.append({**token, "top_logprobs": list(filter(None, others))})
            self.tokens.append((token["token"], min(0.0, token["logprob"])))
            self._logprob_size += len(token["token"]) + 10 * len(kept[-1]["top_logprobs"])
        if self._logprob_size > MAX_MESSAGE:
            self.has_broken_logprobs = True
            return []
        return kept

    def _take_calls(self, part: Mapping[str, Any], *, is_whole: bool) -> None:
        """Add the calls of a chunk or a whole message to the delta."""
        entries, legacy = part.get("tool_calls"), _listed(part.get("function_call"))
        if legacy and self._uses_functions:
            name = whole_characters(words_of(legacy[0].get("name")))
            self.size += len(name)
            text = self._grown("function_call", _written(legacy[0].get("arguments")))
            own = {} if "function_call" in self.message.whole else {"name": name}
            self.delta["function_call"] = {**own, "arguments": text}
        elif legacy and not entries:
            entries = [{"function": legacy[0]}]
        if not entries:
            return
        listed = _listed(entries)
        size = 0 if is_whole else len(listed)
        calls = [self._called(each, at=at, of=size) for at, each in enumerate(listed[:MAX_CALLS])]
        if max(len(listed), len(self._calls)) > MAX_CALLS:
            raise BrokenReply(f"the reply has more than {MAX_CALLS} calls of tools")
        if pieces := list(filter(None, calls)):
            self.delta["tool_calls"] = pieces

    def _called(self, entry: Mapping[str, Any], *, at: int, of: int) -> dict[str, Any] | None:
        """The piece of a call as clients read it; None if it adds nothing. at, of: see `_known_call`."""
        kind = "custom" if isinstance(entry.get("custom"), dict) else "function"
        body = entry[kind] if isinstance(entry.get(kind), dict) else entry
        own = {"index", "id", "type", kind, *(("name", CALL_TEXTS[kind]) if body is entry else ())}
        more = self._clean({name: value for name, value in entry.items() if name not in own and value is not None})
        server_id, name = (whole_characters(words_of(value)) for value in (entry.get("id"), body.get("name")))
        sent = body.get(CALL_TEXTS[kind])
        text, index = _written(sent), count_of(entry.get("index"))
        call = self._known_call(server_id, index=index, is_named=bool(name), at=at, of=of)
        if call is not None and self._begins_another(call, server_id=server_id, name=name, text=text):
            call = None
        if call is not None:
            if not isinstance(sent, str) and self.message.call_text(call.place):
                text = ""  # an object is the whole of it: it came already
            text = self._grown(call.place, text)
            new_name, call.name = "" if call.name else name, call.name or name
            return _piece(call, text=text, name=new_name, more=more) if text or new_name or more else None
        if not (server_id or name or text):
            return None
        is_usable = server_id and all(each.id != server_id for each in self._calls)
        own_id = server_id if is_usable else f"call_{uuid.uuid4().hex[:24]}"
        call = _Call(place=len(self._calls), id=own_id, server_id=server_id, kind=kind, name=name)
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        self.size += len(server_id) + len(name)
        head = {"index": call.place, "id": call.id, "type": kind, **more}
        return head | {kind: {"name": call.name, CALL_TEXTS[kind]: self._grown(call.place, text)}}

    def _known_call(self, server_id: str, *, index: int | None, is_named: bool, at: int, of: int) -> _Call | None:
        """The call that a piece may continue; None if it begins one. at: number of the piece among the `of` pieces of
        its chunk. of: 0 in a whole message, in which every entry is another call.
        """
        if not of:
            return None
        if index in self._by_index:
            return self._by_index[index]
        same = [call for call in self._calls if server_id and call.server_id == server_id]
        if same and not (is_named and index is not None):
            return same[-1]
        if index is not None or not self._calls:
            return None
        if of == 1:
            return self._calls[-1]
        return self._calls[at] if at < len(self._calls) else None

    def _begins_another(self, call: _Call, *, server_id: str, name: str, text: str) -> bool:
        """True if a piece at the place of this call begins another one: another id, or a name after complete arguments.

        Some servers send a new id with every piece: a piece of arguments without a name continues the call.
        """
        if server_id and call.server_id:
            return server_id != call.server_id and bool(name or not text)
        if not name or not call.name:
            return False
        return name != call.name or _is_json(self.message.call_text(call.place))


def _piece(call: _Call, *, text: str, name: str = "", more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The next piece of a call that has begun."""
    body = {**({"name": name} if name else {}), **({CALL_TEXTS[call.kind]: text} if text else {})}
    return {"index": call.place, **(more or {}), **({call.kind: body} if body else {})}


def _written(arguments: Any) -> str:
    """Arguments as text, which some servers send as an object."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return json.dumps(arguments, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
