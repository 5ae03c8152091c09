"""Tasks: one draw decides all turns of a conversation until its task ends (`conversation.unit`).

The first turn of a task is a decision like any other. Later turns belong to it: they get its arm without a draw. If
this arm cannot answer a turn, the policy draws another one, which the following turns keep. That draw is logged with
the turn, but the outcome and the feedback of all turns count for the decision, as it was drawn. Otherwise an arm that
breaks off its tasks would look as good as the arm that ends them.

While a dollar budget is spent, the policy is asked about each further turn, results of tools included: the turn goes to
the arm that the policy favours at the highest price, as a new question would, and not to the arm of the earlier turns.
Beyond a limit of the task, `at_limit: cheapest` gives both turns and results of tools to the cheapest arm.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from ragbandit.router.config.sections import LONGEST_S
from ragbandit.router.serving.deciding.steps.breaker import UnhealthyArms
from ragbandit.router.serving.deciding.steps.step import Batch, Question, Step
from ragbandit.router.serving.loading.snapshots import ServedPolicy
from ragbandit.router.storage.decisions.continuing import OpenTask, newest_tasks, task_key
from ragbandit.router.storage.decisions.tasks import ENDED, end_tasks
from ragbandit.shared.dialects.registry import KEYS_OF_CALLER
from ragbandit.shared.errors import InvalidInput
from ragbandit.shared.types import (
    UNITS,
    ArmBy,
    ArmName,
    Decision,
    DecisionId,
    Json,
    MovedTurn,
    StickyTurn,
    TaskTurn,
)

_LIFE: Final = re.compile(r"(\d{1,6})([smh])")
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Tasks(Step):
    def configure(self, served: ServedPolicy) -> None:
        self._settings = settings = served.settings.conversation
        self._longest_run = served.settings.budget.seconds
        self._has_tasks = settings.has_tasks

    def check(self, question: Question) -> None:
        query = question.query
        if query.unit is not None and query.unit not in UNITS:
            raise InvalidInput(f'"unit" is {query.unit!r:.40}', field="unit", remedy=f"send {' or '.join(UNITS)}")
        if query.unit == "task" and query.session is None and query.arm_by is None:  # a named arm needs no task
            remedy = "send session_id too: the turns of a task have the same id"
            raise InvalidInput("a task needs the id of its conversation", field="unit", remedy=remedy)

    def before(self, batch: Batch) -> None:
        keyed: list[tuple[Question, str]] = []
        for question in batch.questions:
            query = question.query
            loop = query.continues.loop
            if loop is not None:
                question.turn_of = DecisionId(loop.first)
                if loop.called_by is not None:
                    _keep_arm(question, arm=ArmName(loop.called_by), chooser="calls")
            if (self._has_tasks or query.unit is not None) and (key := self._key(question)) is not None:
                keyed.append((question, key))
        if keyed:
            tasks = newest_tasks(self.database, {key for _, key in keyed})
            for question, key in keyed:
                self._assign(question, key=key, task=tasks.get(key), now=batch.now)

    def _key(self, question: Question) -> str | None:
        """The key of the question's task; None if its unit is one turn."""
        query = question.query
        is_named = query.arm_by is not None and query.continues.loop is None
        is_task = self._settings.is_task(query.unit, door=query.sent.surface)
        return task_key(query) if is_task and not is_named else None

    def _open_s(self, question: Question) -> float:
        """Seconds for which the task stays open without a further turn; at least the time that a worker may take."""
        longest_run = self._longest_run if question.run_by == "worker" else 0.0
        cached = cache_life(question.query.conversation.fields)
        return min(LONGEST_S, max(self._settings.idle_s, cached, longest_run))

    def _assign(self, question: Question, *, key: str, task: OpenTask | None, now: float) -> None:
        brings_results = question.turn_of is not None
        if task is not None and task.turns == ENDED:  # ended even if `until` is ahead of this process's clock
            task = None
        until = now + self._open_s(question)
        if task is not None and task.until > now and task.turns >= self._settings.turns_most and not brings_results:
            if question.is_preview:
                return
            with self.database.write() as connection:
                end_tasks(connection, [task.first], now=now)
            task = None
        if task is None or task.until <= now:
            if not brings_results:  # results of tools can belong to a task that has ended
                question.add(TaskTurn(unit=key, turn=1, until=until))
            return
        if brings_results and question.turn_of != task.first:
            return
        question.turn_of = task.first
        question.add(TaskTurn(unit=key, turn=task.turns + 1, until=until))
        if not brings_results:  # the arm that called the tools gets their results, whichever arm the task has
            _keep_arm(question, arm=task.arm, chooser="task")

    def after(self, batch: Batch) -> None:
        for question in batch.questions:
            if question.turn_of is None or question.decision is None:
                continue
            arm, kept = question.certain_arm or question.decision.arm, question.kept_arm
            if kept is not None:
                arm = _favourite(question.decision, kept=kept)
                if arm != kept:
                    question.add(MovedTurn(reason=f"a dollar budget is spent, and {arm} is favoured at its price"))
            question.settle(arm)
            assert question.decision is not None
            # Without facts of a draw, because the arm was not drawn; without features, because no turn is learned.
            question.decision = replace(question.decision, facts={}, features=None, turn_of=question.turn_of)

    @classmethod
    def explain(cls, decision: Decision) -> Iterator[str]:
        task, stay = TaskTurn.of(decision.facts), StickyTurn.of(decision.facts)
        if task is not None and decision.turn_of is None:
            yield "It is the first turn of a task: the later turns get its arm, and their cost and feedback count here."
        elif decision.turn_of is not None:
            if (moved := MovedTurn.of(decision.facts)) is not None:
                yield f"The turn left the arm of the turns before: {moved.reason}."
        elif stay is not None:
            yield f"The turn stayed on {decision.arm}, which decision {stay.first} drew. It is no draw of its own."


