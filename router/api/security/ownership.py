"""Ownership: a key with a tenant asks for that tenant, and sees and judges that tenant's decisions alone.

Another tenant's decision is to it what a decision that was never made is: the same 404, with the same body.
"""

from collections.abc import Iterable, Mapping, Sequence

from fastapi import Request

from ragbandit.router.api.dependencies import caller_of, reads_of, router_of
from ragbandit.router.api.security.budgets import budgets_of
from ragbandit.router.config.settings import TenantSettings
from ragbandit.router.serving.checks.questions import checked_id
from ragbandit.router.serving.deciding.prices import TERMS, price_terms
from ragbandit.router.storage.decisions.feedback_writes import unknown_decision
from ragbandit.shared.errors import Forbidden
from ragbandit.shared.types import ArmName, Caller, Json, RunBy


def tenant_of(caller: Caller, *, given: str | None) -> str:
    """The tenant of a question. given: tenant in the body, None without one. Raises Forbidden if a key of one tenant
    names another.
    """
    if caller.tenant is None:
        return "default" if given is None else given
    if given is not None and given != caller.tenant:
        message = f"this key belongs to the tenant {caller.tenant}, and asks for another one"
        raise Forbidden(message, field="tenant", remedy="leave the tenant out, or send the key of that tenant")
    return caller.tenant


def permitted_arms(
    arms: tuple[ArmName, ...] | None, *, turns: int | None = None, tenant: str, request: Request, run_by: RunBy
) -> tuple[ArmName, ...] | None:
    """The arms of a question as the caller may ask it: those that it names, or that its key is narrowed to.

    arms, turns: what the caller names, and for how many turns it wants to stay. tenant: the question's. Raises
    Forbidden.
    """
    caller, router = caller_of(request), router_of(request)
    offered = router.service.worker_arms if run_by == "worker" else router.service.arms
    if not may_force(caller, tenant=tenant, tenants=router.settings.tenants):
        allowed = caller.scopes.get("arms")
        whole = {arm for arm in offered if not isinstance(allowed, list) or arm in allowed}
        own = whole - set(router.service.worker_arms)  # the others its code cannot run
        chooses = arms is not None and set(arms).intersection(offered) not in (whole, own or whole)
        _check_unforced(chooses=chooses, turns=turns, sticky_turns=router.settings.conversation.sticky_turns)
    return _narrowed(arms, caller=caller, offered=offered)


def may_force(caller: Caller, *, tenant: str, tenants: Mapping[str, TenantSettings]) -> bool:
    """Whether the caller may choose the arm of a question: the scope `forced`, else whether no budget applies."""
    allowed = caller.scopes.get("forced")
    if isinstance(allowed, bool):
        return allowed
    return not budgets_of(tenant, key=caller.key, scopes=caller.scopes, tenants=tenants)


def _check_unforced(*, chooses: bool, turns: int | None, sticky_turns: int) -> None:
    """Raises Forbidden if the caller chooses the arm, by name or by a longer sticky session, without the right to do
    so. chooses: whether the request names only some of the possible arms. Naming all of them, or all arms that callers
    run, leaves the choice open.
    """
    if chooses:
        raise Forbidden(
            "this caller leaves the choice of the arm to the policy",
            field="arms",
            remedy="leave arms out, name all of them, or use the model auto; under a dollar budget "
            "choosing requires a key with scope forced=true",
        )
    most = max(1, sticky_turns)  # 1 is every turn drawn, as 0 is
    if turns is not None and turns > most:
        raise Forbidden(
            f"this caller leaves the choice to the policy, and may not stay on an arm for {turns} turns",
            field="sticky_turns",
            remedy=f"leave sticky_turns out, or send at most {most} (conversation.sticky_turns); under a dollar budget "
            "more requires a key with scope forced=true",
        )


def _narrowed(
    arms: tuple[ArmName, ...] | None, *, caller: Caller, offered: Sequence[ArmName]
) -> tuple[ArmName, ...] | None:
    allowed = caller.scopes.get("arms")
    if not isinstance(allowed, list):
        return arms
    if arms is None:
        arms = tuple(arm for arm in offered if arm in allowed)
    outside = [arm for arm in arms if arm not in allowed]
    if outside or not arms:
        what = f"the arm {outside[0]!r:.80}" if outside else "any arm that answers here"
        raise Forbidden(f"this key may not use {what}", field="arms", remedy=f"its arms are {', '.join(allowed)}")
    return arms


def noted_prices(request: Request, *, tenant: str) -> dict[str, Json]:
    """Cost weights of the caller's key and tenant, to be stored in a question's `request`; {} without any."""
    terms = price_terms(caller_of(request).scopes, tenant=tenant, settings=router_of(request).settings)
    return {TERMS: terms} if terms else {}


async def strangers(request: Request, ids: Iterable[str]) -> frozenset[str]:
    """Those of these decisions that the caller may not know of: of another tenant, or of none that is stored.

    Empty for a caller of every tenant, for whom the store looks by itself.
    """
    caller = caller_of(request)
    if caller.tenant is None:
        return frozenset()
    wanted, store = sorted(set(ids)), router_of(request).store
    known = await reads_of(request).run(lambda: store.tenants_by_id(wanted))
    return frozenset(key for key in wanted if known.get(key) != caller.tenant)


async def check_owner(request: Request, decision_id: str, *, field: str = "decision_id") -> None:
    """Raises NotFound if the caller may not see this decision, as for an unknown id. field: name of the parameter, for
    InvalidInput if the id is invalid.
    """
    if await strangers(request, [checked_id(decision_id, field=field)]):
        raise unknown_decision()
