"""Search endpoint: POST /v1/search, the passages that arms which search would read."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fastapi import Request
from fastapi.responses import Response

from ragbandit.client.replies.decisions import SearchReply
from ragbandit.router.api.dependencies import caller_of, documented, router_of
from ragbandit.router.api.schemas.requests import MAX_HITS, SearchBody
from ragbandit.router.api.schemas.responses import JsonReply, described
from ragbandit.router.serving.batching.micro_batching import SERVE_S
from ragbandit.router.serving.checks.fields import checked_text
from ragbandit.shared.errors import Forbidden, InvalidInput, NotReady, Overloaded, RagBanditError
from ragbandit.shared.formats import known_choices
from ragbandit.shared.types import Source

log = logging.getLogger("ragbandit.api")

#: for a text, at most that many passages of the retriever of this name, best first
Search = Callable[[str, int, str], Awaitable[Sequence[Source]]]
#: searches at a time; more are refused
MOST: Final = 32

endpoints = documented("Decisions")


@endpoints.post("/v1/search", summary="Search the corpus", responses={200: described("The passages.", SearchReply)})
async def search(body: SearchBody, request: Request) -> Response:
    """Find the passages of the service's own corpus for a query, best first. Nothing is stored.

    The process of the service opens the configured retriever at the first search.
    """
    text, state = checked_text(body.query, field="query"), request.app.state
    if not 1 <= body.k <= MAX_HITS:
        raise InvalidInput(f'"k" is out of range: {body.k}', field="k", remedy=f"send a number from 1 to {MAX_HITS}")
    if body.retriever not in (known := router_of(request).settings.named_retrievers):
        remedy = known_choices(known, given=body.retriever)
        raise InvalidInput(f"there is no retriever {body.retriever!r:.80}", field="retriever", remedy=remedy)
    if "arms" in caller_of(request).scopes:
        raise Forbidden("this key is narrowed to arms, and may not search beside them", remedy="ask by /v1/answer")
    if state.searches >= MOST:
        raise Overloaded(
            f"{MOST} searches are running already, so this one was refused", remedy="try again in a second"
        )
    state.searches += 1
    try:
        async with asyncio.timeout(SERVE_S):
            return JsonReply({"passages": await state.search(text, body.k, body.retriever)})
    except (TimeoutError, RagBanditError) as error:  # it may name paths and addresses of the service's host
        log.error("the corpus cannot be searched", extra={"action": "search", "reason": str(error) or "time is up"})
        raise NotReady("the corpus cannot be searched", remedy="the log of the service has the reason") from error
    finally:
        state.searches -= 1
