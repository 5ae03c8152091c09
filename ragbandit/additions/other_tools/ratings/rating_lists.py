"""Reads a list of ratings value by value, since the values of a large list take ten times the memory of its text."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, Final

#: smallest number of bytes that are decoded at once
STEP: Final = 1 << 16
#: largest number of characters of a rating
MOST_CHARACTERS: Final = 1 << 20
_FAULT: Final = "the reply is not JSON with a list of ratings"
_SPACE: Final = re.compile(r"[ \t\r\n]+")
_DECODER: Final = json.JSONDecoder()


class RatingList:
    """The list in a reply: the whole document, or the field `items` or `data` of an object.

    Attributes after `rows` has ended: `is_bare`, whether the document is the list, and `meta`, the field of that name.
    """

    def __init__(self, body: bytes, *, step: int = STEP) -> None:
        self._body, self._at, self._step = body, 0, step
        self._bytes = codecs.getincrementaldecoder("utf-8-sig")("surrogatepass")
        #: decoded text, and position in it
        self._text, self._place = "", 0
        self.is_bare, self.meta = False, None

    def rows(self) -> Iterator[Any]:
        """Yield the values of the list. Raises ValueError, after the values before the fault."""
        self.is_bare = self._peek() == "["
        has_list = self.is_bare
        if self.is_bare:
            yield from self._read_values("]")
        elif self._peek() == "{":
            for name in self._read_values("}"):
                self._expect(":")
                if name in ("items", "data") and not has_list and self._peek() == "[":
                    has_list = True
                    yield from self._read_values("]")
                else:
                    value = self._read_value()
                    self.meta = value if name == "meta" else self.meta
        if not has_list or self._peek():
            raise ValueError(_FAULT)

    def _read_values(self, end: str) -> Iterator[Any]:
        """The values of a list, or the names of an object, whose values the caller reads."""
        self._place += 1
        if self._peek() != end:
            yield self._read_value()
            while self._peek() == ",":
                self._place += 1
                yield self._read_value()
        self._expect(end)

    def _read_value(self) -> Any:
        self._peek()
        while True:
            is_last = self._at >= len(self._body)
            try:
                value, end = _DECODER.raw_decode(self._text, self._place)
            except (ValueError, RecursionError):
                end = 0
            if end and (end < len(self._text) or is_last):  # a number that ends with the text may be incomplete
                self._place = end
                return value
            size = len(self._text) - self._place
            if is_last or size > MOST_CHARACTERS:
                raise ValueError(f"{_FAULT}, or a rating has more than {MOST_CHARACTERS} characters")
            self._decode_more(max(self._step, size))

    def _peek(self) -> str:
        """The next character after white space; "" at the end."""
        while True:
            if space := _SPACE.match(self._text, self._place):
                self._place = space.end()
            if self._place < len(self._text) or self._at >= len(self._body):
                return self._text[self._place : self._place + 1]
            self._decode_more(self._step)

    def _expect(self, expected: str) -> None:
        if self._peek() != expected:
            raise ValueError(_FAULT)
        self._place += 1

    def _decode_more(self, size: int) -> None:
        part = self._body[self._at : self._at + size]
        self._at += size
        self._text = self._text[self._place :] + self._bytes.decode(part, final=self._at >= len(self._body))
        self._place = 0
