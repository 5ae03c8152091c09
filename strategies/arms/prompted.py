"""What the arms of ours share: params that are checked when a configuration is read, and asking with templates."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import Field

from ragbandit.shared.plugins import check_values
from ragbandit.shared.types import ArmName, Json
from ragbandit.strategies.arms.steps import Style, read
from ragbandit.strategies.base import Completion, Need
from ragbandit.strategies.prompting.prompts import ask, load_templates
from ragbandit.strategies.registry import registered_name
from ragbandit.strategies.run import Run

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
    """Of every arm that asks a model.

    The preset "small" is for local models of a few hundred million parameters, "chat" for large chat models; the others
    have the numbers of the arm's paper ("flan" and "gpt" are Adaptive-RAG's).
    """

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


Params = TypeVar("Params", bound=ArmParams)


class ParamsArm(Generic[Params]):
    """Base of the arms of ours: the params, read out of plain values, presets applied.

    name: of the arm, by default the one under which its class is registered. Types are taken literally: neither "3" nor
    True is a number of rounds. Raises ConfigError with field "arms.<name>.<param>", the value that was given and what
    would be right.
    """

    needs: frozenset[Need] = frozenset()
    #: preset name -> the values it stands for
    presets: ClassVar[Mapping[str, Mapping[str, Json]]]
    #: the class of its params
    kind: type[Params]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls) and cls.kind.presets:
            cls.presets = cls.kind.presets

    def __init__(self, *, name: str | None = None, **params: Any) -> None:
        self.name = ArmName(name or registered_name(type(self)))
        # As they were given: outcomes record the params of their arm, and an int must not become a float there.
        check_values(self.kind, given=params, where=f"arms.{self.name}")
        self._params = self.kind(**{**self.kind.presets.get(params.get("preset", ""), {}), **params})
        self.params: Mapping[str, Json] = MappingProxyType(asdict(self._params))  # type: ignore[call-overload]


Prompted = TypeVar("Prompted", bound=PromptParams)


class PromptedArm(ParamsArm[Prompted]):
    """Base of the arms that ask a model with templates. Raises ConfigError for one that cannot be used."""

    needs: frozenset[Need] = frozenset({"completion", "stop"})
    #: what a template is used for -> its name, params in braces
    prompts: ClassVar[Mapping[str, str]]

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        named = self._template_names()
        field = f"arms.{self.name}.templates"
        loaded = load_templates(list(named.values()), overrides=self._params.templates, field=field)
        self._templates = {use: loaded[template] for use, template in named.items()}
        self._passage_words: int = getattr(self._params, "passage_words", 350)

    def _template_names(self) -> dict[str, str]:
        """`prompts`, with the params put in, and {_long} for what a long answer is asked with."""
        marks = {**self.params, "_long": "_long" if self.params.get("style") == "long" else ""}
        return {use: template.format_map(marks) for use, template in self.prompts.items()}

    async def _ask(
        self, use: str, fields: Mapping[str, str], *, run: Run, purpose: str | None = None, **asked: Any
    ) -> Completion:
        """The completion of `ask` with the template of this use; purpose: its name in the trace, if not the use."""
        asked.setdefault("passage_words", self._passage_words)
        return await ask(run, template=self._templates[use], purpose=purpose or use, fields=fields, **asked)

    async def _read(self, question: str, *, run: Run, use: str = "read", **asked: Any) -> str:
        """The answer of `read` with the template of this use, which is also its purpose, in the arm's style.

        It is the final one unless `final` says otherwise.
        """
        settings = {
            "style": getattr(self._params, "style", "direct"),
            "max_tokens": self._params.max_tokens,
            "passage_words": self._passage_words,
            "final": True,
        }
        template = self._templates[use]
        return await read(run, question=question, template=template, purpose=use, **{**settings, **asked})
