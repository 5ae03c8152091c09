"""Prompted arms: how an arm of ours is made from its name, its params and its templates, and how it asks with them."""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar, Unpack

from ragbandit.shared.types import ArmName, Json
from ragbandit.strategies.arm_parts.params import PromptParams, public_params, read_params
from ragbandit.strategies.arm_parts.steps import AnswerStyle, Style, read
from ragbandit.strategies.base import Completion, Need
from ragbandit.strategies.prompting.prompts import Showing, ask, load_templates
from ragbandit.strategies.registry import registered_name
from ragbandit.strategies.run import Run

Params = TypeVar("Params", bound=PromptParams)


class PromptedArm(Generic[Params]):
    """Base of the arms that ask a model. Raises ConfigError for params and templates that cannot be used.

    name: of the arm, by default the one under which its class is registered.
    """

    needs: frozenset[Need] = frozenset({"completion", "stop"})
    #: preset name -> the values it stands for
    presets: ClassVar[Mapping[str, Mapping[str, Json]]]
    #: the class of its params
    kind: type[Params]
    #: what a template is used for -> its name, params in braces
    prompts: ClassVar[Mapping[str, str]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            cls.presets = vars(cls)["kind"].presets

    def __init__(self, *, name: str | None = None, **params: Any) -> None:
        self.name = ArmName(name or registered_name(type(self)))
        self._params = read_params(self.kind, given=params, arm=self.name)
        self.params = public_params(self._params)
        named = self._template_names()
        field = f"arms.{self.name}.templates"
        loaded = load_templates(list(named.values()), overrides=self._params.templates, field=field)
        self._templates = {use: loaded[template] for use, template in named.items()}
        self._passage_words: int = getattr(self._params, "passage_words", 350)

    def _template_names(self) -> dict[str, str]:
        """`prompts`, with the params put in."""
        return {use: template.format_map(self.params) for use, template in self.prompts.items()}

    async def _ask(
        self,
        use: str,
        fields: Mapping[str, str],
        *,
        run: Run,
        max_tokens: int,
        purpose: str | None = None,
        stop: tuple[str, ...] = (),
        want: frozenset[Need] = frozenset(),
        **showing: Unpack[Showing],
    ) -> Completion:
        """The completion of `ask` with the template of this use; purpose: its name in the trace, if not the use."""
        showing.setdefault("passage_words", self._passage_words)
        return await ask(
            run,
            template=self._templates[use],
            purpose=purpose or use,
            fields=fields,
            max_tokens=max_tokens,
            stop=stop,
            want=want,
            **showing,
        )

    async def _read(
        self,
        question: str,
        *,
        run: Run,
        style: Style | AnswerStyle,
        use: str = "read",
        fields: Mapping[str, str] | None = None,
        final: bool = True,
        **showing: Unpack[Showing],
    ) -> str:
        """The answer of `read` with the template of this use, which is also its purpose. final: nothing follows."""
        showing.setdefault("passage_words", self._passage_words)
        return await read(
            run,
            question=question,
            template=self._templates[use],
            style=style,
            max_tokens=self._params.max_tokens,
            purpose=use,
            fields=fields,
            final=final,
            **showing,
        )
