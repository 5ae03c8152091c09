"""An arm that is a Python object of yours: a function of the question, or a pipeline of a framework.

`object` names it as "package.module:name". An object with one of METHODS is asked by that (LangChain's runnables have
`invoke`, LlamaIndex's query engines `query`, Haystack's pipelines `run`); a function is called with the question, or
without arguments where it takes none: then it makes the object. Methods that wait run on a thread, which a deadline
leaves behind. One answer is one round; of the budget only the seconds can be held here.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.plugins import import_class
from ragbandit.shared.types import ArmName
from ragbandit.strategies.arm_parts.params import ArmParams, public_params, read_params
from ragbandit.strategies.base import Need
from ragbandit.strategies.run import Answer, Run

#: methods that answer a question, the first that is there
METHODS: Final = ("ainvoke", "invoke", "query", "run")
#: where an output that is no text may have it, the first that is there
_TEXTS: Final = ("answer", "output", "response", "content", "text", "replies")
_REMEDY: Final = f"name a function of the question, or an object with one of {', '.join(METHODS)}"
#: outputs inside outputs that are looked into for text
_DEEPEST: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class CallableParams(ArmParams):
    """Settings of callable."""

    #: "package.module:name"
    object: str = ""
    #: what it is given: the question as text; in a mapping, as {"question": ...}; or the conversation as messages,
    #: (role, text) each; "auto": a mapping for `invoke` and `ainvoke`, else text
    input: Literal["auto", "text", "question", "messages"] = "auto"


class CallableArm:
    """Answers by calling a Python object."""

    needs: frozenset[Need] = frozenset()
    retrieves: ClassVar[bool] = False
    generates: ClassVar[bool] = False

    def __init__(self, *, name: str = "callable", **params: object) -> None:
        self.name = ArmName(name)
        self._settings = read_params(CallableParams, given=params, arm=self.name)
        self.params = public_params(self._settings)
        self._call, self._method = _callable(self._settings.object, where=f"arms.{name}.object")

    async def answer(self, question: str, *, run: Run) -> Answer:
        """The object's answer. Raises ArmFailed for an output without text.

        Stop reasons: "answered", "empty_answer" where the text is empty, "budget_rounds" without a round left.
        """
        if not run.begin_round(cap=1):
            return Answer(text="", stop_reason="budget_rounds")
        given = self._input(question, run=run)
        if inspect.iscoroutinefunction(self._call):
            output = await self._call(given)
        else:
            output = await asyncio.to_thread(self._call, given)
            output = await output if inspect.isawaitable(output) else output
        text = _text(output)
        if text is None:
            message = f"the object gave {type(output).__name__}, in which there is no text"
            raise ArmFailed(message, field=f"arms.{self.name}", remedy="let it return text, or a dict with `answer`")
        run.draft = text
        run.show(len(getattr(output, "source_nodes", ())))
        return Answer(text=text, stop_reason="answered" if text else "empty_answer")

    def _input(self, question: str, *, run: Run) -> object:
        kind = self._settings.input
        if kind == "auto":
            kind = "question" if self._method in ("ainvoke", "invoke") else "text"
        if kind == "messages":
            return [*((each.role, each.text) for each in run.query.messages), ("user", question)]
        return {"question": question} if kind == "question" else question


def _callable(path: str, *, where: str) -> tuple[Callable[[Any], Any], str]:
    """What the path names, as a callable of the input, and its method; "": it is a function. Raises ConfigError."""
    if not path:
        raise ConfigError("no object is named", field=where, remedy=_REMEDY)
    named = import_class(path, where=where)
    if inspect.isfunction(named) and not inspect.signature(named).parameters:
        try:
            named = named()
        except Exception as error:  # whatever a function of others does
            message = f"{path!r} cannot be made: {type(error).__name__}: {error}"
            raise ConfigError(message, field=where, remedy="it is called without arguments") from error
    method = next((name for name in METHODS if callable(getattr(named, name, None))), None)
    if method is not None and not inspect.isclass(named):
        return getattr(named, method), method
    if callable(named) and not inspect.isclass(named):
        return named, ""
    message = f"{path!r} is {type(named).__name__}, which cannot be asked a question"
    raise ConfigError(message, field=where, remedy=_REMEDY)


def _text(output: object, *, depth: int = _DEEPEST) -> str | None:
    """The text of an output: itself, or of its _TEXTS as a mapping or as attributes, or of the first of a list."""
    if isinstance(output, str):
        return output
    if output is None or depth == 0:
        return None
    if isinstance(output, Mapping):
        parts: Sequence[object] = [output[name] for name in _TEXTS if name in output] or list(output.values())
    elif isinstance(output, Sequence):
        parts = output
    else:
        parts = [getattr(output, name, None) for name in _TEXTS]
    return next((text for part in parts if (text := _text(part, depth=depth - 1)) is not None), None)
