"""The settings of an arm: a frozen dataclass whose values are checked when a configuration is read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Annotated, ClassVar, TypeVar

from pydantic import Field

from ragbandit.shared.plugins import check_values
from ragbandit.shared.types import ArmName, Json
from ragbandit.strategies.arm_parts.steps import Style

#: numbers of things, from 1 and from 0; a probability
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


def preset_table(names: str, **rows: tuple[Json, ...]) -> Mapping[str, Mapping[str, Json]]:
    """Preset -> param -> value, from the names of the params and a row of values for each preset."""
    return {preset: dict(zip(names.split(), row, strict=True)) for preset, row in rows.items()}


class ArmParams:
    """Base of every arm's params dataclass. Ranges are written as `Annotated[int, pydantic.Field(ge=1)]`."""

    __slots__ = ()
    #: preset name -> the values it stands for; values given beside `preset` win
    presets: ClassVar[Mapping[str, Mapping[str, Json]]] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptParams(ArmParams):
    """Of every arm that asks a model."""

    #: tokens of the answer
    max_tokens: Count = 32
    #: own prompts: template name -> text, or path of a file
    templates: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class PassageParams(PromptParams):
    """Of every arm that shows passages."""

    #: words of one passage in a prompt
    passage_words: Count = 350


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderParams(PassageParams):
    """Of every arm whose last step is a reader of passages."""

    #: of the reader
    style: Style = "direct"


ParamsType = TypeVar("ParamsType", bound=ArmParams)


def read_params(kind: type[ParamsType], *, given: Mapping[str, Json], arm: ArmName) -> ParamsType:
    """The params of an arm out of plain values, presets applied.

    Types are taken literally: neither "3" nor True is a number of rounds.
    Raises ConfigError with field "arms.<arm>.<param>", the value that was given and what would be right.
    """
    # As they were given: outcomes record the params of their arm, and an int must not become a float there.
    check_values(kind, given=given, where=f"arms.{arm}")
    preset = given.get("preset")
    return kind(**{**(kind.presets.get(preset, {}) if isinstance(preset, str) else {}), **given})


def public_params(params: ArmParams) -> Mapping[str, Json]:
    """The params as plain, read-only values, after defaults and presets: what `Strategy.params` shows."""
    return MappingProxyType(asdict(params))  # type: ignore[call-overload]
