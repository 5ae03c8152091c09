"""Connections and chats with OpenAI-compatible servers. `openai` and aiohttp are imported at the first call."""

import asyncio
import base64
import functools
import io
import json
import math
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from ragbandit.shared.errors import required_module
from ragbandit.shared.model_servers.error_replies import failure_of_error, server_message
from ragbandit.shared.model_servers.event_reader import DONE, BrokenReply, EventReader, ReplyTooLarge, reply_counts
from ragbandit.shared.model_servers.outbound import redirect_message
from ragbandit.shared.proxies import certificates, httpx_options, proxy_of
from ragbandit.shared.reading.thread import LARGE, READING, ReadingStuck
from ragbandit.shared.texts.json_values import json_bytes
from ragbandit.shared.texts.redaction import without_keys

if TYPE_CHECKING:
    import aiohttp

_Piece = TypeVar("_Piece")

#: longest part of a server's message that is passed on, characters
_MESSAGE: Final = 500
#: longest part of an error's body that is read, bytes
_MOST_ERROR: Final = 1_000_000
#: longest wait for the body of an error, seconds
_ERROR_S: Final = 5.0
#: largest ratio of a reply to its bytes before it was decompressed, and size from which it is checked
_MOST_RATIO: Final = 100
_CHECKED: Final = 1_000_000
#: maximum number of replies 1xx before a reply
_MOST_INTERIM: Final = 20
#: seconds after which an idle connection is closed. Many servers close a connection after 5 seconds, and a request that
#: is sent at that moment is lost
_IDLE_S: Final = 4.0
#: longest status line, and longest header, of a reply, bytes; some gateways send more than aiohttp's limit of 8,190
_HEADER: Final = 65_536
#: size from which a request body is sent in parts, bytes
_LARGE: Final = 1_000_000
#: precision of the event loop's timers, seconds
_TICK_S: Final = 0.002


class Pace(NamedTuple):
    """How a reply is read while its pieces come at intervals shorter than `pause_s`.

    pause_s: pause of reading after a piece, seconds. unread_s: longest time that received pieces wait to be parsed,
    seconds
    """

    pause_s: float
    unread_s: float = 0.0


#: pace of a reply whose pieces are passed on, and of a reply that is only used as a whole
READ: Final = Pace(pause_s=0.014)
UNREAD: Final = Pace(pause_s=0.02, unread_s=0.1)


class ReplyReader(Generic[_Piece]):
    """Reads one reply. counts: what has arrived so far, within caps."""

    def __init__(self) -> None:
        self.counts = reply_counts()

    def take_headers(self, headers: Mapping[str, str]) -> None:
        """Read the headers of a reply with status 2xx."""

    def read(self, value: Any) -> Iterable[_Piece]:
        """Read the next value of the body. Returns its pieces."""
        raise NotImplementedError

    def pace(self) -> Pace | None:
        """How the reply is read from now on; None to read each piece at once."""
        return None


class ModelServer:
    """Connections to a server, used on one event loop. aiohttp takes half the processor time of the openai package.

    connect_s: longest wait for a connection, seconds; None for no limit
    read_s: longest wait for the next part of a reply, after the request is sent, seconds; None for no limit
    """

    def __init__(
        self, url: str, *, headers: Mapping[str, str], connect_s: float | None = None, read_s: float | None = None
    ) -> None:
        import yarl

        self._session: aiohttp.ClientSession | None = None
        self.url, self._headers = url, {name: value for name, value in headers.items() if name.lower() != "traceparent"}
        is_traced = len(self._headers) < len(headers)
        #: adds the header of the call's trace; None unless it is configured
        self._add_trace = required_module("opentelemetry.propagate", extra="otel").inject if is_traced else None
        address = yarl.URL(url, encoded=True)
        if address.user is not None:  # the server gets the credentials in the address instead of the key
            credentials = base64.b64encode(f"{address.user}:{address.password or ''}".encode()).decode()
            self._headers["Authorization"] = f"Basic {credentials}"
        self._address = address.with_user(None)
        self._connect_s, self._read_s = connect_s, read_s
        self._proxy = proxy_of(url)

    async def post(self, body: bytes, *, headers: Mapping[str, str]) -> "aiohttp.ClientResponse":
        """Send a JSON document, with more headers. Returns the reply with its body unread; the caller closes it."""
        self._session = self._session or self._new_session()
        raw, sent = body if len(body) < _LARGE else io.BytesIO(body), {**self._headers, **headers}
        if self._add_trace is not None:
            self._add_trace(sent)
        # The headers are not set on the session, because aiohttp would send a session's headers, with the key, to a
        # proxy too. A redirect is not followed, because its address would get the question and the headers.
        return await self._session.post(self._address, data=raw, headers=sent, proxy=self._proxy, allow_redirects=False)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _new_session(self) -> "aiohttp.ClientSession":
        import aiohttp

        is_secure = "https" in (self._address.scheme, (self._proxy or "").partition(":")[0].lower())
        ssl_context = certificates() if is_secure else True
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, ssl=ssl_context)
        connector._factory = functools.partial(_protocol(), loop=connector._loop)  # noqa: SLF001 - it has no parameter
        # Called at the end of this object or of the process, because aiohttp warns about connections that stay open.
        weakref.finalize(self, connector._close)  # noqa: SLF001 - `close` is a coroutine
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_s, sock_read=self._read_s),
            max_line_size=_HEADER,
            max_field_size=_HEADER,
        )


