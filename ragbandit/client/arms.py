"""Runs of arms that are functions of the caller (`Client.arms`), and decisions while the service cannot be reached."""

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
from ragbandit.shared.errors import InvalidInput, NotReady, RagBanditError
from ragbandit.shared.texts.redaction import error_in_short

if TYPE_CHECKING:
    from ragbandit.client.client import Client

_Value = TypeVar("_Value")
_Result = TypeVar("_Result", covariant=True)
#: converts the return value of an arm to fields of its outcome: answer, steps, cost, status, stop_reason
Report = Callable[[Any], Mapping[str, object]]


class RoutedArms(Protocol[_Result]):
    """The callable that `client.arms` returns. It routes a question, runs the chosen arm and reports the outcome."""

    def __call__(self, question: str, **more: Unpack[AskOptions]) -> _Result:
        """Returns an ArmRun (AsyncClient: an awaitable of one). more: options of `route`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmRun(Generic[_Value]):
    """A run of the chosen arm, with the return value of its function."""

    value: _Value
    arm: str
    decision_id: str
    #: whether the client chose its default arm without the service; nothing is learned from the run then
    degraded: bool
    #: whether the outcome is stored; False if sending failed (which is logged), or if the decision is degraded
    reported: bool
    seconds: float


def copy_functions(
    functions: Mapping[str, Callable[[str], _Value]], *, is_blocking: bool
) -> dict[str, Callable[[str], _Value]]:
    """Copy the functions. Raises InvalidInput if one cannot be used.

    is_blocking: whether the client calls functions synchronously, so that `async def` functions are refused.
    """
    if not isinstance(functions, Mapping) or not functions:
        remedy = 'pass a function for each arm: {"fast": ask_fast, "deep": ask_deep}'
        raise InvalidInput("no arm was passed", field="arms", remedy=remedy)
    unchecked: Mapping[Any, object] = functions
    for name, function in unchecked.items():
        if not isinstance(name, str) or not callable(function):
            message = f"{name!r:.80}: an arm needs a name and a function"
            raise InvalidInput(message, field="arms", remedy="give each arm's name and a function of the question")
        if is_blocking and inspect.iscoroutinefunction(function):
            message = f"the function of {name!r} is async, but Client calls functions synchronously"
            raise InvalidInput(message, field=f"arms.{name}", remedy="use AsyncClient, or pass a blocking function")
    return dict(functions)


def with_configuration(error: InvalidInput, *, arms: Sequence[str]) -> InvalidInput:
    """Add the missing configuration to the service's error about unknown arms."""
    if error.field != "arms":
        return error
    settings = ", ".join(f"{name}: {{run_by: caller}}" for name in arms)
    remedy = f"configure them in the service (arms: {{{settings}}}), or rename the functions; {error.remedy or ''}"
    return InvalidInput(error.message, field="arms", remedy=remedy.rstrip("; "))


def outcome_fields(*, seconds: float, error: BaseException | None, fields: Mapping[str, object]) -> dict[str, object]:
    """Fields of POST /v1/outcomes for a run. `fields` take precedence; a failed run has 0 steps by default."""
    cost = {"seconds_total": seconds, **cast(Mapping[str, float], fields.get("cost") or {})}
    failed = {} if error is None else {"status": "failed", "error": error_in_short(error), "stop_reason": "error"}
    return {**({"steps": 0} if failed else {}), **failed, **fields, "cost": cost}


def function_of(arm: str, functions: Mapping[str, Callable[..., _Value]]) -> Callable[..., _Value]:
    """The function of an arm. Raises InvalidInput if the arm has none."""
    if arm not in functions:
        message = f"no function was given for the arm {arm!r}"
        raise InvalidInput(message, field="arms", remedy="leave `arms` out, or name arms that have a function")
    return functions[arm]


