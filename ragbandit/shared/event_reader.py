"""The body of a model server's reply as JSON values: server-sent events, or one document."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

#: bytes of one event, or of a document; a larger one fails
MAX_EVENT: Final = 16_000_000
#: last value of a stream that has a mark of its end, and of a document
DONE: Final = "[DONE]"
#: bytes of an unexpected body that are shown
_BEGIN: Final = 80
#: first characters of a document, and of a page of HTML
_DOCUMENT: Final = (b"{", b"[", b"<")
_ADDRESS_REMEDY: Final = "check generator.openai.base_url: a gateway or another page may be in between"
#: accepts control characters in texts
_DECODER: Final = json.JSONDecoder(strict=False)


class BrokenReply(Exception):
    """The reply is broken or incomplete, or an error of the server with status 200.

    status_code: the HTTP status that the error's code names, if it does.
    """

    def __init__(self, message: str, *, remedy: str | None = None, status_code: int | None = None) -> None:
        super().__init__(message)
        self.remedy, self.status_code = remedy, status_code


class EventReader:
    """The JSON values of a body: server-sent events or one document, by its first character and not by its type.

    Comments, null and events without JSON are left out. DONE follows the last event of a stream, and a document.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._lines: list[bytes] = []
        self._event, self._begin = b"", b""
        self._held, self._is_read = 0, False

    def feed(self, data: bytes) -> Iterator[Any]:
        """The values that these bytes complete. Raises BrokenReply, after the values before the broken one."""
        self._rest += data
        self._held += len(data)
        if self._held > MAX_EVENT:
            raise BrokenReply(f"the reply has an event of more than {MAX_EVENT} bytes")
        if not self._begin:
            self._rest = self._rest.lstrip(b"\xef\xbb\xbf \t\r\n")
            self._begin = bytes(self._rest[:_BEGIN])
        if self._begin.startswith(_DOCUMENT):
            yield from self._document()
        elif self._rest and (b"\n" in data or b"\r" in data):
            lines = bytes(self._rest).splitlines(keepends=True)
            self._rest = bytearray() if lines[-1].endswith(b"\n") else bytearray(lines.pop())
            for line in lines:
                yield from self._take(line.rstrip(b"\r\n"))
            self._held = len(self._rest) + sum(map(len, self._lines))

    def end(self) -> list[Any]:
        """The values of the rest when the body has ended. Raises BrokenReply for a body of another kind."""
        values: list[Any] = []
        if not self._begin.startswith(_DOCUMENT):
            with suppress(BrokenReply):  # an event that is cut: the reply then has no end
                values = [*self._take(bytes(self._rest)), *self._take(b"")]
        if self._begin and not self._is_read:
            begin = self._begin.decode("utf-8", "replace")
            raise BrokenReply(f"expected a completion, got {begin!r}", remedy=_ADDRESS_REMEDY)
        return values

    def _document(self) -> list[Any]:
        """The document once it is whole: the connection may break, or stay open, after it."""
        if not self._is_read and self._rest[-80:].rstrip().endswith((b"}", b"]")):
            with suppress(BrokenReply):
                value = _value_of(bytes(self._rest))
                self._is_read = True
                return [value, DONE]
        return []

    def _take(self, line: bytes) -> list[Any]:
        """The values of the event that this line ends; most lines end none."""
        if not line:
            lines, event = self._lines, self._event
            self._lines, self._event = [], b""
            return _values_of(lines, event=event)
        name, _, value = line.partition(b":")
        if name == b"data":
            self._lines.append(value)
        elif name == b"event":
            self._event = value.strip()
        self._is_read = self._is_read or name in (b"data", b"event", b"")
        return []


def _values_of(lines: Sequence[bytes], *, event: bytes) -> list[Any]:
    """The values of an event with these lines of data. Raises BrokenReply."""
    data = b"\n".join(lines).strip()
    if data.startswith(DONE.encode()):
        return [DONE]
    if data[:1] in (b"{", b"["):
        try:
            value = _value_of(data)
        except BrokenReply:
            if len(lines) == 1:
                raise
        else:
            return [{"error": value} if event == b"error" and "error" not in value else value]
    elif len(lines) <= 1:  # a word, null or "" keeps the connection open, unless it is an error
        return [{"error": _text_of(data)}] if event == b"error" else []
    # A server that leaves out the empty lines between events.
    return [value for line in lines for value in _values_of([line], event=event)]


def _text_of(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")


def _value_of(data: bytes) -> Any:
    try:
        return _DECODER.decode(_text_of(data).strip())
    except (ValueError, RecursionError) as error:
        begin = _text_of(data[:_BEGIN])
        raise BrokenReply(f"the reply is not JSON: {begin!r}: {error}", remedy=_ADDRESS_REMEDY) from error
