"""Report endpoint: what the router spent and at what quality in a time, against always one arm."""

import time
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import Response

from ragbandit.client.replies.report import ReportReply
from ragbandit.router.api.dependencies import documented, reads_of, reports_of, router_of
from ragbandit.router.api.endpoints.overview import UntilQuery
from ragbandit.router.api.schemas.replies import report_json
from ragbandit.router.api.schemas.responses import JsonReply, described
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import report

#: the time that is told of where none is named, seconds
_WEEK_S = 7 * 86_400.0

endpoints = documented("Operations")


@endpoints.get(
    "/v1/report",
    summary="Read what the router earned",
    responses={200: described("The report of the time that was asked for.", ReportReply)},
)
async def read(
    request: Request,
    since: Annotated[
        float | None,
        Query(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since 1970; left out: a week before."),
    ] = None,
    until: UntilQuery = None,
    tenant: Annotated[str | None, Query(max_length=64, description="Of this tenant alone.")] = None,
    against: Annotated[
        str | None,
        Query(
            max_length=64,
            description="The arm to compare with; left out: the holdback's, else the incumbent, else the dearest one "
            "that was tried enough.",
        ),
    ] = None,
) -> Response:
    """Dollars and quality against always one arm, with intervals and a verdict; by arm, tenant, price and week.

    Estimated from the decisions themselves, the newest 200,000 of the time: a week of 100,000 questions takes seconds.
    """
    router, now = router_of(request), time.time()
    end = now if until is None else until
    begin = max(0.0, end - _WEEK_S) if since is None else since
    scope = ReportScope(label=router.ledger.label, since=begin, until=end, tenant=tenant)
    policy = router.settings.policy
    result = await reports_of(request).run(lambda: report(router.database, scope, policy=policy, against=against))
    learning = (await reads_of(request).run(router.status)).learning
    return JsonReply(report_json(result, now=now, learning=None if learning is None else learning.line))
