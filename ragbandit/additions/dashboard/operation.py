import time
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from fastapi import Request
from starlette.responses import Response

from ragbandit.additions.dashboard.decisions import label_counts
from ragbandit.additions.dashboard.raters import raters_lately
from ragbandit.additions.dashboard.rendering import form_fields, page, redirect_to
from ragbandit.router.api.dependencies import caller_of, reads_of, reports_of, router_of
from ragbandit.router.api.endpoints import verdicts
from ragbandit.router.api.endpoints.operations import current_state, read_or_none
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.requests import body_of
from ragbandit.router.api.security.rules import ADMIN, READ_ALL
from ragbandit.router.comparison import NOT_KNOWN
from ragbandit.router.comparison.assessment import Assessment
from ragbandit.router.comparison.page import template_values
from ragbandit.router.comparison.plots import FEW, ArmSigns, Line, Picture, draw_lines
from ragbandit.router.config.finding import Finding
from ragbandit.router.learning.monitoring.price import cost_unit_of
from ragbandit.router.learning.sources import exclusions_of
from ragbandit.router.learning.status import quarantined_decisions
from ragbandit.router.operation.budget_words import budget_lines
from ragbandit.router.operation.findings import (
    findings_of_ledger,
    findings_of_parts,
    findings_of_settings,
    findings_of_store,
)
from ragbandit.router.reporting import words
from ragbandit.router.reporting.last_verdicts import report_with_last_verdict
from ragbandit.router.reporting.next_steps import options_of, rating_advice, verdict_step
from ragbandit.router.reporting.reading import Report, ReportScope
from ragbandit.router.reporting.unrated_answers import queue_unrated
from ragbandit.router.reporting.verdict_requests import BEGIN_S, GO_ON_S
from ragbandit.router.serving.explanations.policy_map import with_kinds
from ragbandit.router.serving.health.readiness import RouterState
from ragbandit.router.serving.overview import Overview, Point, Totals, mean, overview, totals_of, with_minutes
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.access.api_keys import KeyStore
from ragbandit.router.storage.sql.leases import held_leases
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.texts.formats import duration
from ragbandit.shared.types import ArmTotals

#: largest number of decisions learned from feedback whose raters are counted, newest first
LATELY: Final = 500
LISTED: Final = 50
#: largest number of ledger updates, and of closed decisions, that a list searches for its entries, newest first
LOOKED_AT: Final = 5_000
MOST_WORKERS: Final = 100

pages = Endpoints()


@pages.get("/ui/feedback", rule=READ_ALL)
async def feedback(request: Request) -> Response:
    router = router_of(request)
    values = await reads_of(request).run(lambda: _feedback(router))
    return page(request, "feedback.html", title="Feedback", **values)


@pages.get("/ui/queues", rule=READ_ALL)
async def queues(request: Request) -> Response:
    router = router_of(request)
    state = await read_or_none(current_state(request))
    leases = await reads_of(request).run(lambda: held_leases(router.database))
    findings = _findings_now(router, state)
    is_learned = state is not None and any(worker.queue == "learn" for worker in state.workers or ())
    values: dict[str, Any] = {
        "state": state,
        "findings": findings,
        "is_well": not findings and state is not None and is_learned and all(arm.offered for arm in state.arms),
        "is_learned": is_learned,
        "queues": router.process.queues(),
        "parts": router.process.readiness.states(),
        "leases": leases,
        "most_workers": MOST_WORKERS,
        "sign": ArmSigns(router.service.arms),
    }
    return page(request, "queues.html", title="Queues", **values)


def _feedback(router: Router) -> dict[str, Any]:
    counters = router.status().counters
    return {
        "counters": counters,
        "key_names": KeyStore(router.database).names(),
        "sources": raters_lately(router.ledger, decisions=LATELY, among=LOOKED_AT, limit=LISTED),
        "decisions": LATELY,
        "quarantined": quarantined_decisions(router.ledger, limit=LISTED, newest=LOOKED_AT)
        if counters.quarantined
        else (),
        "looked_at": LOOKED_AT,
        "quarantines": exclusions_of(router.database)[-LISTED:],
        "cap": router.settings.learning.rater_per_day,
        "judge": router.status().judge,
    }


