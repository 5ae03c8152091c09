"""Operations endpoints: health, readiness, metrics, status."""

import asyncio

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from ragbandit.router.api.dependencies import router_of
from ragbandit.router.api.responses import (
    status_json,
)
from ragbandit.router.api.schemas import REPLIES
from ragbandit.router.errors import QueueError, StoreError
from ragbandit.router.jobs.queue import RedisJobs
from ragbandit.router.serving.router import Router

__all__ = []


def add_operations(app: FastAPI) -> None:
    @app.get("/health", responses=REPLIES["/health"])
    async def health() -> Response:
        """The process is alive."""
        return JSONResponse({"status": "ok"})

    @app.get("/ready", responses=REPLIES["/ready"])
    async def ready(request: Request) -> Response:
        """Everything a request needs is there; 503 names what is not."""
        router = router_of(request)
        parts = await asyncio.to_thread(_parts, router)
        missing = {name: state for name, state in parts.items() if state != "ok"}
        # Without Redis decisions and feedback are still kept; only answers and learning are late.
        hard = set(missing) - {"redis"}
        return JSONResponse({"status": "not ready" if hard else "ok", "parts": parts}, status_code=503 if hard else 200)

    @app.get("/v1/status", responses=REPLIES["/v1/status"])
    async def status(request: Request) -> Response:
        """Counters, lag, snapshot."""
        return JSONResponse(await asyncio.to_thread(status_json, router_of(request)))

    @app.get("/metrics", response_class=Response, responses=REPLIES["/metrics"])
    async def metrics(request: Request) -> Response:
        """Prometheus text."""
        return Response(
            await asyncio.to_thread(request.app.state.meters.text, router_of(request)), media_type=CONTENT_TYPE_LATEST
        )


def _parts(router: Router) -> dict[str, str]:
    parts = {"router": "ok" if router.service.alive() else "its thread has ended", "database": "ok", "redis": "ok"}
    try:
        router.ledger.last_seq()
    except StoreError as error:
        parts["database"] = str(error)
    if isinstance(router.jobs, RedisJobs):
        try:
            router.jobs.ping()
        except QueueError as error:
            parts["redis"] = str(error)
    return parts
