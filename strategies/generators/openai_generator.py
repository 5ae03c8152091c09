import asyncio
import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from functools import partial
from typing import Any, ClassVar, Final, Literal

from ragbandit.shared.dialects.chat.message_parts import split_thoughts
from ragbandit.shared.errors import ArmFailed, RagBanditError, encodable
from ragbandit.shared.model_servers import Kind
from ragbandit.shared.model_servers.absent_models import ABSENT, gone_sign, has_absent_model_code
from ragbandit.shared.model_servers.call_prices import charge
from ragbandit.shared.model_servers.error_replies import failure_of_error
from ragbandit.shared.model_servers.event_reader import BrokenReply, ReplyTooLarge
from ragbandit.shared.model_servers.failures import Failure, ServerFailed
from ragbandit.shared.model_servers.fitting.kinds import kind_of, server_features
from ragbandit.shared.model_servers.fitting.prompts import fit_prompt
from ragbandit.shared.model_servers.openai_client import ModelServer, connect, costs_nothing, error_line, reply_pieces
from ragbandit.shared.model_servers.openai_options import OpenAiOptions, base_url_of, check_options, checked_key
from ragbandit.shared.model_servers.outbound import credentials_of, retry_pause, shown_address
from ragbandit.shared.model_servers.request_repairs import MOST_REPEATS, Repair, RepairedRequest, repair_request
from ragbandit.shared.model_servers.token_usage import CHARACTERS, Preference, Tokens, used_tokens
from ragbandit.shared.proxies import proxy_in_words
from ragbandit.shared.reading.thread import ReadingStuck
from ragbandit.shared.texts.json_values import json_bytes
from ragbandit.shared.texts.redaction import variable_or_hidden
from ragbandit.shared.texts.token_estimates import estimated_tokens
from ragbandit.shared.types import Cost
from ragbandit.strategies.base import Completion, Generator, Need, Prompt, Request, seconds_until
from ragbandit.strategies.failures import RequestRefused, UnreadableReply, log_exception
from ragbandit.strategies.generators.partial_reply import PartialReply, Piece
from ragbandit.strategies.generators.parts import TURN_TOKENS, Token, chat_turns, plain_parts

log = logging.getLogger("ragbandit.arms")

#: longest random pause before the second attempt, seconds. Before every further attempt the longest pause doubles
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0  #: longest random part of a pause, and longest Retry-After that is waited for, seconds
#: pieces after which other tasks of the event loop run
_TURN: Final = 64
_LATE_USAGE_S: Final = 2.0  #: longest wait for the token usage after the end of the answer, seconds

#: failure of a request that could not be fitted to the server: another arm may be able to answer it
_UNFIT: Final = Failure(kind="refused", inability="form")


