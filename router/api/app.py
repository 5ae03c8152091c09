import asyncio
import base64
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import State
from starlette.types import Receive, Scope, Send
from swagger_ui_bundle import swagger_ui_path

from ragbandit.router.api.dependencies import ReadPool, SharedRead
from ragbandit.router.api.doors import DOORS
from ragbandit.router.api.edge import Edge, cors, plain_paths
from ragbandit.router.api.endpoints import feedback, operations
from ragbandit.router.api.metrics import Metrics
from ragbandit.router.api.routes import Endpoint, Endpoints, table_of_port
from ragbandit.router.api.schemas.openapi import add_descriptions, add_limits
from ragbandit.router.api.schemas.responses import JsonReply
from ragbandit.router.api.security.gate import Gate
from ragbandit.router.api.security.key_ring import KeyRing
from ragbandit.router.api.security.page_headers import HEADERS
from ragbandit.router.api.security.rate_limiter import RateLimiter
from ragbandit.router.api.security.rules import DOCUMENTATION, PAGES, AccessRule
from ragbandit.router.operation.pacing import Budgets
from ragbandit.router.serving.batching import SERVE_S
from ragbandit.router.serving.router import Router
from ragbandit.router.serving.setup.bootstrap import record_config
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.telemetry import make_tracing
from ragbandit.router.telemetry.tracing import Tracing
from ragbandit.shared.errors import NotReady

_DESCRIPTION = """\
RagBandit chooses, for every question, the answering strategy ("arm") that is worth its cost, and learns from feedback.

Either your own pipelines answer: `POST /v1/route`, run the arm, `POST /v1/outcomes`. Or our workers answer:
`POST /v1/answer`. In both cases `POST /v1/feedback` judges the answer. Every error has the same shape, with a stable
`code`, the `field` and a `remedy`.
"""
_TAGS: Final[list[dict[str, Any]]] = [
    {"name": door.endpoints[0].tag, "description": door.description} for door in DOORS.values() if door.description
]
_SCHEMAS: Final = tuple(module for door in DOORS.values() for module in door.schemas)

#: blocking reads run on READ_THREADS threads; if MAX_READS reads run or wait already, another one is refused
READ_THREADS, MAX_READS = 8, 256


class _Objects(State):
    """The app's objects as plain attributes, since starlette's State calls a function for each access."""

    __setattr__ = object.__setattr__  # type: ignore[assignment] # it takes any name, too


