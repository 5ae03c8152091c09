"""Arms that are functions of the caller: choose one, run it, report what it took.

arms = client.arms({"fast": ask_fast, "deep": ask_deep})
run = arms("Who wrote Dracula?")
run.value, run.arm, run.decision_id
client.feedback(run.decision_id, rating=True)
"""

import asyncio
import inspect
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar, Unpack, cast

from ragbandit.client.exchange import AskOptions, ReportFields
from ragbandit.client.replies.decisions import ClientRouteReply
from ragbandit.shared.errors import InvalidInput, RagBanditError
from ragbandit.shared.redaction import without_secrets

if TYPE_CHECKING:
    from ragbandit.client.client import Client

_Value = TypeVar("_Value")
_Result = TypeVar("_Result", covariant=True)
#: from what an arm returned to fields of its outcome: answer, steps, cost, status, stop_reason
Report = Callable[[Any], Mapping[str, object]]

#: characters of an error's text that are reported
_ERROR: Final = 300


class RoutedArms(Protocol[_Result]):
    """What `client.arms` returns: chooses an arm for the question, runs it and reports; takes what `route` takes."""

    def __call__(self, question: str, **more: Unpack[AskOptions]) -> _Result:
        """An ArmRun; of AsyncClient one to await."""


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


def checked_functions(
    functions: Mapping[str, Callable[[str], _Value]], *, default_arm: str | None, waits: bool
) -> dict[str, Callable[[str], _Value]]:
    """The functions by arm. waits: they are called by a client that awaits nothing. Raises InvalidInput."""
    if not isinstance(functions, Mapping) or not functions:
        remedy = 'pass a function for each arm: {"fast": ask_fast, "deep": ask_deep}'
        raise InvalidInput("no arm was given", field="arms", remedy=remedy)
    given: Mapping[Any, object] = functions  # it may hold anything: it comes from the caller
    for name, function in given.items():
        if not isinstance(name, str) or not callable(function):
            message = f"{name!r:.80} is no name with a function"
            raise InvalidInput(message, field="arms", remedy="give each arm's name and a function of the question")
        if waits and inspect.iscoroutinefunction(function):
            message = f"the function of {name!r} is async, and Client awaits nothing"
            raise InvalidInput(message, field=f"arms.{name}", remedy="use AsyncClient, or a function that waits")
    if default_arm is not None and default_arm not in functions:
        message = f"no function was given for the arm {default_arm!r:.80}"
        raise InvalidInput(message, field="default_arm", remedy=f"one of {', '.join(functions)}")
    return dict(functions)


def with_configuration(error: InvalidInput, *, arms: Sequence[str]) -> InvalidInput:
    """The refusal of arms that the service does not have, with what to configure."""
    if error.field != "arms":
        return error
    wanted = ", ".join(f"{name}: {{run_by: caller}}" for name in arms)
    remedy = f"configure them in the service (arms: {{{wanted}}}), or rename the functions; {error.remedy or ''}"
    return InvalidInput(error.message, field="arms", remedy=remedy.rstrip("; "))


def outcome_body(
    *, seconds: float, error: BaseException | None = None, fields: Mapping[str, object]
) -> dict[str, object]:
    """Fields of an outcome. seconds: that the arm took. error: what it raised: then steps are 0 where nobody says.

    What an answer took is not made up: where the reward charges nothing of what is sent, the service refuses it.
    """
    cost = {"seconds_total": seconds, **cast(Mapping[str, float], fields.get("cost") or {})}
    failed = {} if error is None else {"status": "failed", "error": _error_text(error), "stop_reason": "error"}
    return {**({"steps": 0} if failed else {}), **failed, **fields, "cost": cost}


def refusal(error: RagBanditError) -> str:
    """Why an outcome is not stored; where its cost is missing, how to say it."""
    if getattr(error, "field", None) not in ("steps", "cost"):
        return str(error)
    return f"{error}; or say with `outcome_of` what an arm took"


def _error_text(error: BaseException) -> str:
    text = without_secrets(str(error))  # before the cut: half a secret may not look like one
    text = text if len(text) <= _ERROR else f"{text[:_ERROR]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def function_of(arm: str, functions: Mapping[str, Callable[..., _Value]]) -> Callable[..., _Value]:
    """The function of this arm. Raises InvalidInput."""
    if arm not in functions:
        message = f"no function was given for the arm {arm!r}"
        raise InvalidInput(message, field="arms", remedy="leave `arms` out, or name arms that have a function")
    return functions[arm]