class ReportedRun:
    """A block (`with` or `async with`) that runs an arm and then reports the outcome, a failed one after an Exception.

    decision_id: id of the decision; None if nothing should be reported.
    outcome_of: converts `value`, which the block sets, to fields of the outcome.
    """

    def __init__(self, client: "Client", decision_id: str | None, *, outcome_of: Report = dict) -> None:
        self.decision_id = decision_id
        self.began = time.perf_counter()
        self.value = cast(Any, None)
        self._client = client
        self._outcome_of = outcome_of

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
        """End the block. Returns whether there is an outcome to report."""
        return self.decision_id is not None and (error is None or isinstance(error, Exception))

    def _fields(self, error: BaseException | None) -> Mapping[str, object]:
        return {} if error is not None else self._outcome_of(self.value)

    def _report(self, error: BaseException | None) -> None:
        fields = cast(ReportFields, self._fields(error))
        seconds = time.perf_counter() - self.began
        self._client.report(str(self.decision_id), seconds=seconds, error=error, **fields)


log = logging.getLogger("ragbandit.client")

#: prefix of the ids of decisions that a client made by its default arm
_DEGRADED: Final = "degraded-"
#: maximum number of ids to remember that callers chose for degraded decisions
_MOST_OWN_IDS: Final = 10_000
#: number of questions in a row without any reply, after which only one question per `probe_s` is sent
_MOST_SILENT: Final = 3


def is_degraded(decision_id: str) -> bool:
    """Whether this is the id of a decision that a client made by its default arm. The service does not know the id."""
    return isinstance(decision_id, str) and decision_id.startswith(_DEGRADED)


class Fallback:
    """Makes decisions with `default_arm` if the service cannot be reached, fails or refuses the arms of a question.

    Without a default arm, errors are raised.
    probe_s: seconds between two questions that are sent to a service that does not reply.
    """

    def __init__(self, default_arm: str | None, *, probe_s: float) -> None:
        if default_arm is not None and (not isinstance(default_arm, str) or not default_arm):
            message = f'"default_arm" must be the name of an arm, not {default_arm!r:.80}'
            raise InvalidInput(message, field="default_arm", remedy="name an arm of the service")
        self.default_arm = default_arm
        #: number of decisions by the default arm, and of outcomes and feedback that were not sent
        self.count = self.withheld = 0
        self._probe_s = probe_s
        self._next_probe = 0.0
        self._is_away = False
        #: number of questions in a row without any reply
        self._silent = 0
        #: ids of degraded decisions that callers chose
        self._own_ids: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def note_decision(self, decision_id: str) -> None:
        """Record that the service made this decision."""
        with self._lock:
            self._is_away, self._silent = False, 0
            self._own_ids.pop(decision_id, None)

    def is_silent(self, *, arms: object) -> bool:
        """Whether to decide without asking the service: the last questions got no reply, and no probe is due."""
        with self._lock:
            now = time.monotonic()
            if self._silent < _MOST_SILENT or now >= self._next_probe:
                self._next_probe = now + self._probe_s
                return False
            return self.may_replace(NotReady(), arms=arms)

    def decide(self, *, decision_id: str, is_own: bool, error: RagBanditError) -> ClientRouteReply:
        """Decide without the service, because of its `error`. is_own: whether the caller chose the id."""
        arm = str(self.default_arm)
        with self._lock:
            self.count += 1
            was_away = self._is_away
            self._is_away = True
            self._silent = 0 if error.__cause__ is None else self._silent + 1  # an error without a cause is a reply
            if is_own:  # the service may have stored a decision with this id and another arm
                self._own_ids[decision_id] = None
                while len(self._own_ids) > _MOST_OWN_IDS:
                    self._own_ids.popitem(last=False)
        if not was_away:  # log once per outage
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

    def withholds(self, decision_id: object) -> bool:
        """Whether a client made this decision without the service. Counts the outcome or feedback that is not sent."""
        with self._lock:
            is_ours = isinstance(decision_id, str) and (is_degraded(decision_id) or decision_id in self._own_ids)
            self.withheld += is_ours
        return is_ours

    def may_replace(self, error: RagBanditError, *, arms: object) -> bool:
        """Whether the default arm may be used: the service failed or refused the arms, and `arms` may have it."""
        if self.default_arm is None:
            return False
        refused_arms = error.status == 403 and error.field == "arms"  # a budget or the key's scope excludes the arms
        away = error.status >= 500 or error.status == 429
        return (away or refused_arms) and (not isinstance(arms, list | tuple) or self.default_arm in arms)