class _Shown(NamedTuple):
    report: Report
    assessment: Assessment
    #: whether a learner can ask for the missing answers, which costs dollars: the page then has a form for it
    can_buy: bool
    #: next step towards a verdict; None if `can_buy` is True, or if the period compares nothing
    command: str | None


@lru_cache(maxsize=8)
def _report(
    router: Router,
    *,
    seconds: float,
    minute: int,  # noqa: ARG001 - the cache lasts a minute
) -> _Shown:
    """The report of the last `seconds` seconds, at most a minute old. minute: the present time in minutes."""
    now, settings = time.time(), router.settings
    scope = ReportScope.of(settings, label=router.ledger.label, since=now - seconds, until=now)
    result = report_with_last_verdict(router.database, scope, policy=settings.policy, now=now)
    ways: dict[str, Any] = {"worker_arms": settings.worker_arms, "judge": settings.judge}
    step = verdict_step(router.database, result, scope, options=options_of(result, now=now), **ways)
    can_buy = step is not None and step.is_ours
    weight = settings.reward.weight
    result = with_kinds(result, router.database, label=scope.label, schema=settings.context, weight=weight)
    shown = words.report_assessment(result, now=now, steps=[rating_advice(result)])
    return _Shown(result, shown, can_buy, None if step is None or can_buy else step.text)


#: largest number of arms in a chart; these are the arms with most decisions
MOST_LINES: Final = 8
#: looks of the first and second line of a chart for all arms together
_LOOKS: Final = ((5, 0), (6, 1))


def points_since_start(history: Overview) -> Sequence[Point]:
    """The points since the first decision; () if there are fewer than two, since one point makes no line."""
    first = next((step for step, point in enumerate(history.points) if point.totals.decided), len(history.points))
    return history.points[first:] if len(history.points) - first > 1 else ()


def _step_words(history: Overview) -> str:
    return {60: "minute", 3_600: "hour"}.get(history.step) or duration(history.step)


def _chart(title: str, history: Overview, *, series: Sequence[Line], unit: str) -> Picture | None:
    """Lines over the points since the first decision; None if no line has a value."""
    at = [point.at for point in points_since_start(history)]
    note = f"Dashed: the latest {_step_words(history)}, not over yet."
    if any(line.counts for line in series):
        note += f" Hollow: fewer than {FEW} ratings."
    return draw_lines(title, xs=at, series=series, unit=unit, times=True, from_zero=True, note=note)


def earned_charts(history: Overview, *, cost_unit: str) -> list[Picture]:
    """Charts with the values of all arms together. cost_unit: unit of the cost that the reward charges."""
    points = points_since_start(history)

    def chart(title: str, unit: str, *, is_of_ratings: bool = False, **fields: str) -> Picture | None:
        counts = [point.totals.learned for point in points] if is_of_ratings else None
        series = [
            Line(name=name, values=[getattr(point.totals, field) for point in points], look=look, counts=counts)
            for (name, field), look in zip(fields.items(), _LOOKS, strict=False)
        ]
        return _chart(title, history, series=series, unit=unit)

    charts = (
        chart("Reward and quality per question", "reward", is_of_ratings=True, reward="reward", quality="quality"),
        chart("Cost per question, as the reward counts it", cost_unit, is_of_ratings=True, cost="cost"),
        chart("Decisions", "", decisions="decided"),
        chart("Latency, 95th percentile", "seconds", latency="p95_s"),
    )
    return [picture for picture in charts if picture is not None]