class OpenAiGenerator(Generator):
    """Completes prompts by a model behind a URL.

    A streamed answer is returned at the deadline as far as it has come. A failed call is repeated after a pause if
    `Failure.may_pass`. The pause is at least the server's Retry-After. A call is not repeated if Retry-After is above a
    minute, if the deadline is too near, or if another arm can answer.
    Tokens are estimated if the server does not report them. No error contains the key or the headers. Raises
    ConfigError if the package is missing, or if the options or their environment variables cannot be used.
    """

    capabilities: frozenset[Need] = frozenset({"completion", "stop"})
    section = "generator"  #: section of the settings that configures this generator, for remedies
    prices: Preference = "told"  #: which price of a call counts if the server reports one and another one is listed
    provider = OpenAiOptions.provider
    options_type: type[OpenAiOptions] = OpenAiOptions
    #: repairs of requests that only this dialect needs
    repairs: ClassVar[Sequence[Repair]] = ()

    def __init__(self, model: str, *, options: OpenAiOptions | None = None, context_tokens: int | None = None) -> None:
        self._options = options or self.options_type()
        check_options(self._options)
        self.name = model
        self.lists: Mapping[str, Sequence[Any]] = self._options.token_prices  #: model -> prices, see `Tokens.dollars`
        self.context_tokens = context_tokens
        self.capabilities = self.offered_by(self._options)
        address = base_url_of(self._options)
        self.takes = server_features(self._kind_of(address), model=model)
        self._key = checked_key(self._options)
        self._address = shown_address(address or self._options.vendor)
        self._secrets = [*self._options.headers.values(), *credentials_of(address), self._key or ""]
        self._server: ModelServer | None = None
        self._closed = False
        self._left_out = set[str]()  #: fields that the server has refused, for the log
        self._free = asyncio.Semaphore(self._options.concurrency)

    def _kind_of(self, address: str) -> Kind:
        return self._options.kind or kind_of(address)

    def count_tokens(self, prompt: Prompt) -> int:
        return count_prompt_tokens(prompt, options=self._options)

    async def complete(self, request: Request) -> Completion:
        if self._closed:
            raise ArmFailed(f"{self.name} was closed")
        call = self._call_of(request)
        try:
            is_late = await self._ask(call)
            if not is_late:
                call.reply.end()
                call.note_answer()
            return self._completion(call, is_late=is_late)
        except BaseException as error:
            self._note_loss(error, call=call)
            if isinstance(error, RagBanditError) or not isinstance(error, Exception):
                raise
            raise self._failure_of_call(error, call=call) from error

    async def close(self) -> None:
        self._closed = True
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    @classmethod
    def offered_by(cls, options: OpenAiOptions) -> frozenset[Need]:
        """The capabilities of a generator with these options."""
        return cls.capabilities | frozenset[Need]({"logprobs"} if options.logprobs else ())

    def prompt_fields(self, request: Request, *, streams: bool) -> dict[str, Any]:
        """The fields of the request to the server for a prompt."""
        options = self._options
        body = prompt_body(request, options=options)
        if options.api == "chat":
            body = fit_prompt(body, server=self.takes)
        return with_options(body, streams=streams, model=self.name, options=options)

    def pieces(self, fields: Mapping[str, Any], *, call: "PromptCall") -> AsyncIterator[list[Piece]]:
        """Send a request, read its reply, and yield the pieces that arrived together."""
        return reply_pieces(self._connection(), fields, reply=call.reply, joins=True, write=call.body_bytes)

    def log_refusal(self, name: str, *, action: str) -> None:
        """Log a refused field, as a warning at its first refusal. action: the reaction, in words."""
        level = logging.DEBUG if name in self._left_out else logging.WARNING
        log.log(level, "%s %s", self.name, action)
        self._left_out.add(name)

    def _call_of(self, request: Request) -> "PromptCall":  # ChatGenerator makes a ChatCall of a chat
        return PromptCall(request, generator=self, options=self._options)

    async def _ask(self, call: "PromptCall") -> bool:
        """Ask the server. Returns whether the deadline ended the reply. Failures after the answer's end are ignored."""
        reply, remaining_s = call.reply, seconds_until(call.request.deadline)
        if remaining_s == 0.0:
            return True
        clock = asyncio.get_running_loop().time
        ends = None if remaining_s is None else clock() + remaining_s
        try:
            async with asyncio.timeout_at(ends) as limit, self._free:
                first_piece_s = self._first_piece_s(call)
                if first_piece_s is not None:
                    limit.reschedule(_earlier(clock() + first_piece_s, ends))
                await self._read(call, limit=limit, ends=ends)
        except RagBanditError:
            raise
        except Exception as error:
            is_late = isinstance(error, TimeoutError) and limit.expired() and limit.when() == ends
            if reply.finish is None and is_late:
                return True
            if reply.finish is None:
                raise
        return False

    def _first_piece_s(self, call: "PromptCall") -> float | None:
        """Timeout of the first piece, seconds; by default half the time left if another arm can answer, else None."""
        options, remaining_s = self._options, seconds_until(call.request.deadline)
        if options.first_piece_s is not None or remaining_s is None or not call.request.has_successor:
            return options.first_piece_s
        return remaining_s / 2 if call.is_streamed else None

    async def _read(self, call: "PromptCall", *, limit: asyncio.Timeout, ends: float | None) -> None:
        """Read a reply, and repeat failed attempts. ends: deadline. limit: timeout of the wait for the first piece,
        then `ends`, and after the answer's end the timeout of the wait for the token usage.
        """
        clock = asyncio.get_running_loop().time
        reply, began = call.reply, clock()
        fields = await self._compose(call)
        is_limited = limit.when() != ends
        while True:
            call.was_sent, reply.dollars = True, None  # the earlier attempt's price is booked
            call.attempts += 1
            try:
                async with aclosing(self.pieces(fields, call=call)) as groups:  # type: ignore[type-var] # a generator
                    async for pieces in groups:
                        if reply.first_s is None and fields["stream"]:
                            reply.first_s = clock() - began
                        if (reply.finish is not None or is_limited) and reply.has_begun:
                            is_limited = False
                            limit.reschedule(ends if reply.finish is None else _earlier(clock() + _LATE_USAGE_S, ends))
                        if pieces:
                            await _pass_on(call, pieces)
                        if reply.has_enough:
                            return
                return
            except Exception as error:
                again = None if reply.values else call.without_refused(fields, error=error)
                if again is not None:
                    fields = again
                    continue
                pause = self._pause(error, call=call, ends=limit.when())
                if pause is None:
                    raise
                self._note_loss(error, call=call)
            call.was_sent = False
            await asyncio.sleep(pause)

    async def _compose(self, call: "PromptCall") -> dict[str, Any]:
        """The fields of the request. Raises RequestRefused if it cannot be fitted to the server."""
        try:
            return await call.fields()
        except RagBanditError:
            raise
        except Exception as error:  # the server has not failed, so the failure must not count against the arm
            if not isinstance(error, ReadingStuck):
                log_exception(error, code=f"fitting a request to {self.name}", action="fitting_failed")
            message = f"{self.name} was not asked: the request could not be fitted to its server: {error}"
            raise RequestRefused(message, failure=_UNFIT) from error

    def _connection(self) -> ModelServer:
        if self._server is None:
            options = self._options
            self._server = connect(
                base_url=base_url_of(options),
                key=self._key,
                headers=options.headers,
                connect_s=min(5.0, options.read_s),
                read_s=options.read_s,
                path=options.path,
            )
        return self._server

    def _pause(self, error: Exception, *, call: "PromptCall", ends: float | None) -> float | None:
        """Seconds until the next attempt; None for no further attempt. ends: end of the call, by the loop's clock."""
        failure, response = failure_of_error(error), getattr(error, "response", None)
        is_final = response is not None and response.headers.get("x-should-retry") == "false"
        is_last = call.request.has_successor or call.attempts > self._options.retries
        if call.reply.values or is_final or is_last or not failure.may_pass:
            return None
        left_s = None if ends is None else ends - asyncio.get_running_loop().time()
        retry_s = failure.retry_after_s or 0.0
        return retry_pause(call.attempts, base_s=_PAUSE_S, longest_s=_LONGEST_PAUSE_S, asked_s=retry_s, left_s=left_s)

    def _usage(self, call: "PromptCall") -> Tokens:
        """Tokens of the call: as the server reported them, else estimated; 0 before a request is sent."""
        if not call.was_sent:
            return Tokens(read=0, written=0)
        return used_tokens(call.reply.usage, estimates=partial(_estimates, call.reply))

    def _completion(self, call: "PromptCall", *, is_late: bool) -> Completion:
        used, reply = self._usage(call), call.reply
        reply.drop_prefix()
        cost = self._cost(used, reply=reply)
        finish: Literal["stop", "length", "deadline"] = "length" if reply.finish == "length" else "stop"
        return Completion(
            text=reply.text,
            prompt_tokens=used.read,
            completion_tokens=used.written,
            finish="deadline" if is_late else finish,
            details=call.details(),
            dollars=cost.dollars,
            assumed_dollars=cost.assumed_dollars,
            price=cost.price,
            first_s=reply.first_s,
            cached_tokens=used.cached,
            cache_write_tokens=used.cache_write,
            reasoning_tokens=used.reasoning,
            estimated=used.estimated,
        )

    def _cost(self, used: Tokens, *, reply: PartialReply) -> Cost:
        lists: Any = {"lists": self.lists, "prefers": self.prices, "assumed": self.assumed_prices}
        return charge(used, quoted=reply.dollars, model=self.name, named=reply.model, tier=reply.tier, **lists)

    def _failure_of_call(self, error: Exception, *, call: "PromptCall") -> ArmFailed:
        tries = f" after {call.attempts} attempts" if call.attempts > 1 else ""
        line = error_line(error, address=self._address, secrets=self._secrets)
        message = f"{self.name} did not answer{proxy_in_words(self._address)}{tries}: {line}"
        failure, is_refused = call.failure_of(error)
        failure = failure.without_keys(self._secrets)
        remedy = self._remedy(error, failure=failure)
        if is_refused:
            return RequestRefused(message, failure=failure)
        remedy = remedy and remedy.replace("openai", self.provider).replace("generator.", f"{self.section}.")
        kind = UnreadableReply if isinstance(error, ReplyTooLarge) else ServerFailed
        return kind(message, remedy=remedy, failure=failure)

    def _note_loss(self, error: BaseException, *, call: "PromptCall") -> None:
        """Add the cost of an attempt that failed or was cancelled: the reported usage, else an estimate of the prompt
        and of the text received. It cost nothing if no request was sent. If the server replied with an error, it cost
        only the price or the usage in this reply.
        """
        reply = call.reply
        has_nothing = isinstance(error, Exception) and costs_nothing(error) and not (reply.size or reply.usage)
        if not call.was_sent or (has_nothing and not reply.dollars):
            return
        used = Tokens(read=0, written=0) if has_nothing else self._usage(call)
        call.request.lost.cost += self._cost(used, reply=reply)

    def _remedy(self, error: Exception, *, failure: Failure) -> str | None:
        if isinstance(error, BrokenReply):
            return error.remedy
        if failure.inability == "context":
            return "set generator.context_tokens to the server's limit, or less"
        if failure.kind in ("unreachable", "broken"):
            remedy = "start the server, or correct generator.openai.base_url"
            return f"{remedy}, or list its host in NO_PROXY" if proxy_in_words(self._address) else remedy
        variable = variable_or_hidden(self._options.api_key_env)
        return {
            **dict.fromkeys(range(300, 400), "put that address into generator.openai.base_url, if it is right"),
            400: "the server does not accept the request: see generator.openai.fields and max_tokens_field",
            401: f"put a valid key into the environment variable {variable}",
            403: f"put a key with this permission into the environment variable {variable}",
            407: "let HTTP_PROXY have the proxy's user and password, as http://USER:PASSWORD@HOST:PORT",
            404: "check generator.model, generator.openai.base_url and generator.openai.api",
        }.get(failure.status or 0)


