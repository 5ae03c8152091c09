"""Reads the replies of OpenAI-compatible servers, whole or in chunks, and converts them to OpenAI's schema.

Some servers send fields that are null, missing, renamed or of another type. This module tests for dict, since a test
for Mapping takes ten times as long.
"""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from ragbandit.shared.dialects.chat.message_parts import CALL_TEXTS, LOGPROBS, MessageParts, is_token
from ragbandit.shared.dialects.chat.plain_chunks import PlainParts, chunk_parts
from ragbandit.shared.dialects.chat.tagged_thoughts import TaggedThoughts
from ragbandit.shared.model_servers.call_prices import named_tier, told_dollars, told_in_reply
from ragbandit.shared.model_servers.error_replies import NO_ERROR, server_message, status_of_names
from ragbandit.shared.model_servers.event_reader import DONE, BrokenReply, reply_counts
from ragbandit.shared.model_servers.repeated_events import RepeatedEvents
from ragbandit.shared.model_servers.token_usage import add_usage, count_of
from ragbandit.shared.reading.fields import (
    TEXTS,
    arguments_text,
    clean_value,
    flat_text,
    is_json,
    objects_in,
    whole_characters,
)
from ragbandit.shared.reading.input_counts import REPLY
from ragbandit.shared.texts.growing_text import GrowingText
from ragbandit.shared.types import LARGE_FIELDS, MAX_MEDIA, MAX_TEXT

#: longest message, characters
MAX_MESSAGE: Final = REPLY["message"].most
#: maximum number of calls in a message, and of objects in one of its lists
MAX_CALLS, MAX_PARTS = REPLY["calls"].most, REPLY["parts"].most
#: maximum number of names of fields that were left out
_MAX_OMITTED: Final = 128
#: maximum number of alternatives to a token
MAX_ALTERNATIVES: Final = 20

#: finish reason of a reply that the server ended with an error
ERROR: Final = "error"
#: (pattern of a server's finish reason in lower case, OpenAI's finish reason; None if the reply has not ended). Reasons
#: that match no pattern become "stop"
_FINISH: Final = (
    (re.compile(r"\bstop\b"), "stop"),
    (re.compile("error|fail|abort|cancel|insufficient|malformed|unexpected|timeout|time_limit"), ERROR),
    (re.compile("filter|safety|recitation|block|prohibit|sensitive|guardrail|refus|spii"), "content_filter"),
    (re.compile(r"length|max_?(\w*token|output)|token_limit|truncat|context_window"), "length"),
    (re.compile("^(none|null|not_finished|in_progress|.*unspecified)$"), None),
)
#: number of characters of a finish reason that are read
_LONGEST_REASON: Final = 100
#: type of a part of `content` -> field of the message for the text of the part
_PARTS: Final = {"thinking": "reasoning_content", "reasoning": "reasoning_content", "refusal": "refusal"}
#: fields of a message with their own code; all others are copied
_READ_BY_NAME: Final = frozenset({"role", "content", "tool_calls", "function_call", "finish_reason", LOGPROBS})
_OBJECTS: Final = frozenset({"audio", "function_call"})
_CALLS: Final = frozenset({"tool_calls", "function_call"})
#: kind of further fields (see `ModelReply.more`) -> fields that are not copied, because the service writes its own
_KNOWN: Final = {
    "more": {"id", "object", "created", "model", "choices", "error", "usage"},
    "choice": {"index", "delta", "message", "text", "finish_reason", "error", "usage", LOGPROBS},
    "usage": {f"{kind}_tokens{end}" for kind in ("prompt", "completion") for end in ("", "_details")},
}
#: finish reasons of a reply that ends with calls
_CALLS_ENDED: Final = ("tool_calls", "function_call")
#: smallest number of characters of a token; used to estimate the tokens of a call if the server reports no count
_FEWEST_CHARACTERS: Final = 2
#: last characters of a JSON text
_JSON_ENDS: Final = frozenset('}]" \t\r\nel0123456789')
#: empty values of a field
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {})


