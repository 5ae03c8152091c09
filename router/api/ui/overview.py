"""The first pages: what the service earns, whether it is well, and what each arm does."""

import time
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ragbandit.router.api.dependencies import reads_of, router_of
from ragbandit.router.api.ui.charts import arm_charts, earned_charts
from ragbandit.router.api.ui.operation import state_or_none
from ragbandit.router.api.ui.rendering import ArmSigns, page
from ragbandit.router.api.ui.report import panel
from ragbandit.router.learning.monitoring.costs import costs_alike
from ragbandit.router.serving.overview import Overview, mean, overview
from ragbandit.router.serving.router import Router
from ragbandit.shared.errors import InvalidInput

#: name -> (words, seconds, seconds of a point)
TIMES: Final[dict[str, tuple[str, float, int]]] = {
    "day": ("last 24 hours", 86_400.0, 3_600),
    "week": ("last 7 days", 7 * 86_400.0, 6 * 3_600),
    "month": ("last 30 days", 30 * 86_400.0, 24 * 3_600),
    "year": ("last 12 months", 360 * 86_400.0, 10 * 24 * 3_600),
}

pages = APIRouter(include_in_schema=False)


@pages.get("/ui")
async def first(request: Request) -> Response:
    """What the service earns."""
    router = router_of(request)
    chosen, history = await _history(request)
    values: dict[str, Any] = {
        "costs_alike": await reads_of(request).run(lambda: _alike(router)),
        "state": await state_or_none(request),
        "parts": router.readiness.states(),
        "charts": earned_charts(history),
        **await panel(request, seconds=TIMES[chosen][1]),
    }
    return await page(request, "overview.html", title="Overview", **values, **_shared(request, chosen, history))


@pages.get("/ui/arms")
async def arms(request: Request) -> Response:
    """What each arm does."""
    chosen, history = await _history(request)
    values = _shared(request, chosen, history)
    known = {one.arm for one in history.arms}
    values["untried"] = [arm for arm in router_of(request).service.arms if arm not in known]
    return await page(request, "arms.html", title="Arms", charts=arm_charts(history), **values)


def _alike(router: Router) -> str | None:
    return costs_alike(router.database, reward=router.settings.reward, arms=router.service.arms)


async def _history(request: Request) -> tuple[str, Overview]:
    """The time that a page is about, and its totals."""
    chosen = request.query_params.get("time") or "day"
    if chosen not in TIMES:
        raise InvalidInput(f"{chosen!r:.40} is no time", field="time", remedy=f"use one of {', '.join(TIMES)}")
    _, length, step = TIMES[chosen]
    router, now = router_of(request), time.time()
    # The beginning of a step, so that points do not move while a page is looked at again.
    begin = (now - length) // step * step
    label, database = router.ledger.label, router.database
    history = await reads_of(request).run(lambda: overview(database, policy=label, since=begin, until=now, step=step))
    return chosen, history


def _shared(request: Request, chosen: str, history: Overview) -> dict[str, Any]:
    return {
        "history": history,
        "mean": mean,
        "sign": ArmSigns(router_of(request).service.arms),
        "time": chosen,
        "times": {name: words for name, (words, _, _) in TIMES.items()},
    }
