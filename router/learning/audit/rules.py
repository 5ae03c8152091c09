"""Rules of an audit: what must hold in the row of a decision and in the row of an update, each said once.

A rule gives the fault in words, or None. Nothing is trusted but the row: seeds come from the ids and
the store's secret, arms from pmf and seed, the pmf of a canary from its parts.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from ragbandit.router.policies.draw import choose, seed_of
from ragbandit.router.policies.mixing import mixed
from ragbandit.shared.types import CANDIDATE, SEEDED_ELSEWHERE, Decision, Update

#: a mixture is made of floats that the row has: but for this, another release may add them up in another order
_ROUNDING: Final = 1e-12


def seed_fault(decision: Decision, *, secret: bytes | None) -> str | None:
    """Why the seed is not one of this store: neither of its secret, nor of the id alone, as earlier releases drew."""
    if SEEDED_ELSEWHERE in decision.facts or decision.seed == seed_of(decision.id):
        return None
    follows = secret is not None and decision.seed == seed_of(decision.id, secret=secret)
    return None if follows else "the seed does not follow from the id"


def draw_fault(decision: Decision) -> str | None:
    """The first rule of a draw from its seed that the row breaks; None where it breaks none."""
    return next(_draw_faults(decision), None)


def _draw_faults(decision: Decision) -> Iterator[str]:
    """In this order: a rule may count on those before it."""
    pmf = decision.pmf
    if len(pmf) != len(decision.arms) or decision.arm not in decision.arms:
        yield "arms and pmf do not fit together"
    if not all(math.isfinite(p) and 0.0 <= p <= 1.0 for p in pmf) or abs(math.fsum(pmf) - 1.0) > 1e-9:
        yield f"pmf is no distribution: {pmf}"
    if min(pmf) < min(decision.floor, 1.0 / len(pmf)) - 1e-12:
        yield f"pmf falls below the floor {decision.floor}"
    index = choose(pmf, seed=decision.seed)
    if decision.arms[index] != decision.arm:
        yield f"the draw gives {decision.arms[index]}, the row says {decision.arm}"
    if pmf[index] != decision.propensity:
        yield f"propensity {decision.propensity} is not the pmf's {pmf[index]}"


def update_faults(update: Update, *, decision: Decision) -> Iterator[str]:
    """Disagreements between a ledger row, its decision and its own parts."""
    if update.arm != decision.arm:
        yield f"arm {update.arm}, the decision drew {decision.arm}"
    if update.propensity != decision.propensity:
        yield f"propensity {update.propensity}, the decision logged {decision.propensity}"
    reward = update.reward
    if reward.value != min(max(reward.quality - reward.weight * reward.cost, reward.minimum), reward.maximum):
        yield "the reward is not quality - weight * cost within its bounds"


def mixture_fault(decision: Decision) -> str | None:
    """Why the row's pmf is not the mixture that its facts tell; None where it is, or where no canary had a share."""
    facts = _mixture_of(decision)
    if facts is None:
        return None
    try:
        weight, champion, candidate = float(facts["weight"]), tuple(facts["champion"]), tuple(facts["pmf"])
        pmf = mixed(champion, candidate, weight=weight)
        added = decision.arms[len(decision.arms) - len(facts.get("added", ())) :]
        given = math.fsum(p for arm, p in zip(decision.arms, champion, strict=True) if arm in added)
        far = max(abs(p - q) for p, q in zip(pmf, decision.pmf, strict=True))
    except (KeyError, ValueError, TypeError, ZeroDivisionError) as error:
        return f"its canary's parts cannot be read: {error!r}"
    if not 0.0 < weight < 1.0:
        return f"its canary has the weight {weight!r}"
    if given:
        return f"the champion gives {given!r} to arms that it does not offer"
    return f"the mixture of champion and candidate is {pmf}, not its pmf" if far > _ROUNDING else None


def champion_part(decision: Decision) -> Decision:
    """The decision as the champion alone would have had it; itself where no canary had a share.

    Its facts must have passed `mixture_fault`.
    """
    facts = _mixture_of(decision)
    if facts is None:
        return decision
    own = len(decision.arms) - len(facts.get("added", ()))
    pmf = tuple(float(p) for p in facts["champion"][:own])
    return replace(decision, arms=decision.arms[:own], pmf=pmf, floor=float(facts["floor"]), scores=None)


def _mixture_of(decision: Decision) -> Mapping[str, Any] | None:
    """What the row says of the canary that had a share of its pmf."""
    facts = decision.facts.get(CANDIDATE)
    if not isinstance(facts, Mapping) or facts.get("state") != "canary" or facts.get("pmf") is None:
        return None
    return facts


#: counters of what did not agree
Counter = Literal[
    "counter_mismatches",
    "deep_mismatches",
    "ledger_mismatches",
    "propensity_mismatches",
]

#: mismatches that are described; all are counted
MOST_NAMED: Final = 20


@dataclass(kw_only=True, slots=True)
class Verdict:
    """Counts of what was checked and of what did not agree. `ok` is the exit code's question."""

    decisions: int = 0
    #: of all, the ones that were not drawn by us: their draws cannot be made again
    made_elsewhere: int = 0
    #: of all, the ones that were drawn by their ids alone after the store had a secret for seeds
    seeded_by_id: int = 0
    #: seed, drawn arm, logged propensity, sum or floor of the pmf
    propensity_mismatches: int = 0
    updates: int = 0
    #: gaps in seq, rewards that do not follow from their parts
    ledger_mismatches: int = 0
    #: updates that the policy refuses, live as in replay
    refused: int = 0
    replay_sha256: str = ""
    live_sha256: str = ""
    live_version: str = ""
    #: where the two sha256 differ by no more than rounding: the largest relative difference of the policies' arrays
    within_rounding: float | None = None
    #: with deep: decisions whose pmf was made again by the policy version that made it
    deep_decisions: int = 0
    deep_mismatches: int = 0
    #: with deep: decisions of ours that were imported, by versions whose snapshots are in another store
    not_checkable: int = 0
    #: with deep: versions whose arrays are not kept any more, so that only their decisions' pmfs are compared
    not_compared: int = 0
    #: decisions whose texts, or texts and features, were erased on request
    erased: int = 0
    #: updates of the live policy that cannot be learned again, since what they were learned from was erased
    not_relearnable: int = 0
    #: updates that an earlier release archived: their rows are not here, and are not checked
    archived: int = 0
    #: counters that differ from what is in the tables
    counter_mismatches: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """No difference anywhere, but for rounding and for what was erased or archived."""
        differences = sum(getattr(self, counter) for counter in get_args(Counter))
        same = self.replay_sha256 == self.live_sha256 or self.within_rounding is not None
        same = same or self.not_relearnable > 0 or self.archived > 0
        return differences == 0 and same and not self.broken

    @property
    def broken(self) -> bool:
        """A snapshot that is needed could not be read."""
        return self.live_version != "" and self.live_sha256 == ""

    def fail(self, counter: Counter, text: str) -> None:
        """Count a mismatch, and name it."""
        setattr(self, counter, getattr(self, counter) + 1)
        self.note(text)

    def note(self, text: str) -> None:
        """Name something, up to a number that a person reads."""
        if len(self.notes) < MOST_NAMED:
            self.notes.append(text)
