from typing import Final

from fastapi import Request
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

from ragbandit.additions.dashboard import decisions, operation, policies
from ragbandit.additions.dashboard.rendering import STATIC, page_error, page_headers
from ragbandit.router.api.door import Door
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.security.rules import EVERYBODY, is_page

# pages of assessments share page.css, so it lies in the core
_STATIC: Final = StaticFiles(directory=STATIC, packages=[("ragbandit.router.comparison", "static")])
_files = Endpoints()


@_files.get("/ui/static/{path:path}", rule=EVERYBODY)
async def _file(path: str, request: Request) -> Response:
    return await _STATIC.get_response(path, request.scope)


def _shows_pages(scope: Scope) -> bool:
    """Whether a request is for a page, and its port has pages."""
    return is_page(scope["path"]) and scope["app"].state.routes.has_pages


DOOR: Final = Door(
    place=100,
    endpoints=(_files, decisions.pages, operation.pages, policies.pages),
    speaks=_shows_pages,
    error=page_error,
    headers=page_headers,
)