def _earlier(at: float, ends: float | None) -> float:
    return at if ends is None else min(at, ends)


class PromptCall:
    """A call that completes a prompt: the request, the number of attempts, and the reply so far."""

    def __init__(self, request: Request, *, generator: OpenAiGenerator, options: OpenAiOptions) -> None:
        self.request, self._generator, self._options = request, generator, options
        self.reply = self._empty_reply()
        #: whether the present attempt has sent its request; number of requests sent so far
        self.was_sent, self.attempts = False, 0
        #: the repaired requests that were sent after refusals
        self.repeats = list[RepairedRequest]()
        #: the client's headers, without those that the server has refused
        self.headers: Mapping[str, str] = {}

    @property
    def is_streamed(self) -> bool:
        """Whether the server is asked for a stream."""
        stream = self._options.stream
        is_fixed = isinstance(stream, bool) or self.request.sink is not None
        return stream is not False if is_fixed else stream == "auto"

    async def fields(self) -> dict[str, Any]:
        """The fields of the request."""
        return self._generator.prompt_fields(self.request, streams=self.is_streamed)

    def body_bytes(self, fields: Mapping[str, Any]) -> bytes:
        """The body of the request."""
        return json_bytes(fields)

    def without_refused(self, fields: Mapping[str, Any], *, error: Exception) -> dict[str, Any] | None:
        """The request without the refused fields, for another attempt; None if the error is final."""
        if len(self.repeats) >= MOST_REPEATS:
            return None
        fewer = repair_request(fields, error=error, headers=self.headers, repairs=self._generator.repairs)
        if fewer is None:
            return None
        self.headers = self.headers if fewer.headers is None else fewer.headers
        self.repeats.append(fewer)
        action = f"refused {fewer.field}, and is asked without it, within its limit or in its own form"
        self._generator.log_refusal(fewer.field, action=action)
        return fewer.body

    def client_headers(self, dialect: str) -> Mapping[str, str]:  # noqa: ARG002 - a prompt is no client's
        """The client's headers that are sent to a server of this dialect."""
        return {}

    def delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        """A delta of the reply as the reader gets it."""
        return delta

    def details(self) -> dict[str, Any]:
        """`Completion.details`."""
        tokens = (Token(text=text, logprob=logprob) for text, logprob in self.reply.tokens)
        return {"logprobs": tuple(tokens)} if "logprobs" in self.request.want else {}

    def failure_of(self, error: Exception) -> tuple[Failure, bool]:
        """Returns (failure, whether the request is at fault, and not the server)."""
        failure, body = failure_of_error(error), getattr(error, "body", None)
        if failure.inability == "model" and has_absent_model_code(failure, body=body):
            return replace(failure, kind="denied", gone="named"), False
        if failure.status not in ABSENT:
            return failure, False
        return replace(failure, gone=gone_sign(failure, body=body, model=self._generator.name)), False

    def _empty_reply(self) -> PartialReply:  # a ChatCall makes a ChatReply
        dropped = self.request.prompt.prefix.strip() if self._options.prefix == "user" else ""
        return PartialReply(self.request, dropped=dropped, max_media=self._options.media_chars)

    def note_answer(self) -> None:
        """Called when the server has answered; a ChatCall then remembers what was refused."""


