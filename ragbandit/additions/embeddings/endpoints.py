"""Embeddings: passed on to one configured server. Nothing is chosen; the cost counts in the budgets."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from ragbandit.additions.embeddings.settings import EmbeddingsSection
from ragbandit.router.api.asking import with_budgets
from ragbandit.router.api.dependencies import caller_of, router_of
from ragbandit.router.api.door import Door, opened_of
from ragbandit.router.api.openai.chats import storable_field
from ragbandit.router.api.openai.errors import ERRORS, ModelNotFound, ServerFault
from ragbandit.router.api.openai.requests import configured
from ragbandit.router.api.reading import reads_body
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.question_headers import PREVIEW, headers_of
from ragbandit.router.api.schemas.requests import Malformed
from ragbandit.router.api.schemas.responses import JsonReply, object_description
from ragbandit.router.api.security.rules import TEXTS
from ragbandit.router.config.named_sections import rename_errors
from ragbandit.router.operation.pacing import Budgets
from ragbandit.router.serving.deciding.steps.rules import Rules
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.access.reservations import Reservation, settle
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.dialects.chat.replies import raise_error
from ragbandit.shared.errors import Forbidden, NotFound, RagBanditError, StoreError, TooManyRequests
from ragbandit.shared.model_servers.call_prices import charge, told_dollars, told_in_reply
from ragbandit.shared.model_servers.error_replies import failure_of_error, server_message
from ragbandit.shared.model_servers.event_reader import BrokenReply
from ragbandit.shared.model_servers.openai_client import (
    ReplyReader,
    connect,
    costs_nothing,
    error_line,
    reply_pieces,
)
from ragbandit.shared.model_servers.openai_options import OpenAiOptions, base_url_of, check_options, checked_key
from ragbandit.shared.model_servers.outbound import credentials_of
from ragbandit.shared.model_servers.token_usage import Tokens, add_usage, tokens_of
from ragbandit.shared.proxies import proxy_in_words
from ragbandit.shared.texts.token_estimates import estimated_tokens
from ragbandit.shared.types import Query, Sent

log = logging.getLogger("ragbandit.api")

#: maximum number of waiting requests for each request that the server may get at once
_WAITING: Final = 4


class EmbeddingsBody(BaseModel):
    """A request for embeddings; all fields are passed on."""

    model_config = configured(model="text-embedding-3-small", input=["Who wrote Dracula?"])

    model: str
    """A model of the configured server."""
    input: Any
    """Texts or tokens."""

    @reads_body
    def read(self, _request: Request) -> tuple[dict[str, Any], int]:
        """Returns (the fields to send, estimated tokens). Raises InvalidInput."""
        return {name: storable_field(value, field=name)[0] for name, value in self}, input_tokens(self.input)


class _JsonReply(ReplyReader[Any]):
    """Reads a reply as JSON. told: the dollars in the reply's headers; None if they report no price."""

    told: float | None = None

    def take_headers(self, headers: Mapping[str, str]) -> None:
        self.told = told_dollars(headers, place="headers")

    def read(self, value: Any) -> list[Any]:
        return [value]


