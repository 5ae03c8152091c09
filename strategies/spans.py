"""Spans: who is told of the calls of a run, for traces. An arm knows nothing of it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from ragbandit.strategies.base import Completion, Generator, Hit, Request, Retriever


class CallSpan(Protocol):
    """One call under way."""

    def retrieved(self, hits: Sequence[Hit]) -> None:
        """A search has found this."""
        ...

    def generated(self, done: Completion) -> None:
        """The model has written this."""
        ...


class Spans(Protocol):
    """Told of every call of a run."""

    def searching(self, query: str, *, k: int, retriever: Retriever) -> AbstractContextManager[CallSpan]:
        """A search begins; an exception that leaves the block is its failure."""
        ...

    def generating(self, request: Request, *, purpose: str, generator: Generator) -> AbstractContextManager[CallSpan]:
        """A call of the model begins; an exception that leaves the block is its failure."""
        ...


class _NoSpan:
    def retrieved(self, hits: Sequence[Hit]) -> None:
        """Nobody is told."""

    def generated(self, done: Completion) -> None:
        """Nobody is told."""


class NoSpans:
    """Nobody is told of anything."""

    def searching(self, query: str, *, k: int, retriever: Retriever) -> AbstractContextManager[CallSpan]:
        """Nothing."""
        del query, k, retriever
        return _NOTHING

    def generating(self, request: Request, *, purpose: str, generator: Generator) -> AbstractContextManager[CallSpan]:
        """Nothing."""
        del request, purpose, generator
        return _NOTHING


_NOTHING: Final = nullcontext(_NoSpan())
NO_SPANS: Final = NoSpans()