@functools.cache
def _protocol() -> type["aiohttp.client_proto.ResponseHandler"]:
    import aiohttp
    import aiohttp.client_proto

    class Protocol(aiohttp.client_proto.ResponseHandler):
        """Limits the number of replies 1xx, which aiohttp does not limit. Notifies `pauses` of received bytes."""

        interim = 0
        #: pauses of the reply whose pieces are gathered; None if none are
        pauses: _Pauses | None = None

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if data and self.pauses is not None:
                self.pauses.take(data)

        def connection_lost(self, exc: BaseException | None) -> None:
            super().connection_lost(exc)
            if self.pauses is not None:
                self.pauses.wake()

        def feed_data(self, data: Any, size: int = 0) -> None:
            self.interim = self.interim + 1 if 100 <= data[0].code < 200 else 0
            if self.interim > _MOST_INTERIM:
                self.abort()
                self.set_exception(aiohttp.ClientPayloadError(f"more than {_MOST_INTERIM} replies 1xx"))
            else:
                super().feed_data(data, size)

    return Protocol


class RefusedRequest(Exception):
    """The server replied with a status other than 2xx."""

    def __init__(self, response: "aiohttp.ClientResponse", body: bytes) -> None:
        self.response = response
        self.status_code = response.status
        self.body = body.decode("utf-8", "replace")
        with suppress(ValueError, RecursionError):
            self.body = json.loads(body)
        if response.status < 400:
            self.body = redirect_message(response.headers.get("Location"), url=str(response.url))
        super().__init__(f"status {response.status}: {self.body}")


def connect(
    *,
    base_url: str,
    key: str | None,
    headers: Mapping[str, str],
    connect_s: float | None = None,
    read_s: float | None = None,
    path: str = "/chat/completions",
) -> ModelServer:
    """Prepare the connections to a path of a server. For connect_s and read_s see `ModelServer`.

    base_url: "" for OpenAI's own; a query in the URL is sent with every request
    key: None for the key "none"
    """
    import httpx
    import openai

    key = key or "none"
    address, mark, query = base_url.partition("?")
    unused = httpx.AsyncClient(**httpx_options(""))  # otherwise openai makes a client that reads proxies
    client = openai.AsyncOpenAI(
        base_url=address or None, api_key=key, default_headers=dict(headers), http_client=unused
    )
    # A compressed reply takes processor time, and may be a thousand times as large as what is sent.
    all_headers = {"Authorization": f"Bearer {key}", "Accept-Encoding": "identity", **client.default_headers}
    # Values other than texts mark headers that should not be sent.
    sent = {name: value for name, value in all_headers.items() if isinstance(value, str)}
    url = f"{str(client.base_url).rstrip('/')}{path}{mark}{query}"
    return ModelServer(url, headers=sent, connect_s=connect_s, read_s=read_s)


