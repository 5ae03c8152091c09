"""A task of a caller's own code: turns that one draw decides, and their judgement."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ragbandit.shared.errors import NotFound
from ragbandit.shared.types import Decision, Outcome, Query, Receipt

if TYPE_CHECKING:
    from ragbandit.router.serving.router import Router


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The turns of one task, see `Router.task`. `route` and `answer` are those of the router."""

    router: "Router"
    session: str
    tenant: str

    def _query(self, query: Query | str) -> Query:
        query = Query(text=query) if isinstance(query, str) else query
        return replace(query, session=self.session, tenant=self.tenant, unit="task")

    def route(self, query: Query | str) -> Decision:
        return self.router.route(self._query(query))

    def answer(self, query: Query | str, *, wait_s: float | None = None) -> tuple[Decision, Outcome | None]:
        return self.router.answer(self._query(query), wait_s=wait_s)

    def feedback(self, **judgement: Any) -> Receipt:
        """Judge the whole task, as `Router.feedback` judges a decision. Raises NotFound before the first turn."""
        judged = self.router.store.decision_of_session(
            self.session, tenant=self.tenant, feedback_id=judgement.get("feedback_id")
        )
        if judged is None:
            raise NotFound("the task has no turn yet", field="session", remedy="route a question first")
        return self.router.feedback(judged[0], **judgement)