async def _pass_on(call: PromptCall, pieces: Sequence[Piece]) -> None:
    """Send pieces of a reply to its readers: of each piece first the thoughts, then the text, then the other fields."""
    sink, delta_sink = call.request.sink, call.request.delta_sink
    for number, (size, fields) in enumerate(pieces, 1):
        if not fields and number < len(pieces) and not pieces[number][1]:
            continue  # the next piece includes this text
        thoughts, delta = split_thoughts(fields) if fields else ({}, {})
        if thoughts and delta_sink is not None:
            await delta_sink(thoughts)
        if sink is not None:
            await sink(call.reply.text_without_prefix(size))
        if delta and delta_sink is not None and (delta := call.delta(delta)):
            await delta_sink(delta)
        if number % _TURN == 0:
            await asyncio.sleep(0)


def _estimates(reply: PartialReply) -> tuple[int, int]:
    """Returns (estimated tokens of the prompt, estimated tokens of the reply so far)."""
    read = sum(map(estimated_tokens, plain_parts(reply.request.prompt)))
    beyond_text = math.ceil((reply.size - reply.text_size) / CHARACTERS)
    return read, max(estimated_tokens(reply.text), len(reply.tokens)) + max(0, beyond_text)


def count_prompt_tokens(prompt: Prompt, *, options: OpenAiOptions) -> int:
    """Estimated tokens of the prompt's text and chat template; an upper bound if `bytes_per_token` is 1.0."""
    size = sum(len(encodable(part).encode()) for part in plain_parts(prompt))
    return options.template_tokens + TURN_TOKENS * len(prompt.history) + math.ceil(size / options.bytes_per_token)


