"""Base classes of built-in arms: they check the params when the configuration is read, and fill prompt templates."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field

from ragbandit.shared.plugins import check_values
from ragbandit.shared.types import ArmName, Json
from ragbandit.strategies.arm_parts.steps import Style, read
from ragbandit.strategies.base import Completion, Need
from ragbandit.strategies.prompting.prompts import PACKAGE, ask, load_templates, template_names
from ragbandit.strategies.registry import registered_name
from ragbandit.strategies.run import Run

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
#: source of an arm's prompts: "paper" keeps structure, fields, criteria and number of demonstrations of the arm's paper
#: in our own words, see docs/strategies.md; "ours" suits models of a few hundred million parameters, and chats
PromptSource = Literal["ours", "paper"]


def preset_table(names: str, **rows: tuple[Json, ...]) -> Mapping[str, Mapping[str, Json]]:
    """Returns preset -> param -> value. names: params, separated by spaces. rows: preset -> values of these params."""
    return {preset: dict(zip(names.split(), row, strict=True)) for preset, row in rows.items()}


class ArmParams:
    """Base of the params dataclasses of arms. Declare ranges as `Annotated[int, pydantic.Field(ge=1)]`."""

    __slots__ = ()
    #: preset -> param -> value. The user's own values of params take precedence
    presets: ClassVar[Mapping[str, Mapping[str, Json]]] = {}
    #: params that later releases added -> default. Defaults of these params are not recorded, so the arm stays the same
    later: ClassVar[Mapping[str, Json]] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptParams(ArmParams):
    """Params of arms that call a model.

    The preset "small" is for local models of a few hundred million parameters, "chat" for large chat models. The other
    presets have the numbers of a paper; "flan" and "gpt" are from Adaptive-RAG. With them, an arm with the param
    `prompts` also has the prompts of that paper.
    """

    max_tokens: Count = 32
    #: replacements of prompts: name of a template -> its text, or the path of a file
    templates: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class PassageParams(PromptParams):
    passage_words: Count = 350  #: maximum number of words of a passage in a prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderParams(PassageParams):
    style: Style = "direct"


Params = TypeVar("Params", bound=ArmParams)


class ParamsArm(Generic[Params]):
    """Base of built-in arms: checks the params and applies presets.

    name: name of the arm, by default the registered name of its class. Values are not converted: neither "3" nor True
    is a number of rounds. Raises ConfigError with field "arms.<name>.<param>".
    """

    needs: frozenset[Need] = frozenset()
    #: values for checks of the contract, of params whose types imply no value other than the default
    example: ClassVar[Mapping[str, Any]] = {}
    presets: ClassVar[Mapping[str, Mapping[str, Json]]]
    kind: type[Params]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls) and cls.kind.presets:
            cls.presets = cls.kind.presets

    def __init__(self, *, name: str | None = None, **params: Any) -> None:
        self.name = ArmName(name or registered_name(type(self)))
        # Values are not converted, because outcomes record the params, and an int must not become a float.
        check_values(self.kind, given=params, where=f"arms.{self.name}")
        self._params = self.kind(**{**self.kind.presets.get(params.get("preset", ""), {}), **params})
        values: dict[str, Json] = asdict(self._params)  # type: ignore[call-overload]
        later = {name for name, default in self.kind.later.items() if values[name] == default}
        self.params: Mapping[str, Json] = MappingProxyType({name: values[name] for name in values if name not in later})


Prompted = TypeVar("Prompted", bound=PromptParams)


class PromptedArm(ParamsArm[Prompted]):
    """Base of arms that call a model with templates. Raises ConfigError for a template that cannot be used."""

    needs: frozenset[Need] = frozenset({"completion", "stop"})
    #: purpose of a prompt in the arm -> name of its template. {param} is replaced by the value of this param
    prompts: ClassVar[Mapping[str, str]]
    #: templates for the param `prompts: paper`. If a style has no such template, its template in `prompts` is used
    paper_prompts: ClassVar[Mapping[str, str]] = {}
    #: package whose folder `templates` has prompts of the arm, besides those that every arm may use
    package: ClassVar[str] = PACKAGE

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        names = self._template_names()
        field = f"arms.{self.name}.templates"
        overrides = self._params.templates
        loaded = load_templates(list(names.values()), overrides=overrides, field=field, package=self.package)
        self._templates = {use: loaded[template] for use, template in names.items()}
        self._passage_words: int = getattr(self._params, "passage_words", 350)

    def _template_names(self) -> dict[str, str]:
        """Fill the params into `prompts`, and for `prompts: paper` into `paper_prompts`."""
        marks = self._marks()
        names = {use: template.format_map(marks) for use, template in self.prompts.items()}
        if self._from_paper:
            paper = {use: template.format_map(marks) for use, template in self.paper_prompts.items()}
            names |= {use: name for use, name in paper.items() if name in template_names(self.package)}
        return names

    def _marks(self) -> dict[str, Json]:
        """The params, {_long}: "_long" in styles of a paragraph, {_news}: "_news" in the style "news"; otherwise ""."""
        style = self.params.get("style")
        is_long = style in ("long", "news")
        return {**self.params, "_long": "_long" if is_long else "", "_news": "_news" if style == "news" else ""}

    @property
    def _from_paper(self) -> bool:
        return getattr(self._params, "prompts", "ours") == "paper"

    async def _ask(
        self, use: str, fields: Mapping[str, str], *, run: Run, purpose: str | None = None, **options: Any
    ) -> Completion:
        """Call `ask` with the template `prompts[use]`. purpose: name of the call in the trace, by default `use`."""
        options.setdefault("passage_words", self._passage_words)
        return await ask(run, template=self._templates[use], purpose=purpose or use, fields=fields, **options)

    async def _read(self, question: str, *, run: Run, use: str = "read", **options: Any) -> str:
        """Call `read` with the template `prompts[use]`, in the arm's style, for the final answer."""
        defaults = {
            "style": getattr(self._params, "style", "direct"),
            "max_tokens": self._params.max_tokens,
            "passage_words": self._passage_words,
            "final": True,
        }
        return await read(run, question=question, template=self._templates[use], purpose=use, **{**defaults, **options})
