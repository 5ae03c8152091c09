import asyncio
import logging
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from ragbandit.shared.dialects.chat.message_parts import thoughts_first
from ragbandit.shared.dialects.chat.replies import MAX_MEDIA, ModelReply
from ragbandit.shared.dialects.registry import as_chat, unread_parameters
from ragbandit.shared.dialects.thoughts import refused_thoughts
from ragbandit.shared.errors import ArmFailed, RagBanditError, encodable
from ragbandit.shared.model_servers.absent_models import ABSENT, gone_sign, has_own_code, names_object
from ragbandit.shared.model_servers.event_reader import BrokenReply, ReplyTooLarge
from ragbandit.shared.model_servers.failures import Failure, ServerFailed, failure_of_error
from ragbandit.shared.model_servers.fewer_fields import MOST_REPEATS, fewer_fields
from ragbandit.shared.model_servers.fitting.chats import fit_chat, fitting_size
from ragbandit.shared.model_servers.fitting.fitted import Fitted
from ragbandit.shared.model_servers.fitting.kinds import Kind, kind_of, takes_of
from ragbandit.shared.model_servers.openai_client import (
    ModelServer,
    cause_of,
    connect,
    costs_nothing,
    reply_pieces,
)
from ragbandit.shared.model_servers.openai_options import OpenAiOptions, base_url_of, check_options, checked_key
from ragbandit.shared.model_servers.outbound import credentials_of, retry_pause, shown_address
from ragbandit.shared.model_servers.repeated_events import Repeated
from ragbandit.shared.model_servers.token_usage import (
    CHARACTERS,
    TOKEN_LIMITS,
    Tokens,
    used_tokens,
)
from ragbandit.shared.reading.thread import LARGE, READING, UnendedReading
from ragbandit.shared.texts.redaction import shown_variable
from ragbandit.shared.texts.token_estimates import estimated_tokens
from ragbandit.shared.types import NO_CONVERSATION, Conversation, Cost
from ragbandit.strategies.answer_stream import first_stop
from ragbandit.strategies.base import Completion, Generator, Need, Prompt, Request, seconds_until
from ragbandit.strategies.failures import AnswerBlocked, RequestRefused, UnreadableReply, log_exception
from ragbandit.strategies.generators.parts import TURN_TOKENS, Token, chat_turns, plain_parts

log = logging.getLogger("ragbandit.arms")

#: longest random pause before the second attempt, seconds. Before every further attempt the longest pause doubles
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0  #: longest pause before any attempt, seconds
#: pieces after which other tasks of the event loop run
_TURN: Final = 64
_LATE_USAGE_S: Final = 2.0  #: longest wait for the token usage after the end of the answer, seconds

#: failure of a request that could not be fitted to the server: another arm may be able to answer it
_UNFIT: Final = Failure(kind="refused", inability="form")
#: a piece of a reply: length of the text up to its end, and its fields except the text
Piece: TypeAlias = tuple[int, Mapping[str, Any]]


