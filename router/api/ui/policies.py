"""Pages of policies: versions with their states, what each waits for, its evidence, and the verbs."""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from ragbandit.router.api.dependencies import reads_of, router_of
from ragbandit.router.api.endpoints import policies
from ragbandit.router.api.endpoints.policies import KillBody, VerbBody, base_of
from ragbandit.router.api.ui.rendering import ArmSigns, form_of, onward, page
from ragbandit.router.rollouts.overview import detail, overview, settings_of
from ragbandit.router.rollouts.verbs import TRANSITIONS, Verb
from ragbandit.router.serving.explanations.policy_map import policy_map
from ragbandit.router.serving.router import Router
from ragbandit.router.storage import policy_versions as store
from ragbandit.shared.errors import InvalidInput, NotFound
from ragbandit.shared.types import PolicyVerdict

#: effect of every verb, as its button has it
VERBS: Final[dict[str, str]] = {
    "shadow": "Its probabilities are logged beside the champion's; it serves nothing.",
    "canary": "It gets its first share of what is served.",
    "step": "It gets the next share of what is served.",
    "promote": "It decides from the next question on. Without proof by the evidence this needs force.",
    "pause": "It serves and computes nothing until it is resumed.",
    "resume": "It continues in the state in which it was paused.",
    "rollback": "It is taken out; of a champion, the one before decides again.",
    "retire": "It has ended, and its ledger no longer learns.",
}
_HARSH: Final = ("rollback", "retire")
#: in which versions are listed, and how many
_ORDER: Final = ("champion", "canary", "shadow", "paused", "draft", "rolled_back", "retired")
MOST_VERSIONS: Final = 100
#: rows of verdicts that a page lists
LISTED: Final = 30

pages = APIRouter(include_in_schema=False)


@pages.get("/ui/policies")
async def listed(request: Request) -> Response:
    """All versions, and the switch."""
    router = router_of(request)
    values = await reads_of(request).run(lambda: _versions(router))
    values["sign"] = ArmSigns(router.service.arms)
    return page(request, "policies.html", title="Policies", **values)


@pages.get("/ui/policies/{name}")
async def one(name: str, request: Request) -> Response:
    """One version with its evidence."""
    router = router_of(request)
    try:
        values = await reads_of(request).run(lambda: _version(router, name))
    except NotFound:
        if name != router.settings.policy.label:
            raise
        return onward("/ui/policies")  # no version beside the configuration was ever made
    return page(request, "policy.html", title=f"Policy {name[:40]}", **values)


@pages.post("/ui/policies/{name}/{verb}")
async def act(name: str, verb: str, request: Request) -> Response:
    """Move a version."""
    given = await form_of(request, "revision", "reason", "force")
    if verb not in TRANSITIONS:
        raise NotFound(f"{verb!r:.40} is no verb", field="verb", remedy=f"use one of {', '.join(TRANSITIONS)}")
    if not re.fullmatch("[0-9]{1,15}", given["revision"]):
        raise InvalidInput("the form does not say what was seen", field="revision", remedy="load the page again")
    force, revision = given["force"] == "yes", int(given["revision"])
    body = VerbBody.model_construct(reason=given["reason"], force=force, revision=revision)
    await policies.move(name, cast(Verb, verb), body, request)
    return onward(f"/ui/policies/{name}")


@pages.post("/ui/switch")
async def switch(request: Request) -> Response:
    """Activate the kill switch, or take it back."""
    given = await form_of(request, "to", "reason")
    what, _, arm = given["to"].partition(":")
    body = KillBody.model_construct(reason=given["reason"], arm=arm or None)
    if what not in ("off", "champion", "arm") or (what == "arm") != bool(arm):
        raise InvalidInput("the switch cannot be set to that", field="to", remedy="choose one of the list")
    await (policies.unkill(body, request) if what == "off" else policies.kill(body, request))
    return onward("/ui/policies")


def _versions(router: Router) -> dict[str, Any]:
    all_of = overview(router.database, base=base_of(router))
    ordered = sorted(all_of.policies, key=lambda one: (_ORDER.index(one.state), -one.since))
    versions = ordered[:MOST_VERSIONS]
    with router.database.read() as connection:
        newest = {one.name: next(iter(store.verdicts_of(connection, one.name, limit=1)), None) for one in versions}
    champion = next((one for one in versions if one.state == "champion"), None)
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
        "differences": {name: _difference(verdict) for name, verdict in newest.items()},
        "missing": {name: None if one is None else one.facts.get("missing") for name, one in newest.items()},
        "arms": router.service.arms,
    }


def _version(router: Router, name: str) -> dict[str, Any]:
    settings = router.settings.rollout
    version = detail(router.database, name, base=base_of(router), settings=settings)
    newest = next(iter(version.verdicts), None)
    facts = {} if newest is None else dict(newest.facts)
    guardrails = facts.get("guardrails")
    return {
        "version": version,
        "verdicts": _grouped(version.verdicts)[:LISTED],
        "facts": facts,
        "guardrails": guardrails if isinstance(guardrails, dict) else {},
        "difference": _difference(newest),
        "rows_per_step": settings.rows_per_step,
        "verbs": [(verb, VERBS[verb], verb in _HARSH) for verb in version.possible],
    }


def _grouped(verdicts: Sequence[PolicyVerdict]) -> list[tuple[PolicyVerdict, int, float]]:
    """Verdicts that say the same one after the other as one: the newest, how many there are, and when the first was."""
    same = groupby(verdicts, key=lambda one: (one.kind, one.reason, one.state, one.weight))
    groups = [list(group) for _, group in same]
    return [(group[0], len(group), group[-1].made_at) for group in groups]


def _difference(verdict: PolicyVerdict | None) -> dict[str, float] | None:
    """The difference in reward with its bounds, where the verdict knows all three."""
    if verdict is None:
        return None
    facts = {name: verdict.facts.get(name) for name in ("low", "difference", "high")}
    numbers = {name: float(value) for name, value in facts.items() if isinstance(value, int | float)}
    return numbers if len(numbers) == len(facts) else None
