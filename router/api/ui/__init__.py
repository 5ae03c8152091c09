from typing import Final

from fastapi.staticfiles import StaticFiles
from starlette.routing import BaseRoute, Mount

from ragbandit.router.api.ui import decisions, login, operation, policies
from ragbandit.router.api.ui.rendering import STATIC

DASHBOARD: Final[tuple[BaseRoute, ...]] = (
    Mount("/ui/static", StaticFiles(directory=STATIC), name="ui-static"),
    *(page for module in (login, decisions, operation, policies) for page in module.pages.routes),
)
