"""Models: the names under which the service can be asked, and what each of them is."""

import time
from typing import Final

from ragbandit.router.api.openai.errors import ModelNotFound
from ragbandit.router.api.openai.replies import Model, ModelList
from ragbandit.router.api.security.ownership import may_force
from ragbandit.router.serving.router import Router
from ragbandit.shared.types import ArmName, Caller

#: the model that lets the policy choose
AUTO: Final = "auto"
_OWN: Final = "ragbandit"
_FORCING: Final = ("arm/", f"{_OWN}/")
#: models have no age of their own: the start of this process
_STARTED: Final = int(time.time())


def model_list(router: Router, *, caller: Caller) -> ModelList:
    """`auto`, and one model for each arm that our workers run and this caller may choose; or none."""
    allowed = caller.scopes.get("arms")
    arms = [arm for arm in router.service.worker_arms if not isinstance(allowed, list) or arm in allowed]
    tenant = caller.tenant or "default"
    forced = arms if may_force(caller, tenant=tenant, tenants=router.settings.tenants) else []
    names = [AUTO, *(f"arm/{arm}" for arm in forced)] if arms else []
    return {"object": "list", "data": [_model(name) for name in names]}


def model_of(name: str, *, router: Router) -> Model:
    """The model of this name. Raises ModelNotFound."""
    forced_arm(name, router=router, field=None)
    return _model(name)


def forced_arm(name: str, *, router: Router, field: str | None = "model") -> ArmName | None:
    """The arm that this model is, or None for the one that lets the policy choose. Raises ModelNotFound.

    field: the parameter that named it.
    """
    if name in (AUTO, _OWN, f"{_OWN}/{AUTO}"):
        return None
    arms = router.service.worker_arms
    for prefix in _FORCING:
        arm = ArmName(name.removeprefix(prefix))
        if name.startswith(prefix) and arm in arms:
            return arm
        if name.startswith(prefix) and arm in router.service.arms:
            message = f"the arm {arm!r:.80} is run by your own stack (run_by: caller), so there is no answer of it here"
            raise ModelNotFound(message, field=field, remedy="route the question by POST /v1/route, and run the arm")
    known = ", ".join([AUTO, *(f"arm/{arm}" for arm in arms)])
    raise ModelNotFound(f"there is no model {name!r:.80}", field=field, remedy=f"known here: {known}")


def _model(name: str) -> Model:
    return {"id": name, "object": "model", "created": _STARTED, "owned_by": _OWN}
