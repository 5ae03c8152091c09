"""Circuit breaker: which arms may be offered, by their last outcomes (M. Nygard, Release It!, 2007).

The circuit of an arm is *closed* (the arm is healthy and offered) until its last `failures` outcomes all failed. Then
the circuit is *open*: the arm is excluded for `cool_down_s` seconds after the last failure. Then the circuit is *half
open*: the arm is offered to one question at a time, until one draws it. This decision is the probe, and its outcome
closes or opens the circuit. If the probe has no outcome, the next one may start after another cool-down. An outcome
with an unreachable server opens the circuit at once, and one with a Retry-After for as long as that header demands.

Outcomes of our workers count for all tenants; outcomes that a tenant reports count only for its own questions. Routers
that read the same outcomes of the last COUNTED_S seconds agree, except on probes.
"""

import math
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import merge
from itertools import islice, takewhile
from threading import Lock
from typing import Final

from ragbandit.router.config.settings import COUNTED_S, HealthSettings
from ragbandit.router.storage.rows.outcome_rows import NOT_COUNTED
from ragbandit.shared.types import ArmName, CircuitState, DecisionId, OutcomeStatus

OUT_OF_SECONDS: Final = "budget_seconds"
#: number of remembered outcomes per arm, or the setting health.failures if that is larger
REMEMBERED = 100
#: maximum number of remembered pairs of arm and reporting tenant; the pair with the oldest report is dropped first
MOST_REPORTERS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeSignal:
    arm: ArmName
    decision_id: DecisionId
    status: OutcomeStatus
    stop_reason: str
    #: whether the outcome has neither an answer nor a draft
    empty: bool
    #: whether the query had a smaller time budget than the service's
    short_deadline: bool
    made_at: float
    #: tenant that reported the outcome; None if our workers ran the arm
    reporter: str | None = None
    #: seconds for which this failure suspends the arm, even without other failures
    suspends_s: float = 0.0

    @property
    def failed(self) -> bool | None:
        """Whether the arm failed; None if the outcome does not show it.

        No answer within the service's time budget is a failure. No answer within a caller's shorter budget shows
        nothing: otherwise one caller with small budgets could take an arm from all others.
        """
        if self.status == "failed":
            return None if self.stop_reason in NOT_COUNTED else True
        if self.status == "exhausted" and self.stop_reason == OUT_OF_SECONDS and self.empty:
            return None if self.short_deadline else True
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmHealth:
    arm: ArmName
    state: CircuitState
    #: whether the next question may be offered the arm; False for a half-open arm while its probe runs
    offered: bool
    #: number of failures in a row within the last COUNTED_S seconds, counted among the remembered outcomes
    failures: int
    #: time of the first of these failures; None without failures
    since: float | None


#: one outcome of an arm: (made_at, decision id, whether it failed, end of the suspension by this outcome)
_Past = tuple[float, str, bool, float]
#: (arm, tenant that reported outcomes; None for the outcomes of our workers)
_Source = tuple[ArmName, str | None]


