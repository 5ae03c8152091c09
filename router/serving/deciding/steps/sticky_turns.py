"""Sticky turns: a session keeps the arm that it drew for `conversation.sticky_turns` turns, if the arm is offered."""

from collections.abc import Iterator

from ragbandit.router.serving.deciding.steps.breaker import UnhealthyArms
from ragbandit.router.serving.deciding.steps.step import Batch, Question, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.storage.decisions.search import newest_turns
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import Decision, Query, StickyTurn


class StickyTurns(Step):
    def configure(self, served: ServedPolicy) -> None:
        self._settings = served.settings.conversation
        #: the incumbent is compared with draws, so with an incumbent every turn is drawn
        self._is_off = served.settings.policy.incumbent is not None

    def check(self, question: Question) -> None:
        turns, most = question.query.sticky_turns, self._settings.sticky_turns_cap
        if turns is not None and (not isinstance(turns, int) or isinstance(turns, bool) or not 0 <= turns <= most):
            remedy = f"send a whole number from 0 (every turn is drawn) to {most} (conversation.max_sticky_turns)"
            raise InvalidInput(f'"sticky_turns" is {turns!r:.40}', field="sticky_turns", remedy=remedy)

    def before(self, batch: Batch) -> None:
        limits = [(question, self._turns(question.query)) for question in batch.questions if question.is_drawn]
        sticky = [(question, turns) for question, turns in limits if turns > 1]
        if not sticky:
            return
        newest = newest_turns(self.database, {session_of(question.query) for question, _ in sticky})
        for question, turns in sticky:
            query, last = question.query, newest.get(session_of(question.query))
            if last is None or last.turn >= turns:
                continue
            # Draw again if this turn allows arms that the last turn did not, perhaps because it came with another key.
            if last.allowed is not None and (query.arms is None or not last.allowed.issuperset(query.arms)):
                continue
            unhealthy = question.fact(UnhealthyArms)
            all_fail = unhealthy is not None and unhealthy.offered
            if not all_fail and last.arm in question.arms:
                question.arms, question.certain_arm = (last.arm,), last.arm
                question.add(StickyTurn(first=last.first, turn=last.turn + 1, turns=turns))

    def after(self, batch: Batch) -> None:
        for question in batch.questions:
            if question.certain_arm is not None and StickyTurn in question.facts:
                question.settle(question.certain_arm)

    def _turns(self, query: Query) -> int:
        """Number of turns for which the session keeps a drawn arm."""
        if query.own_session is None or self._is_off:  # another conversation may begin with the same words
            return 0
        return self._settings.sticky_turns if query.sticky_turns is None else query.sticky_turns

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        stay = StickyTurn.of(decision.facts)
        if stay is not None and stay.turns > 0:
            yield (
                f"Turn {stay.turn} of {stay.turns} of the conversation stays on {decision.arm}, which decision "
                f"{stay.first} drew. It is no draw of its own."
            )


def session_of(query: Query) -> tuple[str, str]:
    """A session is known by its id and the tenant."""
    return str(query.session), query.tenant
