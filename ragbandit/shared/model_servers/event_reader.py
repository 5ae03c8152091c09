"""Splits the body of a reply into JSON values: server-sent events, or one document."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from ragbandit.shared.model_servers.repeated_events import EMPTY_LINES, EventPattern
from ragbandit.shared.reading.input_counts import REPLY, InputCounts
from ragbandit.shared.texts.json_values import decoded_text, json_value

#: bytes that are counted for a line in addition to its own, since an empty line takes time and memory, too
_LINE: Final = 256
#: number of bytes of JSON that take as long to parse as a line
_STEP: Final = 64
#: after this number of parsed bytes of an incomplete document, the next attempt waits until the document has doubled
_ATTEMPTS: Final = 1_000_000
#: last value of every reply
DONE: Final = "[DONE]"
#: beginnings of an event with an object
_EVENT: Final = (b"data: {", b"data:{")
#: length of the part of an unexpected body that is shown, bytes
_BEGIN: Final = 80
#: first characters of a JSON document, and of an HTML page
_DOCUMENT: Final = (b"{", b"[", b"<")
#: number of last bytes of a document among which its closing bracket is searched before the connection ends
_TAIL: Final = 80
_ADDRESS_REMEDY: Final = "check generator.openai.base_url: a gateway or another page may be in between"


class BrokenReply(Exception):
    """The reply is broken, incomplete, or an error with status 200.

    status_code: HTTP status in the error. body: the value with the error. is_cut: whether a reply broke off or was too
    large, so that the model has probably written, and the call costs money
    """

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        status_code: int | None = None,
        body: object = None,
        is_cut: bool = False,
    ) -> None:
        super().__init__(message)
        self.remedy, self.status_code, self.body, self.is_cut = remedy, status_code, body, is_cut


class ReplyTooLarge(BrokenReply):
    """The reply exceeds a cap: the model wrote too much, so its server has not failed."""

    @classmethod
    def of(cls, words: str) -> "ReplyTooLarge":
        """The error for a reply beyond a cap. words: see `InputCounts`."""
        remedy = "raise generator.openai.media_chars" if words.endswith(REPLY["media"].of) else None
        return cls(f"the reply has {words}", remedy=remedy, is_cut=True)


def reply_counts(*, media: int = REPLY["media"].most) -> InputCounts:
    """Counts for one reply, whose caps raise ReplyTooLarge. media: most characters of images, audio and video."""
    return InputCounts({**REPLY, "media": REPLY["media"]._replace(most=media)}, refused=ReplyTooLarge.of)


class EventReader:
    """Reads JSON values from a body: server-sent events or one document, whatever the Content-Type is.

    Comments, null and events without JSON are skipped. DONE follows the last event of a stream, and a document. joins:
    whether events that differ only in their texts are yielded together as RepeatedEvents.
    Attribute `name`: name of the last event; "" if it has none.
    """

    def __init__(self, counts: InputCounts | None = None, *, joins: bool = False) -> None:
        self.name = ""
        self._counts = counts or reply_counts()
        #: bytes after the last complete line
        self._buffer = bytearray()
        #: data lines of the unfinished event
        self._lines: list[bytes] = []
        #: name of the unfinished event
        self._event = b""
        self._begin = b""
        #: bytes, and _LINE for each line, since the last value
        self._size = 0
        #: bytes that were parsed in vain, because the document was incomplete
        self._parsed = 0
        self._is_read = False
        self._joins = joins
        #: the last event with a text
        self._pattern: EventPattern | None = None

    def work(self, data: bytes) -> int:
        """The work of `feed` with this data: bytes to parse, and _STEP for each line; 0 if `feed` only stores it."""
        lines = data.count(b"\n") + data.count(b"\r")
        begin = self._begin or data.lstrip()
        is_end = _may_end(self._buffer[-_TAIL:] + data) if begin.startswith(_DOCUMENT) else lines > 0
        return self._size + len(data) + _STEP * lines if is_end else 0

    @property
    def unread(self) -> int:
        """The most bytes that `end` would parse."""
        return 0 if self._is_read and self._begin.startswith(_DOCUMENT) else self._size

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the values that end in these bytes. Raises BrokenReply, after the values before the broken one."""
        self._buffer += data
        self._size += len(data)
        self._counts.count_bytes(len(data), unread=self._size)
        if not self._begin:
            self._buffer = self._buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
            self._begin = bytes(self._buffer[:_BEGIN])
        if self._begin.startswith(_DOCUMENT):
            yield from self._document(is_whole=False)
        elif self._buffer and (b"\n" in data or b"\r" in data):
            lines = bytes(self._buffer).splitlines(keepends=True)
            self._buffer = bytearray() if lines[-1].endswith(b"\n") else bytearray(lines.pop())
            self._size += _LINE * len(lines)
            lines.append(b"")
            at = 0
            while at + 1 < len(lines):
                line = lines[at]
                # Most events are an object in one line.
                is_event = line.startswith(_EVENT) and lines[at + 1] in EMPTY_LINES and not (self._lines or self._event)
                events = self._pattern.match(lines, start=at) if is_event and self._pattern is not None else None
                if events is not None:
                    self._counts.count_events(len(events.texts), items=events.pattern.items)
                    values: list[Any] = [events]
                else:
                    values = [self._event_of(line)] if is_event else self._read_line(line.rstrip(b"\r\n"))
                at += 2 * (1 if events is None else len(events.texts)) if is_event else 1
                if values:
                    self._size = 0
                    yield from values

    def end(self) -> Iterator[Any]:
        """Yield the last values of the body. Raises BrokenReply if it has text, but no event or complete document."""
        if self._begin.startswith(_DOCUMENT):
            yield from self._document(is_whole=True)
        else:
            with suppress(BrokenReply):  # a truncated event: the caller notices the missing end of the reply
                values = self._read_line(bytes(self._buffer)) + self._read_line(b"")
                yield from values
        if self._begin and not self._is_read:
            message = f"expected a completion, got {decoded_text(self._begin)!r}"
            raise BrokenReply(message, remedy=_ADDRESS_REMEDY, is_cut=self._begin.startswith(_DOCUMENT[:2]))

    def _document(self, *, is_whole: bool) -> list[Any]:
        """Returns the document, or the items of a list, and DONE; [] while the document is incomplete."""
        may_be_whole = is_whole or self._parsed <= _ATTEMPTS + len(self._buffer)
        if may_be_whole and not self._is_read and _may_end(self._buffer if is_whole else self._buffer[-_TAIL:]):
            self._parsed += len(self._buffer)
            try:
                value = self._value_of(bytes(self._buffer))
            except ReplyTooLarge:
                raise
            except BrokenReply:  # the document is incomplete
                return []
            self._is_read = True
            return [*(value if isinstance(value, list) else [value]), DONE]
        return []

    def _event_of(self, line: bytes) -> Any:
        """The object of an event in one line."""
        self.name, self._is_read = "", True
        value = self._value_of(line[5:])
        if self._joins:
            self._pattern = EventPattern.of(line, value)
        return value

    def _read_line(self, line: bytes) -> list[Any]:
        """Read a line. An empty line ends an event, whose values are returned."""
        if not line:
            lines, event = self._lines, self._event
            self._lines, self._event = [], b""
            self.name = event.decode("utf-8", "replace")
            return self._values_of(lines, event=event)
        # A proxy may send an error as a line of JSON. llama.cpp sends an error in a line "error: ...".
        name, _, value = (b"data", b"", line) if line.startswith(b"{") else line.partition(b":")
        if name in (b"data", b"error"):
            self._lines.append(value)
        if name in (b"event", b"error"):
            self._event = value.strip() if name == b"event" else name
        self._is_read = self._is_read or name in (b"data", b"event", b"")
        return []

    def _values_of(self, lines: Sequence[bytes], *, event: bytes) -> list[Any]:
        data = b"\n".join(lines).strip()
        if data.startswith(b"data:"):  # the server encoded the event twice, or three times
            data = data[5:].lstrip().removeprefix(b"data:").lstrip()
        if data[:8].strip(b'"').upper().startswith(DONE.encode()):
            return [DONE]
        if data[:1] == b"{" or (data[:1] == b"[" and not data[1:2].isalpha()):
            try:
                value = self._value_of(data)
            except BrokenReply:
                if len(lines) == 1:
                    raise
            else:
                return [{"error": value} if event == b"error" and "error" not in value else value]
        elif len(lines) <= 1:
            # Here an event without an error is a word, [PING], null or "": it only keeps the connection open.
            return [{"error": decoded_text(data)}] if event == b"error" else []
        # This server sends no empty lines between events, so each line is an event.
        return [value for line in lines for value in self._values_of([line], event=event)]

    def _value_of(self, data: bytes) -> Any:
        self._counts.count_event(data)
        try:
            return json_value(data, strict=False)
        except (ValueError, RecursionError) as error:
            begin = decoded_text(data[:_BEGIN])
            raise BrokenReply(f"the reply is not JSON: {begin!r}: {error}", remedy=_ADDRESS_REMEDY) from error


def _may_end(tail: bytes | bytearray) -> bool:
    """Whether a document may end with these bytes."""
    return tail.rstrip().endswith((b"}", b"]"))
