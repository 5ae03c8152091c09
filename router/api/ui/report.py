"""The report as the first panel of the overview, and as one page without scripts that can be sent."""

import time
from functools import partial
from typing import Any, Final

from fastapi import Request

from ragbandit.router.api.dependencies import reads_of, router_of
from ragbandit.router.api.ui.rendering import STATIC, environment
from ragbandit.router.reporting import words
from ragbandit.router.reporting.reading import Asked
from ragbandit.router.reporting.report import Report, ReportCache, report

#: questions that the panel reads
PANEL_ROWS: Final = 20_000
_KEPT: Final = ReportCache()


def shown(found: Report, *, now: float) -> dict[str, Any]:
    """The names of templates/report.html."""
    return {"report": found, "words": words, "sentence": words.sentence(found, now=now)}


async def panel(request: Request, *, seconds: float) -> dict[str, Any]:
    """The report of the last seconds, for a page; it is at most a minute old."""
    router, now = router_of(request), time.time()
    asked = Asked(label=router.ledger.label, since=now - seconds, until=now, most=PANEL_ROWS)
    make = partial(report, router.database, asked, policy=router.settings.policy)
    found = await reads_of(request).run(lambda: _KEPT.get((id(router), seconds), make))
    return shown(found, now=found.until)


def report_file(found: Report, *, now: float) -> str:
    """The report as one HTML page with its style: nothing is loaded."""
    style = (STATIC / "dashboard.css").read_text(encoding="utf-8")
    page: str = environment().get_template("report_file.html").render(shown(found, now=now) | {"style": style})
    return page
