"""A policy with another one inside: what both share of params, context, and saved state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ragbandit.router.config.context_schema import ContextSchema
from ragbandit.router.policies.base import (
    Arrays,
    Facts,
    Policy,
    PolicyNeed,
    policy_age,
    restart,
    schema_of,
    tolerance_of,
)
from ragbandit.router.policies.context.schema import read_schema
from ragbandit.router.policies.params import HasParams, PolicyParams, Text
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import ArmName, Json

#: the arrays of the policy inside are saved under their names with this before them
_INNER: Final = "inner/"


@dataclass(frozen=True, kw_only=True, slots=True)
class WrappingParams(PolicyParams):
    """Settings of the policy inside."""

    #: the policy that is wrapped, and its params; any but this one
    policy: Text = "mba"
    params: Mapping[str, Any] | None = None
    #: what the setting `context` declares: for the policy inside, among whose params it is recorded
    context: Mapping[str, Any] | None = None


class WrappingPolicy(HasParams):
    """Makes the policy inside, and passes on what only that one knows."""

    takes_context: ClassVar[bool] = True
    #: policies that cannot be inside, with the message and the remedy
    refuses: ClassVar[Mapping[str, tuple[str, str]]] = {}

    def __init__(self, settings: WrappingParams) -> None:
        super().__init__(settings)
        if settings.policy in self.refuses:
            message, remedy = self.refuses[settings.policy]
            raise ConfigError(message, field="policy.params.policy", remedy=remedy)
        self.inner = _made(settings.policy, params=settings.params or {}, context=settings.context)
        self.needs: frozenset[PolicyNeed] = self.inner.needs
        self.deterministic: bool = self.inner.deterministic

    @property
    def inner_params(self) -> Mapping[str, Json]:
        """The policy inside with all its params, as this one's params record them."""
        return {"policy": self.inner.algorithm, "params": dict(self.inner.params)}

    @property
    def arms_named(self) -> Mapping[str, ArmName]:
        """Its own, and those of the policy inside."""
        inside = {f"params.{name}": arm for name, arm in self.inner.arms_named.items()}
        return {**super().arms_named, **inside}

    @property
    def schema(self) -> ContextSchema:
        """That of the policy inside."""
        return schema_of(self.inner)

    @property
    def tolerance(self) -> float:
        """That of the policy inside."""
        return tolerance_of(self.inner)

    @property
    def noise(self) -> float | None:
        """That of the policy inside, where it has one."""
        noise: float | None = getattr(self.inner, "noise", None)
        return noise

    @property
    def alarms(self) -> Mapping[ArmName, int]:
        """Those of the policy inside."""
        alarms: Mapping[ArmName, int] = getattr(self.inner, "alarms", {})
        return alarms

    def age(self, arm: ArmName) -> float:
        """Rows of an arm since the policy inside began it anew."""
        return policy_age(self.inner, arm)

    def restart(self, arm: ArmName) -> None:
        """The policy inside begins the arm anew, if it can."""
        restart(self.inner, arm)

    def inner_state(self) -> tuple[Arrays, dict[str, Json]]:
        """The state of the policy inside, its arrays under "inner/"."""
        arrays, facts = self.inner.state()
        return {f"{_INNER}{name}": array for name, array in arrays.items()}, facts

    def restore_inner(self, arrays: Arrays, facts: Facts) -> None:
        """Have the policy inside take over its part of saved arrays, and its facts; it checks them."""
        self.inner.restore({n.removeprefix(_INNER): a for n, a in arrays.items() if n.startswith(_INNER)}, facts)


def own_arrays(arrays: Arrays) -> Arrays:
    """The saved arrays that are not of the policy inside."""
    return {name: array for name, array in arrays.items() if not name.startswith(_INNER)}


def _made(policy: str, *, params: Mapping[str, Json], context: Mapping[str, Json] | None) -> Policy:
    """The policy inside; an error of its params has the field `policy.params.params`."""
    from ragbandit.router.policies import make_policy, with_settings  # the registry imports the policies

    try:
        return make_policy(policy, params=with_settings(policy, params=params, schema=read_schema(context)))
    except ConfigError as error:
        field = (error.field or "").replace("policy.params.", "policy.params.params.", 1)
        field = "policy.params.policy" if field == "policy.name" else field
        raise ConfigError(error.message, field=field, remedy=error.remedy) from error