class OpenAiGenerator(Generator):
    """Calls a model behind a URL.

    A streamed answer is returned at the deadline as far as it has come. A failed call is repeated after a pause if
    `Failure.may_pass`. The pause is at least the server's Retry-After. A call is not repeated if Retry-After is above a
    minute, if the deadline is too near, or if another arm can answer.
    Tokens are estimated if the server does not report them. No error contains the key or the headers. Raises
    ConfigError if the package is missing, or if the options or their environment variables cannot be used.
    """

    capabilities: frozenset[Need] = frozenset({"completion", "stop", "chat"})
    section = "generator"  #: section of the settings that configures this generator, for remedies
    provider = OpenAiOptions.provider
    options_type: type[OpenAiOptions] = OpenAiOptions

    def __init__(self, model: str, *, options: OpenAiOptions | None = None, context_tokens: int | None = None) -> None:
        self._options = options or self.options_type()
        check_options(self._options, model=model)
        self.name = model
        self.context_tokens = context_tokens
        self.capabilities = offered_by(self._options)
        address = base_url_of(self._options)
        self._takes = takes_of(self._kind_of(address), model=model)
        self._key = checked_key(self._options)
        self._address = shown_address(address or self._options.vendor)
        self._secrets = [*self._options.headers.values(), *credentials_of(address), self._key or ""]
        self._server: ModelServer | None = None
        self._closed = self._has_refused = False
        self._left_out = set[str]()  #: parameters that the server has refused, for the log
        self._free = asyncio.Semaphore(self._options.concurrency)

    def _kind_of(self, address: str) -> Kind:
        return self._options.kind or kind_of(address)

    def count_tokens(self, prompt: Prompt) -> int:
        return counted_tokens(prompt, options=self._options)

    async def complete(self, request: Request) -> Completion:
        if self._closed:
            raise ArmFailed(f"{self.name} was closed")
        dropped = request.prompt.prefix.strip() if self._options.prefix == "user" else ""
        reply = PartialReply(request, dropped=dropped, max_media=self._options.media_chars)
        try:
            is_late = await self._ask(reply)
            if not is_late:
                reply.end()
            return self._completion(reply, is_late=is_late)
        except BaseException as error:
            self._note_loss(error, reply=reply)
            if isinstance(error, RagBanditError) or not isinstance(error, Exception):
                raise
            raise self._failed(error, reply=reply) from error

    async def close(self) -> None:
        self._closed = True
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def _ask(self, reply: "PartialReply") -> bool:
        """Returns whether the deadline ended the reply. Failures after the end of the answer are ignored."""
        remaining_s = seconds_until(reply.request.deadline)
        if remaining_s == 0.0:
            return True
        clock = asyncio.get_running_loop().time
        ends = None if remaining_s is None else clock() + remaining_s
        try:
            async with asyncio.timeout_at(ends) as limit, self._free:
                first_piece_s = self._first_piece_s(reply.request)
                if first_piece_s is not None:
                    limit.reschedule(_earlier(clock() + first_piece_s, ends))
                await self._read(reply, limit=limit, ends=ends)
        except RagBanditError:
            raise
        except Exception as error:
            is_late = isinstance(error, TimeoutError) and limit.expired() and limit.when() == ends
            if reply.finish is None and is_late:
                return True
            if reply.finish is None:
                raise
        return False

    def _first_piece_s(self, request: Request) -> float | None:
        """Timeout of the first piece, seconds. The default is half the remaining time if another arm can answer."""
        options, remaining_s = self._options, seconds_until(request.deadline)
        if options.first_piece_s is not None or remaining_s is None or not request.has_successor:
            return options.first_piece_s
        return remaining_s / 2 if is_streamed(request, options=options) else None

    async def _read(self, reply: "PartialReply", *, limit: asyncio.Timeout, ends: float | None) -> None:
        """Read a reply, and repeat failed attempts. limit: the earlier of the deadline, which is at `ends`, and the end
        of the wait for the first piece, later for the token usage.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        fields, reply.ignored, reply.fitted = await self._fitted(reply.request)
        known = [name for name in fields if name in reply.request.unsupported]
        fields, reply.ignored = {name: fields[name] for name in fields if name not in known}, reply.ignored + known
        is_limited = limit.when() != ends
        while True:
            reply.was_sent = True
            reply.attempts += 1
            try:
                async with aclosing(self._pieces(fields, reply=reply)) as groups:  # type: ignore[type-var] # a generator
                    async for pieces in groups:
                        if reply.first_s is None and fields["stream"]:
                            reply.first_s = clock() - began
                        if (reply.finish is not None or is_limited) and reply.has_begun:
                            is_limited = False
                            limit.reschedule(ends if reply.finish is None else _earlier(clock() + _LATE_USAGE_S, ends))
                        if pieces:
                            await _pass_on(reply, pieces)
                        if reply.has_enough:
                            return
                return
            except Exception as error:
                again = None if reply.values else self._acceptable(fields, error=error, reply=reply)
                if again is not None:
                    fields = again
                    continue
                pause = self._pause(error, reply=reply, ends=limit.when())
                if pause is None:
                    raise
                self._note_loss(error, reply=reply)
            reply.was_sent = False
            await asyncio.sleep(pause)

    def _acceptable(
        self, fields: Mapping[str, Any], *, error: Exception, reply: "PartialReply"
    ) -> dict[str, Any] | None:
        """The request without what this error refuses, for another attempt; None if the error is final."""
        fewer = fewer_fields(fields, error=error) if reply.repeats < MOST_REPEATS else None
        if fewer is not None:
            reply.repeats += 1
            level = logging.DEBUG if fewer.field in self._left_out else logging.WARNING
            log.log(level, "%s refused %s, and is asked without it or within its limit", self.name, fewer.field)
            self._left_out.add(fewer.field)
            reply.ignored.append(fewer.field)
            reply.unsupported += [fewer.field] * fewer.is_unsupported
            return fewer.body
        bare = None if reply.is_bare else refused_thoughts(fields, error=error)
        if bare is not None:  # most often, another model had made them
            level = logging.DEBUG if self._has_refused else logging.WARNING
            log.log(level, "%s is asked without the thoughts of earlier turns", self.name)
            reply.is_bare = self._has_refused = True
        return bare

    async def _fitted(self, request: Request) -> tuple[dict[str, Any], list[str], Fitted]:
        """`_fields`, in the reading thread if the chat is large. Raises RequestRefused if the chat cannot be fitted."""
        try:
            size = fitting_size(sent_by_client(request).fields)
            if size < LARGE:
                return self._fields(request)
            return await READING.read(size, self._fields, request)
        except RagBanditError:
            raise
        except Exception as error:  # the server has not failed, so the failure must not count against the arm
            if not isinstance(error, UnendedReading):
                log_exception(error, of=f"fitting a request to {self.name}", action="fitting_failed")
            message = f"{self.name} was not asked: the request could not be fitted to its server: {error}"
            raise RequestRefused(message, failure=_UNFIT) from error

    def _fields(self, request: Request) -> tuple[dict[str, Any], list[str], Fitted]:
        """Returns (body of the request, fields of the chat that it lacks, what was changed to fit the server)."""
        options, fitted = self._options, Fitted()
        body = request_body(request, options=options)
        if options.api == "chat":
            body, fitted = fit_chat(body, takes=self._takes)
        ignored = _ignored(sent_by_client(request), options=options)
        return with_options(body, request=request, model=self.name, options=options), ignored, fitted

    def _pieces(self, fields: Mapping[str, Any], *, reply: "PartialReply") -> AsyncIterator[list[Piece]]:
        """Send a request, read its reply, and yield the pieces that arrived together."""
        return reply_pieces(self._connected(), fields, read=reply.read, budget=reply.budget, joins=True)

    def _connected(self) -> ModelServer:
        if self._server is None:
            options = self._options
            self._server = connect(
                base_url=options.base_url,
                key=self._key,
                headers=options.headers,
                connect_s=min(5.0, options.read_s),
                read_s=options.read_s,
                path=options.path,
            )
        return self._server

    def _pause(self, error: Exception, *, reply: "PartialReply", ends: float | None) -> float | None:
        """Seconds until the next attempt; None for no further attempt. ends: end of the call, by the loop's clock."""
        failure, response = failure_of_error(error), getattr(error, "response", None)
        is_final = response is not None and response.headers.get("x-should-retry") == "false"
        is_last = reply.request.has_successor or reply.attempts > self._options.retries
        if reply.values or is_final or is_last or not failure.may_pass:
            return None
        left_s = None if ends is None else ends - asyncio.get_running_loop().time()
        retry_s = failure.retry_after_s or 0.0
        return retry_pause(reply.attempts, base_s=_PAUSE_S, longest_s=_LONGEST_PAUSE_S, asked_s=retry_s, left_s=left_s)

    def _usage(self, reply: "PartialReply") -> Tokens:
        """Tokens of the call; estimated if the server did not report them, 0 if no request was sent."""
        if not reply.was_sent:
            return Tokens(read=0, written=0)
        return used_tokens(reply.usage, estimates=partial(_estimates, reply))

    def _completion(self, reply: "PartialReply", *, is_late: bool) -> Completion:
        used = self._usage(reply)
        reply.drop_prefix()
        finish: Literal["stop", "length", "deadline"] = "length" if reply.finish == "length" else "stop"
        return Completion(
            text=reply.text,
            prompt_tokens=used.read,
            completion_tokens=used.written,
            finish="deadline" if is_late else finish,
            details=self._details(reply),
            dollars=self._dollars(used, reply=reply),
            first_s=reply.first_s,
            cached_tokens=used.cached,
            cache_write_tokens=used.cache_write,
            reasoning_tokens=used.reasoning,
            estimated=used.estimated,
        )

    def _details(self, reply: "PartialReply") -> dict[str, Any]:
        if reply.request.conversation is not None:
            ignored = [*reply.ignored, *sorted(reply.fitted.changed), *["thoughts"] * reply.is_bare]
            names = {"omitted": sorted(reply.omitted), "ignored": ignored, "unsupported": reply.unsupported}
            more = {name: value for name, value in {**reply.more, **names}.items() if value}
            message = reply.fitted.message(reply.message.whole)
            return {"reply": {"message": message, "finish_reason": reply.finish, **more}}
        tokens = (Token(text=text, logprob=logprob) for text, logprob in reply.tokens)
        return {"logprobs": tuple(tokens)} if "logprobs" in reply.request.want else {}

    def _dollars(self, used: Tokens, *, reply: "PartialReply") -> float:
        """The price that the server reports, which includes its fees and discounts, else the price of the tokens."""
        prices, model = self._options.token_prices, reply.model
        if reply.dollars is not None or not prices:
            return reply.dollars or 0.0
        return used.dollars(prices[self.name if model is None or model not in prices else model])

    def _failed(self, error: Exception, *, reply: "PartialReply") -> ArmFailed:
        tries = f" after {reply.attempts} attempts" if reply.attempts > 1 else ""
        message = f"{self.name} did not answer{tries}: {cause_of(error, address=self._address, secrets=self._secrets)}"
        failure, is_refused = self._failure(error, request=reply.request)
        failure = failure.without_keys(self._secrets)
        remedy = self._remedy(error, failure=failure)
        if is_refused:
            return RequestRefused(message, failure=failure)
        remedy = remedy and remedy.replace("openai", self.provider).replace("generator.", f"{self.section}.")
        kind = UnreadableReply if isinstance(error, ReplyTooLarge) else ServerFailed
        return kind(message, remedy=remedy, failure=failure)

    def _failure(self, error: Exception, *, request: Request) -> tuple[Failure, bool]:
        """Returns (failure, whether the caller's chat is at fault)."""
        failure, body = failure_of_error(error), getattr(error, "body", None)
        has_objects = names_object(sent_by_client(request).fields)
        if failure.inability == "model" and has_own_code(failure, body=body) and not has_objects:
            return replace(failure, kind="denied", gone="named"), False
        if failure.status not in ABSENT:
            return failure, request.conversation is not None and failure.kind == "refused"
        if has_objects:  # another arm may have what is named, so the kind stays "denied"
            return failure, not has_own_code(failure, body=body)
        return replace(failure, gone=gone_sign(failure, body=body, model=self.name)), False

    def _note_loss(self, error: BaseException, *, reply: "PartialReply") -> None:
        """Add the cost of an attempt that failed or was cancelled: the reported usage, else an estimate of the prompt
        and of what came. It cost nothing if no request was sent, or if the server replied with an error.
        """
        is_free = isinstance(error, Exception) and costs_nothing(error) and not (reply.size or reply.usage)
        if not reply.was_sent or is_free:
            return
        used = self._usage(reply)
        reply.request.lost.cost += Cost(
            prompt_tokens=used.read,
            completion_tokens=used.written,
            cached_tokens=used.cached,
            cache_write_tokens=used.cache_write,
            reasoning_tokens=used.reasoning or 0,
            dollars=self._dollars(used, reply=reply),
        )

    def _remedy(self, error: Exception, *, failure: Failure) -> str | None:
        if isinstance(error, BrokenReply):
            return error.remedy
        if failure.inability == "context":
            return "set generator.context_tokens to the server's limit, or less"
        if failure.kind in ("unreachable", "broken"):
            return "start the server, or correct generator.openai.base_url"
        variable = shown_variable(self._options.api_key_env)
        return {
            **dict.fromkeys(range(300, 400), "put that address into generator.openai.base_url, if it is right"),
            400: "the server does not accept the request: see generator.openai.fields and max_tokens_field",
            401: f"put a valid key into the environment variable {variable}",
            403: f"put a key with this permission into the environment variable {variable}",
            404: "check generator.model, generator.openai.base_url and generator.openai.api",
        }.get(failure.status or 0)