class EmbeddingsServer:
    """The server of the setting `embeddings`. It gets at most `concurrency` requests at once. Raises ConfigError."""

    def __init__(self, options: OpenAiOptions) -> None:
        with rename_errors("embeddings", kind="generator.openai"):
            check_options(options)
            key, headers = checked_key(options), options.headers
        times = {"connect_s": min(5.0, options.read_s), "read_s": options.read_s}
        self._server = connect(base_url=base_url_of(options), key=key, headers=headers, path="/embeddings", **times)
        self._secrets = [*headers.values(), *credentials_of(base_url_of(options)), key or ""]
        self._prices = options.token_prices
        self._free = asyncio.Semaphore(options.concurrency)
        self._open, self._most = 0, options.concurrency * (1 + _WAITING)

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait until the server may get another request. Raises TooManyRequests if too many wait."""
        if self._open >= self._most:
            message = f"{self._open} requests for embeddings are open already, so this one was refused"
            raise TooManyRequests(message, remedy="try again in a second, or raise embeddings.concurrency")
        self._open += 1
        try:
            async with self._free:
                yield
        finally:
            self._open -= 1

    def price(self, tokens: Tokens, *, model: str) -> float:
        """Dollars of these tokens; 0.0 if no model has a price. Raises ModelNotFound if only other models have one."""
        if not self._prices:
            return 0.0
        if model not in self._prices:
            remedy = "use a model that has one, or have the price set in embeddings.token_prices"
            raise ModelNotFound(f"the model {model!r:.200} of embeddings has no price", field="model", remedy=remedy)
        return tokens.dollars(self._prices[model])

    def cost(self, reply: Mapping[str, Any], *, told: float | None, model: str, estimate: Tokens) -> float:
        """Dollars of a reply, by its price, its usage, or the estimate; 0.0 for an error without a price and a usage.

        told: dollars in the headers, or None.
        """
        counts, told = dict[str, int](), told_in_reply(reply, before=told)
        add_usage(counts, reply)
        if not counts and not _has_embeddings(reply):
            estimate = Tokens(read=0, written=0)
        if "total" in counts:  # Voyage reports only the total
            counts.setdefault("read", counts["total"])
        used = tokens_of(counts, read=estimate.read, written=0) or estimate
        return charge(used, quoted=told, model=model, lists=self._prices).dollars

    async def ask(self, fields: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
        """Returns (the reply, {} if it is not a JSON object; dollars in its headers or None).

        Raises BrokenReply, and the errors of `reply_pieces`.
        """
        replies, reply = list[Any](), _JsonReply()
        async with aclosing(reply_pieces(self._server, fields, reply=reply)) as groups:  # type: ignore[type-var] # a generator
            async for values in groups:
                replies = replies or values
        return replies[0] if replies and isinstance(replies[0], dict) else {}, reply.told

    def fault(self, error: Exception) -> ServerFault:
        where = f"the server of embeddings{proxy_in_words(self._server.url)}"
        cause = error_line(error, address=where, secrets=self._secrets)
        return ServerFault(cause, failure=failure_of_error(error).without_keys(self._secrets), remedy=None)

    async def close(self) -> None:
        await self._server.close()


endpoints = Endpoints("OpenAI", errors=ERRORS, any_parameter=True)


@endpoints.post(
    "/v1/embeddings",
    rule=TEXTS,
    summary="Pass embeddings on",
    responses={200: object_description("The reply of the configured server.")},
)
async def embeddings(body: EmbeddingsBody, request: Request) -> Response:
    """Pass a request for embeddings on to the server of the setting `embeddings`. Its cost counts in the budgets."""
    server: EmbeddingsServer | None = opened_of(request, "embeddings")
    budgets: Budgets = request.app.state.budgets
    router, caller = router_of(request), caller_of(request)
    if headers_of(request).is_preview:
        remedy = f"leave out the header {PREVIEW}"
        raise Malformed("embeddings have no preview, so nothing was sent", field=PREVIEW, remedy=remedy)
    if server is None:
        raise NotFound("no server of embeddings is configured", remedy="set embeddings.base_url")
    sent, tokens = await body.read(request)
    estimate = Tokens(read=tokens, written=0, estimated=True)
    dollars, tenant = server.price(estimate, model=body.model), caller.tenant or "default"
    await with_budgets(request, _permitted_query(request, tenant=tenant))
    try:
        async with asyncio.timeout(router.settings.budget.seconds), server.slot():
            reservation = await budgets.reserve(tenant, caller=caller, dollars=dollars)
            reply = await _paid_reply(
                server, sent, estimate=estimate, reservation=reservation, database=router.database
            )
    except RagBanditError:
        raise
    except Exception as error:
        raise server.fault(error) from error
    return JsonReply(reply)


def _permitted_query(request: Request, *, tenant: str) -> Query:
    """The request as a query without its texts. Raises Forbidden if a rule hides the texts from the server."""
    router, headers = router_of(request), headers_of(request)
    sent = Sent(surface="openai", agent=headers.agent)
    query = Query(text="", tenant=tenant, api_key=caller_of(request).key, context=headers.context, sent=sent)
    permission = router.service.step(Rules).book.permission(query)
    if permission.models is not None and "embeddings" not in permission.models:
        names = ", ".join(permission.names)
        message = f"the rules {names} do not let the server of embeddings read these texts"
        raise Forbidden(message, field="input", remedy="ask the operator to add embeddings to the models of the rules")
    return query


async def _paid_reply(
    server: EmbeddingsServer, sent: Mapping[str, Any], *, estimate: Tokens, reservation: Reservation, database: Database
) -> dict[str, Any]:
    """Ask the server, and book the cost. Returns its reply. Raises BrokenReply, and the errors of `ask`.

    The reserved estimate stays if the call is cut, late or cancelled. Nothing is booked if the server replies with an
    error or cannot be reached.
    """
    try:
        reply, told = await server.ask(sent)
    except Exception as error:
        if costs_nothing(error):
            await _settle(database, reservation, dollars=0.0)
        raise
    dollars = server.cost(reply, told=told, model=sent["model"], estimate=estimate)
    await _settle(database, reservation, dollars=dollars)
    raise_error(reply)
    if not _has_embeddings(reply):
        raise BrokenReply(server_message(reply) or "the reply has no list of embeddings in its field data")
    return reply


async def _settle(database: Database, reservation: Reservation, *, dollars: float) -> None:
    try:
        await asyncio.to_thread(settle, database, reservation, dollars=dollars)
    except StoreError as error:  # the caller gets the reply even if its cost cannot be booked
        extra = {"action": "embeddings", "dollars": dollars, "reason": error.message}
        log.warning("the cost of embeddings was not booked: the budgets count its estimate", extra=extra)


def _has_embeddings(reply: Mapping[str, Any]) -> bool:
    data = reply.get("data")
    return isinstance(data, list) and all(isinstance(entry, dict) for entry in data)


def input_tokens(given: Any) -> int:
    """Approximate number of tokens in the field `input`: texts, token ids, or objects."""
    size, unread = 0, [given]
    while unread:
        value = unread.pop()
        if isinstance(value, list):
            unread += value
        elif isinstance(value, int):
            size += 1
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            size += estimated_tokens(text)
    return max(1, size)


def _server_of(router: Router) -> EmbeddingsServer | None:
    options = router.settings.of(EmbeddingsSection).embeddings
    return None if options is None else EmbeddingsServer(options)


DOOR: Final = Door(place=30, endpoints=(endpoints,), schemas=(__name__,), open=_server_of)
