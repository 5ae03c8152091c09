from typing import Final

from fastapi.staticfiles import StaticFiles
from starlette.routing import BaseRoute, Mount

from ragbandit.router.api.ui import decisions, login, operation, policies
from ragbandit.router.api.ui.rendering import STATIC

# page.css belongs to the pages of assessments
_STATIC: Final = StaticFiles(directory=STATIC, packages=[("ragbandit.router.comparison", "static")])
DASHBOARD: Final[tuple[BaseRoute, ...]] = (
    Mount("/ui/static", _STATIC, name="ui-static"),
    *(page for module in (login, decisions, operation, policies) for page in module.pages.routes),
)
