"""Ownership: a key of a tenant sees only that tenant's decisions; all others are unknown to it (404)."""

from collections.abc import Iterable, Mapping, Sequence

from fastapi import Request

from ragbandit.router.api.dependencies import caller_of, reads_of, router_of
from ragbandit.router.config.server import TenantSettings
from ragbandit.router.operation.budgets import budgets_of
from ragbandit.router.serving.checks.questions import checked_id
from ragbandit.router.serving.prices import price_terms
from ragbandit.router.serving.router import Router
from ragbandit.router.storage.decisions.feedback_writes import unknown_decision
from ragbandit.shared.errors import Forbidden
from ragbandit.shared.types import CHOOSES_ARM, UNITS, ArmName, Caller, DecisionUnit, RunBy, Terms


def tenant_of(caller: Caller, *, given: str | None) -> str:
    """The tenant of a question. given: tenant in the body. Raises Forbidden if the key belongs to another tenant."""
    if caller.tenant is None:
        return "default" if given is None else given
    if given is not None and given != caller.tenant:
        message = f"this key belongs to the tenant {caller.tenant}, and asks for another one"
        raise Forbidden(message, field="tenant", remedy="leave the tenant out, or send the key of that tenant")
    return caller.tenant


def permitted_arms(
    arms: tuple[ArmName, ...] | None,
    *,
    unit: DecisionUnit | None,
    door: str = "route",
    tenant: str,
    caller: Caller,
    router: Router,
    run_by: RunBy,
) -> tuple[ArmName, ...] | None:
    """The arms that may be drawn for a question; None for all. Raises Forbidden. unit: the unit that the request asks
    for, "turn" or "task"; None for the unit of the key or of this door's settings.
    """
    offered = router.service.worker_arms if run_by == "worker" else router.service.arms
    if not may_force(caller, tenant=tenant, tenants=router.settings.tenants):
        allowed = caller.scopes.get("arms")
        all_arms = {arm for arm in offered if not isinstance(allowed, list) or arm in allowed}
        caller_arms = all_arms - set(router.service.worker_arms)  # arms that only the caller's own code runs
        chooses = arms is not None and set(arms).intersection(offered) not in (all_arms, caller_arms or all_arms)
        configured = unit_of(caller, given=None) or router.settings.conversation.unit_of(door)
        _check_unforced(chooses=chooses, unit=unit, configured=configured)
    return _arms_of_key(arms, caller=caller, offered=offered)


def unit_of(caller: Caller, *, given: DecisionUnit | None) -> DecisionUnit | None:
    """The unit of a caller's question: the key's unit, else `given`. Raises Forbidden if both are set and differ."""
    scope = caller.scopes.get("unit")
    if scope not in UNITS:
        return given
    if given not in (None, scope):
        message, remedy = f"this key has the unit {scope}", f"leave unit out, or send {scope}"
        raise Forbidden(message, field="unit", remedy=remedy)
    return scope


def may_force(caller: Caller, *, tenant: str, tenants: Mapping[str, TenantSettings]) -> bool:
    """Whether the caller may choose the arm. The key's scope CHOOSES_ARM decides; without it, no budget may apply."""
    allowed = caller.scopes.get(CHOOSES_ARM)
    if isinstance(allowed, bool):
        return allowed
    if not (tenants or caller.scopes):
        return True
    return not budgets_of(tenant, key=caller.key, scopes=caller.scopes, tenants=tenants)


def _check_unforced(*, chooses: bool, unit: DecisionUnit | None, configured: DecisionUnit) -> None:
    """Raises Forbidden if the caller chooses the arm, or another unit than the configured one. chooses: whether the
    request limits the arms. Naming all arms that are offered, or all that callers run, is no limit.
    """
    if chooses:
        raise Forbidden(
            "this caller may not choose the arm: the policy chooses",
            field="arms",
            remedy="leave arms out, name all of them, or use the model auto; under a dollar budget "
            f"choosing requires a key with scope {CHOOSES_ARM}=true",
        )
    if unit not in (None, configured):
        raise Forbidden(
            f"this caller may not choose the unit {unit}: the service decides what one draw is for",
            field="unit",
            remedy=f"leave unit out, or send {configured} (conversation.unit); under a dollar budget another unit "
            f"requires a key with scope {CHOOSES_ARM}=true",
        )


def _arms_of_key(
    arms: tuple[ArmName, ...] | None, *, caller: Caller, offered: Sequence[ArmName]
) -> tuple[ArmName, ...] | None:
    allowed = caller.scopes.get("arms")
    if not isinstance(allowed, list):
        return arms
    if arms is None:
        arms = tuple(arm for arm in offered if arm in allowed)
    outside = [arm for arm in arms if arm not in allowed]
    if outside or not arms:
        refused = f"the arm {outside[0]!r:.80}" if outside else "any arm that answers here"
        raise Forbidden(f"this key may not use {refused}", field="arms", remedy=f"its arms are {', '.join(allowed)}")
    return arms


def terms_of_caller(caller: Caller, *, tenant: str, router: Router) -> Terms:
    """The cost weights of the caller's key and tenant."""
    settings = router.settings
    return price_terms(caller.scopes, tenant=settings.tenant(tenant), named=settings.cost_weights)


async def inaccessible_ids(request: Request, ids: Iterable[str]) -> frozenset[str]:
    """Ids that are unknown, or of decisions that the caller may not see. Empty if the caller may see all tenants; the
    store then reports unknown ids itself.
    """
    caller = caller_of(request)
    if caller.tenant is None:
        return frozenset()
    distinct_ids, store = sorted(set(ids)), router_of(request).store
    tenants = await reads_of(request).run(lambda: store.tenants_by_id(distinct_ids))
    return frozenset(decision_id for decision_id in distinct_ids if tenants.get(decision_id) != caller.tenant)


async def check_owner(request: Request, decision_id: str, *, field: str = "decision_id") -> None:
    """Raises NotFound if the caller may not see the decision, and InvalidInput if the id is not valid."""
    if await inaccessible_ids(request, [checked_id(decision_id, field=field)]):
        raise unknown_decision()
