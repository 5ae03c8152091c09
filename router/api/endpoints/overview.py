"""Overview endpoint: what the policy earned and spent in a time."""

import time
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response

from ragbandit.client.replies.overview import OverviewReply
from ragbandit.router.api.dependencies import documented, reads_of, router_of
from ragbandit.router.api.schemas.replies import overview_json
from ragbandit.router.api.schemas.responses import JsonReply, described
from ragbandit.router.serving.overview import HOUR_S, overview

#: the time that is told of where none is named, seconds
_DAY_S = 86_400.0

SinceQuery = Annotated[
    float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since 1970; left out: a day before.")
]
UntilQuery = Annotated[
    float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since 1970; left out: now.")
]
StepQuery = Annotated[
    int,
    Query(ge=HOUR_S, le=400 * 86_400, multiple_of=HOUR_S, description="Seconds of a point, a multiple of 3600."),
]

endpoints = documented("Operations")


@endpoints.get(
    "/v1/overview",
    summary="Read what the policy earned",
    responses={200: described("The time that was asked for.", OverviewReply)},
)
async def read(
    request: Request,
    since: SinceQuery = None,
    until: UntilQuery = None,
    step: StepQuery = HOUR_S,
) -> Response:
    """Reward, quality, cost and traffic over time and by arm.

    The time is widened to whole hours. Read from hourly totals, which are half a minute behind: it costs the same
    in a store of any size.
    """
    router = router_of(request)
    end = time.time() if until is None else until
    begin = max(0.0, end - _DAY_S) if since is None else since
    label = router.ledger.label
    totals = await reads_of(request).run(
        lambda: overview(router.database, policy=label, since=begin, until=end, step=step)
    )
    state = await request.app.state.read_state.value()
    return JsonReply(overview_json(totals, status=state.ledger, queues=state.jobs, workers=state.workers))
