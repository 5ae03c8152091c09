"""Spans: who is told of the calls of a run, for traces. An arm knows nothing of it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from ragbandit.strategies.base import Completion, Generator, Hit, Request, Retriever


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
