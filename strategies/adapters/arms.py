"""Arms that are pipelines of other frameworks: a LangChain runnable, a LlamaIndex query engine, a Haystack pipeline.

`object` names the pipeline as "package.module:name", or a function without arguments that makes it. One answer is one
round. The pipeline holds its own models and retrievers; of the budget, only the seconds can be held here.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.plugins import import_class
from ragbandit.shared.types import ArmName, Cost
from ragbandit.strategies.arm_parts.params import ArmParams, public_params, read_params
from ragbandit.strategies.base import Need
from ragbandit.strategies.run import Answer, Run

_OBJECT = 'name it as "package.module:name": the pipeline, or a function without arguments that makes it'


@dataclass(frozen=True, kw_only=True, slots=True)
class LangChainParams(ArmParams):
    """Settings of a LangChain runnable."""

    #: "package.module:name"
    object: str = ""
    #: what the runnable is given: the question as text, as {"question": ...}, or as messages with the turns before
    input: Literal["text", "question", "messages"] = "question"


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaIndexParams(ArmParams):
    """Settings of a LlamaIndex query engine."""

    #: "package.module:name"
    object: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HaystackParams(ArmParams):
    """Settings of a Haystack pipeline."""

    #: "package.module:name"
    object: str = ""
    #: the sockets that are given the question, each as "component.socket"
    inputs: Annotated[list[str], Field(min_length=1)]
    #: the socket that has the answer: text, a list, or messages
    output: str


class LangChainArm:
    """Answers with a LangChain runnable: text, a message, or a dict with `answer`. Tokens of its models are counted."""

    needs: frozenset[Need] = frozenset()
    retrieves: ClassVar[bool] = False

    def __init__(self, *, name: str, **params: object) -> None:
        self.name = ArmName(name)
        self._params = read_params(LangChainParams, given=params, arm=self.name)
        self.params = public_params(self._params)
        self._chain = _pipeline(self._params.object, method="ainvoke", arm=name)

    async def answer(self, question: str, *, run: Run) -> Answer:
        """The runnable's answer. Raises ArmFailed for an output without text."""
        from langchain_core.callbacks import UsageMetadataCallbackHandler  # the runnable has loaded it

        if not run.begin_round(cap=1):
            return Answer(text="", stop_reason="budget_rounds")
        usage = UsageMetadataCallbackHandler()
        facts = {"ragbandit_decision_id": run.query.id, "ragbandit_arm": self.name}
        try:
            value = await self._chain.ainvoke(
                self._input(question, run=run), config={"callbacks": [usage], "metadata": facts}
            )
        finally:
            for model in usage.usage_metadata.values():
                run.cost += Cost(
                    llm_calls=1, prompt_tokens=model["input_tokens"], completion_tokens=model["output_tokens"]
                )
        run.add_cost(Cost())  # a budget of tokens that is overrun ends the arm
        return _answer(value, arm=self.name)

    def _input(self, question: str, *, run: Run) -> object:
        if self._params.input == "text":
            return question
        if self._params.input == "question":
            return {"question": question}
        return [*((each.role, each.text) for each in run.query.messages), ("user", question)]


class LlamaIndexArm:
    """Answers with a LlamaIndex query engine, in a thread; the nodes that it used are the passages shown."""

    needs: frozenset[Need] = frozenset()
    retrieves: ClassVar[bool] = False

    def __init__(self, *, name: str, **params: object) -> None:
        self.name = ArmName(name)
        self._params = read_params(LlamaIndexParams, given=params, arm=self.name)
        self.params = public_params(self._params)
        self._engine = _pipeline(self._params.object, method="query", arm=name)

    async def answer(self, question: str, *, run: Run) -> Answer:
        """The engine's answer. Its `aquery` may block, so `query` runs in a thread, which a deadline leaves behind."""
        if not run.begin_round(cap=1):
            return Answer(text="", stop_reason="budget_rounds")
        response = await asyncio.to_thread(self._engine.query, question)
        text = str(response)
        run.draft = text
        run.show(len(getattr(response, "source_nodes", ())))
        return _answer(text, arm=self.name)


class HaystackArm:
    """Answers with a Haystack pipeline; what its components say of tokens in `meta` or `usage` is not read."""

    needs: frozenset[Need] = frozenset()
    retrieves: ClassVar[bool] = False

    def __init__(self, *, name: str, **params: object) -> None:
        self.name = ArmName(name)
        missing = sorted({"inputs", "output"} - params.keys())
        if missing:
            remedy = "name the sockets: inputs: [prompt.query], output: llm.replies"
            raise ConfigError("is required", field=f"arms.{name}.{missing[0]}", remedy=remedy)
        self._params = read_params(HaystackParams, given=params, arm=self.name)
        self.params = public_params(self._params)
        self._inputs = [_socket(each, field=f"arms.{name}.inputs") for each in self._params.inputs]
        self._output = _socket(self._params.output, field=f"arms.{name}.output")
        self._pipeline = _pipeline(self._params.object, method="run_async", arm=name)

    async def answer(self, question: str, *, run: Run) -> Answer:
        """The text of the output socket. Raises ArmFailed if the pipeline did not reach it."""
        if not run.begin_round(cap=1):
            return Answer(text="", stop_reason="budget_rounds")
        given: dict[str, dict[str, str]] = {}
        for component, socket in self._inputs:
            given.setdefault(component, {})[socket] = question
        found = await self._pipeline.run_async(given)
        component, socket = self._output
        return _answer(found.get(component, {}).get(socket), arm=self.name)


def _pipeline(path: str, *, method: str, arm: str) -> Any:
    """What the path names, made if it is a function. Raises ConfigError if it has no such method."""
    where = f"arms.{arm}.object"
    if not path:
        raise ConfigError("no pipeline is named", field=where, remedy=_OBJECT)
    found = import_class(path, where=where)
    if inspect.isfunction(found):
        found = _made(found, path=path, where=where)
    if not callable(getattr(found, method, None)):
        message = f"{path!r} is {type(found).__name__}, which has no `{method}`"
        raise ConfigError(message, field=where, remedy=_OBJECT)
    return found


def _made(function: Callable[[], Any], *, path: str, where: str) -> Any:
    try:
        return function()
    except Exception as error:  # whatever a function of others does
        message = f"{path!r} cannot be made: {type(error).__name__}: {error}"
        raise ConfigError(message, field=where, remedy="it is called without arguments") from error


def _socket(path: str, *, field: str) -> tuple[str, str]:
    component, _, socket = path.rpartition(".")
    if not component or not socket:
        raise ConfigError(f"{path!r} is no socket", field=field, remedy='write it as "component.socket"')
    return component, socket


def _answer(value: object, *, arm: str) -> Answer:
    text = _text(value)
    if text is None:
        message = f"the pipeline gave {type(value).__name__}, in which there is no text"
        remedy = "let it end with text, a message, or a dict with `answer`"
        raise ArmFailed(message, field=f"arms.{arm}", remedy=remedy)
    return Answer(text=text, stop_reason="answered" if text else "empty_answer")


def _text(value: object) -> str | None:
    """The text of a pipeline's output: text, an object's `text`, a dict's `answer` or `output`, the first of a list."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return _text(value.get("answer", value.get("output")))
    if isinstance(value, Sequence):
        return next((text for text in map(_text, value) if text is not None), None)
    text = getattr(value, "text", None)
    return text if isinstance(text, str) else None
