"""Any OpenAI-compatible server as a generator: streamed and priced; retries and timeouts are the openai package's."""

import asyncio
import logging
import os
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from ragbandit.shared.errors import ArmFailed, ConfigError, RagBanditError, required_module
from ragbandit.shared.openai_client import (
    BrokenReply,
    OpenAiOptions,
    Tokens,
    cause_of,
    connect,
    is_too_long,
    is_unreachable,
    retries_made,
)
from ragbandit.shared.outbound import check_address, check_header_value, shown_address
from ragbandit.shared.plugins import check_values
from ragbandit.shared.redaction import shown_variable
from ragbandit.shared.types import Cost
from ragbandit.strategies.base import (
    CallBroke,
    Completion,
    Generator,
    Need,
    Prompt,
    Request,
    RequestRefused,
    seconds_until,
)
from ragbandit.strategies.generators.openai_protocol import (
    Reading,
    check_stream,
    check_whole,
    counted_tokens,
    estimated_tokens,
    request_fields,
)
from ragbandit.strategies.generators.text_feed import TextFeed, plain_parts

if TYPE_CHECKING:
    import openai

logger = logging.getLogger("ragbandit.openai")

#: the environment variable of the openai package, read where no base_url is set
_BASE_URL = "OPENAI_BASE_URL"
#: statuses of a request that is at fault itself
_REFUSED: Final = (400, 413, 422)
#: longest wait for a connection
_CONNECT_S: Final = 5.0


