"""Answer stream: the answer of a run, given to a reader while it is written."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from ragbandit.strategies.base import Completion, Generator, Hit, Request, Retriever

#: the answer that a text makes. That of a text's beginning must be a beginning of the whole text's, as with str.strip
Settle = Callable[[str], str]

#: longest note, in characters
MAX_NOTE: Final = 120

#: purpose of a call to the model -> what the arm is doing, for a user
_WORDS: Final = {
    "think": "thinking",
    "think_with": "thinking",
    "look_ahead": "writing a draft",
    "write": "writing a draft",
    "gate": "writing a draft",
    "conclude": "writing the answer",
    "answer": "writing the answer",
    "read": "writing the answer",
    "read_again": "writing the answer again",
    "note_first": "taking notes",
    "note_extend": "taking notes",
    "chain_of_note": "taking notes",
    "self_refine": "taking notes",
    "self_rerank": "checking the passages",
    "note_compare": "comparing the notes",
    "ask": "looking for what is missing",
    "rewrite": "rewording the search",
    "decompose": "rewording the search",
    "disambiguate": "rewording the search",
    "decide": "planning the next step",
    "grade_relevant": "checking the passages",
    "grade_supported": "checking the draft",
    "grade_useful": "checking the draft",
}


def in_words(purpose: str) -> str:
    """What an arm does that calls the model for this purpose, in a few words for a user."""
    return _WORDS.get(purpose, "thinking")


class AnswerReader(Protocol):
    """Whoever reads an answer while it is written. Called from the event loop that the arm runs in; never raises."""

    @property
    def reading(self) -> bool:
        """True if somebody reads along now."""
        ...

    async def text(self, piece: str) -> None:
        """Take the next piece of the answer."""
        ...

    def note(self, text: str) -> None:
        """Take a note on what the arm is doing, in a few words for a user."""
        ...


class AnswerStream:
    """What the reader of one run has been given. Without a reader it does nothing."""

    def __init__(self, reader: AnswerReader | None = None) -> None:
        self._reader = reader
        self._last_note = ""
        #: all text that the reader was given
        self.given = ""

    @property
    def wanted(self) -> bool:
        """True if somebody reads along now."""
        return self._reader is not None and self._reader.reading

    def note(self, text: str) -> None:
        """Tell the reader what the arm is doing; the same note twice in a row is told once."""
        if self._reader is None or not self.wanted:
            return
        line = " ".join(text.split())
        line = line if len(line) <= MAX_NOTE else f"{line[: MAX_NOTE - 3]}..."
        if line != self._last_note:
            self._last_note = line
            self._reader.note(line)

    def sink(self, settle: Settle) -> Callable[[str], Awaitable[None]] | None:
        """The sink of a call that writes the answer, None if nobody reads along.

        What does not continue the text given before is not given: the answer as a whole tells then.
        """
        reader = self._reader
        if reader is None or not self.wanted:
            return None
        written = ""

        async def take(piece: str) -> None:
            nonlocal written
            written += piece
            answer = settle(written)
            if len(answer) > len(self.given) and answer.startswith(self.given):
                new, self.given = answer[len(self.given) :], answer
                await reader.text(new)

        return take


def provider_of(generator: Generator) -> str:
    """Who runs the model, for OpenTelemetry: what the generator's `provider` says, or "ragbandit": this process."""
    return str(getattr(generator, "provider", "ragbandit"))


class CallSpan:
    """One call under way. This one tells nobody."""

    def retrieved(self, hits: Sequence[Hit]) -> None:
        """Note what a search has found."""

    def generated(self, done: Completion) -> None:
        """Note what the model has written."""


class Spans:
    """Told of every call of a run; an exception that leaves a call's block is its failure. These tell nobody."""

    def searching(self, query: str, *, k: int, retriever: Retriever) -> AbstractContextManager[CallSpan]:
        """A search begins."""
        del query, k, retriever
        return nullcontext(_NO_SPAN)

    def generating(self, request: Request, *, purpose: str, generator: Generator) -> AbstractContextManager[CallSpan]:
        """A call of the model begins."""
        del request, purpose, generator
        return nullcontext(_NO_SPAN)


_NO_SPAN: Final = CallSpan()
NO_SPANS: Final = Spans()