class CircuitBreaker:
    """Circuits of all arms, for every tenant that reports outcomes. Safe to use from several threads."""

    def __init__(self, settings: HealthSettings) -> None:
        self.settings = settings
        self._past: dict[_Source, list[_Past]] = {}
        #: circuit -> (decision that is its probe, time of the draw)
        self._probes: dict[_Source, tuple[DecisionId, float]] = {}
        #: arms that are not offered whatever their outcomes are
        self.gone: Container[ArmName] = ()
        self._remembered = max(REMEMBERED, settings.failures)
        self._lock = Lock()

    def record(self, signals: Iterable[OutcomeSignal]) -> None:
        """Record outcomes, in any order; a repeated outcome changes nothing."""
        signals = list(signals)
        with self._lock:
            ended = {signal.decision_id for signal in signals}
            self._probes = {circuit: probe for circuit, probe in self._probes.items() if probe[0] not in ended}
            for signal in signals:
                if signal.failed is not None:
                    source, until = (signal.arm, signal.reporter), signal.made_at + signal.suspends_s
                    outcome = (signal.made_at, signal.decision_id, signal.failed, until)
                    past = self._past[source] = self._past.pop(source, [])  # to the end: the first leave below
                    at = bisect_left(past, outcome)
                    if past[at : at + 1] != [outcome]:
                        past.insert(at, outcome)
                        del past[: -self._remembered]
            reported = [source for source in self._past if source[1] is not None]
            for source in reported[: max(0, len(reported) - MOST_REPORTERS)]:
                del self._past[source]
                self._probes.pop(source, None)

    def healthy(
        self, wanted: Sequence[tuple[ArmName, ...]], *, now: float, tenants: Sequence[str] | None = None
    ) -> list[tuple[ArmName, ...]]:
        """For each question of a batch, the healthy arms among the wanted ones.

        A half-open arm is healthy only for the first question that wants it. tenants: the tenant of each question; None
        if only our workers' outcomes count.
        """
        healthy_arms = []
        with self._lock:
            probed: set[_Source] = set()
            seen: dict[_Source, tuple[ArmHealth, _Source]] = {}
            for number, arms in enumerate(wanted):
                tenant = None if tenants is None else tenants[number]
                offered = []
                for arm in arms:
                    source = (arm, tenant) if (arm, tenant) in self._past else (arm, None)
                    if source not in seen:
                        seen[source] = self._health(source, now=now)
                    health, circuit = seen[source]
                    if health.offered and circuit not in probed:
                        offered.append(arm)
                        if health.state == "half_open":
                            probed.add(circuit)
                healthy_arms.append(tuple(offered))
        return healthy_arms

    def record_probe(self, arm: ArmName, *, decision_id: DecisionId, now: float, tenant: str | None = None) -> None:
        """Record that a decision drew this arm, as the probe if the arm is half open."""
        with self._lock:
            source = (arm, tenant) if (arm, tenant) in self._past else (arm, None)
            health, circuit = self._health(source, now=now)
            if health.state == "half_open" and health.offered:
                self._probes[circuit] = (decision_id, now)

    def healths(self, arms: Iterable[ArmName], *, now: float) -> list[ArmHealth]:
        """State of each arm: the best of its states by our workers' outcomes and by those that tenants reported."""
        with self._lock:
            return [_best(self._views(arm, now=now)) for arm in arms]

    def suspended(self, arms: Iterable[ArmName], *, now: float) -> set[tuple[ArmName, str]]:
        """Pairs (arm, tenant): the arm is healthy, but suspended for the tenant because of the tenant's own reports."""
        pairs: set[tuple[ArmName, str]] = set()
        with self._lock:
            for arm in arms:
                views = self._views(arm, now=now)
                if _best(views).state == "closed":
                    pairs |= {(arm, key) for key, view in views.items() if key is not None and view.state != "closed"}
        return pairs

    def _views(self, arm: ArmName, *, now: float) -> dict[str | None, ArmHealth]:
        """Tenant that reported outcomes -> state of the arm for it; None -> state by our workers' outcomes, if any."""
        sources = sorted((source for source in self._past if source[0] == arm), key=lambda source: source[1] is None)
        return {source[1]: self._health(source, now=now)[0] for source in sources or [(arm, None)]}

    def _failing(self, source: _Source, *, now: float) -> list[_Past]:
        """The failures since the last success, newest first, from our workers and the tenant together."""
        common, own = self._past.get((source[0], None), []), self._past.get(source, [])
        newest = max(common[-1:] + own[-1:], default=None)
        if newest is None or not newest[2]:  # the usual case, answered early to save time
            return []
        newest_first = (reversed(self._past.get(key, ())) for key in {(source[0], None), source})
        failing = takewhile(lambda past: past[2] and past[0] > now - COUNTED_S, merge(*newest_first, reverse=True))
        return list(islice(failing, self._remembered))

    def _open_until(self, failing: Sequence[_Past]) -> float | None:
        """When an arm with these failures may be tried again; None if the failures do not suspend it."""
        limit = self.settings.failures
        ends = [until for made_at, _, _, until in failing if until > made_at]
        if len(failing) >= limit:
            ends += [made_at + self.settings.cool_down_s for made_at, *_ in failing[:1]]
        return max(ends, default=None) if limit > 0 else None

    def _health(self, source: _Source, *, now: float) -> tuple[ArmHealth, _Source]:
        """Returns (state of an arm for a source, circuit that a probe tests: the source's or that of all tenants)."""
        arm, tenant = source
        failing = self._failing(source, now=now)
        if not failing and arm not in self.gone:
            return _closed(arm), source
        until = self._open_until(failing)
        state: CircuitState = "closed"
        offered, circuit = True, source
        if until is not None:
            state = "open" if now < until else "half_open"
            if tenant is not None and self._open_until(self._failing((arm, None), now=now)) is not None:
                circuit = (arm, None)
            _, drawn_at = self._probes.get(circuit, (None, -math.inf))
            offered = state == "half_open" and now >= drawn_at + self.settings.cool_down_s
        if arm in self.gone:
            state, offered = "open", False
        since = failing[-1][0] if failing else None
        return ArmHealth(arm=arm, state=state, offered=offered, failures=len(failing), since=since), circuit


@lru_cache(maxsize=1024)
def _closed(arm: ArmName) -> ArmHealth:
    return ArmHealth(arm=arm, state="closed", offered=True, failures=0, since=None)


def _best(views: Mapping[str | None, ArmHealth]) -> ArmHealth:
    return min(views.values(), key=lambda view: (("closed", "half_open", "open").index(view.state), view.failures))
