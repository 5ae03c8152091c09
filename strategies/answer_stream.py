"""Passes an answer, and notes on its progress, to a reader while the arm runs."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from ragbandit.shared.errors import ArmFailed, RagBanditError
from ragbandit.shared.texts.growing_text import AnswerText
from ragbandit.shared.types import Json

#: function from a model's text to the answer. If the text is extended, the answer may only be extended
Settle = Callable[[str], str]

MAX_NOTE: Final = 120  #: maximum number of characters of a note for the user


class AnswerReader(Protocol):
    """Receives an answer while it is written. Called on the event loop that runs the arm. Its errors fail the arm."""

    @property
    def reading(self) -> bool:
        """Whether a client is reading the answer now."""

    async def text(self, piece: str) -> None: ...

    async def delta(self, delta: Mapping[str, Json]) -> None:
        """Receive the next fields of a chat's message except its text, for example tool calls."""

    def note(self, text: str) -> None:
        """Receive a short note for the user on the arm's progress."""


class AnswerStream:
    """Passes the text and the notes of one run to its reader. Does nothing if there is no reader."""

    def __init__(self, reader: AnswerReader | None = None) -> None:
        self._reader = reader
        self._last_note = ""
        #: text that the reader has got
        self.sent = AnswerText()

    @property
    def _active_reader(self) -> AnswerReader | None:
        return self._reader if self._reader is not None and self._reader.reading else None

    def note(self, text: str) -> None:
        """Send the reader a note on the arm's progress, unless it repeats the last note."""
        reader = self._active_reader
        if reader is None:
            return
        line = " ".join(text.split())
        line = line if len(line) <= MAX_NOTE else f"{line[: MAX_NOTE - 3]}..."
        if line != self._last_note:
            self._last_note = line
            reader.note(line)

    def sink(self, settle: Settle, *, stop: tuple[str, ...] = ()) -> "TextSink | None":
        """`Request.sink` of the call that writes the answer; None if nobody reads. stop: stop strings of the call."""
        reader = self._active_reader
        return None if reader is None else TextSink(reader, sent=self.sent, settle=settle, stop=stop)

    def delta_sink(self) -> Callable[[Mapping[str, Json]], Awaitable[None]] | None:
        reader = self._active_reader
        return None if reader is None else reader.delta


class TextSink:
    """Passes the growing text of one call on to a reader. The reader gets the result of `settle` for the text.

    The end of the text is held back if it may be the beginning of a stop string, or is half a character (U+FFFD, half
    of a surrogate pair). An answer that does not continue the text that was sent is not passed on.
    """

    def __init__(self, reader: AnswerReader, *, sent: AnswerText, settle: Settle, stop: tuple[str, ...]) -> None:
        self._reader, self._sent, self._settle = reader, sent, settle
        self._stops = tuple(filter(None, stop))
        #: text of the call that was passed on, even if the reader raised
        self._passed = ""

    async def __call__(self, text: str) -> None:
        """Send the new part of the text so far. A second attempt may start with a shorter text. Errors: see `end`."""
        known = len(self._passed) if self._stops and text.startswith(self._passed) else 0
        settled = _settled_text(text, stop_strings=self._stops, searched=known)
        if not self._passed.startswith(settled):  # nothing is new while a second attempt is shorter
            await self.end(settled)

    async def end(self, text: str) -> None:
        """Send the rest of the whole text.

        Raises ArmFailed if the reader fails, or if the text does not begin with the text sent before. A RagBanditError
        of the reader is passed on unchanged.
        """
        if not text.startswith(self._passed):
            message = "the answer broke off after a part of it was streamed, and the second attempt has other words"
            raise ArmFailed(message, remedy="ask again; streamed text cannot be taken back")
        self._passed = text
        new = self._sent.continue_to(self._settle(text))
        if not new:
            return
        try:
            await self._reader.text(new)
        except RagBanditError:
            raise
        except Exception as error:
            raise ArmFailed(f"the reader of the streamed text failed: {type(error).__name__}: {error}") from error


def _settled_text(text: str, *, stop_strings: tuple[str, ...], searched: int) -> str:
    """The beginning of the text that the next pieces cannot change. searched: see `first_stop`."""
    end = first_stop(text, stop_strings, searched=searched) if stop_strings else None
    if end is not None:
        return text[:end]
    text = text.rstrip("\ufffd")
    if text and "\ud800" <= text[-1] <= "\udbff":
        text = text[:-1]
    return text[: len(text) - max(_overlap(text, stop) for stop in stop_strings)] if stop_strings else text


def first_stop(text: str, stop_strings: tuple[str, ...], *, searched: int = 0) -> int | None:
    """Position of the first stop string in the text; None if the text has no stop string.

    searched: number of characters at the beginning of the text that have no stop string, so they are not searched again
    """
    places = [text.find(stop, max(0, searched + 1 - len(stop))) for stop in stop_strings if stop]
    return min((at for at in places if at >= 0), default=None)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a proper beginning of the stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


#: note for the user -> purposes of the model calls during which this note is shown
_PROGRESS_NOTES: Final = {
    "writing a draft": "look_ahead write gate",
    "writing the answer": "conclude answer read chat",
    "writing the answer again": "read_again",
    "taking notes": "note_first note_extend chain_of_note self_refine",
    "checking the passages": "self_rerank grade_relevant",
    "checking the draft": "grade_supported grade_useful",
    "comparing the notes": "note_compare",
    "looking for what is missing": "ask",
    "rewording the search": "rewrite decompose disambiguate",
    "planning the next step": "decide",
}
_NOTE_OF: Final = {purpose: note for note, purposes in _PROGRESS_NOTES.items() for purpose in purposes.split()}


def progress_note(purpose: str) -> str:
    return _NOTE_OF.get(purpose, "thinking")
