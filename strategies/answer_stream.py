"""Passes an answer, and notes on its progress, to a reader while the arm runs."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from ragbandit.shared.types import Json

#: function that makes the answer from a model's text. When the text gets longer, the answer may only be extended
Settle = Callable[[str], str]

MAX_NOTE: Final = 120  #: maximum number of characters of a note for the user


class AnswerReader(Protocol):
    """Receives an answer while it is written. Called on the event loop that runs the arm; never raises."""

    @property
    def reading(self) -> bool:
        """Whether a client is reading the answer now."""

    async def text(self, piece: str) -> None: ...

    async def delta(self, delta: Mapping[str, Json]) -> None:
        """Receive the next fields of a chat's message except its text, for example tool calls."""

    def note(self, text: str) -> None:
        """Receive a short note for the user on what the arm is doing."""


class AnswerStream:
    """Passes the text and the notes of one run to its reader. Does nothing if there is no reader."""

    def __init__(self, reader: AnswerReader | None = None) -> None:
        self._reader = reader
        self._last_note = ""
        self.delivered = ""

    @property
    def _active_reader(self) -> AnswerReader | None:
        return self._reader if self._reader is not None and self._reader.reading else None

    def note(self, text: str) -> None:
        """Send the reader a note on what the arm is doing, unless it repeats the last note."""
        line = " ".join(text.split())
        line = line if len(line) <= MAX_NOTE else f"{line[: MAX_NOTE - 3]}..."
        reader = self._active_reader
        if reader is not None and line != self._last_note:
            self._last_note = line
            reader.note(line)

    def sink(self, settle: Settle) -> Callable[[str], Awaitable[None]] | None:
        """`Request.sink` of the call that writes the answer; None if there is no reader."""
        reader = self._active_reader
        if reader is None:
            return None
        written = ""

        async def send(piece: str) -> None:
            nonlocal written
            written += piece
            answer = settle(written)
            if len(answer) > len(self.delivered) and answer.startswith(self.delivered):
                new, self.delivered = answer[len(self.delivered) :], answer
                await reader.text(new)

        return send

    def delta_sink(self) -> Callable[[Mapping[str, Json]], Awaitable[None]] | None:
        reader = self._active_reader
        return None if reader is None else reader.delta


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


def progress_note(purpose: str) -> str:
    return next((note for note, purposes in _PROGRESS_NOTES.items() if purpose in purposes.split()), "thinking")
