"""Endpoints of policy versions. Versions are added only on the host, because a policy may be any Python class."""

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import Path as PathParameter, Request
from fastapi.responses import Response
from pydantic import Field

from ragbandit.router.api.dependencies import reads_of, router_of
from ragbandit.router.api.routes import Endpoints
from ragbandit.router.api.schemas.requests import RequestBody, example
from ragbandit.router.api.schemas.responses import JsonReply, reply_description
from ragbandit.router.api.security.actors import actor_of
from ragbandit.router.api.security.rules import COMMAND, READ_ALL
from ragbandit.router.learning.monitoring.arm_changes import ArmChange, declare_change
from ragbandit.router.rollouts import verbs
from ragbandit.router.rollouts.overview import PolicyList, VersionDetail, list_versions, version_detail
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import NotFound
from ragbandit.shared.types import ArmName, PolicyControl, PolicyLabel, PolicyVersion

_NamePath = Annotated[
    str, PathParameter(description="Name of the version.", min_length=1, max_length=40, pattern="^[a-z0-9_]+$")
]
_ArmPath = Annotated[str, PathParameter(description="Name of the arm.", pattern="^[A-Za-z0-9_.-]{1,64}$")]
_VerbPath = Annotated[verbs.Verb, PathParameter(description="What to do.")]
endpoints = Endpoints("Policies")


class ReasonBody(RequestBody):
    """The reason for an action."""

    model_config = example(reason="the provider replaced the model")

    # The pattern requires one visible ASCII character: regex engines differ on which other characters are visible.
    reason: Annotated[str, Field(min_length=1, max_length=verbs.MAX_REASON, pattern="[!-~]")]
    """Reason of the action; the audit log stores it."""


class KillBody(ReasonBody):
    """Effect of the kill switch, and the reason for it."""

    model_config = example(reason="nonsense in the answers")

    arm: str | None = Field(default=None, max_length=64)
    """The arm that gets every question; null if the champion decides."""


class VerbBody(ReasonBody):
    """Parameters of a change of a version's state, and the reason for the change."""

    model_config = example(reason="it looked well in shadow")

    revision: int | None = Field(default=None, ge=1, le=10**15)
    """The revision that you saw: 409 if the version has changed since."""
    force: bool = False
    """For `promote`: promote whatever the evidence says; the audit log notes it with the reason."""


@endpoints.get(
    "/v1/policies",
    rule=READ_ALL,
    summary="List the versions",
    responses={200: reply_description("The versions, and the kill switch.", PolicyList)},
)
async def listed(request: Request) -> Response:
    """List all versions of the policy, oldest first, with their states, and the kill switch."""
    router = router_of(request)
    return JsonReply(await reads_of(request).run(lambda: list_versions(router.database, base=champion_label(router))))


@endpoints.get(
    "/v1/policies/{name}",
    rule=READ_ALL,
    summary="Read a version",
    responses={200: reply_description("The version and the evidence on it.", VersionDetail)},
)
async def shown(name: _NamePath, request: Request) -> Response:
    """Read one version: its comparison with the champion if it is in shadow, and the verbs that are possible now."""
    router = router_of(request)
    read = partial(version_detail, router.database, name, base=champion_label(router), now=time.time())
    return JsonReply(await reads_of(request).run(read))


_SWITCHED: dict[int | str, dict[str, Any]] = {200: reply_description("The switch as it is now.", PolicyControl)}


@endpoints.post("/v1/policies/kill", rule=COMMAND, summary="Activate the kill switch", responses=_SWITCHED)
async def kill(body: KillBody, request: Request) -> Response:
    """Stop all candidates. With `arm` the champion stops too, and that arm gets every question.

    Every process on this database applies the switch from its next decision on.
    """
    throw = partial(verbs.kill, arm=body.arm, offered=tuple(router_of(request).settings.arms))
    return JsonReply(await _act(request, throw, body))


@endpoints.post("/v1/policies/unkill", rule=COMMAND, summary="Take the kill switch back", responses=_SWITCHED)
async def unkill(body: ReasonBody, request: Request) -> Response:
    """Turn the kill switch off: champion and candidates continue in their states."""
    return JsonReply(await _act(request, verbs.unkill, body))


@endpoints.post(
    "/v1/policies/{name}/{verb}",
    rule=COMMAND,
    summary="Move a version",
    responses={200: reply_description("The version as it is now.", PolicyVersion)},
)
async def move(name: _NamePath, verb: _VerbPath, body: VerbBody, request: Request) -> Response:
    """Move a version to another state: shadow, promote, rollback, retire.

    With `revision` the version moves only if it has not changed since: if two operators act at once, one gets 409.
    """
    settings = router_of(request).settings.rollout

    def perform(database: Database, **entry: Any) -> PolicyVersion:
        act = verbs.Act(verb=verb, name=name, force=body.force, revision=body.revision, **entry)
        return verbs.perform(database, act, settings=settings)

    return JsonReply(await _act(request, perform, body))


@endpoints.post(
    "/v1/arms/{arm}/changed",
    rule=COMMAND,
    summary="Declare that an arm has changed",
    responses={200: reply_description("The change.", ArmChange)},
)
async def arm_changed(arm: _ArmPath, body: ReasonBody, request: Request) -> Response:
    """Reset an arm whose implementation has changed: what was learned about it counts less.

    Every ledger resets the arm before it learns the first decision that is made after this moment.
    """
    router = router_of(request)
    offered = tuple(router.settings.arms)
    if arm not in offered:
        raise NotFound(f"the arm {arm!r:.80} is not offered", field="arm", remedy=f"use one of {', '.join(offered)}")
    entry: dict[str, Any] = {"actor": actor_of(request), "reason": body.reason, "now": time.time()}
    return JsonReply(await reads_of(request).run(partial(declare_change, router.database, ArmName(arm), **entry)))


def champion_label(router: Router) -> PolicyLabel:
    return PolicyLabel(router.settings.policy.label)


async def _act(request: Request, act: Callable[..., Any], body: ReasonBody) -> Any:
    router, actor = router_of(request), actor_of(request)
    entry = {"base": champion_label(router), "actor": actor, "reason": body.reason, "now": time.time()}
    return await reads_of(request).run(lambda: act(router.database, **entry))
