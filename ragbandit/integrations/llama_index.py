"""LlamaIndex: a selector for RouterQueryEngine and RouterRetriever.

    selector = BanditSelector(client)
    engine = RouterQueryEngine(selector=selector, query_engine_tools=[fast, deep], llm=llm)
    with selector.reporting() as run:
        run.response = engine.query("Who wrote Dracula?")
    client.feedback(run.decision_id, rating=True)

The names of the tools are the arms. `arms_of` makes the section `arms` of the service's configuration from the tools,
with their descriptions. Needs the extra `llama_index`.
"""

import asyncio
import contextvars
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

from llama_index.core.base.base_selector import BaseSelector, SelectorResult, SingleSelection
from llama_index.core.schema import QueryBundle
from llama_index.core.tools import BaseTool, ToolMetadata

from ragbandit.client import Client
from ragbandit.client.arms import ReportedRun
from ragbandit.client.replies.decisions import ClientRouteReply
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import DecisionUnit


class BanditSelector(BaseSelector):
    """A selector that lets the service choose a tool by its name. The `reason` of a selection is the decision's id.

    session_id: id of the conversation for which this selector chooses; None if its questions belong to none
    unit: "task" if all questions of the conversation get the tool of the first one; by default the service decides
    """

    def __init__(self, client: Client, *, session_id: str | None = None, unit: DecisionUnit | None = None) -> None:
        self.client = client
        self.session_id = session_id
        self.unit = unit
        self.open: contextvars.ContextVar[Reporting | None] = contextvars.ContextVar("reporting", default=None)

    def reporting(self) -> "Reporting":
        """A block (`with` or `async with`) for one choice: it measures and reports the run of the chosen tool."""
        return Reporting(self)

    def _select(self, choices: Sequence[ToolMetadata], query: QueryBundle) -> SelectorResult:
        return self._result(choices, self._route(choices, query))

    async def _aselect(self, choices: Sequence[ToolMetadata], query: QueryBundle) -> SelectorResult:
        return self._result(choices, await asyncio.to_thread(self._route, choices, query))

    def _route(self, choices: Sequence[ToolMetadata], query: QueryBundle) -> ClientRouteReply:
        return self.client.route(query.query_str, arms=_names(choices), session_id=self.session_id, unit=self.unit)

    def _result(self, choices: Sequence[ToolMetadata], reply: ClientRouteReply) -> SelectorResult:
        index = _names(choices).index(reply["arm"])
        run = self.open.get()
        if run is not None:
            run.decision_id = reply["decision_id"]
            run.arm = reply["arm"]
            run.began = time.perf_counter()
        return SelectorResult(selections=[SingleSelection(index=index, reason=reply["decision_id"])])

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: dict[str, Any]) -> None:
        pass


class Reporting(ReportedRun):
    """The block of `BanditSelector.reporting`. Set `response` to the engine's return value: its text is the answer."""

    def __init__(self, selector: BanditSelector) -> None:
        super().__init__(selector.client, None)
        self.arm: str | None = None
        self.response: object = None
        #: further fields of the outcome, for example {"steps": 2}
        self.fields: dict[str, object] = {}
        self._selector = selector

    def __enter__(self) -> Self:
        self._token = self._selector.open.set(self)
        return self

    def _leave(self, error: BaseException | None) -> bool:
        self._selector.open.reset(self._token)
        return super()._leave(error)

    def _fields(self, error: BaseException | None) -> Mapping[str, object]:
        answer = {} if error is not None or self.response is None else {"answer": str(self.response)}
        return {**answer, **self.fields}


def arms_of(tools: Sequence[ToolMetadata | BaseTool]) -> dict[str, dict[str, str]]:
    """The section `arms` of a configuration for these tools: name -> {"run_by": "caller", "description": ...}.

    The policy `llm` shows the descriptions to its model. A tool without a description has none in the section. Raises
    InvalidInput if a tool has no name, or two tools have the same name.
    """
    choices = [tool.metadata if isinstance(tool, BaseTool) else tool for tool in tools]
    arms = {}
    for name, choice in zip(_names(choices), choices, strict=True):
        described = {"description": choice.description} if choice.description else {}
        arms[name] = {"run_by": "caller", **described}
    return arms


def _names(choices: Sequence[ToolMetadata]) -> list[str]:
    names = [choice.name for choice in choices]
    if None in names or len(set(names)) < len(names):
        remedy = "name the tools: QueryEngineTool.from_defaults(engine, name=...)"
        message = "a tool has no name, or two tools have the same name; the names of tools are the arms"
        raise InvalidInput(message, field="arms", remedy=remedy)
    return [str(name) for name in names]