class ReportedRun:
    """A block (`with` or `async with`) that runs the arm of a decision; at its end the outcome is reported.

    What it raises is a failed outcome. outcome_of: from `value`, which the block sets, to fields of the outcome.
    """

    def __init__(self, client: "Client", decision_id: str | None, *, outcome_of: Report = dict) -> None:
        self.decision_id, self.began, self.value = decision_id, time.perf_counter(), cast(Any, None)
        self._client, self._outcome_of = client, outcome_of

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if self._leave(error):
            self._report(error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if self._leave(error):
            await asyncio.to_thread(self._report, error)

    def _leave(self, error: BaseException | None) -> bool:
        """Whether there is an outcome to report."""
        return self.decision_id is not None and (error is None or isinstance(error, Exception))

    def _report(self, error: BaseException | None) -> None:
        fields = cast(ReportFields, self._fields(error))
        seconds = time.perf_counter() - self.began
        self._client.report(str(self.decision_id), seconds=seconds, error=error, **fields)

    def _fields(self, error: BaseException | None) -> Mapping[str, object]:
        return {} if error is not None else self._outcome_of(self.value)


log = logging.getLogger("ragbandit.client")

#: decision ids of a client whose service was away begin with this
_DEGRADED: Final = "degraded-"
#: own ids of callers that are remembered as degraded, so that nothing is reported for them
_REMEMBERED: Final = 10_000


def is_degraded(decision_id: str) -> bool:
    """Whether a client made this decision id because its service was away: nothing is stored under it."""
    return isinstance(decision_id, str) and decision_id.startswith(_DEGRADED)


class Fallback:
    """What one client does without its service. Safe to use from several threads.

    default_arm: what `route` names then; None: it raises.
    """

    def __init__(self, default_arm: str | None) -> None:
        if default_arm is not None and (not isinstance(default_arm, str) or not default_arm):
            message = f'"default_arm" must be the name of an arm, not {default_arm!r:.80}'
            raise InvalidInput(message, field="default_arm", remedy="name an arm of the service")
        self.default_arm = default_arm
        #: decisions that the client had to do without
        self.count = 0
        self._is_away = False
        self._own_ids: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def decided(self, decision_id: str) -> None:
        """The service has decided, under this id."""
        with self._lock:
            self._is_away = False
            self._own_ids.pop(decision_id, None)

    def reply(self, arm: str, *, decision_id: str, is_own: bool, error: RagBanditError) -> ClientRouteReply:
        """A decision for this arm. is_own: the id is the caller's. error: why the service did not make it."""
        with self._lock:
            self.count += 1
            was_away, self._is_away = self._is_away, True
            if is_own:  # it may be reported under the caller's id, which the service may know under another arm
                self._own_ids[decision_id] = None
                while len(self._own_ids) > _REMEMBERED:
                    self._own_ids.popitem(last=False)
        if not was_away:  # once an outage
            log.warning("routing by default_arm %r, nothing is learned: %s", arm, error)
        return ClientRouteReply(
            decision_id=f"{_DEGRADED}{decision_id}",
            arm=arm,
            propensity=1.0,
            pmf={arm: 1.0},
            scores=None,
            policy="",
            version="",
            explored=False,
            fault=f"the service {'refused' if error.status == 403 else 'was away'}: {error.message}",
            cost_weight=None,
            price=None,
            route_ms=0.0,
            degraded=True,
        )

    def has(self, decision_id: object) -> bool:
        """Whether this decision was made by this client, or by another, because the service was away."""
        with self._lock:
            return isinstance(decision_id, str) and (is_degraded(decision_id) or decision_id in self._own_ids)

    def may_replace(self, error: RagBanditError, *, arm: str, arms: object) -> bool:
        """Whether the service cannot serve, or refuses the arms, and this arm is one of those allowed."""
        refused_arms = error.status == 403 and error.field == "arms"  # by a budget, or by the scope of the key
        away = error.status >= 500 or error.status == 429
        return (away or refused_arms) and (not isinstance(arms, list | tuple) or arm in arms)
