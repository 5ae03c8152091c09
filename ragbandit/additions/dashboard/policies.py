import re
import time
from typing import Any, Final, cast

from fastapi import Request
from starlette.responses import Response

from ragbandit.additions.dashboard.rendering import form_fields, page, redirect_to
from ragbandit.router.api.dependencies import reads_of, router_of
from ragbandit.router.api.endpoints import policies
from ragbandit.router.api.endpoints.policies import KillBody, VerbBody, champion_label
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.security.rules import COMMAND, READ_ALL
from ragbandit.router.comparison.plots import ArmSigns
from ragbandit.router.comparison.words import difference
from ragbandit.router.rollouts.overview import list_versions, version_detail
from ragbandit.router.rollouts.verbs import TRANSITIONS, Verb
from ragbandit.router.rollouts.version_settings import settings_of
from ragbandit.router.serving.explanations.policy_map import policy_map
from ragbandit.router.serving.router import Router
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.shared.texts.formats import NOTHING

VERBS: Final[dict[str, str]] = {
    "shadow": "Its probabilities are logged; it serves nothing.",
    "promote": "It decides from the next question on. Without proof by the evidence, force is required.",
    "rollback": "It is retired, and the previous champion decides again.",
    "retire": "It has ended, and its ledger no longer learns.",
}
_DESTRUCTIVE: Final = ("rollback", "retire")
#: order of the list of versions, by state
_ORDER: Final = ("champion", "shadow", "draft", "retired")
MOST_VERSIONS: Final = 100

pages = Endpoints()


@pages.get("/ui/policies", rule=READ_ALL)
async def list_policies(request: Request) -> Response:
    router = router_of(request)
    values = await reads_of(request).run(lambda: _versions(router))
    values["sign"] = ArmSigns(router.service.arms)
    return page(request, "policies.html", title="Policies", **values)


@pages.get("/ui/policies/{name}", rule=READ_ALL)
async def show_policy(name: str, request: Request) -> Response:
    router = router_of(request)
    try:
        values = await reads_of(request).run(lambda: _version(router, name))
    except NotFound:
        if name != router.settings.policy.label:
            raise
        return redirect_to("/ui/policies")  # the configured policy has no version of its own
    return page(request, "policy.html", title=f"Policy {name[:40]}", **values)


@pages.post("/ui/policies/{name}/{verb}", rule=COMMAND)
async def act(name: str, verb: str, request: Request) -> Response:
    form = await form_fields(request, "revision", "reason", "force")
    if verb not in TRANSITIONS:
        raise NotFound(f"{verb!r:.40} is not a verb", field="verb", remedy=f"use one of {', '.join(TRANSITIONS)}")
    if not re.fullmatch("[0-9]{1,15}", form["revision"]):
        raise InvalidInput("the form has no valid revision", field="revision", remedy="load the page again")
    force, revision = form["force"] == "yes", int(form["revision"])
    body = VerbBody.model_construct(reason=form["reason"], force=force, revision=revision)
    await policies.move(name, cast(Verb, verb), body, request)
    return redirect_to(f"/ui/policies/{name}")


@pages.post("/ui/switch", rule=COMMAND)
async def switch(request: Request) -> Response:
    form = await form_fields(request, "to", "reason")
    target, _, arm = form["to"].partition(":")
    body = KillBody.model_construct(reason=form["reason"], arm=arm or None)
    if target not in ("off", "champion", "arm") or (target == "arm") != bool(arm):
        raise InvalidInput("the kill switch has no such state", field="to", remedy="choose an entry of the list")
    await (policies.unkill(body, request) if target == "off" else policies.kill(body, request))
    return redirect_to("/ui/policies")


def _versions(router: Router) -> dict[str, Any]:
    all_of = list_versions(router.database, base=champion_label(router))
    ordered = sorted(all_of.policies, key=lambda version: (_ORDER.index(version.state), -version.since))
    versions = ordered[:MOST_VERSIONS]
    champion = next((version for version in versions if version.state == "champion"), None)
    serving = router.settings if champion is None else settings_of(router.settings, champion)
    return {
        "map": policy_map(
            router.database,
            label=serving.policy.label,
            schema=router.settings.context,
            weight=router.settings.reward.weight,
        ),
        "base": champion_label(router),
        "champion": champion,
        "algorithm": serving.policy.name,
        "ledger": serving.policy.label,
        "serving": router.service.serving.version,
        "versions": versions,
        "left_out": len(ordered) - len(versions),
        "control": all_of.control,
        "arms": router.service.arms,
    }


def _version(router: Router, name: str) -> dict[str, Any]:
    version = version_detail(router.database, name, base=champion_label(router), now=time.time())
    comparison = None if version.evidence is None else version.evidence.comparison
    return {
        "version": version,
        "comparison": comparison,
        "difference": NOTHING if comparison is None else comparison.missing or difference(comparison.reward),
        "verbs": [(verb, VERBS[verb], verb in _DESTRUCTIVE) for verb in version.possible],
    }
