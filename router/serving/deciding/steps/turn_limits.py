"""Limits of a question's session and task (`conversation.session_limit`, `task_limit`).

This step reads the amounts that sessions and tasks have used, once for a batch, and adds the limits to each query. The
transaction that stores the decision checks the limits again, and counts (storage/access/reservations.py). With
`at_limit: cheapest` this step gives a question beyond a limit the arm that is expected to cost least
(storage/access/expected_dollars.py). If the transaction finds that a limit was reached meanwhile, the question is
decided again.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ragbandit.router.config.sections import ConversationSettings
from ragbandit.router.serving.deciding.steps.breaker import UnhealthyArms
from ragbandit.router.serving.deciding.steps.step import Batch, Question, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.serving.setup.estimates import expected_dollars
from ragbandit.router.storage.access.spending import Spender
from ragbandit.router.storage.access.turn_sums import NOTHING, read_sums, session_spender
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.shared.types import ArmName, Decision, MovedTurn, PinnedArm, Query, SpendLimit


class TurnLimits(Step):
    def configure(self, served: ServedPolicy) -> None:
        settings = served.settings
        self._settings = settings.conversation
        self.is_on = bool(self._settings.limited)
        self._expected = expected_dollars(settings.worker_arms, generators=settings.named_generators)

    def before(self, batch: Batch) -> None:
        limits = [
            limits_of(question.query, first=question.turn_of or question.query.id, settings=self._settings)
            for question in batch.questions
        ]
        begun = {question.query.id for question in batch.questions}  # new tasks have used nothing
        with self.database.read() as connection:
            limits = with_amounts_used(connection, limits, begun=begun)
        ahead = Counter[tuple[str, str]]()  # turns of earlier questions of the batch
        for question, of_question in zip(batch.questions, limits, strict=True):
            budgets = [limit for limit in question.query.limits if limit.period is not None]
            used = [
                replace(limit, used=limit.used + ahead[limit.kind, limit.name]) if limit.unit == "turns" else limit
                for limit in of_question
            ]
            question.query = replace(question.query, limits=(*budgets, *used))
            if not question.is_preview:
                ahead.update({(limit.kind, limit.name) for limit in used})
            reached = question.query.reached_limit
            if reached is not None and reached.moves:
                self._move(question, reached=reached)

    def _move(self, question: Question, *, reached: SpendLimit) -> None:
        """Give a question the cheapest arm, unless the kill switch, the caller or tool calls have chosen its arm."""
        if PinnedArm in question.facts or question.query.arm_by is not None:
            return
        kept = question.certain_arm or question.kept_arm
        tenant = question.query.tenant
        cheapest = min(_healthy(question), key=lambda arm: self._expected.rank(arm, tenant=tenant))
        if kept is not None and kept != cheapest:
            question.add(MovedTurn(reason=f"{reached}; another arm is cheaper"))
        question.arms, question.certain_arm, question.kept_arm = (cheapest,), cheapest, None
        question.note_choice("limit")

    def refresh(self, *, arms: Sequence[ArmName], now: float) -> None:
        del arms, now
        if self.is_on and self._settings.at_limit == "cheapest":
            with self.database.connection() as connection:
                self._expected.refresh(connection)

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        if decision.arm_by == "limit":
            why = "A limit of its session or task was reached"
            yield f"{why}, so the cheapest arm answered. Nothing is learned from it."


def _healthy(question: Question) -> tuple[ArmName, ...]:
    """The healthy arms among the allowed ones; every allowed arm if none is healthy."""
    unhealthy = question.fact(UnhealthyArms)
    failing = () if unhealthy is None else unhealthy.arms
    return tuple(arm for arm in question.allowed if arm not in failing) or question.allowed


def limits_of(query: Query, *, first: str | None, settings: ConversationSettings) -> list[SpendLimit]:
    """The limits of a question's task and session, without the amounts used.

    first: id of the first decision of the question's task, which may be the question's own; None if no task is open
    """
    moves, limits = settings.at_limit == "cheapest" and query.arm_by != "caller", list[SpendLimit]()
    for kind in settings.limited:
        if kind == "task":
            name = first
        else:
            spender = query.session and session_spender(query.tenant, key=query.api_key, session=query.session)
            name = spender.name if spender else None
        limit = settings.limit_of(kind)
        if name is not None and limit.dollars is not None:
            limits.append(SpendLimit(kind=kind, name=name, most=limit.dollars, moves=moves))
        if name is not None and limit.turns is not None:
            limits.append(SpendLimit(kind=kind, name=name, unit="turns", most=limit.turns, moves=moves))
    return limits


def with_amounts_used(
    connection: Connection, limits: Sequence[Sequence[SpendLimit]], *, begun: Collection[str | None] = ()
) -> list[list[SpendLimit]]:
    """The limits of each question with the amounts used. begun: new tasks, which used nothing. Raises StoreError."""
    spenders = {Spender(limit.kind, limit.name) for each in limits for limit in each if limit.name not in begun}
    sums = read_sums(connection, spenders)
    return [
        [replace(limit, used=sums.get(Spender(limit.kind, limit.name), NOTHING).of(limit)) for limit in each]
        for each in limits
    ]