def with_options(body: dict[str, Any], *, streams: bool, model: str, options: OpenAiOptions) -> dict[str, Any]:
    """The body with the model, and with the fields that the options add or remove."""
    body |= {"stream_options": {"include_usage": True}} if streams else {}
    body |= options.fields
    body = {name: value for name, value in body.items() if value is not None or name not in options.fields}
    return {"model": model, "stream": streams, **body}


def prompt_body(request: Request, *, options: OpenAiOptions) -> dict[str, Any]:
    """The body of the request for a prompt, without the fields that the options add."""
    sampling = {"temperature": 0.0, "seed": options.seed} if request.sampling is None else asdict(request.sampling)
    is_text = options.api == "completions"
    body: dict[str, Any] = {
        **_prompt_fields(request.prompt, options=options),
        options.max_tokens_field: request.max_tokens,
        **{name: value for name, value in sampling.items() if value is not None},
        "stop": list(filter(None, request.stop))[:4],  # OpenAI accepts at most 4
        # In /v1/completions the value is the number of alternatives. Some servers send no logprobs for 0.
        "logprobs": (1 if is_text else True) if "logprobs" in request.want else None,
    }
    for name in ("top_k", "stop", "logprobs"):
        if not body.get(name):
            body.pop(name, None)
    return body


def _prompt_fields(prompt: Prompt, *, options: OpenAiOptions) -> dict[str, Any]:
    """The fields of a request that contain the prompt."""
    if options.api == "completions":
        return {"prompt": encodable("\n\n".join(part for part in plain_parts(prompt) if part))}
    messages = {"messages": _messages(prompt, where=options.prefix)}
    if options.prefix == "continue" and prompt.prefix:
        return messages | {"add_generation_prompt": False, "continue_final_message": True}
    return messages


def _messages(prompt: Prompt, *, where: str) -> list[dict[str, str]]:
    *before, (_, body) = [(role, encodable(text)) for role, text in chat_turns(prompt)]
    prefix = encodable(prompt.prefix)
    if prefix and where == "user":
        body = f"{body}\n\nYour answer begins with the words below. Go on from there, without repeating them.\n{prefix}"
    turns = [*before, ("user", body)]
    if prefix and where != "user":
        turns.append(("assistant", prefix))
    return [{"role": role, "content": text} for role, text in turns if text]
