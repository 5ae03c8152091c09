"""Asked model: one small call of a chat model before a question is decided, for a rewrite or for a pick.

If a call fails, `failed` has the reason: `timeout`, `connection`, `http_500` (or another status), `malformed` (the
model's answer), `busy` (too many calls at once), or `down` (the model failed several times in a row).
"""

import asyncio
import functools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from ragbandit.router.config.sections import GeneratorSettings
from ragbandit.router.storage.access.reservations import no_reservation, settle
from ragbandit.router.storage.access.spending import spenders_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.dialects.chat.replies import ModelReply
from ragbandit.shared.errors import StoreError
from ragbandit.shared.model_servers.call_prices import charge
from ragbandit.shared.model_servers.error_replies import failure_of_error
from ragbandit.shared.model_servers.openai_client import ModelServer, ReplyReader, connect, costs_nothing, reply_pieces
from ragbandit.shared.model_servers.openai_options import base_url_of
from ragbandit.shared.model_servers.outbound import retry_pause
from ragbandit.shared.model_servers.token_usage import Tokens, used_tokens
from ragbandit.shared.texts.token_estimates import estimated_tokens
from ragbandit.shared.types import Json, Query

log = logging.getLogger("ragbandit.asked")

#: maximum number of calls of one model at a time
MOST_UNDER_WAY: Final = 64
#: failures in a row after which a server is not asked for _REST_S seconds
_FAILURES: Final = 3
_REST_S: Final = 5.0


class _WholeReply(ModelReply, ReplyReader[None]):
    """A reply whose pieces are only collected: no reader gets them while they arrive."""

    def read(self, value: Any) -> tuple[()]:
        self.take(value)
        return ()


