"""The first page: what the service earns, and whether it is well."""

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from ragbandit.router.api.dependencies import router_of
from ragbandit.router.api.ui.operation import state_or_none
from ragbandit.router.api.ui.rendering import ArmSigns, page

__all__ = ["add_overview_pages"]


def add_overview_pages(app: FastAPI) -> None:
    """Put /ui on the app."""

    @app.get("/ui", include_in_schema=False)
    async def overview(request: Request) -> Response:
        router = router_of(request)
        values: dict[str, Any] = {
            "state": await state_or_none(request),
            "parts": router.with_policy(router.readiness.states()),
            "sign": ArmSigns(router.service.arms),
        }
        return await page(request, "overview.html", title="Overview", **values)