def _earlier(at: float, ends: float | None) -> float:
    return at if ends is None else min(at, ends)


def offered_by(options: OpenAiOptions) -> frozenset[Need]:
    """The capabilities of a generator with these options."""
    lacking = frozenset[Need]({"chat"} if options.api == "completions" else ())
    return (OpenAiGenerator.capabilities - lacking) | frozenset[Need]({"logprobs"} if options.logprobs else ())


async def _pass_on(reply: "PartialReply", pieces: Sequence[Piece]) -> None:
    """Send pieces of a reply to its readers, from each thoughts first, then the text, then the other fields."""
    sink, delta_sink = reply.request.sink, reply.request.delta_sink
    for number, (size, fields) in enumerate(pieces, 1):
        if not fields and number < len(pieces) and not pieces[number][1]:
            continue  # the next piece has its text
        thoughts, delta = thoughts_first(fields) if fields else ({}, {})
        if thoughts and delta_sink is not None:
            await delta_sink(thoughts)
        if sink is not None:
            await sink(reply.text_without_prefix(size))
        if delta and delta_sink is not None and (delta := reply.fitted.delta(delta)):
            await delta_sink(delta)
        if number % _TURN == 0:
            await asyncio.sleep(0)


def _estimates(reply: "PartialReply") -> tuple[int, int]:
    """Estimated tokens of the prompt, and of what came."""
    read = sum(map(estimated_tokens, plain_parts(reply.request.prompt)))
    beyond_text = math.ceil((reply.size - len(reply.text)) / CHARACTERS)
    return read, max(estimated_tokens(reply.text), len(reply.tokens)) + max(0, beyond_text)