class AskedModel:
    """Asks one chat model, with a time limit; use it from one event loop.

    seconds: time limit of a call, retries included. purpose: purpose of the calls, for the log. database: store of the
    budgets that pay for the calls. most_waiting: number of calls that may wait for earlier calls, within their time
    limit; further calls fail at once
    """

    def __init__(
        self,
        chosen: GeneratorSettings,
        *,
        seconds: float,
        max_tokens: int,
        purpose: str,
        database: Database,
        most_waiting: int = 0,
    ) -> None:
        self.model, self.seconds = chosen.model, seconds
        self._max_tokens, self._purpose, self._database = max_tokens, purpose, database
        self._options, self._prices, self._prefers = chosen.openai, chosen.prices_by_model, chosen.prices
        #: the server of `model`, opened by the first call
        self._server: ModelServer | None = None
        self._most = MOST_UNDER_WAY + most_waiting
        self._calls: set[asyncio.Future[tuple[ModelReply | None, dict[str, Json]]]] = set()
        self._free = asyncio.Semaphore(MOST_UNDER_WAY)
        self._failed_in_row = 0
        self._rest_until = 0.0
        #: sums of the "prompt" and "completion" tokens of all calls, as far as the server reports them
        self.tokens: Counter[str] = Counter()

    async def ask(
        self, messages: Sequence[Mapping[str, str]], *, query: Query
    ) -> tuple[ModelReply | None, dict[str, Json]]:
        """Returns (reply or None, facts), and charges the cost to the budgets of the query. Never raises.

        The facts, as far as they are known: {"by": model, "seconds": 0.4, "prompt_tokens": 210, "completion_tokens":
        12, "dollars": 0.0001, "failed": the reason of a failure}.
        """
        facts: dict[str, Json] = {"by": self.model}
        if time.monotonic() < self._rest_until:
            return None, facts | {"failed": "down"}
        if len(self._calls) >= self._most:
            return None, facts | {"failed": "busy"}
        # If the caller leaves, the call continues: it is paid anyway, and must be booked.
        call = asyncio.ensure_future(self._ask_and_book(messages, query=query))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        reply, results = await asyncio.shield(call)
        return reply, facts | results

    async def _ask_and_book(
        self, messages: Sequence[Mapping[str, str]], *, query: Query
    ) -> tuple[ModelReply | None, dict[str, Json]]:
        reply, results = await self._ask_in_time(messages)
        await self._book(query, results.get("dollars"))
        return reply, results

    async def _ask_in_time(self, messages: Sequence[Mapping[str, str]]) -> tuple[ModelReply | None, dict[str, Json]]:
        began, replies, failed = time.monotonic(), list[ModelReply](), None
        has_turn = False
        try:
            async with asyncio.timeout(self.seconds), self._free:
                has_turn = True
                for package in ("openai", "aiohttp"):  # imports take a second, and must not block the event loop
                    await asyncio.to_thread(__import__, package)
                await self._attempt(self._fields(messages), replies=replies)
        except TimeoutError:
            failed = "timeout" if has_turn else "busy"
        except Exception as error:  # a failed call must not fail the request
            failed = failure_of_error(error).name
        if has_turn:
            self._note_health(failed)
        facts: dict[str, Json] = {"seconds": round(time.monotonic() - began, 4)}
        calls = [_tokens(reply, messages=messages) for reply in replies]
        if any(tokens.read + tokens.written for tokens in calls):
            prompt, completion = sum(tokens.read for tokens in calls), sum(tokens.written for tokens in calls)
            self.tokens.update(prompt=prompt, completion=completion)
            facts |= {"prompt_tokens": prompt, "completion_tokens": completion}
            dollars = sum(map(self._dollars, replies, calls))
            facts |= {"dollars": dollars} if dollars else {}
        if failed is not None:
            return None, facts | {"failed": failed}
        return replies[-1], facts

    def _dollars(self, reply: ModelReply, tokens: Tokens) -> float:
        of_reply: Any = {"quoted": reply.dollars, "named": reply.model, "tier": reply.tier}
        return charge(tokens, model=self.model, lists=self._prices, prefers=self._prefers, **of_reply).dollars

    async def _attempt(self, fields: Mapping[str, Any], *, replies: list[ModelReply]) -> None:
        """Complete a chat in at most two attempts. Raises the error of the last attempt.

        fields: the request. replies: list to which the reply of each attempt is added, whole or not, unless the server
        refused the request or cannot be reached
        """
        options = self._options
        if self._server is None:
            key = os.environ.get(options.api_key_env)
            base_url = base_url_of(options)
            self._server = connect(base_url=base_url, key=key, headers=options.headers, path=options.path)
        for attempt in (1, 2):
            reply = _WholeReply()
            replies.append(reply)
            try:
                async with aclosing(reply_pieces(self._server, fields, reply=reply)) as groups:  # type: ignore[type-var] # a generator
                    async for _ in groups:
                        pass
                reply.end()
                return
            except Exception as error:
                failure = failure_of_error(error)
                if costs_nothing(error) and not (reply.size or reply.usage or reply.dollars):
                    replies.pop()
                pause = retry_pause(attempt, base_s=0.5, longest_s=8.0, asked_s=failure.retry_after_s or 0.0)
                if attempt == 2 or pause is None or not failure.may_pass:
                    raise
            await asyncio.sleep(pause)

    def _fields(self, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        options, question = self._options, dict[str, Any](messages=list(messages))
        if options.api == "completions":
            question = {"prompt": "\n\n".join(message["content"] for message in messages)}
        fields: dict[str, Any] = {
            "model": self.model,
            **question,
            options.max_tokens_field: self._max_tokens,
            "temperature": 0.0,
        }
        fields |= {} if options.seed is None else {"seed": options.seed}
        return {name: value for name, value in {**fields, **options.fields}.items() if value is not None}

    def _note_health(self, failed: str | None) -> None:
        """Pause the calls while the server is down, since each attempt would delay a question by the time limit."""
        down = failed is not None and failed.startswith(("timeout", "connection", "http_5"))
        self._failed_in_row = self._failed_in_row + 1 if down else 0
        if self._failed_in_row >= _FAILURES:
            self._rest_until = time.monotonic() + _REST_S
            fields = {"action": self._purpose, "failed": failed, "model": self.model}
            message = f"the model of the {self._purpose} of questions does not answer: it is not asked for a while"
            log.warning(message, extra=fields)

    async def _book(self, query: Query, dollars: Json) -> None:
        """Charge the dollars of a call to the budgets at once, since its question may never be decided."""
        if isinstance(dollars, float):
            spenders = spenders_of(query.tenant, key=query.api_key)
            call = no_reservation(spenders, at=self._database.clock.now())
            try:
                await asyncio.to_thread(settle, self._database, call, dollars=dollars)
            except StoreError as error:
                fields = {"action": self._purpose, "dollars": dollars, "reason": str(error)}
                log.warning("the cost of a %s is not counted in the budgets", self._purpose, extra=fields)


def _tokens(reply: ModelReply, *, messages: Sequence[Mapping[str, str]]) -> Tokens:
    """Tokens of a call with these messages."""
    texts = [message["content"] for message in messages]
    return used_tokens(reply.usage, estimates=lambda: (sum(map(estimated_tokens, texts)), estimated_tokens(reply.text)))


_lock = threading.Lock()


def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop for the calls of this process. The first call starts it."""
    with _lock:
        return _loop_of(os.getpid())  # a forked process starts its own loop, since threads do not survive a fork


@functools.cache
def _loop_of(process: int) -> asyncio.AbstractEventLoop:  # noqa: ARG001 - key of the cache
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ragbandit-llm", daemon=True).start()
    return loop
