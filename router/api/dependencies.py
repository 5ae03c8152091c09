"""Dependencies of the endpoints: the router in use, and waiting for a result without blocking the event loop."""

import asyncio
from concurrent.futures import Future
from typing import TypeVar

from fastapi import Request

from ragbandit.router.errors import NotReady
from ragbandit.router.serving.router import SERVE_S, Router

__all__ = ["Reply"]


Reply = TypeVar("Reply")


def router_of(request: Request) -> Router:
    router: Router = request.app.state.router
    return router


async def awaited(future: "Future[Reply]", *, what: str) -> Reply:
    """What a group replies, or NotReady: the work may still be done, and the same id will find it."""
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), SERVE_S)
    except TimeoutError as error:
        raise NotReady(f"no reply within {SERVE_S:g} s", remedy=f"try again with the same {what}") from error