class OpenAiGenerator(Generator):
    """Asks a model behind a URL, through the openai package.

    The answer is streamed, so that a deadline leaves the text so far and a cancelled call closes its connection,
    which frees the server. The package tries again where there is no connection, or the status is 408, 409, 429 or 5xx,
    after a pause that the server may name (Retry-After, up to a minute), never beyond the deadline. A reply that breaks
    off fails the call. `capabilities` has "logprobs" if the options say so. Tokens are estimated where the server does
    not count them. No error repeats the key or the headers. Raises ConfigError if the package is missing or the
    options, or the variables of the environment that they name, cannot be used.
    """

    capabilities: frozenset[Need] = frozenset({"completion", "stop", "chat"})
    #: the section of the settings that it is made of, for remedies
    section = "generator"
    #: as `spans.provider_of` has it
    provider = "openai"

    def __init__(self, model: str, *, options: OpenAiOptions | None = None, context_tokens: int = 8192) -> None:
        self._options = options or OpenAiOptions()
        _check(model, options=self._options)
        self.name = model
        self.context_tokens = context_tokens
        if self._options.logprobs:
            self.capabilities = OpenAiGenerator.capabilities | {"logprobs"}
        self._key = _key(self._options)
        self._secrets = (*([self._key] if self._key else []), *self._options.headers.values())
        self._address = shown_address(self._options.base_url or os.environ.get(_BASE_URL) or "OpenAI")
        self._client: openai.AsyncOpenAI | None = None
        self._closed = False
        self._free = asyncio.Semaphore(self._options.concurrency)

    def count_tokens(self, prompt: Prompt) -> int:
        """The bytes of the text by `bytes_per_token`, an upper bound where that is 1.0, and the template's tokens."""
        return counted_tokens(prompt, options=self._options)

    async def complete(self, request: Request) -> Completion:
        """The model's answer; see Generator. Raises ArmFailed once no further attempt is left or would help."""
        if self._closed:
            raise ArmFailed(f"{self.name} was closed")
        reading, feed, left = Reading(request=request), TextFeed(request), seconds_until(request.deadline)
        late = left == 0.0
        try:
            async with asyncio.timeout(left) as limit:
                if not late:
                    await self._ask(reading, feed=feed)
        except TimeoutError as error:
            if not limit.expired():
                raise self._failed(error, reading=reading) from error
            late = True
        except ArmFailed as error:
            if feed.given:
                raise self._broke(error, reading=reading) from error
            raise
        except RagBanditError:
            raise
        # A stream lets httpx's errors and broken JSON through as they are, and httpx goes by two names.
        except Exception as error:
            raise self._failed(error, reading=reading) from error
        done = self._completion(reading, late=late)
        try:
            await feed.end(done.text)
        except ArmFailed as error:
            raise self._broke(error, reading=reading) from error
        return done

    async def close(self) -> None:
        """Close the connections; later calls are ArmFailed."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _ask(self, reading: Reading, *, feed: TextFeed) -> None:
        async with self._free:
            reading.asked_at, reading.asked = time.monotonic(), True
            reply = await self._create(**request_fields(reading.request, model=self.name, options=self._options))
            if self._options.stream:
                await self._read(reply, reading=reading, feed=feed)
            else:
                check_whole(reply)
                reading.take(reply)
        reading.check()

    async def _read(self, stream: Any, *, reading: Reading, feed: TextFeed) -> None:
        """Read a stream to its end or as far as it is of interest, and close it, whatever happens."""
        async with stream:
            kind = stream.response.headers.get("content-type", "")
            check_stream(kind, begin=await _begin(stream.response) if "html" in kind else "")
            async for part in stream:
                if reading.first_s is None:
                    reading.first_s = time.monotonic() - reading.asked_at
                reading.take(part)
                if feed.wanted:
                    await feed.grow(reading.text_without(prefix=self._dropped))
                if reading.delta and reading.request.delta_sink is not None:
                    await reading.request.delta_sink(reading.delta)
                if reading.ended:
                    return

    @property
    def _dropped(self) -> bool:
        """Whether the prompt's prefix is taken off an answer that repeats it."""
        return self._options.prefix == "user"

    async def _create(self, **fields: Any) -> Any:
        import openai

        if self._client is None:
            self._client = connect(
                base_url=self._options.base_url,
                key=self._key,
                headers=self._options.headers,
                timeout=openai.Timeout(self._options.read_s, connect=min(_CONNECT_S, self._options.read_s)),
                retries=self._options.retries,
            )
        return await self._client.chat.completions.create(**fields)

    def _usage(self, reading: Reading) -> Tokens:
        """Tokens of the call, estimated if the server did not say; none if it was not asked."""
        if not reading.asked:
            return Tokens(read=0, written=0)
        return reading.usage or Tokens(
            read=sum(map(estimated_tokens, plain_parts(reading.request.prompt))),
            written=max(estimated_tokens(reading.text), len(reading.tokens)),
        )

    def _completion(self, reading: Reading, *, late: bool) -> Completion:
        used = self._usage(reading)
        if self._dropped:
            reading.drop_prefix()
        finish: Literal["stop", "length", "deadline"] = "length" if reading.finish == "length" else "stop"
        return Completion(
            text=reading.text,
            prompt_tokens=used.read,
            completion_tokens=used.written,
            finish="deadline" if late else finish,
            details=_details(reading),
            dollars=self._dollars(used, model=reading.model),
            first_s=reading.first_s,
            cached_tokens=used.cached,
            cache_write_tokens=used.cache_write,
            reasoning_tokens=used.reasoning,
        )

    def _dollars(self, used: Tokens, *, model: str | None) -> float:
        prices = self._options.token_prices
        return used.dollars(prices[model if model is not None and model in prices else self.name]) if prices else 0.0

    def _failed(self, error: Exception, *, reading: Reading) -> ArmFailed:
        tries = f" after {retries + 1} attempts" if (retries := retries_made(error)) else ""
        message = f"{self.name} did not answer{tries}: {cause_of(error, address=self._address, secrets=self._secrets)}"
        remedy = self._remedy(error)
        failed = ArmFailed(message, remedy=remedy and remedy.replace("generator.", f"{self.section}."))
        if reading.request.chat is not None and getattr(error, "status_code", None) in _REFUSED:
            return RequestRefused(message)
        return self._broke(failed, reading=reading)

    def _broke(self, error: ArmFailed, *, reading: Reading) -> ArmFailed:
        """The error, with what the text costs that was written, though nobody reads it."""
        if not reading.text:
            return error
        used = self._usage(reading)
        dollars = self._dollars(used, model=None)
        spent = Cost(prompt_tokens=used.read, completion_tokens=used.written, dollars=dollars)
        return CallBroke(error.message, spent=spent, remedy=error.remedy)

    def _remedy(self, error: Exception) -> str | None:
        if isinstance(error, BrokenReply):
            return error.remedy
        if is_too_long(error):
            return "set generator.context_tokens to what the server takes, or less"
        if is_unreachable(error):
            return "start the server, or correct generator.openai.base_url"
        variable = shown_variable(self._options.api_key_env)
        return {
            400: "the server does not take the request: see generator.openai.fields and max_tokens_field",
            401: f"put a valid key into the environment variable {variable}",
            403: f"put a key that may do this into the environment variable {variable}",
            404: "check generator.model and generator.openai.base_url",
        }.get(getattr(error, "status_code", None) or 0)