@dataclass(kw_only=True, slots=True)
class _Call:
    """A tool call. place: position in the message. id: the id for clients. server_id: "" if the server sent no id.

    born: number of the value with the call's first piece. head: fields of the first piece for clients, except name and
    arguments; None after the head was sent. The head is sent with the first arguments or at the end of the call,
    because a name may come in several pieces, and clients need the whole name.
    """

    place: int
    id: str
    server_id: str
    kind: str
    name: str
    born: int
    head: dict[str, Any] | None = None

    def begin(self, text: str = "") -> dict[str, Any]:
        """The first piece for clients. text: the arguments so far."""
        head, self.head = self.head, None
        return {**(head or {}), self.kind: {"name": self.name, CALL_TEXTS[self.kind]: text}}


def raise_error(part: Mapping[str, Any]) -> None:
    """Raise BrokenReply if a part of a reply with status 200 is an error, or has one."""
    error = part.get("error")
    if error is True or part.get("object") == ERROR or (part.get("type") == ERROR and not error):
        error = part
    if not error:
        return
    sent = error.values() if isinstance(error, dict) else [error]
    if all(str(one or "").lower() in NO_ERROR for one in sent):
        return
    entry = next(iter(objects_in(error)), {})
    code = count_of(entry.get("code") or entry.get("status"))
    status = code if code in range(400, 600) else status_of_names(entry.get("code"), entry.get("type"))
    message = server_message(error) or json.dumps(error, ensure_ascii=False)
    raise BrokenReply(message, status_code=status, body={"error": entry})


