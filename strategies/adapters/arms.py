"""Arms that are pipelines of other frameworks: a LangChain runnable, a LlamaIndex query engine, a Haystack pipeline.

`object` names the pipeline as "package.module:name", or a function without arguments that makes it. One answer is one
round. The pipeline holds its own models and retrievers; of the budget, only the seconds can be held here.
"""

import asyncio
import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field

from ragbandit.shared.errors import ArmFailed, ConfigError
from ragbandit.shared.plugins import import_class
from ragbandit.shared.types import ArmName, Cost
from ragbandit.strategies.arm_parts.params import ArmParams, public_params, read_params
from ragbandit.strategies.base import Need
from ragbandit.strategies.run import Answer, Run

_OBJECT = 'name it as "package.module:name": the pipeline, or a function without arguments that makes it'


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineParams(ArmParams):
    """Settings of every pipeline."""

    #: "package.module:name"
    object: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LangChainParams(PipelineParams):
    """Settings of a LangChain runnable."""

    #: what the runnable is given: the question as text, as {"question": ...}, or as messages with the turns before
    input: Literal["text", "question", "messages"] = "question"


@dataclass(frozen=True, kw_only=True, slots=True)
class HaystackParams(PipelineParams):
    """Settings of a Haystack pipeline."""

    #: the sockets that are given the question, each as "component.socket"
    inputs: Annotated[list[str], Field(min_length=1)]
    #: the socket that has the answer: text, a list, or messages
    output: str


Params = TypeVar("Params", bound=PipelineParams)


class _PipelineArm(Generic[Params]):
    """Base of the three: makes the pipeline, asks it in a round of its own, and takes the text of its output."""

    needs: frozenset[Need] = frozenset()
    retrieves: ClassVar[bool] = False
    kind: type[Params]
    #: the pipeline's method that is called
    method: ClassVar[str]

    def __init__(self, *, name: str, **params: object) -> None:
        self.name = ArmName(name)
        self._params = read_params(self.kind, given=params, arm=self.name)
        self.params = public_params(self._params)
        self._pipeline = _pipeline(self._params.object, method=self.method, arm=name)

    async def answer(self, question: str, *, run: Run) -> Answer:
        """The pipeline's answer. Raises ArmFailed for an output without text."""
        if not run.begin_round(cap=1):
            return Answer(text="", stop_reason="budget_rounds")
        output = await self._output(question, run=run)
        text = _text(output)
        if text is None:
            message = f"the pipeline gave {type(output).__name__}, in which there is no text"
            remedy = "let it end with text, a message, or a dict with `answer`"
            raise ArmFailed(message, field=f"arms.{self.name}", remedy=remedy)
        return Answer(text=text, stop_reason="answered" if text else "empty_answer")

    @abstractmethod
    async def _output(self, question: str, *, run: Run) -> object:
        """What the pipeline gives for the question."""


class LangChainArm(_PipelineArm[LangChainParams]):
    """Answers with a LangChain runnable: text, a message, or a dict with `answer`. Tokens of its models are counted."""

    kind = LangChainParams
    method = "ainvoke"

    async def _output(self, question: str, *, run: Run) -> object:
        from langchain_core.callbacks import UsageMetadataCallbackHandler  # the runnable has loaded it

        usage = UsageMetadataCallbackHandler()
        facts = {"ragbandit_decision_id": run.query.id, "ragbandit_arm": self.name}
        config = {"callbacks": [usage], "metadata": facts}
        try:
            output: object = await self._pipeline.ainvoke(self._input(question, run=run), config=config)
        finally:
            for model in usage.usage_metadata.values():
                read, written = model["input_tokens"], model["output_tokens"]
                run.cost += Cost(llm_calls=1, prompt_tokens=read, completion_tokens=written)
        run.add_cost(Cost())  # a budget of tokens that is overrun ends the arm
        return output

    def _input(self, question: str, *, run: Run) -> object:
        if self._params.input == "text":
            return question
        if self._params.input == "question":
            return {"question": question}
        return [*((each.role, each.text) for each in run.query.messages), ("user", question)]


class LlamaIndexArm(_PipelineArm[PipelineParams]):
    """Answers with a LlamaIndex query engine; the nodes that it used are the passages shown.

    Its `aquery` may block, so `query` runs in a thread, which a deadline leaves behind.
    """

    kind = PipelineParams
    method = "query"

    async def _output(self, question: str, *, run: Run) -> object:
        response = await asyncio.to_thread(self._pipeline.query, question)
        run.draft = str(response)
        run.show(len(getattr(response, "source_nodes", ())))
        return run.draft


class HaystackArm(_PipelineArm[HaystackParams]):
    """Answers with a Haystack pipeline: the text of the output socket.

    What its components say of tokens in `meta` or `usage` is not read.
    """

    kind = HaystackParams
    method = "run_async"

    def __init__(self, *, name: str, **params: object) -> None:
        if missing := sorted({"inputs", "output"} - params.keys()):
            remedy = "name the sockets: inputs: [prompt.query], output: llm.replies"
            raise ConfigError("is required", field=f"arms.{name}.{missing[0]}", remedy=remedy)
        super().__init__(name=name, **params)
        self._inputs = [_socket(each, field=f"arms.{name}.inputs") for each in self._params.inputs]
        self._answer = _socket(self._params.output, field=f"arms.{name}.output")

    async def _output(self, question: str, *, run: Run) -> object:  # noqa: ARG002 the signature of every pipeline
        sockets: dict[str, dict[str, str]] = {}
        for component, socket in self._inputs:
            sockets.setdefault(component, {})[socket] = question
        outputs = await self._pipeline.run_async(sockets)
        component, socket = self._answer
        return outputs.get(component, {}).get(socket)


def _pipeline(path: str, *, method: str, arm: str) -> Any:
    """What the path names, made if it is a function. Raises ConfigError if it has no such method."""
    where = f"arms.{arm}.object"
    if not path:
        raise ConfigError("no pipeline is named", field=where, remedy=_OBJECT)
    pipeline = import_class(path, where=where)
    if inspect.isfunction(pipeline):
        try:
            pipeline = pipeline()
        except Exception as error:  # whatever a function of others does
            message = f"{path!r} cannot be made: {type(error).__name__}: {error}"
            raise ConfigError(message, field=where, remedy="it is called without arguments") from error
    if not callable(getattr(pipeline, method, None)):
        message = f"{path!r} is {type(pipeline).__name__}, which has no `{method}`"
        raise ConfigError(message, field=where, remedy=_OBJECT)
    return pipeline


def _socket(path: str, *, field: str) -> tuple[str, str]:
    component, _, socket = path.rpartition(".")
    if not component or not socket:
        raise ConfigError(f"{path!r} is no socket", field=field, remedy='write it as "component.socket"')
    return component, socket


def _text(output: object) -> str | None:
    """The text of a pipeline's output: text, an object's `text`, a dict's `answer` or `output`, the first of a list."""
    if isinstance(output, str):
        return output
    if isinstance(output, Mapping):
        return _text(output.get("answer", output.get("output")))
    if isinstance(output, Sequence):
        return next((text for text in map(_text, output) if text is not None), None)
    text = getattr(output, "text", None)
    return text if isinstance(text, str) else None