async def reply_pieces(
    server: ModelServer,
    fields: Mapping[str, Any],
    *,
    reply: ReplyReader[_Piece],
    headers: Mapping[str, str] = MappingProxyType({}),
    joins: bool = False,
    write: Callable[[Mapping[str, Any]], bytes] = json_bytes,
    convert: Callable[[Any], Iterable[Any]] | None = None,
) -> AsyncIterator[list[_Piece]]:
    """Send a chat, with more headers, and read the JSON values of its reply. Yields lists: the results of `reply.read`
    for the values that arrived together. Many or large values are parsed and read by the reading thread, other values
    here.

    joins: see `EventReader`. convert: function from a received value to the values that `reply.read` gets. Close the
    iterator with contextlib.aclosing, so that the connection is released. Raises BrokenReply, RefusedRequest, aiohttp's
    errors, and those of `reply.read`, after the pieces before the error.
    """
    response = await server.post(write(fields), headers=headers)
    reader, pauses, unturned = EventReader(reply.counts, joins=joins), _Pauses(response), 0
    read = reply.read if convert is None else lambda value: chain.from_iterable(map(reply.read, convert(value)))
    try:
        chunks = _chunks(response)
        if not 200 <= response.status < 300:
            raise await _refusal(response, await _error_body(chunks))
        reply.take_headers(response.headers)
        async for data in chunks:
            pauses.note_arrival()
            work = reader.work(data)
            arrived = await _read_all(reader.feed(data), read, work=work)
            if arrived.values:
                yield arrived.pieces
            if arrived.error is not None:
                raise arrived.error
            if arrived.is_last:
                await _drain(chunks)
                return
            unturned += max(work, len(data))
            if unturned >= LARGE:  # other tasks run, since data that has arrived is read without waiting
                await asyncio.sleep(0)
                unturned = 0
            if len(data) < LARGE and (pace := reply.pace()) is not None:
                await pauses.gather(pace)
        arrived = await _read_all(reader.end(), read, work=reader.unread)
        if arrived.values:
            yield arrived.pieces
        if arrived.error is not None:
            raise arrived.error
    finally:
        pauses.end()
        response.close()


class _Pauses:
    """Pauses the reading of one reply, so that pieces that come fast are read together. Pieces that come during a pause
    wait in the buffers of the connection.
    """

    def __init__(self, reply: "aiohttp.ClientResponse") -> None:
        self._loop, self._content, self._pace = asyncio.get_running_loop(), reply.content, READ
        connection = reply.connection
        #: protocol of the connection, of the class in `_protocol`; None if the whole reply has come with its headers
        self._protocol: Any = None if connection is None else connection.protocol
        #: time of the last received bytes, by the loop's clock; seconds between the last two receipts
        self._came, self._gap_s = -math.inf, math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Future[None] | None = None
        #: bytes that were received since the last call of `gather`
        self._size = 0

    def note_arrival(self) -> None:
        """Record the time of bytes that have come."""
        now = self._loop.time()
        self._gap_s, self._came = now - self._came, now

    async def gather(self, pace: Pace) -> None:
        """Pause if the last bytes came fast. Returns at once if `unread_s` is 0, otherwise after this time, after LARGE
        bytes, or at the end of the reply.
        """
        # After the end of the reply, the connection may have another request already.
        if self._gap_s > pace.pause_s + _TICK_S or self._protocol is None or self._content.is_eof():
            return
        self._pace = pace
        self._pause()
        if not pace.unread_s:
            return
        self._waiting, self._size, self._protocol.pauses = self._loop.create_future(), 0, self
        timer = self._loop.call_later(pace.unread_s, self.wake)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = self._protocol.pauses = None

    def take(self, data: bytes) -> None:
        """Note bytes that the connection has received during `gather`. Ends `gather`, or pauses again."""
        self.note_arrival()
        self._size += len(data)
        if self._size >= LARGE or self._content.is_eof() or DONE.encode() in data:
            self.wake()
        elif self._gap_s <= self._pace.pause_s + _TICK_S:
            self._pause()

    def wake(self) -> None:
        """End `gather`."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def end(self) -> None:
        """Resume reading if it is paused."""
        if self._timer is not None:
            self._timer.cancel()
            self._resume()

    def _pause(self) -> None:
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            return
        # The transport is paused, since aiohttp's parser would stop at the next piece. aiohttp may have resumed.
        transport.pause_reading()
        if self._timer is None:
            self._timer = self._loop.call_later(self._pace.pause_s, self._resume)

    def _resume(self) -> None:
        self._timer, transport = None, self._protocol.transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()


class _ArrivedValues(Generic[_Piece]):
    """The values that arrived together, and the results of `read` for them."""

    __slots__ = ("_read", "_unread", "error", "is_last", "pieces", "values")

    def __init__(self, unread: Iterator[Any], read: Callable[[Any], Iterable[_Piece]]) -> None:
        self._unread, self._read = unread, read
        self.pieces = list[_Piece]()
        #: number of values that were read; whether the last one is the last of the reply; the error after them
        self.values, self.is_last = 0, False
        self.error: Exception | None = None

    def take(self) -> None:
        """Read the values."""
        try:
            for value in self._unread:
                self.values += 1
                self.pieces += self._read(value)
                if value == DONE:
                    self.is_last = True
                    return
        except Exception as error:  # raised after the earlier pieces are used
            self.error = error


async def _read_all(
    unread: Iterator[Any], read: Callable[[Any], Iterable[_Piece]], *, work: int
) -> _ArrivedValues[_Piece]:
    """Read values, in the reading thread if they take much work. Raises ReplyTooLarge if the thread is stuck."""
    arrived = _ArrivedValues(unread, read)
    if work < LARGE:
        arrived.take()
        return arrived
    try:
        await READING.read(work, arrived.take)
    except ReadingStuck as error:
        raise ReplyTooLarge(f"the reply was not read: {error}", is_cut=True) from error
    return arrived


async def _refusal(reply: "aiohttp.ClientResponse", body: bytes) -> RefusedRequest:
    """The error for a reply with a status other than 2xx. The reading thread parses a large body."""
    if len(body) < LARGE:
        return RefusedRequest(reply, body)
    try:
        return await READING.read(len(body), RefusedRequest, reply, body)
    except ReadingStuck:
        return RefusedRequest(reply, b"its error took too long to read")


async def _error_body(chunks: AsyncIterator[bytes]) -> bytes:
    """The body of an error, as far as it arrives: the status is enough if the body is cut."""
    import aiohttp

    body = bytearray()
    with suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(_ERROR_S):
            async for data in chunks:
                body += data
                if len(body) > _MOST_ERROR:
                    break
    return bytes(body[:_MOST_ERROR])


async def _chunks(reply: "aiohttp.ClientResponse") -> AsyncIterator[bytes]:
    """The body as it arrives. Bytes that arrived before an error are yielded before the error is raised."""
    import aiohttp

    content, connection = reply.content, reply.connection
    closed = None if connection is None or connection.protocol is None else connection.protocol.closed

    def fail(_: object) -> None:  # otherwise aiohttp waits for ever after an invalid chunk or `close`
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was closed"))

    if closed is not None:
        closed.remove_done_callback(_retrieve_exception)  # a reused connection still has it
        closed.add_done_callback(_retrieve_exception)
        closed.add_done_callback(fail)
    size = 0
    try:
        async for data in content.iter_any():
            size += len(data)
            if size > _CHECKED:
                _check_ratio(size, sent=content.total_compressed_bytes)
            yield data
    except aiohttp.ClientError:
        # If a connection breaks, aiohttp raises the error although the last bytes are not read yet.
        while data := content._read_nowait(-1):  # noqa: SLF001 - `read_nowait` raises the error too
            yield data
        raise
    finally:
        if closed is not None:
            closed.remove_done_callback(fail)


def _check_ratio(size: int, *, sent: int | None) -> None:
    """Raises ReplyTooLarge for too large a ratio. sent: size before the reply was decompressed; None if it was not."""
    if sent is not None and size > _MOST_RATIO * sent:
        raise ReplyTooLarge(f"the reply is compressed, and more than {_MOST_RATIO} times as large as what was sent")


def _retrieve_exception(closed: "asyncio.Future[None]") -> None:
    """Read the exception of a broken connection, since asyncio logs exceptions that nobody reads."""
    if not closed.cancelled():
        closed.exception()


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Wait at most 0.1 seconds for the end of a body, so that its connection can be used again."""
    with suppress(Exception):
        async with asyncio.timeout(0.1):
            async for _ in chunks:
                await asyncio.sleep(0)


