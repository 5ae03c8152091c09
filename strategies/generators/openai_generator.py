"""Any OpenAI-compatible server as a generator: streamed, retried, paced, priced."""

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from ragbandit.shared.errors import ArmFailed, ConfigError, NotReady, required_module
from ragbandit.shared.generator_options import OpenAiOptions
from ragbandit.shared.openai_client import (
    BrokenReply,
    cause_of,
    connect,
    is_passing,
    is_too_long,
    is_unreachable,
    pause_asked,
)
from ragbandit.shared.plugins import check_values
from ragbandit.shared.redaction import shown_variable
from ragbandit.shared.retries import pause_before_retry
from ragbandit.shared.types import Cost
from ragbandit.strategies.base import CallBroke, Completion, Generator, Need, Prompt, Request, seconds_until
from ragbandit.strategies.generators.openai_protocol import (
    Reading,
    TokenCounter,
    check_stream,
    check_whole,
    request_fields,
)
from ragbandit.strategies.generators.text_feed import TextFeed, plain_parts
from ragbandit.strategies.outbound import RateLimit, check_address, check_header_value, shown_address

if TYPE_CHECKING:
    import openai

logger = logging.getLogger("ragbandit.openai")

#: the environment variable of the openai package, read where no base_url is set
_BASE_URL = "OPENAI_BASE_URL"


