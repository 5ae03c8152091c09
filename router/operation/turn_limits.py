"""Limits of a task and of a session (`conversation.task_limit`, `session_limit`): what one may cost, how many turns it
may have.

They are checked before a turn is decided, and count what the turns before have used. So a limit of dollars is passed by
what its last turn costs, and turns that come at once may pass a limit together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ragbandit.router.config.sections import ConversationSettings, TurnLimit
from ragbandit.router.storage.access.turn_usage import TurnUsage, used_by_session, used_by_task
from ragbandit.router.storage.decisions.continuing import newest_tasks, task_key
from ragbandit.router.storage.decisions.tasks import ENDED
from ragbandit.router.storage.decisions.turns import NAMED, TOOL_TURN
from ragbandit.router.storage.sql.database import Database
from ragbandit.shared.errors import RagBanditError
from ragbandit.shared.types import DecisionId, LimitState, Query

_NO_LIMIT: Final = TurnLimit()
_NOTHING: Final = TurnUsage(turns=0, dollars=0.0, ids=frozenset())


class LimitReached(RagBanditError, code="LIMIT_REACHED", status=429):
    """The task or session has reached its limit; a later attempt would be refused too."""

    #: all limits of the question
    limits: Sequence[LimitState] = ()


def has_limits(settings: ConversationSettings) -> bool:
    return settings.task_limit != _NO_LIMIT or settings.session_limit != _NO_LIMIT


def limits_of(query: Query, *, settings: ConversationSettings, database: Database, now: float) -> list[LimitState]:
    """The limits of a question's task and session; [] if there are none, or if the question is a repeated request.

    Raises StoreError.
    """
    limits = list[LimitState]()
    for name, limit, usage in _used(query, settings=settings, database=database, now=now):
        if query.id is not None and query.id in usage.ids:
            return []
        if limit.dollars is not None:
            limits.append(LimitState(of=name, unit="dollars", most=limit.dollars, used=round(usage.dollars, 9)))
        if limit.turns is not None:
            limits.append(LimitState(of=name, unit="turns", most=limit.turns, used=usage.turns))
    return limits


def names_arm(query: Query) -> bool:
    """Whether the caller has named the arm. Results of tools are forced to the arm of their calls, named or not."""
    link: Any = query.request.get(TOOL_TURN)
    return query.forced and (bool(link.get(NAMED)) if isinstance(link, Mapping) else True)


def refusal_of(limit: LimitState, *, limits: Sequence[LimitState]) -> LimitReached:
    """The error for a turn beyond a limit. limits: all limits of the question"""
    setting = f"conversation.{limit.of}_limit.{limit.unit}"
    end = "end the task (POST /v1/sessions/ID/end)" if limit.of == "task" else "begin another session"
    error = LimitReached(str(limit), field="session_id", remedy=f"{end}, or have the setting {setting} raised")
    error.limits = limits
    return error


def limit_headers(limits: Iterable[LimitState]) -> dict[str, str]:
    """Headers of a reply with the limits, and with what was left of them before this turn."""
    headers = dict[str, str]()
    for limit in limits:
        prefix = f"x-ragbandit-{limit.of}-{limit.unit}"
        headers |= {f"{prefix}-limit": f"{limit.most:g}", f"{prefix}-remaining": f"{max(0, limit.most - limit.used):g}"}
    return headers


def _used(
    query: Query, *, settings: ConversationSettings, database: Database, now: float
) -> Iterator[tuple[str, TurnLimit, TurnUsage]]:
    """(task or session, its limit, what it has used)"""
    task, session = settings.task_limit, settings.session_limit
    if task != _NO_LIMIT:
        first = _task_of(query, settings=settings, database=database, now=now)
        with database.look() as connection:
            yield "task", task, _NOTHING if first is None else used_by_task(connection, first)
    if session != _NO_LIMIT and query.session is not None:
        with database.look() as connection:
            usage = used_by_session(connection, query.session, tenant=query.tenant, api_key=query.api_key)
        yield "session", session, usage


def _task_of(query: Query, *, settings: ConversationSettings, database: Database, now: float) -> DecisionId | None:
    """The decision that the question continues; None if it begins a task."""
    link: Any = query.request.get(TOOL_TURN)
    if isinstance(link, Mapping):
        return DecisionId(str(link["first"]))
    key = task_key(query) if settings.is_task(query) and not query.forced else None
    task = newest_tasks(database, {key}).get(key) if key is not None else None
    return DecisionId(task.first) if task is not None and task.turns != ENDED and task.until > now else None
