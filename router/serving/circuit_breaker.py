"""The circuit breaker: which arms may be offered, by how their last outcomes ended. No clock, no input, no output.

An arm is *closed* (offered) until its last `failures` outcomes all failed. Then it is *open*: left out until
`cool_down_s` have passed since the last failure. Then it is *half open*: offered to one question at a time, until one
has drawn it; that trial's outcome, or another cool-down without one, decides how it goes on. One success closes it.
(M. Nygard, Release It!, 2007, "Circuit Breaker"; the states are the same, the trial is drawn and not forced.)

What is known of an arm follows from its outcomes of the last COUNTED_S seconds alone, so routers that read the same
outcomes agree, however long they have been running. Only trials are each router's own.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from threading import Lock
from typing import Final, Literal

from ragbandit.router.config.settings import COUNTED_S, HealthSettings
from ragbandit.router.types import CANCELLED, ArmName, DecisionId, OutcomeStatus

__all__ = ["LEFT_OUT", "ArmHealth", "Breaker", "Ending", "Offer"]

CircuitState = Literal["closed", "open", "half_open"]

#: where a decision's facts name the arms that it was not offered because they fail
LEFT_OUT: Final = "left_out"
#: failures that say nothing of the arm: the caller did not want the answer, asked more than the model can read, or the
#: decision's row is broken
NOT_COUNTED = frozenset({CANCELLED, "question_too_long", "unreadable"})
#: the stop reason of an arm whose seconds ran out
OUT_OF_SECONDS: Final = "budget_seconds"
#: outcomes of an arm that are remembered, or `failures` where that is more
REMEMBERED = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How one decision's outcome ended."""

    arm: ArmName
    decision_id: DecisionId
    status: OutcomeStatus
    stop_reason: str
    #: whether it has no answer, not even a draft
    empty: bool
    #: whether its query allowed fewer seconds than the service does
    hurried: bool
    made_at: float

    @property
    def failed(self) -> bool | None:
        """Whether the arm failed; None where that cannot be told.

        A budget that ran out is no failure: the arm works. But a model or a search that hangs ends so too: where not
        even the service's own seconds brought an answer, the arm failed. A query's fewer seconds prove nothing, or
        one caller in a hurry could take an arm from all others.
        """
        if self.status == "failed":
            return None if self.stop_reason in NOT_COUNTED else True
        if self.status == "exhausted" and self.stop_reason == OUT_OF_SECONDS and self.empty:
            return None if self.hurried else True
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmHealth:
    """Where one arm's circuit stands."""

    arm: ArmName
    state: CircuitState
    #: whether a question may be offered it now; of a half-open arm False while its trial is on
    offered: bool
    #: failures of the last COUNTED_S since the last outcome that was none, as far as they are remembered
    failures: int
    #: when the first of these was made; None where there are none
    since: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What one question may be offered."""

    arms: tuple[ArmName, ...]
    #: those it may not
    left_out: tuple[ArmName, ...] = ()
    #: all of them would have been left out, so none is
    forced: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    decision_id: DecisionId
    drawn_at: float


#: (made_at, decision id, failed): one outcome of an arm
_Past = tuple[float, str, bool]


class Breaker:
    """The circuits of all arms. Safe to use from several threads."""

    def __init__(self, settings: HealthSettings) -> None:
        self.settings = settings
        self._past: dict[ArmName, list[_Past]] = {}
        self._failing: dict[ArmName, list[_Past]] = {}
        self._trials: dict[ArmName, _Trial] = {}
        self._lock = Lock()

    def take(self, endings: Iterable[Ending]) -> None:
        """Take in outcomes, in any order; one that was taken before changes nothing."""
        with self._lock:
            changed: set[ArmName] = set()
            for ending in endings:
                trial = self._trials.get(ending.arm)
                if trial is not None and trial.decision_id == ending.decision_id:
                    del self._trials[ending.arm]
                if ending.failed is not None:
                    self._remember(ending.arm, (ending.made_at, ending.decision_id, ending.failed))
                    changed.add(ending.arm)
            for arm in changed:
                past = self._past[arm]
                ends = next((place for place in range(len(past), 0, -1) if not past[place - 1][2]), 0)
                self._failing[arm] = past[ends:]

    def offer(self, wanted: Sequence[tuple[ArmName, ...]], *, now: float) -> list[Offer]:
        """What each question of a group may be offered of the arms that it wants: at least one of them.

        A half-open arm goes to the first question that wants it; the next group's first question is next.
        """
        offers = []
        with self._lock:
            given: set[ArmName] = set()
            for arms in wanted:
                healths = [self._health(arm, now=now) for arm in arms]
                left_out = tuple(one.arm for one in healths if not one.offered or one.arm in given)
                if len(left_out) == len(arms):
                    offers.append(Offer(arms=arms, forced=True))
                    continue
                given.update(one.arm for one in healths if one.state == "half_open")
                offers.append(Offer(arms=tuple(arm for arm in arms if arm not in left_out), left_out=left_out))
        return offers

    def drew(self, arm: ArmName, *, decision_id: DecisionId, now: float) -> None:
        """A decision drew this arm; where the arm is half open, that is its trial."""
        with self._lock:
            health = self._health(arm, now=now)
            if health.state == "half_open" and health.offered:
                self._trials[arm] = _Trial(decision_id=decision_id, drawn_at=now)

    def healths(self, arms: Iterable[ArmName], *, now: float) -> list[ArmHealth]:
        """Where these arms' circuits stand."""
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
            trial = self._trials.get(arm)
            tried = trial is not None and now < trial.drawn_at + self.settings.cool_down_s
            offered = state == "half_open" and not tried
        since = failing[0][0] if failing else None
        return ArmHealth(arm=arm, state=state, offered=offered, failures=len(failing), since=since)