def _keep_arm(question: Question, *, arm: ArmName, chooser: ArmBy) -> None:
    """Let a turn keep the arm of the earlier turns if that arm can answer. If a budget is spent, ask the policy."""
    if question.certain_arm is not None:
        if question.certain_arm != arm:
            question.add(MovedTurn(reason="the kill switch pinned another arm"))
        return
    if question.query.arm_by is not None:
        return
    question.note_choice(chooser)
    reason = _reason_to_move(question, arm=arm)
    if reason is not None:
        question.add(MovedTurn(reason=reason))
    elif question.cost_weight is not None and question.query.terms.is_spent:
        question.kept_arm = arm
    else:
        question.arms, question.certain_arm = (arm,), arm


def _favourite(decision: Decision, *, kept: ArmName) -> ArmName:
    """The likeliest arm of a draw; `kept` if no arm is likelier, or if the policy failed."""
    chances = decision.probabilities
    likeliest = max(decision.arms, key=lambda arm: chances[arm])
    return kept if decision.fault is not None or chances[likeliest] <= chances[kept] else likeliest


def _reason_to_move(question: Question, *, arm: str) -> str | None:
    """Why the task's arm cannot answer this turn; None if it can."""
    if arm in question.arms:
        unhealthy = question.fact(UnhealthyArms)
        all_fail = unhealthy is not None and unhealthy.offered
        return f"{arm} fails" if all_fail and len(question.arms) > 1 else None
    if arm in question.allowed:
        return f"{arm} fails"
    return f"{arm} is not offered any more, not allowed, or lacks what the request needs"


def cache_life(chat: Mapping[str, Json]) -> float:
    """Longest time, in seconds, for which a chat wants its prompt cached; 0.0 if it names no time.

    Read from `prompt_cache_retention` (OpenAI: "24h") and every `cache_control.ttl` (Anthropic: "5m", "1h").
    """
    longest, parts = _parse_duration(chat.get("prompt_cache_retention")), list[Json]([chat])
    while parts:
        part = parts.pop()
        if isinstance(part, Mapping):
            control = part.get("cache_control")
            if isinstance(control, Mapping):
                longest = max(longest, _parse_duration(control.get("ttl")))
            parts += [value for key, value in part.items() if key not in KEYS_OF_CALLER]
        elif isinstance(part, list | tuple):
            parts += part
    return longest


def _parse_duration(text: Json) -> float:
    """Seconds of a text such as "24h"; 0.0 for anything else."""
    match = _LIFE.fullmatch(text) if isinstance(text, str) else None
    return 0.0 if match is None else int(match[1]) * _UNITS[match[2]]
