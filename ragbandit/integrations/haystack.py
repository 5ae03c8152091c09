"""Haystack: a component that sends a query to the branch that the service chooses, and one that reports the outcome.

    pipeline.add_component("router", BanditRouter(["fast", "deep"]))
    pipeline.connect("router.fast", "fast_prompt.query")
    pipeline.connect("router.deep", "deep_prompt.query")
    pipeline.add_component("report", BanditReport())
    pipeline.connect("router.decision", "report.decision")

Only the chosen branch runs. RAGBANDIT_URL and RAGBANDIT_API_KEY set the address of the service and the API key.
To load a saved pipeline, pass `allowed_modules=["ragbandit.integrations.haystack"]`. Needs the extra `haystack`.
"""

import time
from collections.abc import Sequence
from typing import Any

from haystack import component
from haystack.core.component.types import Variadic

from ragbandit.client import Client
from ragbandit.shared.types import DecisionUnit


class _ClientComponent:
    """Base of both components. Haystack saves each parameter of `__init__` by reading the attribute of its name."""

    def __init__(self, *, url: str | None, default_arm: str | None) -> None:
        self.url = url
        self.default_arm = default_arm
        self._client: Client | None = None

    def client(self) -> Client:
        if self._client is None:
            self._client = Client(self.url, default_arm=self.default_arm)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


@component
class BanditRouter(_ClientComponent):
    """Sends the query to the output socket of the arm that the service chooses. Connect `decision` to a BanditReport.

    arms: names of the arms and of their output sockets. For `url` and `default_arm` see `Client`.
    unit: "task" if all queries of a session get the arm of the first one; by default the service decides
    """

    def __init__(
        self,
        arms: Sequence[str],
        *,
        url: str | None = None,
        default_arm: str | None = None,
        unit: DecisionUnit | None = None,
    ) -> None:
        # super() would fail, because the decorator replaces the class.
        _ClientComponent.__init__(self, url=url, default_arm=default_arm)
        self.arms = list(arms)
        self.unit = unit
        component.set_output_types(self, decision=dict[str, Any], decision_id=str, **dict.fromkeys(self.arms, str))

    def run(self, query: str, context: dict[str, Any] | None = None, session_id: str | None = None) -> dict[str, Any]:
        """Send the query to the output of the chosen arm, and return the decision. context: facts for the choice.
        session_id: id of the conversation.
        """
        reply = self.client().route(query, arms=self.arms, context=context, session_id=session_id, unit=self.unit)
        decision = {"id": reply["decision_id"], "arm": reply["arm"], "began": time.perf_counter()}
        return {reply["arm"]: query, "decision": decision, "decision_id": reply["decision_id"]}


@component
class BanditReport(_ClientComponent):
    """Reports the outcome of a decision and passes the answer on. Connect the replies of all branches to `replies`."""

    def __init__(self, *, url: str | None = None) -> None:
        _ClientComponent.__init__(self, url=url, default_arm=None)
        component.set_output_types(self, answer=str, decision_id=str)

    def run(self, decision: dict[str, Any], replies: Variadic[Any]) -> dict[str, Any]:
        """Report the first text in the replies of the branches. Returns this answer and the id of the decision."""
        answer = next((text for text in map(_text_of, replies) if text is not None), None)
        seconds = time.perf_counter() - decision["began"]
        self.client().report(decision["id"], seconds=seconds, answer=answer)
        return {"answer": answer or "", "decision_id": decision["id"]}


def _text_of(reply: Any) -> str | None:
    """The text of a reply: a text, a ChatMessage or a list of these. None if it contains no text."""
    if isinstance(reply, list | tuple):
        return next((text for text in map(_text_of, reply) if text is not None), None)
    text = reply if isinstance(reply, str) else getattr(reply, "text", None)
    return text if isinstance(text, str) else None