def counted_tokens(prompt: Prompt, *, options: OpenAiOptions) -> int:
    """Estimated tokens of the prompt's text and chat template; an upper bound if `bytes_per_token` is 1.0."""
    size = sum(len(encodable(part).encode()) for part in plain_parts(prompt))
    return options.template_tokens + TURN_TOKENS * len(prompt.history) + math.ceil(size / options.bytes_per_token)


class PartialReply(ModelReply):
    """The reply so far. dropped: the prompt's prefix, which is removed if the answer repeats it."""

    def __init__(self, request: Request, *, dropped: str = "", max_media: int = MAX_MEDIA) -> None:
        super().__init__(uses_functions="functions" in sent_by_client(request).fields, max_media=max_media)
        self.request, self.dropped = request, dropped
        if "logprobs" in request.want or request.prompt.prefix:
            self.tagged.stop()  # logprobs are of the whole text, and a text after a prefix has no tag at its start
        self._has_reader = request.sink is not None or request.delta_sink is not None
        self.was_sent = False
        self.ignored: list[str] = []  #: fields of the chat that the server did not get
        #: number of repeats with fewer fields, and the fields that the server does not support
        self.repeats, self.unsupported = 0, list[str]()
        self.fitted = Fitted()
        self.is_bare = False  #: True if the thoughts of earlier turns were left out
        #: attempts: number of requests sent. parts: number of values with text
        self.attempts = self.parts = 0
        #: most parts and characters: for each token of max_tokens, a server may send 4 parts of a stream and 128
        #: characters
        self._most, self._longest = 4 * (request.max_tokens + 4), 128 * request.max_tokens
        self.first_s: float | None = None
        self.has_enough = False  #: True if the rest of the stream must not be read

    @property
    def has_begun(self) -> bool:
        """Whether a piece of the answer has arrived. A chat's first piece with only the role does not count."""
        return self.request.conversation is None or bool(self.text or self.message.has_fields or self.finish)

    def read(self, value: Any) -> Iterable[Piece]:
        """Take a value, or a Repeated, unless the answer has its end. Returns its pieces if there is a reader."""
        if self.has_enough:
            return ()
        size = len(self.text)
        if not isinstance(value, Repeated):
            self.take(value)
            if len(self.text) > size:
                self.parts += 1
                self._end_early(known=size)
        elif self._has_room(value.texts) and self.take_texts(value):
            self.parts += len(value.texts)
        else:
            # Not a list: the pieces before an event that cannot be read are sent.
            return (piece for event in value.values() for piece in self.read(event))
        has_piece = self._has_reader and (self.delta or len(self.text) != size)
        return ((len(self.text), self.delta),) if has_piece else ()

    def end(self) -> None:
        """Complete the message. Raises BrokenReply for a missing answer, ArmFailed for missing requested details."""
        super().end()
        if self.finish == "content_filter" and self.request.conversation is None:
            raise AnswerBlocked("the server's content filter blocked the answer")
        if "logprobs" in self.request.want and self.text and (self.has_broken_logprobs or not self.tokens):
            broken = "log-probabilities that are not numbers" if self.has_broken_logprobs else "no log-probabilities"
            remedy = "set generator.openai.logprobs to false"
            raise ArmFailed(f"the server sent {broken}", field="generator.openai.logprobs", remedy=remedy)

    def text_without_prefix(self, end: int) -> str:
        """The first `end` characters without the prefix; "" while they may still be the beginning of the prefix."""
        text = self.text if end == len(self.text) else self.text[:end]
        begin, size = text.lstrip(), len(self.dropped)
        return begin[size:] if size and self.dropped.startswith(begin[:size]) else text

    def drop_prefix(self) -> None:
        if not self.dropped or not self.text.lstrip().startswith(self.dropped):
            return
        dropped = self.text.index(self.dropped) + len(self.dropped)
        self.text = self.text[dropped:]
        while self.tokens and dropped >= len(self.tokens[0][0]):
            dropped -= len(self.tokens.pop(0)[0])
        if self.tokens and dropped:
            text, logprob = self.tokens[0]
            self.tokens[0] = text[dropped:], logprob

    def _has_room(self, texts: Sequence[str]) -> bool:
        """Whether the text cannot end within these texts. If it may, each event is read alone, and the text ends at the
        same place, however the events arrive.
        """
        stops, new = self.request.stop, "".join(texts)
        if self.parts + len(texts) > self._most or len(self.text) + len(new) > self._longest:
            return False
        known = min(len(self.text), max(map(len, stops), default=0))
        return not stops or first_stop(self.text[len(self.text) - known :] + new, stops, known=known) is None

    def _end_early(self, *, known: int) -> None:
        """End the text at a stop string, or if it is much too long, because some servers ignore max_tokens.

        known: length of the text before its last part
        """
        end = first_stop(self.text, self.request.stop, known=known) if self.request.stop else None
        if end is not None:
            self.text, self.finish = self.text[:end], "stop"
            self.has_enough = True
        elif self.parts > self._most or len(self.text) > self._longest:
            self.text, self.finish = self.text[: self._longest], "length"
            self.has_enough = True


