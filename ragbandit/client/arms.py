"""Arms that are functions of the caller: choose one, run it, report what it took.

arms = client.arms({"fast": ask_fast, "deep": ask_deep})
run = arms("Who wrote Dracula?")
run.value, run.arm, run.decision_id
client.feedback(run.decision_id, rating=True)
"""

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar, cast

from ragbandit.client.calls import Calls
from ragbandit.client.exchange import Steps, Work
from ragbandit.client.replies.decisions import ClientRouteReply
from ragbandit.router.errors import InvalidInput, RagBanditError
from ragbandit.router.redaction import without_secrets

__all__ = ["ArmRun", "Arms", "AsyncArms", "Judging", "Report", "checked_kind", "judge", "report"]

log = logging.getLogger("ragbandit.client")

_Value = TypeVar("_Value")
#: from what an arm returned to fields of its outcome: answer, steps, cost, status, stop_reason
Report = Callable[[Any], Mapping[str, object]]
#: what the result of a judging function is
Judging = Literal["rating", "label", "reward", "event"]

#: characters of an error's text that are reported
_ERROR: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmRun(Generic[_Value]):
    """An arm that was chosen and run."""

    #: what the function returned
    value: _Value
    arm: str
    #: to give feedback under
    decision_id: str
    #: the service was away: the default arm was run, and nothing is learned
    degraded: bool
    #: the outcome is stored; False: it could not be sent, which was logged, or the decision is degraded
    reported: bool
    #: that the function took
    seconds: float


def checked_functions(functions: Mapping[str, object], *, waits: bool) -> dict[str, Callable[..., Any]]:
    """The functions by arm. waits: they are called by a client that awaits nothing. Raises InvalidInput."""
    if not isinstance(functions, Mapping) or not functions:
        remedy = 'pass a function for each arm: {"fast": ask_fast, "deep": ask_deep}'
        raise InvalidInput("no arm was given", field="arms", remedy=remedy)
    for name, function in functions.items():
        if not isinstance(name, str) or not callable(function):
            message = f"{name!r:.80} is no name with a function"
            raise InvalidInput(message, field="arms", remedy="give each arm's name and a function of the question")
        if waits and inspect.iscoroutinefunction(function):
            message = f"the function of {name!r} is async, and Client awaits nothing"
            raise InvalidInput(message, field=f"arms.{name}", remedy="use AsyncClient, or a function that waits")
    return cast(dict[str, Callable[..., Any]], dict(functions))


def run_arm(
    calls: Calls,
    question: str,
    *,
    functions: Mapping[str, Callable[..., _Value]],
    outcome_of: Report | None,
    default_arm: str | None,
    more: Mapping[str, object],
) -> Steps[ArmRun[_Value]]:
    """Steps of one question: route among the functions, run the one that is drawn, report its outcome.

    What the function raises is reported as a failed outcome, and raised. default_arm: instead of the client's.
    """
    reply = yield from _routed(calls, question, functions=functions, default_arm=default_arm, more=more)
    key, began = reply["decision_id"], time.perf_counter()
    try:
        value: _Value = yield Work(function=_function(reply["arm"], functions), arguments=(question,))
        fields = _fields(value, outcome_of=outcome_of)
    except Exception as error:
        yield from report(calls, key, seconds=time.perf_counter() - began, error=error, fields={})
        raise
    seconds = time.perf_counter() - began
    reported = yield from report(calls, key, seconds=seconds, error=None, fields=fields)
    return ArmRun(
        value=value,
        arm=reply["arm"],
        decision_id=key,
        degraded=reply.get("degraded", False),
        reported=reported,
        seconds=seconds,
    )


def _routed(
    calls: Calls,
    question: str,
    *,
    functions: Mapping[str, object],
    default_arm: str | None,
    more: Mapping[str, object],
) -> Steps[ClientRouteReply]:
    given = dict(more)
    decision_id = cast(str | None, given.pop("decision_id", None))
    allowed = {"arms": list(functions), **given}
    try:
        return (yield from calls.route(question, decision_id=decision_id, default_arm=default_arm, more=allowed))
    except InvalidInput as error:
        if error.field != "arms":
            raise
        wanted = ", ".join(f"{name}: {{run_by: caller}}" for name in functions)
        remedy = f"configure them in the service (arms: {{{wanted}}}), or rename the functions; {error.remedy or ''}"
        raise InvalidInput(error.message, field="arms", remedy=remedy.rstrip("; ")) from error


def report(
    calls: Calls, decision_id: str, *, seconds: float, error: BaseException | None, fields: Mapping[str, object]
) -> Steps[bool]:
    """Steps that report an outcome: whether it is stored. What cannot be reported is logged: the answer is there.

    seconds: that the arm took. error: what it raised. fields: of the outcome; steps is 1 where they do not say.
    """
    cost = {"seconds_total": seconds, **cast(Mapping[str, float], fields.get("cost") or {})}
    failed = {} if error is None else {"status": "failed", "error": _said(error), "stop_reason": "error"}
    try:
        reply = yield from calls.outcome(decision_id, body={"steps": 1, **failed, **fields, "cost": cost})
    except RagBanditError as refused:
        log.error("the outcome of decision %s is not stored, and nothing is learned of it: %s", decision_id, refused)
        return False
    return not reply.get("degraded", False)


