"""Calls a user's pipeline that is a Python object."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.plugins import import_class
from ragbandit.strategies.arm_parts.prompted import ArmParams, ParamsArm
from ragbandit.strategies.functions import FunctionCalls
from ragbandit.strategies.run import Answer, Run

#: names of methods that answer a question, in the order in which they are tried
METHODS: Final = ("ainvoke", "invoke", "query", "run")
#: keys or attributes under which the text of an output is searched, in this order
_TEXTS: Final = ("answer", "output", "response", "content", "text", "replies")
_REMEDY: Final = f"name a function of the question, or an object with one of {', '.join(METHODS)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallableParams(ArmParams):
    object: str = ""  #: import path of the object, "package.module:name"
    #: argument of the call: "text" gives the question as text, "question" gives {"question": ...}, "messages" gives the
    #: conversation as a list of (role, text). "auto" is "question" for the methods `invoke` and `ainvoke`, else "text"
    input: Literal["auto", "text", "question", "messages"] = "auto"


class CallableArm(ParamsArm[CallableParams]):
    arm: ClassVar[str] = "callable"
    is_form: ClassVar[bool] = True
    example: ClassVar = {"object": "json:dumps"}
    retrieves: ClassVar[bool] = False
    generates: ClassVar[bool] = False
    kind = CallableParams

    def __init__(self, **params: Any) -> None:
        super().__init__(**params)
        self._call, self._method = self._callable(where=f"arms.{self.name}.object")
        self._calls = FunctionCalls(self._call, arm=self.name)

    async def answer(self, question: str, *, run: Run) -> Answer:
        """Stop reasons: "answered", "empty_answer" if the text is empty, "budget_rounds" if the budget has no round."""
        if not run.begin_round(cap=1):
            return Answer(text="", stop_reason="budget_rounds")
        output = await self._output(question, run=run)
        text = output_text(output)
        if text is None:
            message = f"the object returned {type(output).__name__} without text"
            raise ArmFailed(message, field=f"arms.{self.name}", remedy="return text, or a dict with `answer`")
        run.draft = text
        run.show(len(getattr(output, "source_nodes", ())))
        return Answer(text=text, stop_reason="answered" if text else "empty_answer")

    def _callable(self, *, where: str) -> tuple[Callable[[Any], Any], str]:
        """Returns what `asking_function` returns for the configured object. Subclasses may ask another object."""
        if not self._params.object:
            raise ConfigError("the arm has no object to ask", field=where, remedy=_REMEDY)
        return asking_function(import_class(self._params.object, where=where), path=self._params.object, where=where)

    async def _output(self, question: str, *, run: Run) -> object:
        argument = self._input(question, run=run)
        if inspect.iscoroutinefunction(self._call):
            return await self._call(argument)
        output = await self._calls.call(argument)
        return await output if inspect.isawaitable(output) else output

    def _input(self, question: str, *, run: Run) -> object:
        kind = self._params.input
        if kind == "auto":
            kind = "question" if self._method in ("ainvoke", "invoke") else "text"
        if kind == "messages":
            return [*((message.role, message.text) for message in run.query.messages), ("user", question)]
        return {"question": question} if kind == "question" else question


def asking_function(named: Any, *, path: str, where: str) -> tuple[Callable[[Any], Any], str]:
    """Returns (function that answers a question, name of the object's method or "" for a plain function).

    named: the object, or a function without parameters that makes it. path: path in messages. Raises ConfigError.
    """
    if inspect.isfunction(named) and not inspect.signature(named).parameters:
        try:
            named = named()
        except Exception as error:  # the user's function may raise anything
            message = f"{path!r} cannot be made: {type(error).__name__}: {error}"
            raise ConfigError(message, field=where, remedy="let the function work without arguments") from error
    method = next((name for name in METHODS if callable(getattr(named, name, None))), None)
    if method is not None and not inspect.isclass(named):
        return getattr(named, method), method
    if callable(named) and not inspect.isclass(named):
        return named, ""
    message = f"{path!r} is {type(named).__name__}, which cannot be asked a question"
    raise ConfigError(message, field=where, remedy=_REMEDY)


def output_text(output: object, *, depth: int = 5) -> str | None:
    """Find the text in an output: a string, a value under one of _TEXTS, or an item of a list. None without text."""
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
    texts = (output_text(part, depth=depth - 1) for part in parts)
    return next((text for text in texts if text is not None), None)
