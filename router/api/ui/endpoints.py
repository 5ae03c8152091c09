"""Endpoints of the dashboard: all pages, and the files that they use."""

from pathlib import Path
from typing import Final

from fastapi.staticfiles import StaticFiles
from starlette.routing import BaseRoute, Mount

from ragbandit.router.api.ui import decisions, login, operation, overview, policies

#: scripts, styles and pictures of the pages
STATIC = Path(__file__).parent / "static"
DASHBOARD: Final[tuple[BaseRoute, ...]] = (
    Mount("/ui/static", StaticFiles(directory=STATIC), name="ui-static"),
    *(page for module in (login, overview, decisions, operation, policies) for page in module.pages.routes),
)
