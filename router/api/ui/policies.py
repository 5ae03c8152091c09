import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final, cast

from fastapi import Request
from starlette.responses import Response

from ragbandit.router.api.dependencies import reads_of, router_of
from ragbandit.router.api.endpoints import policies
from ragbandit.router.api.endpoints.policies import KillBody, VerbBody, base_of
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.security.rules import COMMAND, READ_ALL
from ragbandit.router.api.ui.rendering import form_of, onward, page
from ragbandit.router.comparison import NOT_KNOWN, Comparison
from ragbandit.router.comparison.plots import ArmSigns, Line, Picture, lines
from ragbandit.router.comparison.words import difference
from ragbandit.router.rollouts.overview import detail, overview, settings_of
from ragbandit.router.rollouts.verbs import CANARY_WEIGHT, MAX_CANARY_WEIGHT, TRANSITIONS, Verb
from ragbandit.router.rollouts.verdicts import comparison_of
from ragbandit.router.serving.explanations.policy_map import policy_map
from ragbandit.router.serving.router import Router
from ragbandit.router.storage import policy_versions as store
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.shared.formats import NOTHING, decimal, number
from ragbandit.shared.types import Json, PolicyVerdict

VERBS: Final[dict[str, str]] = {
    "shadow": "Its probabilities are logged; it serves nothing.",
    "canary": "It gets a share of what is served. Its evidence begins again.",
    "promote": "It decides from the next question on. Without proof by the evidence, force is required.",
    "pause": "It serves nothing and computes nothing until it is resumed.",
    "resume": "It continues in the state in which it was paused.",
    "rollback": "It is removed. If it was the champion, the previous champion decides again.",
    "retire": "It has ended, and its ledger no longer learns.",
}
_DESTRUCTIVE: Final = ("rollback", "retire")
#: order of the list of versions, by state
_ORDER: Final = ("champion", "canary", "shadow", "paused", "draft", "rolled_back", "retired")
#: shares of a canary that the page offers
_SHARES: Final = (CANARY_WEIGHT, 0.1, 0.25, MAX_CANARY_WEIGHT)
MOST_VERSIONS: Final = 100
LISTED: Final = 30

pages = Endpoints()


@pages.get("/ui/policies", rule=READ_ALL)
async def listed(request: Request) -> Response:
    router = router_of(request)
    values = await reads_of(request).run(lambda: _versions(router))
    values["sign"] = ArmSigns(router.service.arms)
    return page(request, "policies.html", title="Policies", **values)


@pages.get("/ui/policies/{name}", rule=READ_ALL)
async def one(name: str, request: Request) -> Response:
    router = router_of(request)
    try:
        values = await reads_of(request).run(lambda: _version(router, name))
    except NotFound:
        if name != router.settings.policy.label:
            raise
        return onward("/ui/policies")  # only the configured policy exists
    return page(request, "policy.html", title=f"Policy {name[:40]}", **values)


@pages.post("/ui/policies/{name}/{verb}", rule=COMMAND)
async def act(name: str, verb: str, request: Request) -> Response:
    form = await form_of(request, "revision", "reason", "force", "weight")
    if verb not in TRANSITIONS:
        raise NotFound(f"{verb!r:.40} is not a verb", field="verb", remedy=f"use one of {', '.join(TRANSITIONS)}")
    if not re.fullmatch("[0-9]{1,15}", form["revision"]):
        raise InvalidInput("the form has no valid revision", field="revision", remedy="load the page again")
    force, revision = form["force"] == "yes", int(form["revision"])
    if form["weight"] not in ("", *map(str, _SHARES)):
        raise InvalidInput("the form has no valid share", field="weight", remedy="choose an entry of the list")
    weight = float(form["weight"] or CANARY_WEIGHT)
    body = VerbBody.model_construct(reason=form["reason"], force=force, revision=revision, weight=weight)
    await policies.move(name, cast(Verb, verb), body, request)
    return onward(f"/ui/policies/{name}")