def request_body(request: Request, *, options: OpenAiOptions) -> dict[str, Any]:
    """The body without the fields that the options add."""
    return _body(request, options=options) if request.conversation is None else _chat_body(request, options=options)


def with_options(body: dict[str, Any], *, request: Request, model: str, options: OpenAiOptions) -> dict[str, Any]:
    streams = is_streamed(request, options=options)
    body |= {"stream_options": {"include_usage": True}} if streams else {}
    body |= options.fields
    body = {name: value for name, value in body.items() if value is not None or name not in options.fields}
    return {"model": model, "stream": streams, **body}


def is_streamed(request: Request, *, options: OpenAiOptions) -> bool:
    if isinstance(options.stream, bool) or request.sink is not None:
        return options.stream is not False
    left_s = seconds_until(request.deadline)
    is_short = left_s is not None and left_s <= options.read_s
    may_be_whole = request.conversation is not None and not request.has_successor and is_short
    return options.stream == "auto" and not may_be_whole


def _body(request: Request, *, options: OpenAiOptions) -> dict[str, Any]:
    sampling = {"temperature": 0.0, "seed": options.seed} if request.sampling is None else asdict(request.sampling)
    is_text = options.api == "completions"
    body: dict[str, Any] = {
        **_question(request.prompt, options=options),
        options.max_tokens_field: request.max_tokens,
        **{name: value for name, value in sampling.items() if value is not None},
        "stop": list(filter(None, request.stop))[:4],  # OpenAI accepts at most 4
        # In /v1/completions it is the number of alternatives. Some servers send nothing for 0.
        "logprobs": (1 if is_text else True) if "logprobs" in request.want else None,
    }
    for name in ("top_k", "stop", "logprobs"):
        if not body.get(name):
            body.pop(name, None)
    return body