def costs_nothing(error: Exception) -> bool:
    """Whether a failed call costs nothing: its server was not reached, or sent an error or no answer."""
    if isinstance(error, BrokenReply):
        return not error.is_cut
    return isinstance(error, RefusedRequest) or failure_of_error(error).kind == "unreachable"


def error_line(error: Exception, *, address: str, secrets: Iterable[str]) -> str:
    """Describe an error of a server in one line, without the secrets."""
    failure = failure_of_error(error)
    text = str(error)
    begin = f"the reply cannot be read: {type(error).__name__}: "
    if isinstance(error, BrokenReply):
        begin = ""
    elif failure.status is not None:
        begin, text = f"status {failure.status}: ", server_message(getattr(error, "body", None))
    elif failure.kind in ("unreachable", "broken"):
        cause = error.__cause__ or error
        message = getattr(cause, "message", str(cause))  # str() of aiohttp's errors adds a status that no server sent
        text = " ".join(message.split()) if isinstance(message, str) else "the reply broke off in its headers"
        begin = f"{address} cannot be reached, or hung up: "
    elif failure.kind == "timeout":
        begin, text = "it was silent or slow for longer than allowed", ""
    # Secrets are removed before the text is cut, since half a secret would not be recognized.
    return f"{begin}{without_keys(text, secrets=secrets)[:_MESSAGE]}".removesuffix(": ")
