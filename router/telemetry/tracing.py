"""Tracing: spans and events as the rest of the code sees them. This one does nothing; `otel` has the real one.

Where telemetry is off nothing of OpenTelemetry is imported or called. Whoever has much to say asks `enabled` first.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal

#: what an attribute may be
Attribute = str | bool | int | float | Sequence[str]
SpanKind = Literal["internal", "server", "client"]
_NO_CARRIER: Final[Mapping[str, str]] = {}


class Span:
    """A span. This one is none."""

    @property
    def carrier(self) -> Mapping[str, str]:
        """The W3C headers that hand the trace on; empty: there is none."""
        return _NO_CARRIER

    def set(self, attributes: Mapping[str, Attribute | None]) -> None:
        """Add attributes; None is left out."""

    def rename(self, name: str) -> None:
        """Give it another name."""

    def fail(self, error_type: str) -> None:
        """What it stands for failed. error_type: a class or a code, never a message: messages may hold texts."""

    def end(self) -> None:
        """It is over; one that was begun by `Tracing.span` ends by itself."""


class Tracing:
    """A source of spans and events. This one makes none."""

    #: whether anything is made of what it is told
    enabled: bool = False
    #: whether spans may hold texts: questions, prompts, answers, passages
    texts_in_spans: bool = False

    def begin(
        self,
        name: str,
        *,
        kind: SpanKind = "internal",
        attributes: Mapping[str, Attribute | None] = _NO_CARRIER,
        parent: Mapping[str, str] | None = None,
        link: Mapping[str, str] | None = None,
    ) -> Span:
        """A span that the caller ends. parent: the W3C headers that it goes on from; None: from the current span.

        link: the W3C headers of a span that it belongs to without being a part of it: it is a root of its own then.
        """
        del name, kind, attributes, parent, link
        return _NO_SPAN

    def span(
        self,
        name: str,
        *,
        kind: SpanKind = "internal",
        attributes: Mapping[str, Attribute | None] = _NO_CARRIER,
        parent: Mapping[str, str] | None = None,
        link: Mapping[str, str] | None = None,
    ) -> AbstractContextManager[Span]:
        """`begin`, as the current span of a block. An exception that leaves the block is its failure."""
        del name, kind, attributes, parent, link
        return _NO_BLOCK

    def event(
        self, name: str, *, attributes: Mapping[str, Attribute | None], parent: Mapping[str, str] | None = None
    ) -> None:
        """Tell of an event, as a log record in the trace that the W3C headers name; None: in the current one."""

    def measure(self, name: str, value: float, *, attributes: Mapping[str, Attribute | None]) -> None:
        """Add a value to a metric of the conventions."""

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""


_NO_SPAN: Final = Span()
_NO_BLOCK: Final = nullcontext(_NO_SPAN)
#: the tracing that does nothing
OFF: Final = Tracing()
