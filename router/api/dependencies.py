"""Dependencies of the endpoints: the router in use, shared parameters, and waiting without blocking the event loop."""

import asyncio
from concurrent.futures import Future
from typing import Annotated, TypeVar

from fastapi import Header, Request

from ragbandit.router.errors import NotReady
from ragbandit.router.serving.micro_batching import SERVE_S
from ragbandit.router.serving.router import Router

__all__ = ["IdempotencyKey", "awaited", "router_of"]

Reply = TypeVar("Reply")

IdempotencyKey = Annotated[
    str | None,
    Header(
        description="Your own id of the request, instead of `decision_id` or `feedback_id` in the body: the same "
        "request sent again under the same id gives the same reply, another request under it is a conflict (409)."
    ),
]


def router_of(request: Request) -> Router:
    """The app's router."""
    router: Router = request.app.state.router
    return router


async def awaited(future: "Future[Reply]", *, what: str) -> Reply:
    """The Future's result, or NotReady after SERVE_S seconds: the work may still be done, and the same id finds it."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), SERVE_S)
    except TimeoutError as error:
        raise NotReady(f"no reply within {SERVE_S:g} s", remedy=f"try again with the same {what}") from error