def _question(prompt: Prompt, *, options: OpenAiOptions) -> dict[str, Any]:
    """The fields of a request that contain the prompt."""
    if options.api == "completions":
        return {"prompt": encodable("\n\n".join(part for part in plain_parts(prompt) if part))}
    messages = {"messages": _messages(prompt, where=options.prefix)}
    if options.prefix == "continue" and prompt.prefix:
        return messages | {"add_generation_prompt": False, "continue_final_message": True}
    return messages


def _chat_body(request: Request, *, options: OpenAiOptions) -> dict[str, Any]:
    sent = sent_by_client(request)
    ignored = {*_ignored(sent, options=options)}
    body = as_chat(sent.having({name: value for name, value in sent.fields.items() if name not in ignored}))
    is_named = request.is_limit_named and sent.dialect == "chat"
    if not is_named and "max_tokens" in body:
        body[options.max_tokens_field] = body.pop("max_tokens")
    return body


def sent_by_client(request: Request) -> Conversation:
    """The conversation of a request; NO_CONVERSATION without one."""
    return request.conversation or NO_CONVERSATION


def _ignored(sent: Conversation, *, options: OpenAiOptions) -> list[str]:
    """The fields of a conversation that a chat completion cannot have, or that the setting `passed` leaves out."""
    unread = unread_parameters(sent)
    return unread + [name for name in not_passed(sent, options=options) if name not in unread]


def not_passed(sent: Conversation, *, options: OpenAiOptions) -> list[str]:
    """The fields of a conversation that the setting `passed` leaves out."""
    if options.passed is None:
        return []
    passed = {"messages", "system", *TOKEN_LIMITS, *options.passed}
    return [name for name in sent.fields if name not in passed]


def _messages(prompt: Prompt, *, where: str) -> list[dict[str, str]]:
    *before, (_, body) = [(role, encodable(text)) for role, text in chat_turns(prompt)]
    prefix = encodable(prompt.prefix)
    if prefix and where == "user":
        body = f"{body}\n\nYour answer begins with the words below. Go on from there, without repeating them.\n{prefix}"
    turns = [*before, ("user", body)]
    if prefix and where != "user":
        turns.append(("assistant", prefix))
    return [{"role": role, "content": text} for role, text in turns if text]