def _said(error: BaseException) -> str:
    text = without_secrets(str(error))  # before the cut: half a secret may not look like one
    text = text if len(text) <= _ERROR else f"{text[:_ERROR]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _function(arm: str, functions: Mapping[str, Callable[..., _Value]]) -> Callable[..., _Value]:
    if arm not in functions:
        message = f"no function was given for the arm {arm!r}"
        raise InvalidInput(message, field="arms", remedy="leave `arms` out, or name arms that have a function")
    return functions[arm]


def _fields(value: object, *, outcome_of: Report | None) -> Mapping[str, object]:
    """What an outcome says of this value."""
    if inspect.iscoroutine(value):  # of a function that does not look like one
        value.close()
        raise InvalidInput("the arm is async, and Client awaits nothing", field="arms", remedy="use AsyncClient")
    if outcome_of is None:
        return {"answer": value} if isinstance(value, str) else {}
    return dict(outcome_of(value))


def decision_id_of(judged: object) -> str:
    """The decision id of an ArmRun, of a reply, or the id itself. Raises InvalidInput for anything else."""
    found = judged.get("decision_id") if isinstance(judged, Mapping) else getattr(judged, "decision_id", judged)
    if not isinstance(found, str):
        remedy = "pass what client.arms(...) or client.route(...) returned, or the decision id, as the first argument"
        raise InvalidInput(f"no decision id in {type(judged).__name__}", field="decision_id", remedy=remedy)
    return found


def judge(
    calls: Calls,
    function: Callable[..., Any],
    *,
    kind: Judging,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    more: Mapping[str, object],
) -> Steps[Any]:
    """Steps that call a judging function, send its result as feedback, and return it; of None nothing is sent.

    arguments: its own, the run or decision id first. more: fields of the feedback.
    """
    if not arguments:
        remedy = "pass what client.arms(...) or client.route(...) returned, or the decision id, as the first argument"
        raise InvalidInput("nothing is judged", field="decision_id", remedy=remedy)
    decision_id = decision_id_of(arguments[0])
    judged = yield Work(function=function, arguments=arguments, keywords=keywords)
    if judged is not None:
        yield from calls.feedback(decision_id, body={**more, kind: judged})
    return judged


def checked_kind(kind: str) -> Judging:
    """The kind. Raises InvalidInput for what is none."""
    if kind not in ("rating", "label", "reward", "event"):
        raise InvalidInput(f"{kind!r:.80} is no feedback", field="kind", remedy="rating, label, reward or event")
    return cast(Judging, kind)


class _Functions(Generic[_Value]):
    """What `Client.arms` and `AsyncClient.arms` hold."""

    def __init__(
        self,
        calls: Calls,
        *,
        run: Callable[[Steps[Any]], Any],
        functions: Mapping[str, Callable[..., Any]],
        outcome_of: Report | None,
        default_arm: str | None,
        waits: bool,
    ) -> None:
        self._calls = calls
        self._run = run
        self._functions = checked_functions(functions, waits=waits)
        self._outcome_of = outcome_of
        self._default_arm = default_arm
        if default_arm is not None and default_arm not in self._functions:
            message = f"no function was given for the arm {default_arm!r:.80}"
            raise InvalidInput(message, field="default_arm", remedy=f"one of {', '.join(self._functions)}")

    def _steps(self, question: str, more: Mapping[str, object]) -> Steps[ArmRun[_Value]]:
        return run_arm(
            self._calls,
            question,
            functions=self._functions,
            outcome_of=self._outcome_of,
            default_arm=self._default_arm,
            more=more,
        )


class Arms(_Functions[_Value]):
    """Functions of the caller to route among, see `Client.arms`."""

    def __call__(self, question: str, **more: object) -> ArmRun[_Value]:
        """Choose one, run it and report its outcome. `more`: decision_id, context, tenant as for `Client.route`.

        Raises what the function raises, after reporting a failed outcome.
        """
        run: ArmRun[_Value] = self._run(self._steps(question, more))
        return run


class AsyncArms(_Functions[_Value]):
    """Functions of the caller to route among, see `AsyncClient.arms`."""

    async def __call__(self, question: str, **more: object) -> ArmRun[_Value]:
        """Choose one, run it and report its outcome. `more`: decision_id, context, tenant as for `Client.route`.

        Raises what the function raises, after reporting a failed outcome. Of a call that is cancelled nothing is
        reported, and nothing is learned.
        """
        run: ArmRun[_Value] = await self._run(self._steps(question, more))
        return run
