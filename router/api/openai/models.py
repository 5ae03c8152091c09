"""Models: the names under which the service can be asked, and what each of them is."""

import math
import time
from dataclasses import dataclass
from typing import Final

from ragbandit.router.api.openai.errors import ModelNotFound
from ragbandit.router.api.openai.replies import Model, ModelList
from ragbandit.router.api.security.ownership import may_force
from ragbandit.router.policies.base import serves_prices
from ragbandit.router.serving.deciding.question import price_terms
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import ArmName, Caller

#: the model that lets the policy choose
AUTO: Final = "auto"
_OWN: Final = "ragbandit"
_FORCING: Final = ("arm/", f"{_OWN}/")
#: models have no age of their own: the start of this process
_STARTED: Final = int(time.time())


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelChoice:
    """What a request asks for by the name of its model: an arm, or the policy's choice, at a named price or not."""

    arm: ArmName | None = None
    price: str | None = None


def model_list(router: Router, *, caller: Caller) -> ModelList:
    """`auto`, `auto:<price>` for each price and one model for each arm that this caller may choose; or none."""
    allowed = caller.scopes.get("arms")
    arms = [arm for arm in router.service.worker_arms if not isinstance(allowed, list) or arm in allowed]
    tenant = caller.tenant or "default"
    forced = arms if may_force(caller, tenant=tenant, tenants=router.settings.tenants) else []
    names = [*_chosen_by_policy(router, caller=caller), *(f"arm/{arm}" for arm in forced)] if arms else []
    return {"object": "list", "data": [_model(name) for name in names]}


def _chosen_by_policy(router: Router, *, caller: Caller | None = None) -> list[str]:
    """`auto`, and the prices that the policy can serve and the caller may have; None: any caller."""
    prices = router.settings.prices if serves_prices(router.service.serving.policy) else {}
    terms = (
        {}
        if caller is None
        else price_terms(caller.scopes, tenant=caller.tenant or "default", settings=router.settings)
    )
    among = terms.get("cost_weights")
    least, largest = among if isinstance(among, list) else (0.0, math.inf)
    return [AUTO, *(f"{AUTO}:{name}" for name, weight in prices.items() if least <= weight <= largest)]


def model_of(name: str, *, router: Router) -> Model:
    """The model of this name. Raises ModelNotFound."""
    choice_of(name, router=router, field=None)
    return _model(name)


def choice_of(name: str, *, router: Router, field: str | None = "model") -> ModelChoice:
    """What this model is. Raises ModelNotFound. field: the parameter that named it."""
    if name in (AUTO, _OWN, f"{_OWN}/{AUTO}"):
        return ModelChoice()
    known = _chosen_by_policy(router)
    if name.removeprefix(f"{_OWN}/") in known:
        return ModelChoice(price=name.rpartition(":")[2])
    arms = router.service.worker_arms
    for prefix in _FORCING:
        arm = ArmName(name.removeprefix(prefix))
        if name.startswith(prefix) and arm in arms:
            return ModelChoice(arm=arm)
        if name.startswith(prefix) and arm in router.service.arms:
            message = f"the arm {arm!r:.80} is run by your own stack (run_by: caller), so there is no answer of it here"
            raise ModelNotFound(message, field=field, remedy="route the question by POST /v1/route, and run the arm")
    names = ", ".join([*known, *(f"arm/{arm}" for arm in arms)])
    raise ModelNotFound(f"there is no model {name!r:.80}", field=field, remedy=f"known here: {names}")


def _model(name: str) -> Model:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": _OWN}
