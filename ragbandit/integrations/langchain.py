"""LangChain: a Runnable that lets the service choose which of several runnables answers.

    answer = RoutedRunnable(client, runnables={"fast": fast_chain, "deep": deep_chain})
    answer.invoke("Who wrote Dracula?")

The chosen runnable runs under the decision's id as its `run_id`, so a trace's run is the decision, and feedback that
is given to the run finds it. Needs the extra `langchain`.
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


def question_of(value: Any) -> str:
    """The question of a runnable's input: text, a message, the last message of a list, or a dict's `question`/`input`.

    Raises KeyError or TypeError for anything else: pass a function of your own.
    """
    if isinstance(value, Mapping):
        return question_of(value["question"] if "question" in value else value["input"])
    if isinstance(value, list | tuple) and value:
        return question_of(value[-1])
    if isinstance(value, BaseMessage):
        return str(value.text)
    if isinstance(value, str):
        return value
    raise TypeError(f"no question in {type(value).__name__}: pass question_of=")


def outcome_of(value: Any) -> dict[str, object]:
    """The outcome of a runnable's output: text or a message is the answer, a message's token counts its cost."""
    if isinstance(value, BaseMessage):
        used = getattr(value, "usage_metadata", None) or {}
        tokens = {"prompt_tokens": used.get("input_tokens", 0), "completion_tokens": used.get("output_tokens", 0)}
        return {"answer": str(value.text), "cost": {"llm_calls": 1, **tokens} if used else {}}
    return {"answer": value} if isinstance(value, str) else {}


class RoutedRunnable(Runnable[Any, Any]):
    """A Runnable that has the service choose among runnables, runs the chosen one and reports its outcome.

    runnables: by arm. question_of: of the input; outcome_of: of the output, see `Client.arms`; context_of: facts for
    the choice, of the input. The decision's id is `config["run_id"]` where the caller gives one. A failing runnable is
    a failed outcome, and raises.
    """

    def __init__(
        self,
        client: Client,
        *,
        runnables: Mapping[str, Runnable[Any, Any]],
        question_of: Callable[[Any], str] = question_of,
        outcome_of: Callable[[Any], Mapping[str, object]] = outcome_of,
        context_of: Callable[[Any], Mapping[str, object]] | None = None,
    ) -> None:
        self.client = client
        self.runnables = dict(runnables)
        self._question_of = question_of
        self._outcome_of = outcome_of
        self._context_of = context_of

    def invoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> Any:  # noqa: A002 - LangChain's
        """The output of the chosen runnable."""
        config = ensure_config(config)
        reply = self._routed(input, config)
        with ReportedRun(self.client, reply["decision_id"], outcome_of=self._outcome_of) as run:
            run.value = self.runnables[reply["arm"]].invoke(input, _config(config, reply), **more)
        return run.value

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> Any:  # noqa: A002
        """The output of the chosen runnable; the service is asked in a thread."""
        config = ensure_config(config)
        reply = await asyncio.to_thread(self._routed, input, config)
        async with ReportedRun(self.client, reply["decision_id"], outcome_of=self._outcome_of) as run:
            run.value = await self.runnables[reply["arm"]].ainvoke(input, _config(config, reply), **more)
        return run.value

    def _routed(self, value: Any, config: RunnableConfig) -> ClientRouteReply:
        run_id = config.get("run_id")
        context = None if self._context_of is None else dict(self._context_of(value))
        return self.client.route(
            self._question_of(value),
            decision_id=None if run_id is None else str(run_id),
            arms=list(self.runnables),
            context=context,
        )


def _config(config: RunnableConfig, reply: ClientRouteReply) -> RunnableConfig:
    """The config of the chosen runnable: its run is the decision."""
    facts = {"ragbandit_decision_id": reply["decision_id"], "ragbandit_arm": reply["arm"]}
    made = {
        **config,
        "run_id": uuid.UUID(reply["decision_id"].removeprefix("degraded-")),
        "metadata": {**config.get("metadata", {}), **facts},
        "tags": [*config.get("tags", []), f"ragbandit:{reply['arm']}"],
    }
    return cast(RunnableConfig, made)
