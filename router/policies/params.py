"""The params of a policy: a frozen dataclass whose values are checked when a policy is made."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Annotated, ClassVar, Final, TypeVar

from pydantic import Field

from ragbandit.shared.errors import ConfigError
from ragbandit.shared.plugins import check_values
from ragbandit.shared.types import ArmName, Json

#: where params stand in the configuration
WHERE: Final = "policy.params"

# Beyond 1e-12 and 1e12 no param makes sense, and what is made of it might be 0 or no float any more. Whole numbers end
# at 1e9: torch and others take them as 32 bits.
#: a number from 0 to 1e12
Number = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]
#: a number above 0, from 1e-12 to 1e12, so that its inverse is one too
Positive = Annotated[float, Field(ge=1e-12, le=1e12, allow_inf_nan=False)]
#: a number from 0 to 1
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
#: an integer from 0 to 1e9
Whole = Annotated[int, Field(ge=0, le=10**9)]
#: an integer from 1 to 1e9
Count = Annotated[int, Field(ge=1, le=10**9)]
#: text that is not empty
Text = Annotated[str, Field(min_length=1)]
#: the name of an arm
ArmParam = Annotated[ArmName, Field(min_length=1)]


#: the arms that params name by default
NO_RETRIEVAL: Final = ArmName("no_retrieval")
SINGLE_STEP: Final = ArmName("single_step")
MULTI_STEP: Final = ArmName("multi_step")


class PolicyParams:
    """Base of every policy's params dataclass: frozen, keyword-only.

    Ranges are written as `Annotated[int, pydantic.Field(ge=1)]`.
    """

    __slots__ = ()
    #: the fields that name an arm which the policy may draw: each must be among the arms that are there
    arms_named: ClassVar[tuple[str, ...]] = ()


ParamsType = TypeVar("ParamsType", bound=PolicyParams)


def read_params(kind: type[ParamsType], *, given: Mapping[str, Json]) -> ParamsType:
    """The params out of plain values, every field checked by its type, defaults filled in.

    Raises ConfigError with field "policy.params.<param>" for a param that is unknown, needed or out of range.
    """
    checked = check_values(kind, given=given, where=WHERE)
    for each in fields(kind):  # type: ignore[arg-type] # every subclass is a dataclass
        if each.name not in checked and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError("is needed", field=f"{WHERE}.{each.name}", remedy="it has no default: give it a value")
    return kind(**checked)


class HasParams:
    """A policy whose settings are one params dataclass: what it records, and which arms it names."""

    _params: PolicyParams

    def __init__(self, params: PolicyParams) -> None:
        self._params = params

    @property
    def params(self) -> Mapping[str, Json]:
        """The settings it was made with, after defaults, as JSON values; `context` where there is one."""
        plain: dict[str, Json] = asdict(self._params)  # type: ignore[call-overload] # every subclass is a dataclass
        return {name: value for name, value in plain.items() if value or name != "context"}

    @property
    def arms_named(self) -> Mapping[str, ArmName]:
        """Param -> the arm that it names, for the params of arms that the policy may draw."""
        return {name: getattr(self._params, name) for name in self._params.arms_named}
