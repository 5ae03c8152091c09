"""Posts JSON to a server that the user names, and reads its reply up to a cap. Redirects are not followed."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import httpx

from ragbandit.shared.model_servers.error_replies import failure_of_error, failure_of_status, server_message
from ragbandit.shared.model_servers.failures import Failure, ServerFailed
from ragbandit.shared.model_servers.outbound import credentials_of, decompressed, redirect_message, shown_address
from ragbandit.shared.proxies import httpx_options, proxy_in_words
from ragbandit.shared.reading.thread import LARGE, READING, ReadingStuck
from ragbandit.shared.texts.json_values import json_value
from ragbandit.shared.texts.redaction import without_keys

#: headers that are wrong for the decompressed body, which is read as UTF-8 even if its type names another encoding
_OF_BODY: Final = (b"content-encoding", b"content-length", b"content-type")
_READ: Final = 20_000  #: maximum number of characters of a reply's body that are searched for secrets
_SHOWN: Final = 200  #: maximum number of characters of a reply's body in messages


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonServer:
    """A server at a URL, which has been checked by `check_address`. Error messages contain neither headers nor keys."""

    url: str
    #: section of the settings with the URL and its `timeout_s`, for messages
    section: str
    what: str  #: kind of server for messages, for example "pipeline"
    example: str  #: a valid reply, for remedies
    too_large: str = ""  #: name of the setting with the maximum size; "" without one
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown_url(self) -> str:
        """The URL without secrets."""
        return shown_address(self.url)

    def client(self) -> httpx.AsyncClient:
        """A client for `post`, which the caller closes."""
        # A compressed reply may be a thousand times as large as what is sent.
        return httpx.AsyncClient(headers={"Accept-Encoding": "identity", **self.headers}, **httpx_options(self.url))

    async def post(
        self,
        client: httpx.AsyncClient,
        body: object,
        *,
        timeout: float,
        max_bytes: int,
        headers: Mapping[str, str] = MappingProxyType({}),
        take_headers: Callable[[Mapping[str, str]], None] = lambda _: None,
    ) -> object:
        """Send a body, and return the JSON of the reply.

        timeout: time limit of the whole call, seconds. take_headers: called with the headers of the reply, names in
            lower case. Raises ServerFailed.
        """
        try:
            # The timeout of httpx applies to each read: a reply that comes byte by byte would never time out.
            async with asyncio.timeout(timeout):
                response = await self._response(client, body, timeout=timeout, max_bytes=max_bytes, headers=headers)
        except (httpx.HTTPError, TimeoutError) as error:
            raise self._broken(error, timeout=timeout) from error
        take_headers(response.headers)
        size = len(response.content)
        if size < LARGE:
            return self._read(response)
        try:
            return await READING.read(size, self._read, response)
        except ReadingStuck as error:
            message = f"the reply of {self.shown_url} was not read: {error}"
            raise ServerFailed(message, failure=Failure(kind="unreadable"), remedy=self._log_remedy) from error

    def redact(self, text: str) -> str:
        """Remove the secrets of headers and address from a text: some servers repeat the request in their reply."""
        return without_keys(text, secrets=(*self.headers.values(), *credentials_of(self.url)))

    async def _response(
        self, client: httpx.AsyncClient, body: object, *, timeout: float, max_bytes: int, headers: Mapping[str, str]
    ) -> httpx.Response:
        content = bytearray()
        async with client.stream("POST", self.url, json=body, timeout=timeout, headers=dict(headers)) as response:
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > max_bytes:
                    message, remedy = f"{self.shown_url} replied more than {max_bytes} bytes", f"reply {self.example}"
                    remedy = "reply with only the answer, or raise it" if self.too_large else remedy
                    where, failure = self.too_large or f"{self.section}.url", Failure(kind="unreadable")
                    raise ServerFailed(message, field=where, remedy=remedy, failure=failure)
        try:
            decoded = decompressed(
                bytes(content), encoding=response.headers.get("content-encoding", ""), most=max_bytes
            )
        except ValueError as error:
            message, failure = f"{self.shown_url} sent a body that cannot be read: {error}", Failure(kind="unreadable")
            raise ServerFailed(message, failure=failure, remedy=self._log_remedy) from error
        kept = [(name, value) for name, value in response.headers.raw if name.lower() not in _OF_BODY]
        return httpx.Response(response.status_code, headers=kept, content=decoded)

    @property
    def _log_remedy(self) -> str:
        return f"see the {self.what}'s own log"

    def _broken(self, error: Exception, *, timeout: float) -> ServerFailed:
        failure, remedy = failure_of_error(error), self._log_remedy
        message = f"{type(error).__name__}: {error}"
        if failure.kind == "timeout":
            message, remedy = f"it took longer than {timeout:g} s", f"raise {self.section}.timeout_s"
        elif failure.kind == "unreachable":
            message = f"it cannot be reached ({error})"
            remedy = f"start the {self.what}, or correct {self.section}.url"
        message = f"{self.shown_url} cannot be asked{proxy_in_words(self.url)}: {self.redact(message)}"
        return ServerFailed(message, failure=failure, remedy=remedy)

    def _read(self, response: httpx.Response) -> object:
        status, unreadable = response.status_code, Failure(kind="unreadable")
        if not response.is_success:
            body = response.text[:_READ] if status in (429, 503) else None  # the body may contain the wait
            failure = failure_of_status(status, headers=response.headers, body=body) if status >= 300 else unreadable
            route, remedy = proxy_in_words(self.url), self._log_remedy
            message = f"{self.shown_url} cannot be asked{route}: {self._shown_reply(response)}"
            if 300 <= status < 400:
                remedy = f"put that address into {self.section}.url, if it is right"
            raise ServerFailed(message, failure=failure, remedy=remedy)
        try:
            return json_value(response.content)
        except (ValueError, RecursionError):
            message = f"{self.shown_url} gave no JSON: {self._shown_reply(response)}"
            raise ServerFailed(message, failure=unreadable, remedy=f"reply with {self.example}") from None

    def _shown_reply(self, response: httpx.Response) -> str:
        text = response.text[:_READ]
        if response.is_redirect:
            text = redirect_message(response.headers["location"], url=self.url)
        body = self.redact(server_message(text) if text.lstrip().startswith("<") else " ".join(text.split()))
        return f"it replied {response.status_code}" + (f": {body[:_SHOWN]}" if body else " without a body")
