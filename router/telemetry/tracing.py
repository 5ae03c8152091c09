"""Interface of tracing. Its base classes record nothing; `otel` implements the recording."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal, TypedDict, Unpack

import uuid_utils

from ragbandit.shared.types import Sent

Attribute = str | bool | int | float | Sequence[str]
SpanKind = Literal["internal", "server", "client"]


class SpanOptions(TypedDict, total=False):
    kind: SpanKind
    attributes: Mapping[str, Attribute | None]
    #: W3C headers of the parent; None for the current span
    parent: Mapping[str, str] | None
    #: W3C headers of a related span; the new span then has no parent
    link: Mapping[str, str] | None


class Span:
    #: whether the span is recorded; only a recorded span belongs to a trace
    is_recorded: bool = False

    @property
    def carrier(self) -> Mapping[str, str]:
        """W3C headers that pass the trace on; {} without a trace."""
        return {}

    def set(self, attributes: Mapping[str, Attribute | None]) -> None:
        """Add the attributes whose values are not None."""

    def rename(self, name: str) -> None:
        pass

    def fail(self, error_type: str) -> None:
        """Mark the span as failed. error_type: a class or code; no message, since that may contain users' texts."""

    def end(self) -> None:
        """End a span of `Tracing.begin`. Spans of `Tracing.span` end by themselves."""


class Tracing:
    enabled: bool = False
    #: whether spans may contain texts: questions, prompts, answers, passages
    texts_in_spans: bool = False

    def begin(self, name: str, **how: Unpack[SpanOptions]) -> Span:
        """Begin a span; the caller ends it."""
        del name, how
        return _NO_SPAN

    def span(self, name: str, **how: Unpack[SpanOptions]) -> AbstractContextManager[Span]:
        """A span for a block. An exception that leaves the block marks it as failed."""
        del name, how
        return _NO_BLOCK

    def close(self) -> None:
        """Send the remaining spans, for at most a few seconds."""


_NO_SPAN: Final = Span()
_NO_BLOCK: Final = nullcontext(_NO_SPAN)
OFF: Final = Tracing()
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def carrier_of(sent: Sent) -> dict[str, str]:
    """W3C headers stored with a decision; {} without a trace."""
    headers = {TRACEPARENT: sent.traceparent, TRACESTATE: sent.tracestate}
    return {name: value for name, value in headers.items() if value is not None}


def trace_id_of(traceparent: str | None) -> str | None:
    """Trace id in the header traceparent, 32 hex digits; None without a trace."""
    matched = _TRACEPARENT.fullmatch(traceparent) if traceparent is not None else None
    return matched[1] if matched else None


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The caller's x-request-id if it is valid, else a new id. headers: as in ASGI."""
    for name, value in headers:
        if name == b"x-request-id":
            request_id = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(request_id):
                return request_id
    return f"req_{uuid_utils.uuid7().hex}"
