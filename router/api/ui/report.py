"""The report as the first panel of the overview, and as one page without scripts that can be sent."""

import time
from functools import lru_cache
from typing import Any, Final

from fastapi import Request

from ragbandit.router.api.dependencies import reports_of, router_of
from ragbandit.router.api.ui.rendering import STATIC, environment
from ragbandit.router.reporting import words
from ragbandit.router.reporting.reading import ReportScope
from ragbandit.router.reporting.report import Report, report
from ragbandit.router.serving.explanations.policy_map import PolicyMap
from ragbandit.router.serving.router import Router

#: questions that the panel reads
PANEL_ROWS: Final = 20_000


def shown(result: Report, *, now: float) -> dict[str, Any]:
    """The names of templates/report.html."""
    return {"report": result, "words": words, "sentence": words.sentence(result, now=now)}


async def panel(request: Request, *, seconds: float) -> dict[str, Any]:
    """The report of the last seconds, for a page; it is at most a minute old."""
    minute, router = int(time.time() // 60), router_of(request)
    result = await reports_of(request).run(lambda: _report(router, seconds=seconds, minute=minute))
    return shown(result, now=result.until)


@lru_cache(maxsize=8)
def _report(router: Router, *, seconds: float, minute: int) -> Report:  # noqa: ARG001 - made anew in each
    now = time.time()
    scope = ReportScope(label=router.ledger.label, since=now - seconds, until=now, most=PANEL_ROWS)
    return report(router.database, scope, policy=router.settings.policy)


def report_file(result: Report, *, now: float, learning: str | None, mapped: PolicyMap | None) -> str:
    """The report as one HTML page with its style: nothing is loaded.

    learning: the state of learning. mapped: what the policy does.
    """
    style = (STATIC / "dashboard.css").read_text(encoding="utf-8")
    values = shown(result, now=now) | {"style": style, "learning": learning, "map": mapped}
    page: str = environment().get_template("report_file.html").render(values)
    return page