def arm_charts(history: Overview, *, sign: ArmSigns, cost: Collection[str]) -> list[Picture]:
    """Charts with a line for each arm. cost: terms that the reward charges; if it charges dollars only, a chart of the
    cost would repeat the dollars, and is left out.
    """
    arms = [row.arm for row in history.arms[:MOST_LINES]]
    points, none = points_since_start(history), totals_of(ArmTotals())
    is_dollars = [*cost] == ["dollars"]

    def chart(
        title: str, unit: str, value: Callable[[Totals, Totals], float | None], *, is_of_ratings: bool = False
    ) -> Picture | None:
        """A chart with a line for each arm. value: function of (totals of the arm, totals of all arms)."""
        series = []
        for arm in arms:
            own = [point.arms.get(arm, none) for point in points]
            values = [value(one, point.totals) for one, point in zip(own, points, strict=True)]
            counts = [one.learned for one in own] if is_of_ratings else None
            series.append(Line(name=arm, values=values, look=sign.look(arm), counts=counts))
        return _chart(title, history, series=series, unit=unit)

    cost_title = "Cost per question, as the reward counts it"
    charts = (
        chart("Share of the decisions", "percent", lambda arm, everything: mean(arm.decided, everything.decided)),
        None if is_dollars else chart(cost_title, "", lambda arm, _: arm.cost, is_of_ratings=True),
        chart("Dollars per answer", "dollars", lambda arm, _: mean(arm.dollars, arm.answered + arm.failed)),
        chart("Latency, 95th percentile", "seconds", lambda arm, _: arm.p95_s),
        chart("Failures", "percent", lambda arm, _: arm.failure_share),
    )
    return [picture for picture in charts if picture is not None]


#: name -> (title, length in seconds, seconds between two points)
TIMES: Final[dict[str, tuple[str, float, int]]] = {
    "day": ("last 24 hours", 86_400.0, 3_600),
    "week": ("last 7 days", 7 * 86_400.0, 6 * 3_600),
    "month": ("last 30 days", 30 * 86_400.0, 24 * 3_600),
    "year": ("last 12 months", 360 * 86_400.0, 10 * 24 * 3_600),
}


@pages.get("/ui", rule=READ_ALL)
async def first(request: Request) -> Response:
    router = router_of(request)
    chosen, history = await _history(request)
    state = await read_or_none(current_state(request))
    values = _shared(request, chosen, history)
    tenants, policy = router.settings.tenants, router.settings.policy
    budgets = partial(budget_lines, router.database, tenants=tenants, policy=policy, now=time.time())
    newest, bought = await _newest_report(request, chosen), await verdicts.read_newest(request)
    values |= {
        "state": state,
        "findings": await reads_of(request).run(lambda: _findings(router, state)),
        "budgets": await reads_of(request).run(budgets),
        "charts": earned_charts(history, cost_unit=cost_unit_of(router.settings.reward)),
        "buys": newest.can_buy and caller_of(request).role in (None, "admin"),
        "command": newest.command if newest.report.asked is None and newest.assessment.verdict == NOT_KNOWN else None,
        "waiting": (await label_counts(request)).decisions,
        "has_judge": bool(router.settings.judge.generator or router.settings.reward.check),
        "paired": bought,
        "missing_process": await verdicts.missing_process(request, bought),
        "limit_s": BEGIN_S if bought.state == "waiting" else GO_ON_S,
        "to_rate": newest.report.to_rate if caller_of(request).role in (None, "admin") else None,
        "unpriced": sum(newest.report.unpriced.values()),
        "shown": template_values(newest.assessment, sign=values["sign"]),
    }
    return page(request, "overview.html", title="Overview", **values)


@pages.post("/ui/decide", rule=ADMIN)
async def ask_verdict(request: Request) -> Response:
    form = await form_fields(request, "budget", "since", "until", "against", "judge", "time")
    sent: dict[str, Any] = {name: form[name] or None for name in ("against", "judge")}
    for name in ("budget", "since", "until"):
        try:
            sent[name] = float(form[name]) if form[name] else None
        except ValueError as error:
            raise InvalidInput(f"{form[name]!r:.40} is no number", field=name, remedy="give a number") from error
    if sent["since"] is None:
        sent["since"] = time.time() - TIMES[_time_of(form["time"])][1]
    await verdicts.store_request(request, body_of(verdicts.DecideBody, sent))
    return redirect_to(f"/ui?time={_time_of(form['time'])}")