def _details(reading: Reading) -> dict[str, Any]:
    """What was asked for beside the text."""
    if reading.request.chat is not None:
        return {"reply": {"message": reading.message.whole, "finish_reason": reading.finish}}
    return {"logprobs": tuple(reading.tokens)} if "logprobs" in reading.request.want else {}


async def _begin(response: Any) -> str:
    """The first characters of a body that is not what was asked for."""
    async for piece in response.aiter_bytes():
        return str(piece[:80].decode("utf-8", "replace"))
    return ""


def _key(options: OpenAiOptions) -> str | None:
    """The key, or None for a server of one's own."""
    key = os.environ.get(options.api_key_env) or None
    if key is None and options.base_url is None and not os.environ.get(_BASE_URL):
        raise ConfigError(
            f"OpenAI wants a key, and {shown_variable(options.api_key_env)} is not set",
            field="generator.openai.api_key_env",
            remedy="set that variable, or generator.openai.base_url for a server of your own",
        )
    if key is not None:
        check_header_value(
            key,
            what=shown_variable(options.api_key_env),
            field="generator.openai.api_key_env",
            remedy="set that variable to the key alone",
        )
    return key


def _check(model: str, *, options: OpenAiOptions) -> None:
    # A missing package stops the start, not the first question.
    required_module("openai", extra="openai", field="generator.name")
    given = {each.name: getattr(options, each.name) for each in fields(options)}
    check_values(OpenAiOptions, given=given, where="generator.openai")
    _check_address(options)
    if any(name.lower() == "authorization" for name in options.headers):
        raise ConfigError(
            "the key does not belong here",
            field="generator.openai.headers",
            remedy=f"put it into the environment variable {shown_variable(options.api_key_env)}",
        )
    for name, value in options.headers.items():
        check_header_value(
            value, what=f"the value of {name}", field="generator.openai.headers", remedy="give the value alone"
        )
    if options.token_prices and model not in options.token_prices:
        raise ConfigError(
            f"{model!r} has no price",
            field="generator.openai.token_prices",
            remedy="set generator.token_prices, {input: 0.0, output: 0.0} if it is free",
        )


def _check_address(options: OpenAiOptions) -> None:
    """Check the address of the options, or else that of the environment."""
    remedy = f"for example http://127.0.0.1:8000/v1, with the key in {shown_variable(options.api_key_env)}"
    if options.base_url is None:
        if (address := os.environ.get(_BASE_URL)) is not None:
            check_address(address, field=_BASE_URL, remedy="for example http://127.0.0.1:8000/v1")
        return
    field = "generator.openai.base_url"
    check_address(options.base_url, field=field, remedy=remedy)
    if "@" in urlsplit(options.base_url).netloc:
        raise ConfigError("this is no address without a password", field=field, remedy=remedy)
