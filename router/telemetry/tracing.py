"""Tracing: spans and events as the rest of the code sees them. This one does nothing; `otel` has the real one.

Where telemetry is off nothing of OpenTelemetry is imported or called. Whoever has much to say asks `enabled` first.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, Literal, TypedDict, Unpack

import uuid_utils

from ragbandit.router.telemetry import conventions as names
from ragbandit.shared.types import Feedback, Json

#: what an attribute may be
Attribute = str | bool | int | float | Sequence[str]
SpanKind = Literal["internal", "server", "client"]


class SpanOptions(TypedDict, total=False):
    """How a span begins."""

    kind: SpanKind
    attributes: Mapping[str, Attribute | None]
    #: the W3C headers that it goes on from; None: the current span
    parent: Mapping[str, str] | None
    #: the W3C headers of a span that it belongs to without being a part of it: it is a root of its own then
    link: Mapping[str, str] | None


class Span:
    """A span. This one is none."""

    @property
    def carrier(self) -> Mapping[str, str]:
        """The W3C headers that hand the trace on; empty: there is none."""
        return {}

    def set(self, attributes: Mapping[str, Attribute | None]) -> None:
        """Add attributes; None is left out."""

    def rename(self, name: str) -> None:
        """Give it another name."""

    def fail(self, error_type: str) -> None:
        """What it stands for failed. error_type: a class or a code, never a message: messages may hold texts."""

    def current(self) -> AbstractContextManager[object]:
        """Within this it is the current span."""
        return nullcontext()

    def end(self) -> None:
        """It is over; one that was begun by `Tracing.span` ends by itself."""


class Tracing:
    """A source of spans and events. This one makes none."""

    #: whether anything is made of what it is told
    enabled: bool = False
    #: whether spans may hold texts: questions, prompts, answers, passages
    texts_in_spans: bool = False

    def begin(self, name: str, **how: Unpack[SpanOptions]) -> Span:
        """A span that the caller ends."""
        del name, how
        return Span()

    @contextmanager
    def span(self, name: str, **how: Unpack[SpanOptions]) -> Iterator[Span]:
        """`begin`, as the current span of a block. An exception that leaves the block is its failure."""
        begun = self.begin(name, **how)
        try:
            with begun.current():
                yield begun
        except BaseException as error:
            begun.fail(type(error).__name__)
            raise
        finally:
            begun.end()

    def event(
        self, name: str, *, attributes: Mapping[str, Attribute | None], parent: Mapping[str, str] | None = None
    ) -> None:
        """Tell of an event, as a log record in the trace that the W3C headers name; None: in the current one."""

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""


#: the tracing that does nothing
OFF: Final = Tracing()


#: keys of `Query.request`, and names of the headers
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
#: key of `Query.request`
REQUEST_ID: Final = "request_id"
#: key of an ASGI scope
SCOPE_ID: Final = "ragbandit.request_id"

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
#: what is taken as a caller's own id of its request
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def carrier_of(request: Mapping[str, Json]) -> dict[str, str]:
    """The W3C headers that are kept with a decision; empty where it is in no trace."""
    return {name: sent for name in (TRACEPARENT, TRACESTATE) if isinstance(sent := request.get(name), str)}


def trace_id_of(request: Mapping[str, Json]) -> str | None:
    """The trace that a decision is in, 32 hex digits; None where it is in none."""
    parent = request.get(TRACEPARENT)
    matched = _TRACEPARENT.fullmatch(parent) if isinstance(parent, str) else None
    return matched[1] if matched else None


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The id that the caller sent as x-request-id, if it is one, or else a new one. headers: as ASGI has them."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(sent := value.decode("latin-1")):
            return sent
    return f"req_{uuid_utils.uuid7().hex}"


def tell_evaluation(tracing: Tracing, feedback: Feedback, *, late: bool, carrier: Mapping[str, str]) -> None:
    """Tell of a judgement, in the trace of its decision. Gold answers, raters and reasons are left out.

    carrier: the W3C headers that are kept with the decision; empty: it is in no trace, and its id alone says which.
    """
    attributes: dict[str, Attribute | None] = {
        names.EVALUATION: feedback.event or feedback.kind,
        names.EVALUATION_SCORE: feedback.value if isinstance(feedback.value, int | float) else None,
        names.RESPONSE_ID: feedback.decision_id,
        names.DECISION_ID: feedback.decision_id,
        names.FEEDBACK_SOURCE: feedback.source,
        names.FEEDBACK_LATE: late,
    }
    tracing.event(names.EVALUATION_RESULT, attributes=attributes, parent=carrier)