@pages.post("/ui/rate", rule=ADMIN)
async def queue_ratings(request: Request) -> Response:
    """Queue answers for the page Labels: the shown verdict lacks their ratings."""
    form, router = await form_fields(request, "time"), router_of(request)
    result = (await _newest_report(request, _time_of(form["time"]))).report
    if result.to_rate is not None and result.compared_arm is not None:
        scope = ReportScope(label=router.ledger.label, since=result.since, until=result.until)
        options: dict[str, Any] = {"arm": result.compared_arm, "count": result.to_rate, "now": time.time()}
        await reads_of(request).run(partial(queue_unrated, router.database, scope, **options))
    return redirect_to("/ui/labels")


async def _newest_report(request: Request, chosen: str) -> _Shown:
    """The report of a period and its assessment. chosen: name of the period in TIMES."""
    minute = int(time.time() // 60)
    return await reports_of(request).run(partial(_report, router_of(request), seconds=TIMES[chosen][1], minute=minute))


@pages.get("/ui/arms", rule=READ_ALL)
async def arms(request: Request) -> Response:
    chosen, history = await _history(request)
    values = _shared(request, chosen, history)
    tried = {row.arm for row in history.arms}
    values["untried"] = [arm for arm in router_of(request).service.arms if arm not in tried]
    values["cost_unit"] = cost_unit_of(router_of(request).settings.reward)
    charts = arm_charts(history, sign=values["sign"], cost=router_of(request).settings.reward.cost)
    return page(request, "arms.html", title="Arms", charts=charts, **values)


def _findings(router: Router, state: RouterState | None) -> list[Finding]:
    """Findings: first present faults, then risks of the store and of the settings."""
    findings = _findings_now(router, state)
    findings += findings_of_store(router.database, settings=router.settings, now=time.time())
    return [*findings, *findings_of_settings(router.settings, database=router.database)]


def _findings_now(router: Router, state: RouterState | None) -> list[Finding]:
    """Findings of the parts of this process and of the ledger."""
    findings = findings_of_parts(router.process.readiness.states())
    return findings if state is None else [*findings, *findings_of_ledger(state.ledger)]


def _time_of(name: str | None) -> str:
    """The name of a period in TIMES: `name`, or "day" without a name. Raises InvalidInput for an unknown name."""
    if name and name not in TIMES:
        raise InvalidInput(f"{name!r:.40} is not a time", field="time", remedy=f"use one of {', '.join(TIMES)}")
    return name or "day"


async def _history(request: Request) -> tuple[str, Overview]:
    """Returns (name in TIMES of the period that a page shows, its totals). Raises InvalidInput for an unknown name."""
    chosen = _time_of(request.query_params.get("time"))
    _, length, step = TIMES[chosen]
    router, now = router_of(request), time.time()
    # The first point is a multiple of the step, so all points stay the same if the page is loaded again.
    begin = (now - length) // step * step
    label, database, weight = router.ledger.label, router.database, router.settings.reward.weight
    read = partial(overview, database, policy=label, since=begin, until=now, weight=weight, step=step)
    history = await reads_of(request).run(read)
    if chosen == "day" and not points_since_start(
        history
    ):  # the first decision is less than an hour old, so show minutes
        by_minute = partial(with_minutes, database, history=history, weight=weight, now=now)
        history = await reads_of(request).run(by_minute)
    return chosen, history


def _shared(request: Request, chosen: str, history: Overview) -> dict[str, Any]:
    return {
        "history": history,
        "step": _step_words(history),
        "sign": ArmSigns(router_of(request).service.arms),
        "time": chosen,
        "times": {name: title for name, (title, _, _) in TIMES.items()},
    }
