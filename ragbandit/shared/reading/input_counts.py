"""Caps of the texts that a call brings from outside. They count bytes and items, not seconds, so that a text passes or
fails alike on every machine.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from ragbandit.shared.types import MAX_MEDIA, MAX_TEXT

Kind: TypeAlias = Literal[
    "bytes",
    "open",
    "events",
    "silent",
    "objects",
    "items",
    "values",
    "choices",
    "calls",
    "parts",
    "blocks",
    "text",
    "message",
    "media",
    "more",
    "logprobs",
    "again",
    "parameters",
]


class Cap(NamedTuple):
    """A cap, and the words in messages for what it counts."""

    most: int
    of: str


#: caps of a reply of a model's server. Beyond "more" and "logprobs", fields are left out; beyond "again", incomplete
#: calls are no longer parsed. Beyond any other cap, the reply fails
REPLY: Final[Mapping[Kind, Cap]] = {
    "bytes": Cap(256_000_000, "bytes"),
    "open": Cap(16_000_000, "bytes, or too many lines, without a whole event"),
    "events": Cap(1_000_000, "events"),
    "silent": Cap(50_000, "events in sequence without content"),
    "objects": Cap(500_000, "objects and lists in one value"),
    "items": Cap(2_000_000, "items in one value"),
    "values": Cap(20_000_000, "values"),
    "choices": Cap(128, "choices in one value"),
    "calls": Cap(128, "tool calls"),
    "parts": Cap(10_000, "parts, blocks or objects in one list"),
    "blocks": Cap(16_000_000, "characters in its blocks"),
    "text": Cap(MAX_TEXT, "characters of text"),
    "message": Cap(4 * MAX_TEXT, "characters of text, thoughts, calls and further fields"),
    "media": Cap(MAX_MEDIA, "characters of images, audio or video"),
    "more": Cap(4 * MAX_TEXT, "characters beside its message"),
    "logprobs": Cap(4 * MAX_TEXT, "characters of log-probabilities"),
    "again": Cap(10 * MAX_TEXT, "characters of calls that are parsed while they come"),
}
#: caps of a request's body; a setting limits its bytes. "values" counts objects, lists, members of objects, and texts
#: in lists, but no numbers in lists: clients send texts for embeddings as lists of tokens, which count as "items" only
BODY: Final[Mapping[Kind, Cap]] = {
    "objects": Cap(200_000, "objects and lists"),
    "items": Cap(2_000_000, "items"),
    "values": Cap(200_000, "values"),
    "parameters": Cap(1000, "parameters"),
}
#: a text in JSON
_TEXT: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class InputCounts:
    """Counts what one call reads. refused: function from the words about an exceeded cap to the error."""

    __slots__ = ("_caps", "_refused", "totals")

    def __init__(self, caps: Mapping[Kind, Cap], *, refused: Callable[[str], Exception]) -> None:
        self._caps, self._refused = caps, refused
        #: counts so far
        self.totals = dict.fromkeys(caps, 0)

    def fits(self, kind: Kind, count: int = 1) -> bool:
        """Add to a count. Returns False beyond its cap."""
        total = self.totals[kind] = self.totals[kind] + count
        return total <= self._caps[kind].most

    def add(self, kind: Kind, count: int = 1) -> None:
        """Add to a count. Raises the error of `refused` beyond its cap."""
        self.totals[kind] += count
        self.check(kind, self.totals[kind])

    def check(self, kind: Kind, count: int) -> None:
        """Raise the error of `refused` if a count is beyond the cap."""
        most, words = self._caps[kind]
        if count > most:
            raise self._refused(f"more than {most:,} {words}")

    def count_json(self, data: bytes) -> int:
        """Count the objects, lists and items of a JSON text before it is parsed. Returns their number. Raises the error
        of `refused`.
        """
        objects = data.count(b"{") + data.count(b"[")
        items = objects + data.count(b",")
        if objects > self._caps["objects"].most or items > self._caps["items"].most:
            data = _TEXT.sub(b"", data)  # brackets and commas in texts do not count
            objects = data.count(b"{") + data.count(b"[")
            items = objects + data.count(b",")
            self.check("objects", objects)
            self.check("items", items)
        return items

    def count_event(self, data: bytes) -> None:
        """Count an event or document of a reply, and its values. Raises the error of `refused`."""
        objects = data.count(b"{") + data.count(b"[")
        items = objects + data.count(b",")
        if objects > self._caps["objects"].most or items > self._caps["items"].most:
            items = self.count_json(data)
        self.count_events(1, items=items)

    def count_events(self, events: int, *, items: int) -> None:
        """Count several events with this number of objects, lists and items each. Raises the error of `refused`."""
        totals = self.totals
        totals["events"] += events
        totals["values"] += events * items
        if totals["values"] > self._caps["values"].most or totals["events"] > self._caps["events"].most:
            self.check("events", totals["events"])
            self.check("values", totals["values"])

    def count_bytes(self, count: int, *, unread: int) -> None:
        """Count bytes that arrived, and the bytes of the incomplete event (`unread`). Raises the error of `refused`."""
        totals = self.totals
        totals["bytes"] += count
        if totals["bytes"] > self._caps["bytes"].most or unread > self._caps["open"].most:
            self.check("open", unread)
            self.check("bytes", totals["bytes"])

    def count_members(self, body: object, *, items: int) -> None:
        """Count the values of a parsed body. items: result of `count_json`. Raises the error of `refused`."""
        most = self._caps["values"].most
        # A list or object has at most one member more than commas, so an item has at most two values.
        count, waiting = 0, [body] if 2 * items > most and isinstance(body, dict | list) else []
        while waiting and count <= most:
            value = waiting.pop()
            count += 1
            if isinstance(value, dict):
                count += len(value)
            for one in value.values() if isinstance(value, dict) else value:
                if isinstance(one, dict | list):
                    waiting.append(one)
                elif isinstance(one, str) and isinstance(value, list):
                    count += 1
        self.check("values", count)
        if isinstance(body, dict):
            self.check("parameters", len(body))