class OpenAiGenerator(Generator):
    """Asks a model behind a URL, through the openai package.

    The answer is streamed, so that a deadline leaves the text so far and a cancelled call closes its connection,
    which frees the server. An attempt that may go better next time (no connection, silence, status 408, 409, 425, 429
    or 5xx, a broken reply) is made again after a pause, growing and random, never shorter than the server's
    Retry-After; where the pause would pass the deadline the call fails at once. A further attempt gives a sink
    what goes beyond the text of the one before; where it has other words, the call fails. `capabilities` has "logprobs"
    if the options say so.

    Completion.details holds, beside what was wanted, "attempts" if there was more than one; "usage": "estimated" if
    the server did not count all tokens (text that broke off and was written again is in the count); and "model" if the
    server names another. No error repeats the key or the headers. Raises ConfigError if the package is missing or the
    options, or the variables of the environment that they name, cannot be used.
    """

    capabilities: frozenset[Need] = frozenset({"completion", "stop"})
    #: the section of the settings that it is made of, for remedies
    section = "generator"
    #: as `spans.provider_of` has it
    provider = "openai"

    def __init__(
        self, model: str, *, options: OpenAiOptions | None = None, name: str | None = None, context_tokens: int = 8192
    ) -> None:
        self._options = options or OpenAiOptions()
        _check(model, options=self._options)
        self.name = name or model
        self.context_tokens = context_tokens
        if self._options.logprobs:
            self.capabilities = OpenAiGenerator.capabilities | {"logprobs"}
        self._model = model
        self._key = _key(self._options)
        self._secrets = (*([self._key] if self._key else []), *self._options.headers.values())
        self._address = shown_address(self._options.base_url or os.environ.get(_BASE_URL) or "OpenAI")
        self._counter = TokenCounter(self._options)
        self._client: openai.AsyncOpenAI | None = None
        self._closed = False
        self._free = asyncio.Semaphore(self._options.concurrency)
        self._requests = RateLimit(self._options.requests_per_minute)
        self._tokens = RateLimit(self._options.tokens_per_minute)
        self._other_models: set[str] = set()

    def count_tokens(self, prompt: Prompt) -> int:
        """An upper bound without a tokenizer: one token per byte; see OpenAiOptions for a closer count."""
        return self._counter.bound(prompt)

    async def complete(self, request: Request) -> Completion:
        """The model's answer; see Generator. Raises ArmFailed once no further attempt is left or would help."""
        if self._closed:
            raise ArmFailed(f"{self.name} was closed")
        call, left = _Attempts(request=request, feed=TextFeed(request)), seconds_until(request.deadline)
        if left == 0.0:
            return self._completion(call, late=True)
        late = False
        try:
            async with asyncio.timeout(left) as limit:
                await self._attempts(call)
        except TimeoutError:
            if not limit.expired():
                raise
            late = True
        done = self._completion(call, late=late)
        if late and call.feed.given.startswith(done.text):  # a second attempt was not as far as the first one
            done = replace(done, text=call.feed.given)
        try:
            await call.feed.end(done.text)
        except ArmFailed as error:
            raise self._broke(error, read=done.prompt_tokens, written=done.completion_tokens) from error
        return done

    async def probe(self) -> None:
        """Ask for one token, with all that the options promise.

        Raises ConfigError if the server does not keep it, and NotReady for what may pass: it cannot be reached. It has
        a connection of its own, so that it may run in another event loop, before the first call.
        """
        request = Request(prompt=Prompt(instructions="", body="Say yes."), max_tokens=4, want=self.capabilities)
        try:
            await self.complete(request)
        except ArmFailed as error:
            passes = isinstance(error.__cause__, Exception) and is_passing(error.__cause__)
            kind = NotReady if passes else ConfigError
            raise kind(error.message, field=error.field or "generator", remedy=error.remedy) from error
        finally:
            await self._disconnect()

    async def close(self) -> None:
        """Close the connections; later calls are ArmFailed."""
        self._closed = True
        await self._disconnect()

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _attempts(self, call: "_Attempts") -> None:
        while True:
            try:
                return await self._attempt(call)
            except ArmFailed as error:
                if not call.feed.given:
                    raise
                self._write_off(call)
                raise self._broke(error, read=call.lost_prompt, written=call.lost_written) from error
            # A stream lets httpx's errors and broken JSON through as they are, and httpx goes by two names.
            except Exception as error:
                pause = self._pause(error, call=call)
                self._write_off(call)
                if pause is None:
                    raise self._failed(error, call=call) from error
            await asyncio.sleep(pause)

    def _broke(self, error: ArmFailed, *, read: int, written: int) -> CallBroke:
        dollars = self._dollars(read, written, model=None)
        spent = Cost(prompt_tokens=read, completion_tokens=written, dollars=dollars)
        return CallBroke(error.message, spent=spent, remedy=error.remedy)

    async def _attempt(self, call: "_Attempts") -> None:
        request = call.request
        reserved = self._estimate(request.prompt) + request.max_tokens
        await self._requests.take(1)
        await self._tokens.take(reserved)
        try:
            async with self._free, asyncio.timeout(self._options.attempt_s) as limit:
                call.attempts += 1
                call.reading = Reading(request=request)
                reply = await self._create(**request_fields(request, model=self._model, options=self._options))
                if self._options.stream:
                    await self._read(reply, reading=call.reading, feed=call.feed, limit=limit)
                else:
                    check_whole(reply)
                    call.reading.take(reply)
            call.reading.check()
        finally:
            self._tokens.give_back(reserved - sum(self._usage(call)))

    async def _read(self, stream: Any, *, reading: Reading, feed: TextFeed, limit: asyncio.Timeout) -> None:
        """Read a stream to its end or as far as it is of interest, and close it, whatever happens."""
        async with stream:
            kind = stream.response.headers.get("content-type", "")
            check_stream(kind, begin=await _begin(stream.response) if "html" in kind else "")
            async for part in stream:
                if reading.first_s is None:
                    reading.first_s = time.monotonic() - reading.asked_at
                reading.take(part)
                if feed.wanted:
                    with _paused(limit):
                        await feed.grow(reading.text_without(prefix=self._dropped))
                if reading.ended:
                    return

    @property
    def _dropped(self) -> bool:
        """Whether the prompt's prefix is taken off an answer that repeats it."""
        return self._options.mode == "chat" and self._options.prefix == "user"

    async def _create(self, **fields: Any) -> Any:
        import openai

        if self._client is None:
            self._client = connect(
                base_url=self._options.base_url,
                key=self._key,
                headers=self._options.headers,
                timeout=openai.Timeout(self._options.read_s, connect=self._options.connect_s),
            )
        chat = self._options.mode == "chat"
        endpoint: Any = self._client.chat.completions if chat else self._client.completions
        return await endpoint.create(**fields)

    def _pause(self, error: Exception, *, call: "_Attempts") -> float | None:
        """Seconds until the next attempt, or None if there is to be none."""
        if not is_passing(error) or call.attempts > self._options.retries:
            return None
        return pause_before_retry(
            call.attempts,
            base_s=self._options.pause_s,
            longest_s=self._options.longest_pause_s,
            asked_s=pause_asked(error),
            left_s=seconds_until(call.request.deadline),
        )

    def _write_off(self, call: "_Attempts") -> None:
        """Text that broke off was written and will be charged, though nobody reads it."""
        if call.reading is not None and call.reading.text:
            prompt, written = self._usage(call)
            call.lost_prompt += prompt
            call.lost_written += written
        call.reading = None

    def _usage(self, call: "_Attempts") -> tuple[int, int]:
        """Tokens read and written in this attempt, estimated if the server did not say; none before it began."""
        if call.reading is None:
            return 0, 0
        return call.reading.usage or (
            self._estimate(call.request.prompt),
            max(self._counter.estimate(call.reading.text), len(call.reading.tokens)),
        )

    def _estimate(self, prompt: Prompt) -> int:
        return sum(self._counter.estimate(part) for part in plain_parts(prompt))

    def _completion(self, call: "_Attempts", *, late: bool) -> Completion:
        reading = call.reading or Reading(request=call.request)
        read, written = self._usage(call)
        read, written = read + call.lost_prompt, written + call.lost_written
        if self._dropped:
            reading.drop_prefix()
        details: dict[str, object] = {}
        if "logprobs" in call.request.want:
            details["logprobs"] = tuple(reading.tokens)
        if call.attempts > 1:
            details["attempts"] = call.attempts
        if read + written and (reading.usage is None or call.lost_prompt):
            details["usage"] = "estimated"
        if reading.model and reading.model != self._model:
            details["model"] = reading.model
            self._wonder(reading.model)
        finish: Literal["stop", "length", "deadline"] = "length" if reading.finish == "length" else "stop"
        return Completion(
            text=reading.text,
            prompt_tokens=read,
            completion_tokens=written,
            finish="deadline" if late else finish,
            details=details,
            dollars=self._dollars(read, written, model=reading.model),
            first_s=reading.first_s,
            reasoning_tokens=reading.reasoning_tokens,
        )

    def _wonder(self, model: str) -> None:
        """Say once that another model answers; many servers add a date or a path to the name, so it is no failure."""
        if model not in self._other_models:
            self._other_models.add(model)
            logger.warning(
                "the server answered with another model than was asked for",
                extra={"action": "model", "asked": self._model, "answered": model},
            )

    def _dollars(self, read: int, written: int, *, model: str | None) -> float:
        prices = self._options.prices
        if not prices:
            return 0.0
        per_read, per_written = prices[model if model is not None and model in prices else self._model]
        return (read * per_read + written * per_written) / 1e6

    def _failed(self, error: Exception, *, call: "_Attempts") -> ArmFailed:
        tries = f" after {call.attempts} attempts" if call.attempts > 1 else ""
        message = f"{self.name} did not answer{tries}: {cause_of(error, address=self._address, secrets=self._secrets)}"
        remedy = self._remedy(error)
        if (unwaited := self._unwaited(error, call=call)) is not None:
            message, remedy = f"{message}; {unwaited[0]}", unwaited[1]
        remedy = remedy and remedy.replace("generator.", f"{self.section}.")
        read, written = call.lost_prompt, call.lost_written
        if not read + written:
            return ArmFailed(message, remedy=remedy)
        return self._broke(ArmFailed(message, remedy=remedy), read=read, written=written)

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

    def _unwaited(self, error: Exception, *, call: "_Attempts") -> tuple[str, str] | None:
        """The reason why a passing failure was not tried again while attempts were left, and the remedy; see _pause."""
        if not is_passing(error) or call.attempts > self._options.retries:
            return None
        wait_s, longest = pause_asked(error), self._options.longest_pause_s
        pause = f"it asks for a pause of {wait_s:.4g} s" if wait_s else "another attempt needs a pause"
        if wait_s > longest:
            return f"{pause}, and none may be longer than {longest:g} s", "see generator.openai.longest_pause_s"
        return (
            f"{pause}, and the question has {seconds_until(call.request.deadline):.1f} s left",
            "give it more budget.seconds",
        )


@dataclass(kw_only=True, slots=True)
class _Attempts:
    """A request on its way through its attempts."""

    request: Request
    #: gives the text to whoever reads along; of all attempts
    feed: TextFeed
    attempts: int = 0
    #: of the attempt under way or the last one
    reading: Reading | None = field(default=None)
    #: tokens of attempts that broke off
    lost_prompt: int = 0
    lost_written: int = 0


@contextmanager
def _paused(limit: asyncio.Timeout) -> Iterator[None]:
    """The time that the block takes is not counted: a slow reader is not a slow server."""
    loop, ends = asyncio.get_running_loop(), limit.when()
    began = loop.time()
    limit.reschedule(None)
    try:
        yield
    finally:
        if ends is not None and not limit.expired():
            limit.reschedule(ends + loop.time() - began)


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
    if options.prices and model not in options.prices:
        raise ConfigError(
            f"{model!r} has no price",
            field="generator.openai.prices",
            remedy="set generator.price, {input: 0.0, output: 0.0} if it is free",
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
