"""One call to the service without input and output: attempts, waits between them, and what a reply means.

`exchange` is a generator of steps. Whoever drives it (`drive`, `drive_async`) sends an `Attempt` and puts in what came
back, waits for a `Pause`, and calls what a `Work` holds; so both clients retry, time out and fail alike.
"""

import json
import random
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import httpx

from ragbandit.client.connection import Connection
from ragbandit.router import errors
from ragbandit.router.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    NotReady,
    Overloaded,
    RagBanditError,
    TooManyRequests,
    Unauthorized,
)
from ragbandit.router.redaction import without_secrets
from ragbandit.router.retries import retry_after_s

__all__ = [
    "MAX_REPLY",
    "Attempt",
    "Call",
    "Pause",
    "Received",
    "Step",
    "Steps",
    "Work",
    "away",
    "encoded",
    "exchange",
    "pause_after",
    "refused",
    "timeout_until",
]

#: longest reply that is read, bytes
MAX_REPLY: Final = 64 << 20
#: before the first retry, seconds; it doubles with each, up to the second number
_BACKOFF: Final = (0.1, 2.0)

_BY_CODE: Final[Mapping[str, type[RagBanditError]]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RagBanditError)
}
#: of a refusal without a code of ours: something between here and the service refused it
_BY_STATUS: Final[Mapping[int, type[RagBanditError]]] = {
    400: InvalidInput,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: InvalidInput,
    422: InvalidInput,
    429: TooManyRequests,
    502: NotReady,
    503: NotReady,
    504: NotReady,
}
#: what to do about a refusal that brings no remedy of its own
_REMEDIES: Final[Mapping[type[RagBanditError], str]] = {
    Unauthorized: "pass api_key=, or set RAGBANDIT_API_KEY; `ragbandit keys create` makes one",
    Forbidden: "use a key whose role may do this",
}
#: nothing of the request can have been answered; the same request may be sent again, since it carries its own id
_BROKEN: Final = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A request to the service. Every call may be sent again: it reads, or it carries an id of its own."""

    method: str
    path: str
    params: Mapping[str, float | str] | None = None
    body: bytes | None = None
    #: longest it may take; None: what the connection allows
    limit_s: float | None = None
    #: a good reply is handed on as it opens, its body unread
    stream: bool = False

    def headers(self) -> dict[str, str]:
        """Beside those of every request."""
        return {} if self.body is None else {"Content-Type": "application/json"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    #: of a stream: the open reply
    opened: httpx.Response | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """Step: send this, and put in what was Received, or throw in the httpx.TransportError."""

    call: Call
    timeout: httpx.Timeout
    #: time.monotonic() at which the reply must be whole
    ends: float

    @property
    def left_s(self) -> float:
        """Seconds until then."""
        return max(self.ends - time.monotonic(), 0.001)

    def check(self, size: int) -> None:
        """Raise if the reply is late, or larger than any of ours. size: bytes of it so far."""
        if time.monotonic() > self.ends:
            raise httpx.ReadTimeout("the reply was not whole in time")
        if size > MAX_REPLY:
            raise RagBanditError(f"{self.call.path} replied with more than {MAX_REPLY} bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """Step: wait."""

    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Step: call a function of the user, which may be `async def`, and put in its result or throw in its error."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)


Step: TypeAlias = Attempt | Pause | Work
_Result = TypeVar("_Result")
Steps: TypeAlias = Generator[Step, Any, _Result]


def encoded(body: object) -> bytes:
    """The body as JSON in UTF-8. Raises InvalidInput for what JSON cannot hold."""
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        message = f"the request cannot be sent as JSON: {error}"
        raise InvalidInput(message, remedy="send text in UTF-8, finite numbers, booleans, lists and dicts") from error


def exchange(call: Call, *, connection: Connection) -> Steps[Any]:
    """The JSON value of the reply. Raises what the service raised, or NotReady if none answered in time."""
    ends = time.monotonic() + (connection.timeout_s if call.limit_s is None else call.limit_s)
    tried = 0
    while True:
        try:
            received: Received = yield Attempt(call=call, timeout=timeout_until(ends, connection=connection), ends=ends)
        except httpx.RequestError as error:
            failure, pause = away(error, call=call, connection=connection), pause_after(error, tried=tried)
            failure.__cause__ = error
        else:
            if 200 <= received.status < 300:
                return received.opened if call.stream else _value(received, path=call.path)
            failure = refused(received, path=call.path)
            pause = pause_after(received, tried=tried, most_s=connection.retry_after_most_s)
        if pause is None or tried >= connection.retries or time.monotonic() + pause >= ends:
            raise failure
        tried += 1
        yield Pause(seconds=pause)


def pause_after(failed: Exception | Received, *, tried: int, most_s: float = 0.0) -> float | None:
    """Seconds after which the same call is worth another attempt; None if it is not.

    tried: attempts after the first, so far. most_s: longest Retry-After that is obeyed.
    """
    # Spread, so that the clients that one outage has stopped do not come back together.
    backoff: float = min(_BACKOFF[0] * 2**tried, _BACKOFF[1]) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
    if isinstance(failed, Exception):
        return backoff if isinstance(failed, _BROKEN) else None
    header = failed.headers.get("retry-after")
    if failed.status not in (429, 503) or header is None or (asked := retry_after_s(header)) > most_s:
        return None
    return max(asked, backoff)


def away(error: Exception, *, call: Call, connection: Connection) -> RagBanditError:
    """The error of a service that cannot be reached, or that did not answer in time."""
    where = f"{connection.shown_url}{call.path}"
    if isinstance(error, httpx.PoolTimeout):
        message = f"all {connection.connections} connections of this client are in use"
        return NotReady(message, remedy="make fewer calls at once, or raise connections=")
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        remedy = "send the same id again to learn what became of it, or raise timeout_s"
        return NotReady(f"the service at {where} did not answer in time", remedy=remedy)
    said = without_secrets(str(error)) or type(error).__name__
    return NotReady(
        f"no service answered at {where}: {said}",
        remedy="check the URL (on the command line --url or RAGBANDIT_URL), and that the service is running",
    )


def refused(received: Received, *, path: str) -> RagBanditError:
    """The error that the service raised, or that something before it did."""
    after = received.headers.get("retry-after")
    try:
        body = json.loads(received.body)
    except ValueError:
        body = None
    said = body.get("error") if isinstance(body, dict) else None
    said = said if isinstance(said, dict) else {}
    kind = _BY_CODE.get(str(said.get("code", "")))
    if kind is None:
        kind = _BY_STATUS.get(received.status, RagBanditError)
    message, field_, remedy = (_text(said.get(name)) for name in ("message", "field", "remedy"))
    if message is None:
        message = f"{path} did not reply with JSON (HTTP {received.status})" if body is None else f"{body!r:.300}"
    told = kind(message, field=field_, remedy=remedy or _REMEDIES.get(kind))
    if isinstance(told, Overloaded) and after is not None and after.isdigit():
        told.retry_after_s = float(after)
    return told


def timeout_until(ends: float, *, connection: Connection) -> httpx.Timeout:
    """What one attempt may wait for each thing, so that it ends by then. ends: a time.monotonic()."""
    left = max(ends - time.monotonic(), 0.001)
    silence = left if connection.read_timeout_s is None else min(connection.read_timeout_s, left)
    connect = min(connection.connect_timeout_s, left)
    return httpx.Timeout(silence, connect=connect, pool=connect)


def _value(received: Received, *, path: str) -> Any:
    try:
        return json.loads(received.body)
    except ValueError as error:
        message = f"{path} did not reply with JSON (HTTP {received.status})"
        raise RagBanditError(message, remedy="check that the URL is that of the service") from error


def _text(value: object) -> str | None:
    return None if value is None else str(value)
