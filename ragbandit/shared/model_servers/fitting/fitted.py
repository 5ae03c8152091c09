"""The changes of a request that was fitted to its server, which are undone in the answer."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ragbandit.shared.reading.fields import arguments_text, object_in, objects_in
from ragbandit.shared.types.encodings import DigestCache, Encoding


@dataclass(frozen=True, slots=True)
class UnchangedTools:
    """The tools of a client that a server takes unchanged. Known tools are not examined again."""

    #: the client's conversation, encoded
    encoding: Encoding = field(default=Encoding())
    #: digests of tools that this server takes as they are
    known: DigestCache[bool] = field(default_factory=partial(DigestCache[bool], most=2_000))

    def fit(self, tool: Any, fit: Callable[[Any], Any]) -> Any:
        """`fit(tool)`, which is the same object if nothing changes. For a known tool `fit` is not called."""
        digest = self.encoding.digest(tool)
        if digest is not None and self.known.get(digest):
            return tool
        changed = fit(tool)
        if digest is not None and changed is tool:
            self.known.put(digest, True)
        return changed


@dataclass(kw_only=True, slots=True)
class RequestChanges:
    """The changes of one request, which `delta` and `message` undo in its answer."""

    #: the tools that need no change
    same: UnchangedTools = UnchangedTools()

    #: names of what was changed, for `ragbandit.ignored`
    changed: set[str] = field(default_factory=set)
    #: name of a tool at the server -> the client's name
    names: dict[str, str] = field(default_factory=dict)
    #: id of a call at the server -> the client's id
    ids: dict[str, str] = field(default_factory=dict)
    #: names at the server of functions that replace tools of free text
    free_text: set[str] = field(default_factory=set)
    #: indexes of calls of the functions in `free_text`
    _held: list[Any] = field(default_factory=list)  # a list, since an index may be of any type

    def delta(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        """A delta of the answer for the client. It lacks calls of free text, whose text can be read only from complete
        arguments, so only `message` has them.
        """
        if not (self.names or self.ids or self.free_text) or not delta.keys() & {"tool_calls", "function_call"}:
            return dict(delta)
        pieces = list[Any]()
        for piece in objects_in(delta.get("tool_calls") or []):
            if _text_or_blank(object_in(piece, "function").get("name")) in self.free_text:
                self._held.append(piece.get("index"))
            if piece.get("index") not in self._held:
                pieces.append(self._client_call(piece))
        rest = {name: value for name, value in delta.items() if name != "tool_calls"}
        return self._with_client_function(rest) | ({"tool_calls": pieces} if pieces else {})

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The whole message of the answer for the client."""
        calls = message.get("tool_calls")
        rest = self._with_client_function(message)
        return rest | {"tool_calls": list(map(self._client_call, calls))} if isinstance(calls, list) else rest

    def _with_client_function(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of the message whose old-style `function_call` names the client's function."""
        function = object_in(message, "function_call")
        own = self.names.get(_text_or_blank(function.get("name")))
        return {**message, "function_call": {**function, "name": own}} if own else dict(message)

    def _client_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function, changed = object_in(call, "function"), dict(call)
        sent = function.get("name")
        own = self.names.get(_text_or_blank(sent), sent)
        if _text_or_blank(call.get("id")) in self.ids:
            changed["id"] = self.ids[call["id"]]
        if _text_or_blank(sent) in self.free_text:
            del changed["function"]
            text = _free_text(function.get("arguments"))
            return changed | {"type": "custom", "custom": {"name": own, "input": text}}
        return changed | {"function": {**function, "name": own}} if own != sent else changed


def _text_or_blank(value: Any) -> str:
    """The value if it is a text, else "": a server may send any type."""
    return value if isinstance(value, str) else ""


def _free_text(arguments: Any) -> str:
    """The text in the arguments of a function that replaces a tool of free text."""
    with suppress(ValueError, TypeError, RecursionError):
        value = json.loads(arguments)
        if isinstance(value, str):
            return value
        texts = [text for text in value.values() if isinstance(text, str)] if isinstance(value, dict) else []
        if len(texts) == 1:
            return texts[0]
    return arguments_text(arguments)
