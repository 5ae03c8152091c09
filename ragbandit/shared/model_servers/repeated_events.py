"""Events that differ from an earlier event in one text only, as most events of an answer do."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ragbandit.shared.texts import json_values

#: lines that end an event
EMPTY_LINES: Final = (b"\n", b"\r\n")
#: the text of an answer in an event, under the names of all dialects
_TEXT: Final = re.compile(rb'"(?:content|text)"\s*+:\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"')


class EventPattern:
    """The bytes of an event in one line, around its text."""

    __slots__ = ("_head", "_tail", "items", "value")

    def __init__(self, value: Any, *, head: bytes, tail: bytes) -> None:
        #: the event
        self.value = value
        self._head, self._tail = head, tail
        #: number of objects, lists and items in the event
        self.items = sum(map((head + tail).count, (b"{", b"[", b",")))

    @classmethod
    def of(cls, line: bytes, value: Any) -> "EventPattern | None":
        """The pattern of an event; None if it has no text, or several.

        line: its bytes, with the line end. value: its parsed JSON
        """
        found = list(_TEXT.finditer(line))
        if len(found) != 1 or not found[0][1]:
            return None
        return cls(value, head=line[: found[0].start(1)], tail=line[found[0].end(1) :])

    def match(self, lines: Sequence[bytes], *, start: int) -> "RepeatedEvents | None":
        """The events of this pattern from `lines[start]` on, each followed by an empty line; None if there are none."""
        head, tail, parse, texts, first = self._head, self._tail, json_values.parser(), list[str](), start
        begin, end = len(head), len(tail)
        with suppress(ValueError):  # half a surrogate pair, or another text that only Python's parser reads
            while start + 1 < len(lines) and lines[start + 1] in EMPTY_LINES:
                line = lines[start]
                if not (line.startswith(head) and line.endswith(tail) and len(line) > begin + end):
                    break
                texts.append(parse(b'"%b"' % line[begin:-end]))
                start += 2
        return RepeatedEvents(self, texts, lines[first:start:2]) if texts else None


class RepeatedEvents(NamedTuple):
    """Events that came together, and differ from the event of the pattern only in their texts."""

    pattern: EventPattern
    texts: list[str]
    #: the lines of the events
    lines: Sequence[bytes]

    def values(self) -> Iterator[Any]:
        """The events, as they came."""
        return (json_values.json_value(line[5:], strict=False) for line in self.lines)