class Service(FastAPI):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.state = _Objects()
        self._edge = plain_paths(cors(Edge(state=self.state), state=self.state))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.pass_to_edge(scope, receive, send)

    def pass_to_edge(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass requests to the edge. FastAPI only starts and stops the app, and documents the endpoints."""
        if scope["type"] == "lifespan":
            return super().__call__(scope, receive, send)
        scope["app"] = self
        return self._edge(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        api = add_descriptions(super().openapi(), further=_SCHEMAS)
        router = getattr(self.state, "router", None)
        return api if router is None else add_limits(api, router=router, most_items=feedback.MAX_BATCH)


def create_app(open_router: Callable[[], Router], *, begin: Callable[[Tracing], object] | None = None) -> Service:
    """Make the app, which opens its Router when it starts. begin: called with the Tracing before the first request."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state = app.state
        state.router = router = await asyncio.to_thread(open_router)
        state.tracing = make_tracing(enabled=router.settings.telemetry.enabled, process="service")
        state.read_state = SharedRead(router.state, name="state", limit_s=operations.PROBE_S)
        state.read_budgets = operations.shared_budget_shares(router)
        state.metrics = Metrics(router)
        await asyncio.to_thread(record_config, router.database, router.settings)
        if begin is not None:
            begin(state.tracing)
        try:
            async with _objects_of_loop(app):
                yield
        finally:
            state.read_state.close()
            state.read_budgets.close()
            await asyncio.to_thread(router.close)
            await asyncio.to_thread(state.tracing.close)

    return _app(lifespan)


def operators_app(app: Service) -> Service:
    """Make the app that server.admin_port serves: it shares the Router of `app`, but has its own event loop."""

    @asynccontextmanager
    async def lifespan(operators: FastAPI) -> AsyncIterator[None]:
        for name in ("router", "tracing", "read_state", "read_budgets", "metrics"):  # all of these are thread-safe
            setattr(operators.state, name, getattr(app.state, name))
        async with _objects_of_loop(operators):
            yield

    operators = _app(lifespan)
    operators.state.port = "operators"
    return operators


@asynccontextmanager
async def _objects_of_loop(app: FastAPI) -> AsyncIterator[None]:
    """Open the objects that belong to one event loop, and close them in the end."""
    state, router = app.state, app.state.router
    server = router.settings.server
    state.routes = table_of_port(ENDPOINTS, port=state.port, dashboard=server.dashboard)
    state.reads = ReadPool(threads=READ_THREADS, most=MAX_READS, limit_s=SERVE_S)
    # Reports have their own thread, so that short reads do not wait for reports. A second thread would cost memory: the
    # C library keeps the freed memory of a report for the thread that made the report.
    state.reports = ReadPool(threads=1, most=MAX_READS, limit_s=SERVE_S)
    key_headers = [name for door in DOORS.values() for name in door.key_headers]
    state.gate = Gate(KeyRing(KeyStore(router.database)), server=server, key_headers=key_headers)
    with contextlib.suppress(NotReady):  # read the keys now, in case the database fails later
        await state.gate.ring.in_force()
    state.rate_limiter = RateLimiter(router.settings.redis, rates=server.rate_limits)
    state.budgets = Budgets(router, reads=state.reads)
    state.metrics.limiters.append(state.rate_limiter)
    state.opened = {name: door.open(router) for name, door in DOORS.items() if door.open is not None}
    try:
        yield
    finally:
        for opened in filter(None, state.opened.values()):
            await opened.close()
        await state.rate_limiter.close()
        state.gate.ring.close()
        state.reads.close()
        state.reports.close()


def _app(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> Service:
    app = Service(
        title="RagBandit",
        version="1",
        description=_DESCRIPTION,
        openapi_tags=_TAGS,
        lifespan=lifespan,
        openapi_url=None,
    )
    app.state.port = "all"  # one app serves all paths, unless server.admin_port makes it two: "public" and "operators"
    app.openapi_version = "3.0.3"  # the newest version of OpenAPI that the bundled Swagger UI reads
    app.router.routes.extend(ENDPOINTS)
    return app


_pages = Endpoints()
_SWAGGER: Final = StaticFiles(directory=swagger_ui_path)


@_pages.get("/", rule=AccessRule(None, on_both_ports=True))
async def _root(request: Request) -> Response:
    pages = PAGES if request.app.state.routes.has_pages else "/docs"
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(pages, status_code=307)
    paths = {"pages": pages, "docs": "/docs", "openapi": "/openapi.json"}
    root = request.scope.get("root_path", "")
    return JsonReply({"service": "ragbandit"} | {name: root + path for name, path in paths.items()})


@_pages.get("/openapi.json", rule=DOCUMENTATION)
async def _openapi(request: Request) -> Response:
    root = request.scope.get("root_path")
    return JsonReply(request.app.openapi() | ({"servers": [{"url": root}]} if root else {}))


@_pages.get("/docs/assets/{path:path}", rule=DOCUMENTATION)
async def _assets(path: str, request: Request) -> Response:
    return await _SWAGGER.get_response(path, request.scope)


@_pages.get("/docs", rule=DOCUMENTATION)
async def _docs(request: Request) -> Response:
    """The page /docs. Its script and styles are local files; FastAPI's own page loads them from the internet."""
    root = request.scope.get("root_path", "")
    page = get_swagger_ui_html(
        openapi_url=f"{root}/openapi.json",
        title="RagBandit",
        swagger_js_url=f"{root}/docs/assets/swagger-ui-bundle.js",
        swagger_css_url=f"{root}/docs/assets/swagger-ui.css",
        swagger_favicon_url=f"{root}/docs/assets/favicon-32x32.png",
    )
    # No other site may show this page in a frame, since it could trick people into clicking "Try it out". Swagger UI
    # needs one inline script, allowed here by its hash, and inline styles.
    (script,) = re.findall(rb"<script>(.*?)</script>", bytes(page.body), flags=re.DOTALL)
    hashed = base64.b64encode(hashlib.sha256(script).digest()).decode()
    inline = f"script-src 'self' 'sha256-{hashed}'; style-src 'self' 'unsafe-inline'; "
    page.headers.update(HEADERS | {"content-security-policy": inline + HEADERS["content-security-policy"]})
    return page


#: all endpoints, in the order of /docs
ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *(route for door in DOORS.values() for endpoints in door.endpoints for route in endpoints.routes),
    *_pages.routes,
)