@pages.post("/ui/switch", rule=COMMAND)
async def switch(request: Request) -> Response:
    form = await form_of(request, "to", "reason")
    target, _, arm = form["to"].partition(":")
    body = KillBody.model_construct(reason=form["reason"], arm=arm or None)
    if target not in ("off", "champion", "arm") or (target == "arm") != bool(arm):
        raise InvalidInput("the kill switch has no such state", field="to", remedy="choose an entry of the list")
    await (policies.unkill(body, request) if target == "off" else policies.kill(body, request))
    return onward("/ui/policies")


def _versions(router: Router) -> dict[str, Any]:
    all_of = overview(router.database, base=base_of(router))
    ordered = sorted(all_of.policies, key=lambda version: (_ORDER.index(version.state), -version.since))
    versions = ordered[:MOST_VERSIONS]
    with router.database.read() as connection:
        verdicts = {version.name: store.verdicts_of(connection, version.name, limit=1) for version in versions}
    champion = next((version for version in versions if version.state == "champion"), None)
    serving = router.settings if champion is None else settings_of(router.settings, champion)
    return {
        "map": policy_map(
            router.database,
            label=serving.policy.label,
            schema=router.settings.context,
            weight=router.settings.reward.weight,
        ),
        "base": base_of(router),
        "champion": champion,
        "algorithm": serving.policy.name,
        "ledger": serving.policy.label,
        "serving": router.service.serving.version,
        "versions": versions,
        "left_out": len(ordered) - len(versions),
        "control": all_of.control,
        "differences": {name: _difference(_comparison(rows)) for name, rows in verdicts.items()},
        "arms": router.service.arms,
    }


def _version(router: Router, name: str) -> dict[str, Any]:
    version = detail(router.database, name, base=base_of(router))
    facts, comparison = dict(version.verdicts[0].facts) if version.verdicts else {}, _comparison(version.verdicts)
    return {
        "version": version,
        "verdicts": _grouped(version.verdicts)[:LISTED],
        "comparison": comparison,
        "course": _course(facts),
        "failures": _failures(facts),
        "allowed": router.settings.rollout.guardrails.failures,
        "shares": _SHARES,
        "difference": _difference(comparison),
        "verbs": [(verb, VERBS[verb], verb in _DESTRUCTIVE) for verb in version.possible],
    }


def _course(facts: Mapping[str, Json]) -> Picture | None:
    """The difference in reward from the champion with its interval, as it grew; None without stored points."""
    points = facts.get("points")
    rows = [[float(number) for number in point[:4]] for point in points] if isinstance(points, list) else []
    if not rows:
        return None
    # Intervals as wide as the range of a quality contain no information, and would set the scale.
    rows = [row for row in rows if row[3] - row[2] < 1.0] or rows[-1:]
    at, gap, low, high = map(list, zip(*rows, strict=True))
    margin = facts.get("margin")
    above = f"the margin {number(margin)}" if isinstance(margin, int | float) and margin else "zero"
    return lines(
        "Difference in reward from the champion",
        at=at,
        series=[Line(name="difference", values=gap, look=(5, 0), band=(low, high))],
        from_zero=True,
        places="Judged decisions",
        note="The interval is valid at every moment, however often you look. The version is rolled back once all of it "
        f"is below zero, and may be promoted while all of it is above {above}.",
    )


def _failures(facts: Mapping[str, Json]) -> str:
    """How much more often than the champion's its answers fail."""
    found = facts.get("failures")
    if not isinstance(found, dict) or found.get("low") is None:
        return NOT_KNOWN
    return f"{decimal(found['low'], sign='+')} to {decimal(found['high'], sign='+')}"


def _grouped(verdicts: Sequence[PolicyVerdict]) -> list[tuple[PolicyVerdict, int, float]]:
    """Group equal neighbours. Returns (newest verdict, number of verdicts, time of the oldest one) of each group."""
    same = groupby(verdicts, key=lambda verdict: (verdict.kind, verdict.state, verdict.weight))
    groups = [list(group) for _, group in same]
    return [(group[0], len(group), group[-1].made_at) for group in groups]


def _comparison(verdicts: Sequence[PolicyVerdict]) -> Comparison | None:
    """The comparison of the newest verdict with the champion."""
    return comparison_of(verdicts[0].facts) if verdicts else None


def _difference(comparison: Comparison | None) -> str:
    """The difference in reward, or what is missing for a verdict."""
    return NOTHING if comparison is None else comparison.missing or difference(comparison.reward)
