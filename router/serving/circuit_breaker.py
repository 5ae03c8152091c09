"""Circuit breaker: which arms may be offered, by how their last outcomes ended. It reads no clock and no store.

The circuit of an arm is *closed* (the arm is healthy and offered) until its last `failures` outcomes all failed. Then
it is *open*: the arm is excluded until `cool_down_s` have passed since the last failure. Then it is *half open*: the
arm is offered to one question at a time, until one draws it. That decision is the probe: its outcome decides what
comes next; without an outcome the next probe may start after another cool-down. One success closes the circuit.
(M. Nygard, Release It!, 2007, "Circuit Breaker". Unlike there, a probe is a question
that happens to draw the arm; none is sent on purpose.)

The state of an arm depends only on its outcomes of the last COUNTED_S seconds, so routers that read the same outcomes
agree, however long they have been running. Only probes are local to each router.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from threading import Lock
from typing import Final, Literal

from ragbandit.router.config.settings import COUNTED_S, HealthSettings
from ragbandit.router.types import CANCELLED, ArmName, DecisionId, OutcomeStatus

__all__ = ["EXCLUDED_ARMS", "ArmHealth", "CircuitBreaker", "Offer", "OutcomeSignal"]

CircuitState = Literal["closed", "open", "half_open"]

#: key in a decision's facts: the arms that were excluded because they fail
EXCLUDED_ARMS: Final = "left_out"
#: stop reasons of failures that do not count against the arm: the caller cancelled, the question is longer than the
#: model can read, or the decision's row is damaged
NOT_COUNTED = frozenset({CANCELLED, "question_too_long", "unreadable"})
#: stop reason of an arm whose time budget ran out
OUT_OF_SECONDS: Final = "budget_seconds"
#: outcomes of an arm that are remembered, or `failures` where that is more
REMEMBERED = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeSignal:
    """Outcome of one decision, as far as the circuit breaker needs it."""

    arm: ArmName
    decision_id: DecisionId
    status: OutcomeStatus
    stop_reason: str
    #: there is no answer, not even a draft
    empty: bool
    #: the query allowed fewer seconds than the service does
    short_deadline: bool
    made_at: float

    @property
    def failed(self) -> bool | None:
        """True if the arm failed; None if the outcome does not tell.

        A budget that ran out is no failure in itself. But a model or a search that hangs ends the same way: if the
        service's full time budget brought no answer, the arm failed. A shorter deadline set by the query proves
        nothing; otherwise one caller with short deadlines could take an arm from all others.
        """
        if self.status == "failed":
            return None if self.stop_reason in NOT_COUNTED else True
        if self.status == "exhausted" and self.stop_reason == OUT_OF_SECONDS and self.empty:
            return None if self.short_deadline else True
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmHealth:
    """State of one arm's circuit."""

    arm: ArmName
    state: CircuitState
    #: whether the next question may be offered the arm; False for a half-open arm while its probe runs
    offered: bool
    #: failures in a row within the last COUNTED_S, at most as many as are remembered
    failures: int
    #: time of the first of these; None if there are none
    since: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """The arms that one question may be offered."""

    arms: tuple[ArmName, ...]
    #: arms that it may not be offered because they fail
    excluded_arms: tuple[ArmName, ...] = ()
    #: every arm would have been excluded, so none is
    fail_open: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Probe:
    decision_id: DecisionId
    drawn_at: float


#: (made_at, decision id, failed): one outcome of an arm
_Past = tuple[float, str, bool]


class CircuitBreaker:
    """Circuits of all arms. Safe to use from several threads."""

    def __init__(self, settings: HealthSettings) -> None:
        self.settings = settings
        self._past: dict[ArmName, list[_Past]] = {}
        self._failing: dict[ArmName, list[_Past]] = {}
        self._probes: dict[ArmName, _Probe] = {}
        self._lock = Lock()

    def record(self, signals: Iterable[OutcomeSignal]) -> None:
        """Record outcomes, in any order; an outcome that was recorded before changes nothing."""
        with self._lock:
            changed: set[ArmName] = set()
            for signal in signals:
                probe = self._probes.get(signal.arm)
                if probe is not None and probe.decision_id == signal.decision_id:
                    del self._probes[signal.arm]
                if signal.failed is not None:
                    self._remember(signal.arm, (signal.made_at, signal.decision_id, signal.failed))
                    changed.add(signal.arm)
            for arm in changed:
                past = self._past[arm]
                ends = next((place for place in range(len(past), 0, -1) if not past[place - 1][2]), 0)
                self._failing[arm] = past[ends:]

    def offer(self, wanted: Sequence[tuple[ArmName, ...]], *, now: float) -> list[Offer]:
        """The arms that each question of a batch may be offered, of those that it wants: at least one.

        A half-open arm is offered to the first question of the batch that wants it, and to no other.
        """
        offers = []
        with self._lock:
            given: set[ArmName] = set()
            known: dict[tuple[ArmName, ...], Offer] = {}
            for arms in wanted:
                offer = known.get(arms)
                if offer is None:
                    offer, probed = self._offer(arms, given=given, now=now)
                    if probed:  # the same arms are another offer from here on
                        given |= probed
                        known.clear()
                    else:
                        known[arms] = offer
                offers.append(offer)
        return offers

    def _offer(self, arms: tuple[ArmName, ...], *, given: set[ArmName], now: float) -> tuple[Offer, set[ArmName]]:
        """The offer to a question that wants these arms, and the half-open ones in it. given: to earlier questions."""
        healths = [self._health(arm, now=now) for arm in arms]
        excluded = tuple(one.arm for one in healths if not one.offered or one.arm in given)
        if len(excluded) == len(arms):
            return Offer(arms=arms, fail_open=True), set()
        half_open = {one.arm for one in healths if one.state == "half_open"}
        return Offer(arms=tuple(arm for arm in arms if arm not in excluded), excluded_arms=excluded), half_open

    def record_probe(self, arm: ArmName, *, decision_id: DecisionId, now: float) -> None:
        """A decision drew this arm; where the arm is half open, that is its probe."""
        with self._lock:
            health = self._health(arm, now=now)
            if health.state == "half_open" and health.offered:
                self._probes[arm] = _Probe(decision_id=decision_id, drawn_at=now)

    def healths(self, arms: Iterable[ArmName], *, now: float) -> list[ArmHealth]:
        """State of these arms' circuits."""
        with self._lock:
            return [self._health(arm, now=now) for arm in arms]

    def _remember(self, arm: ArmName, one: _Past) -> None:
        past = self._past.setdefault(arm, [])
        place = bisect_left(past, one)
        if past[place : place + 1] != [one]:
            past.insert(place, one)
            del past[: -max(REMEMBERED, self.settings.failures)]

    def _health(self, arm: ArmName, *, now: float) -> ArmHealth:
        failing = self._failing.get(arm, [])
        failing = failing[bisect_right(failing, now - COUNTED_S, key=itemgetter(0)) :]
        state: CircuitState = "closed"
        offered = True
        if 0 < self.settings.failures <= len(failing):
            state = "open" if now < failing[-1][0] + self.settings.cool_down_s else "half_open"
            probe = self._probes.get(arm)
            tried = probe is not None and now < probe.drawn_at + self.settings.cool_down_s
            offered = state == "half_open" and not tried
        since = failing[0][0] if failing else None
        return ArmHealth(arm=arm, state=state, offered=offered, failures=len(failing), since=since)