def _older_logprobs(logprobs: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Log-probabilities of /v1/completions, which are three lists, in the form of chats; None if there are none."""
    tokens, numbers, tops = map(logprobs.get, ("tokens", "token_logprobs", "top_logprobs"))
    if not (isinstance(tokens, list) and isinstance(numbers, list)):
        return None
    entries = [{"token": token, "logprob": number} for token, number in zip(tokens, numbers, strict=False)]
    for entry, top in zip(entries, tops if isinstance(tops, list) else [], strict=False):
        if isinstance(top, dict):
            likely = islice(top.items(), MAX_ALTERNATIVES)
            entry["top_logprobs"] = [{"token": token, "logprob": number} for token, number in likely]
    return entries


class ModelReply:
    """A model's reply, as far as it was read.

    uses_functions: whether the caller sent `functions` instead of `tools`. max_media: maximum number of characters of
    images, audio and video.
    """

    def __init__(self, *, uses_functions: bool = False, max_media: int = MAX_MEDIA) -> None:
        #: counts of the reply, with their caps; shared with the other readers of the reply
        self.counts = reply_counts(media=max_media)
        self._text = GrowingText()
        #: OpenAI's finish reason, or ERROR; None before the end
        self.finish: str | None = None
        #: fields of the last chunk except its text, in OpenAI's schema
        self.delta: dict[str, Any] = {}
        #: `delta`, joined over all chunks
        self.message = MessageParts()
        #: (text, log-probability) of each token
        self.tokens: list[tuple[str, float]] = []
        #: whether some log-probabilities could not be read
        self.has_broken_logprobs = False
        #: token counts so far, see `token_usage.add_usage`
        self.usage: dict[str, int] = {}
        #: price of the call, see `told_dollars`; None if the server does not report one
        self.dollars: float | None = None
        #: tier of service that the server names, in small letters; "" without one
        self.tier = ""
        #: name of the model according to the server
        self.model: str | None = None
        #: further fields: of the reply ("more"), of its choice ("choice") and of its usage ("usage")
        self.more: dict[str, dict[str, Any]] = {"more": {}, "choice": {}, "usage": {}}
        #: names of further fields that were left out because of their size
        self.omitted: set[str] = set()
        self.is_done = False
        #: number of characters of the message so far, without its media
        self.size = 0
        self._read_by_name = _READ_BY_NAME - {"function_call"} if uses_functions else _READ_BY_NAME
        #: number of values that were read
        self.values = 0
        self._has_choice = False
        #: index of the choice that is read; None until a choice has one
        self._choice: int | None = None
        self._has_deltas = False
        #: the server's message in a value without choices
        self._note = ""
        #: parts of the last chunk, if it brought text and nothing else that is new
        self._plain: PlainParts | None = None
        #: separates thoughts in tags from the text
        self.tagged = TaggedThoughts()
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        #: name of a field, or `place` of a call -> first half of a character that the next piece completes
        self._halves: dict[str | int, str] = {}

    @property
    def text(self) -> str:
        """The text of the answer so far."""
        return str(self._text)

    @property
    def text_size(self) -> int:
        """The number of characters of `text`."""
        return self._text.size

    def take_headers(self, headers: Mapping[str, str]) -> None:
        """Read the price in the headers of the reply. A price in the body replaces it."""
        self.dollars = told_dollars(headers, place="headers")
        self.tier = named_tier(headers)

    def take(self, value: Any) -> None:
        """Read the next value of the body. Raises BrokenReply."""
        self._plain, self.delta, size = None, {}, self.size + self.counts.totals["media"]
        self.is_done, self.values = self.is_done or value == DONE, self.values + 1
        for part in objects_in(value)[:1]:
            add_usage(self.usage, part)
            self._add_further_fields("more", part)
            if isinstance(usage := part.get("usage"), dict):
                self._add_further_fields("usage", usage)
                self.tier = named_tier(usage) or self.tier
            self.dollars = told_in_reply(part, before=self.dollars)
            self.tier = named_tier(part) or self.tier
            self._raise_failure(part)
            if isinstance(groq := part.get("x_groq"), dict):
                self._raise_failure(groq)
            name = part.get("model")
            self.model = name if name and isinstance(name, str) else self.model
            choices = objects_in(part.get("choices"))
            if not (choices or part.keys() <= _KNOWN["more"] - {"error"}):
                self._note = self._note or server_message({**part, "code": None, "type": None})
            self._take_choices(choices)
        if self.size + self.counts.totals["media"] > size:  # an answer follows, so the message was no error
            self._note, self.counts.totals["silent"] = "", 0
            if self.tagged.is_over and not (self.delta or self.finish or self._halves):
                self._plain = chunk_parts(value)
            return
        self.counts.add("silent")

    def _take_choices(self, choices: list[Mapping[str, Any]]) -> None:
        self.counts.check("choices", len(choices))
        for choice in choices:
            index = count_of(choice.get("index"))
            self._choice = self._choice if self._choice is not None and self.size else index
            # Another index after text is a second answer. Some servers send text and calls in two choices.
            if index in (self._choice, None):
                self._has_choice = True
                self._take_choice(choice)

    def take_texts(self, chunks: RepeatedEvents) -> bool:
        """Read chunks that differ from the last one only in their texts. Returns False if they must be read singly."""
        if self._plain is None or chunk_parts(chunks.pattern.value) != self._plain:
            return False
        text = "".join(chunks.texts)
        if self.size + len(text) > MAX_MESSAGE or self.text_size + len(text) > MAX_TEXT:
            return False
        self.values, self.size = self.values + len(chunks.texts), self.size + len(text)
        self._text.add(text)
        return True

    def end(self) -> None:
        """Complete the message after the last value. Raises BrokenReply if there is no answer."""
        self.delta = {}
        self._add_text(*self.tagged.rest())
        self.message.add(self.delta)
        if self.finish == ERROR:
            raise BrokenReply(self._note or "the server ended its reply with an error that it did not describe")
        if not self._has_choice:
            raise BrokenReply(self._note or "the reply has no choices, so it contains no answer")
        has_content = self.size + self.counts.totals["media"] > 0
        if self.finish is None and (self._note or not (self.is_done and has_content)):
            end = "broke off before its end" if has_content else "ended without content"
            raise BrokenReply(self._note or f"the reply {end}")
        if self.finish in (None, "stop"):
            self.finish = "function_call" if "function_call" in self.message.whole else "stop"
            self.finish = "tool_calls" if self._calls else self.finish
        self.message.add({"tool_calls": self._unsent_calls()})
        self.message.end()

    def is_cut_off(self, *, max_tokens: int) -> bool:
        """Whether the limit of tokens ended the reply within its last call, although the server gave another reason.
        Then all tokens are used, and the call's arguments are no JSON. Call this after `end`.
        """
        if self.finish not in _CALLS_ENDED:
            return False
        whole = self.message.whole
        call = whole["tool_calls"][-1] if whole.get("tool_calls") else {"function": whole.get("function_call")}
        function = call.get("function")
        text = str(function.get("arguments") or "") if isinstance(function, dict) else ""
        written = self.usage.get("written", self.size // _FEWEST_CHARACTERS) + self.usage.get("thoughts_apart", 0)
        return bool(text) and written >= max_tokens and not is_json(text)

    def _raise_failure(self, part: Mapping[str, Any]) -> None:
        """Raise BrokenReply if a reply, a chunk or a choice has an error, unless the answer is already complete."""
        may_fail = "error" in part or part.get("object") == ERROR or part.get("type") == ERROR
        if may_fail and self.finish in (None, ERROR):
            raise_error(part)

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        add_usage(self.usage, choice)
        self._raise_failure(choice)
        self._add_further_fields("choice", choice)
        body: Any = next(filter(None, map(choice.get, ("delta", "message", "text"))), {})
        is_whole = not choice.get("delta")
        part = body if isinstance(body, dict) else {"content": body}
        self._raise_failure(part)
        self.dollars = told_dollars(part, place="message", before=self.dollars)
        self._has_deltas = self._has_deltas or not is_whole
        if is_whole and self._has_deltas:  # a whole message after deltas repeats the deltas
            known = {**self.message.whole, "content": self.text or self.tagged.has_thoughts, "tool_calls": self._calls}
            part = {name: value for name, value in part.items() if not known.get(name)}
        fields = {name: value for name, value in part.items() if name not in self._read_by_name and value not in _EMPTY}
        content = self._complete_characters("content", self._content(part.get("content"), fields=fields))
        self.delta = {}
        for name, value in fields.items():
            if cleaned := self._further_field(name, value):
                self.delta[whole_characters(name)] = cleaned
        self._add_text(*self.tagged.split(content))
        if part.keys() & _CALLS & self._read_by_name:
            self._take_calls(part, is_whole=is_whole)
        if logprobs := self._logprobs(choice.get(LOGPROBS) or part.get(LOGPROBS)):
            self.delta[LOGPROBS] = {"content": logprobs}
        self.counts.check("message", self.size)
        self.counts.check("text", self.text_size)
        if reason := str(choice.get("finish_reason") or part.get("finish_reason") or "").strip():
            word = reason[:_LONGEST_REASON].lower().replace("-", "_")
            self.finish = next((end for pattern, end in _FINISH if pattern.search(word)), "stop") or self.finish
        if self.finish is not None:
            self._add_text(*self.tagged.rest())
        if self.finish is not None and (held := self._unsent_calls()):
            self.delta["tool_calls"] = [*self.delta.get("tool_calls", ()), *held]
        if self.delta:
            self.message.add(self.delta)

    def _add_text(self, thoughts: str, text: str) -> None:
        """Add text of the answer, and thoughts that stood in tags before it."""
        if text:
            self._text.add(text)
        if thoughts:
            self.delta["reasoning_content"] = self.delta.get("reasoning_content", "") + thoughts

    def _content(self, content: Any, *, fields: dict[str, Any]) -> str:
        """The text in the field `content`. Thoughts and refusals in it are added to `fields`."""
        if isinstance(content, str):
            return content
        text, kind, images, further = "", "", list[Any](), dict[str, list[str]]()
        parts = content if isinstance(content, list) else [content]
        self.counts.check("parts", len(parts))
        for part in parts:
            kind = str(part.get("type")) if isinstance(part, dict) else ""
            if kind in _PARTS:
                further.setdefault(_PARTS[kind], []).append(flat_text(part.get(kind) or part))
            elif "image" in kind:
                images.append(part)
            elif "audio" in kind:
                fields["audio"] = next(filter(None, map(part.get, ("audio", kind))), part)
            else:
                text += flat_text(part)
        for field, texts in further.items():
            fields[field] = flat_text(fields.get(field)) + "".join(texts)
        if images:
            fields["images"] = [*objects_in(fields.get("images")), *images]
        is_read = text or kind in _PARTS or "image" in kind or "audio" in kind
        if isinstance(content, dict) and content and not is_read and not {*TEXTS} & {*content}:
            return json.dumps(content, ensure_ascii=False)  # an answer in JSON
        return text

    def _complete_characters(self, field: str | int, text: str) -> str:
        """The complete characters in the next piece of a field. Half a surrogate pair at its end waits for the piece
        after it, and is left out if none follows.
        """
        self.size += len(text)
        if field in self._halves:
            text = self._halves.pop(field) + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._halves[field], text = text[-1], text[:-1]
        return whole_characters(text)

    def _further_field(self, name: str, value: Any) -> Any:
        """Convert the value of a further field; None if the value does not fit the field."""
        if name in _OBJECTS and not isinstance(value, dict):
            return None
        if name == "function_call":
            texts = {"name": flat_text(value.get("name")), "arguments": arguments_text(value.get("arguments"))}
            value = value | {field: text for field, text in texts.items() if field in value}
        if name in ("refusal", "reasoning_content", "reasoning"):
            value = flat_text(value)
        if isinstance(value, str):
            return self._complete_characters(name, value)
        if name in ("annotations", "images"):
            value = objects_in(value)
        if isinstance(value, list):
            value = self._numbered(name, value)
        cleaned, size = clean_value(value)
        if name not in LARGE_FIELDS:
            self.size += size
        else:
            self.counts.add("media", size)
        return cleaned

    def _numbered(self, name: str, value: list[Any]) -> list[Any] | None:
        """The next objects of a list with their index, by which clients join lists. None if the list is too long."""
        known = self.message.count(name)
        objects = (known or 0) + sum(isinstance(one, dict) for one in value)
        if name in LARGE_FIELDS:
            self.counts.check("parts", objects)
        elif objects > MAX_PARTS:
            self._omit(name)
            return None
        if known is None:
            return value
        return [{"index": at, **one} if isinstance(one, dict) else one for at, one in enumerate(value, known)]

    def _omit(self, name: str) -> None:
        if len(self.omitted) < _MAX_OMITTED:
            self.omitted.add(whole_characters(name)[:64])

    def _add_further_fields(self, kind: str, part: Mapping[str, Any]) -> None:
        """Copy further fields to `more`. Later values replace earlier ones, but lists of a streamed choice are joined,
        and objects are merged. Fields beyond the cap "more" are left out, so that they do not fail the answer.
        """
        kept, known = self.more[kind], _KNOWN[kind]
        for name, value in part.items():
            if name in known:
                continue
            is_joined = kind == "choice" and isinstance(value, list) and part.get("delta") is not None
            # Many servers repeat such fields in every chunk.
            if (kept.get(name) == value and not is_joined) or value in _EMPTY:
                continue
            field, (cleaned, size) = whole_characters(name), clean_value(value)
            if not self.counts.fits("more", size + len(field)):
                self._omit(name)
                continue
            before = kept.get(field)
            if is_joined and isinstance(before, list):
                before += cleaned
                continue
            if isinstance(before, dict) and isinstance(cleaned, dict):
                cleaned = before | cleaned
            kept[field] = cleaned

    def _logprobs(self, sent: Any) -> list[dict[str, Any]]:
        """The usable log-probabilities of a chunk; [] beyond the cap "logprobs"."""
        logprobs = {"content": sent} if isinstance(sent, list) else sent if isinstance(sent, dict) else {}
        content = _older_logprobs(logprobs) if logprobs.get("content") is None else logprobs["content"]
        entries = content if isinstance(content, list) else [] if content is None else [content]
        if not entries:
            return []
        usable, size = [], 0
        for entry in filter(is_token, entries):
            alternatives = list(filter(is_token, objects_in(entry.get("top_logprobs"))[:MAX_ALTERNATIVES]))
            cleaned, _ = clean_value({"bytes": None, **entry, "top_logprobs": alternatives})
            usable.append(cleaned)
            self.tokens.append((cleaned["token"], min(0.0, cleaned["logprob"])))
            size += len(cleaned["token"]) + 10 * len(alternatives)
        is_too_long = not self.counts.fits("logprobs", size)
        self.has_broken_logprobs |= is_too_long or len(usable) < len(entries)
        return [] if is_too_long else usable

    def _take_calls(self, part: Mapping[str, Any], *, is_whole: bool) -> None:
        """Add the tool calls of a chunk, or of a whole message, to `delta`."""
        sent = objects_in(
            part.get("tool_calls") or [{"function": call} for call in objects_in(part.get("function_call"))]
        )
        self.counts.check("calls", len(sent))
        size = 0 if is_whole else len(sent)
        calls = [piece for at, entry in enumerate(sent) for piece in self._take_call(entry, nth=at, size=size)]
        self.counts.check("calls", len(self._calls))
        if calls:
            self.delta["tool_calls"] = calls

    def _unsent_calls(self) -> list[dict[str, Any]]:
        """The first pieces of calls whose arguments have not begun."""
        return [call.begin() for call in self._calls if call.head is not None]

    def _take_call(self, entry: Mapping[str, Any], *, nth: int, size: int) -> list[dict[str, Any]]:
        """Read a piece of a tool call. Returns the pieces for clients. nth, size: see `_find_call`."""
        kind = "custom" if isinstance(entry.get("custom"), dict) else "function"
        texts = (CALL_TEXTS[kind], "parameters", "input")
        body = entry[kind] if isinstance(entry.get(kind), dict) else entry
        read_by_name = {"index", "id", "type", kind, *(("name", *texts) if body is entry else ())}
        further, length = clean_value(
            {key: entry[key] for key in entry if entry[key] is not None and key not in read_by_name}
        )
        self.size += length
        server_id = whole_characters(flat_text(entry.get("id")))
        name = whole_characters(flat_text(body.get("name")))
        sent = next(filter(None, map(body.get, texts)), None)
        text = arguments_text(sent)
        index = count_of(entry.get("index"))
        call = self._find_call(server_id, index=index, is_named=bool(name), nth=nth, size=size)
        if call is not None and self._begins_another(call, server_id=server_id, name=name, text=text, index=index):
            call = None
        known = 0 if call is None else self.message.call_size(call.place)
        if (known and not isinstance(sent, str)) or (
            kind == "function" and self._repeats_arguments(call, text=text.strip())
        ):
            text = ""  # nothing new: repeated arguments, or none (`MessageParts.end` adds "{}")
        if call is not None:
            text = self._complete_characters(call.place, text)
            if call.head is not None:
                call.name = name if name.startswith(call.name) else call.name + name
                call.head |= further
                return [call.begin(text)] if sent else []
            new_name = "" if call.name else name
            call.name = call.name or name
            fields = {name: value for name, value in (("name", new_name), (CALL_TEXTS[call.kind], text)) if value}
            body = {call.kind: fields} if fields else {}
            return [{"index": call.place, **further, **body}] if body or further else []
        if not (server_id or name or text):
            return []
        is_usable = server_id and all(earlier.id != server_id for earlier in self._calls)
        client_id = server_id if is_usable else f"call_{uuid.uuid4().hex[:24]}"
        earlier, place = self._unsent_calls(), len(self._calls)
        head = {"index": place, "id": client_id, "type": kind, **further}
        call = _Call(place=place, id=client_id, server_id=server_id, kind=kind, name=name, born=self.values, head=head)
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        self.size += len(server_id) + len(name)
        if size and not sent:
            return earlier
        return [*earlier, call.begin(self._complete_characters(place, text))]

    def _find_call(self, server_id: str, *, index: int | None, is_named: bool, nth: int, size: int) -> _Call | None:
        """The call that a piece may continue; None if the piece begins a new call.

        nth: index of the piece in its chunk
        size: number of pieces in the chunk; 0 in a whole message, in which every piece is a complete call
        """
        if not size:
            return None
        if index in self._by_index:
            return self._by_index[index]
        same = [call for call in self._calls if server_id and call.server_id == server_id]
        if same and not (is_named and index is not None):
            return same[-1]
        if not self._calls:
            return None
        if index is not None:  # some servers send arguments with another index than the call's first piece
            call = self._calls[min(index, len(self._calls) - 1)]
            return None if is_named or server_id or self._has_whole_arguments(call) else call
        nth = -1 if size == 1 else nth
        return self._calls[nth] if nth < len(self._calls) else None

    def _repeats_arguments(self, call: _Call | None, *, text: str) -> bool:
        """Whether the arguments of a piece are empty, or repeat all arguments of the call."""
        size = 0 if call is None else self.message.call_size(call.place)
        if text not in ("", "{}", "null") and len(text) != size:
            return False
        if call is None or not size:
            return text in ("{}", "null", "")
        return text in ("{}", "null", self.message.call_text(call.place)) and self._has_whole_arguments(call)

    def _has_whole_arguments(self, call: _Call) -> bool:
        """Whether the arguments of a call are complete JSON. False if the parsed texts exceed the cap "again"."""
        text = self.message.call_text(call.place)
        return text[-1:] in _JSON_ENDS and self.counts.fits("again", len(text)) and is_json(text)

    def _begins_another(self, call: _Call, *, server_id: str, name: str, text: str, index: int | None) -> bool:
        """Whether a piece begins another call than `call`: it has another id, or a name after complete arguments."""
        if server_id and call.server_id:
            # Some servers send a new id with every piece, so arguments without a name continue the call.
            return server_id != call.server_id and bool(name or not text)
        if not name or not call.name:
            return False
        is_new = call.born == self.values
        if call.head is not None and index is not None and not is_new:
            return False  # the rest of the call's name
        return name != call.name or is_new or self._has_whole_arguments(call)
