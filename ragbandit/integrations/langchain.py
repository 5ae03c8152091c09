"""LangChain: a Runnable that lets the service choose which of several runnables answers.

    answer = RoutedRunnable(client, runnables={"fast": fast_chain, "deep": deep_chain})
    answer.invoke("Who wrote Dracula?")

The chosen runnable gets the id of the decision as its `run_id`, which joins traces of the run with the decision. Needs
the extra `langchain`.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config

from ragbandit.client import Client
from ragbandit.client.arms import ReportedRun
from ragbandit.client.replies.decisions import ClientRouteReply
from ragbandit.shared.types import DecisionUnit


def input_question(value: Any) -> str:
    """The question: a text, a message, the last item of a list, or the field `question` or `input` of a mapping."""
    if isinstance(value, Mapping):
        return input_question(value["question"] if "question" in value else value["input"])
    if isinstance(value, list | tuple) and value:
        return input_question(value[-1])
    if isinstance(value, BaseMessage):
        return str(value.text)
    if isinstance(value, str):
        return value
    raise TypeError(f"no question in {type(value).__name__}: pass question_of=")


def output_fields(value: Any) -> dict[str, object]:
    """Fields of the outcome: the answer if the output is a text or a message, and the token counts of a message."""
    if isinstance(value, BaseMessage):
        usage = getattr(value, "usage_metadata", None) or {}
        tokens = {"prompt_tokens": usage.get("input_tokens", 0), "completion_tokens": usage.get("output_tokens", 0)}
        return {"answer": str(value.text), "cost": {"llm_calls": 1, **tokens} if usage else {}}
    return {"answer": value} if isinstance(value, str) else {}


class RoutedRunnable(Runnable[Any, Any]):
    """Runs the runnable that the service chooses, and reports its outcome: failed if the runnable raises an error.

    A caller can set the id of the decision with `config["run_id"]`.

    runnables: arm -> runnable
    question_of: extracts the question from the input; the default reads texts, messages, lists and mappings
    outcome_of: converts the output to fields of the outcome, see `Client.arms`
    context_of: extracts the context of the question from the input
    session_of: extracts the id of the conversation from the input; None if it has none
    unit: "task" if all questions of a conversation get the arm of the first one; by default the service decides
    """

    def __init__(
        self,
        client: Client,
        *,
        runnables: Mapping[str, Runnable[Any, Any]],
        question_of: Callable[[Any], str] = input_question,
        outcome_of: Callable[[Any], Mapping[str, object]] = output_fields,
        context_of: Callable[[Any], Mapping[str, object]] | None = None,
        session_of: Callable[[Any], str | None] | None = None,
        unit: DecisionUnit | None = None,
    ) -> None:
        self.client = client
        self.runnables = dict(runnables)
        self._question_of = question_of
        self._outcome_of = outcome_of
        self._context_of = context_of
        self._session_of = session_of
        self._unit = unit

    def invoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> Any:  # noqa: A002 - LangChain's
        """Run the chosen runnable."""
        config = ensure_config(config)
        reply = self._route(input, config)
        with ReportedRun(self.client, reply["decision_id"], outcome_of=self._outcome_of) as run:
            run.value = self.runnables[reply["arm"]].invoke(input, _run_config(config, reply), **more)
        return run.value

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> Any:  # noqa: A002
        """Run the chosen runnable. Requests to the service run in a thread."""
        config = ensure_config(config)
        reply = await asyncio.to_thread(self._route, input, config)
        async with ReportedRun(self.client, reply["decision_id"], outcome_of=self._outcome_of) as run:
            run.value = await self.runnables[reply["arm"]].ainvoke(input, _run_config(config, reply), **more)
        return run.value

    def _route(self, value: Any, config: RunnableConfig) -> ClientRouteReply:
        run_id = config.get("run_id")
        context = None if self._context_of is None else dict(self._context_of(value))
        return self.client.route(
            self._question_of(value),
            decision_id=None if run_id is None else str(run_id),
            arms=list(self.runnables),
            context=context,
            session_id=None if self._session_of is None else self._session_of(value),
            unit=self._unit,
        )


def _run_config(config: RunnableConfig, reply: ClientRouteReply) -> RunnableConfig:
    """Copy the config with the decision's id as `run_id`, and with decision and arm in the metadata and tags."""
    metadata = {"ragbandit_decision_id": reply["decision_id"], "ragbandit_arm": reply["arm"]}
    changed = {
        **config,
        "run_id": uuid.UUID(reply["decision_id"].removeprefix("degraded-")),
        "metadata": {**config.get("metadata", {}), **metadata},
        "tags": [*config.get("tags", []), f"ragbandit:{reply['arm']}"],
    }
    return cast(RunnableConfig, changed)
