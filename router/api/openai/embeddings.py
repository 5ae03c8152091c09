"""Embeddings: passed on to one configured server. Nothing is chosen; the cost counts in the budgets."""

import asyncio
import logging
import time
from contextlib import aclosing
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from ragbandit.router.api.dependencies import caller_of, router_of
from ragbandit.router.api.endpoints.decisions import paced
from ragbandit.router.api.openai.chats import storable
from ragbandit.router.api.openai.errors import ServerFault
from ragbandit.router.api.openai.requests import configured
from ragbandit.router.api.reading import read_body
from ragbandit.router.api.schemas.responses import JsonReply
from ragbandit.router.config.named_sections import errors_of
from ragbandit.router.storage.access.spending import book, spenders_of
from ragbandit.shared.errors import NotFound, StoreError
from ragbandit.shared.model_servers.failures import failure_of_error
from ragbandit.shared.model_servers.openai_client import ModelServer, cause_of, connect, reply_values
from ragbandit.shared.model_servers.openai_options import OpenAiOptions, base_url_of, check_options, checked_key
from ragbandit.shared.model_servers.outbound import credentials_of
from ragbandit.shared.model_servers.token_usage import add_usage, dollars_of, tokens_of
from ragbandit.shared.types import Query

log = logging.getLogger("ragbandit.api")


class EmbeddingsBody(BaseModel):
    """A request for embeddings; all fields are passed on."""

    model_config = configured(model="text-embedding-3-small", input=["Who wrote Dracula?"])

    model: str
    """A model of the configured server."""
    input: Any
    """Texts or tokens."""


def embeddings_server(options: OpenAiOptions | None) -> ModelServer | None:
    """The server of the setting `embeddings`; None without one. Raises ConfigError."""
    if options is None:
        return None
    with errors_of("embeddings", kind="generator.openai"):
        check_options(options, model=next(iter(options.token_prices), ""))
        key, headers = checked_key(options), options.headers
    times = {"connect_s": min(5.0, options.read_s), "read_s": options.read_s}
    return connect(base_url=options.base_url, key=key, headers=headers, path="/embeddings", **times)


async def embedded(request: Request, body: EmbeddingsBody) -> Response:
    """Pass a request on. Raises NotFound without a server, BudgetSpent, and ServerFault if the server fails."""
    server, router, caller = request.app.state.embeddings, router_of(request), caller_of(request)
    options, seconds = router.settings.embeddings, router.settings.budget.seconds
    if server is None or options is None:
        raise NotFound("no server of embeddings is configured", remedy="set embeddings.base_url")
    sent = await read_body(request, lambda: {name: storable(value, field=name) for name, value in body})
    counts = dict[str, int]()
    tenant, prices = caller.tenant or "default", options.token_prices
    await paced(request, Query(text="", tenant=tenant, api_key=caller.key))
    try:
        async with asyncio.timeout(seconds):
            async with aclosing(reply_values(server, sent)) as values:  # type: ignore[type-var] # a generator
                reply, *_ = [value async for value in values]
        add_usage(counts, reply)
        tokens, dollars = tokens_of(counts, read=0, written=0), dollars_of(reply.get("usage") or {})
    except Exception as error:
        secrets = [*options.headers.values(), *credentials_of(base_url_of(options)), checked_key(options) or ""]
        cause = cause_of(error, address="the server of embeddings", secrets=secrets)
        raise ServerFault(cause, failure=failure_of_error(error), remedy=None) from error
    if dollars is None and tokens is not None and body.model in prices:
        dollars = tokens.dollars(prices[body.model])
    spenders = spenders_of(tenant, key=caller.key)
    try:
        await asyncio.to_thread(book, router.database, spenders, dollars=dollars or 0.0, now=time.time())
    except StoreError as error:  # the reply is not lost to a count
        extra = {"action": "embeddings", "dollars": dollars, "reason": error.message}
        log.warning("the cost of embeddings could not be counted in the budgets", extra=extra)
    return JsonReply(reply)
