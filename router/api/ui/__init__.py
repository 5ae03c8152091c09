from typing import Final

from fastapi import Request
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response

from ragbandit.router.api.routes import Endpoint, Endpoints
from ragbandit.router.api.security.rules import EVERYBODY
from ragbandit.router.api.ui import decisions, operation, policies
from ragbandit.router.api.ui.rendering import STATIC

# page.css belongs to the pages of assessments
_STATIC: Final = StaticFiles(directory=STATIC, packages=[("ragbandit.router.comparison", "static")])
_files = Endpoints()


@_files.get("/ui/static/{path:path}", rule=EVERYBODY)
async def _file(path: str, request: Request) -> Response:
    return await _STATIC.get_response(path, request.scope)


DASHBOARD: Final[tuple[Endpoint, ...]] = (
    *_files.routes,
    *(page for module in (decisions, operation, policies) for page in module.pages.routes),
)
